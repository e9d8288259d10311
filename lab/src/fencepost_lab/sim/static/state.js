// The one state of the page: a scenario, its trace, and the time. Everything shown follows from it.
import { check, live, run, text } from "./engine.js";
import { build, parseLines } from "./trace.js";

const LONGEST = 600;
const listeners = new Set();
export const state = {
  options: null, stories: [], story: null, variant: 0, scenario: null, played: false, model: null,
  t: 0, playing: false, speed: 1, span: null, keepLater: false, startClock: true, undo: [], error: "", name: "",
};

export const subscribe = (listener) => listeners.add(listener);
/** Tell everyone what changed: "run" (a new trace), "time", "play", "view" or "engine". */
export const changed = (what) => listeners.forEach((listener) => listener(what));

export async function getJSON(path) {
  const reply = await fetch(path);
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

let queue = Promise.resolve();

/** One change after the other, as they were asked for: each begins with what the one before it has shown. */
function inTurn(step) {
  const done = queue.then(step);
  queue = done.catch(() => {});
  return done;
}

/** Show the lines that `load` fetches, at `t` (null: where the time is by then). True if they are shown. */
async function show(load, update, t) {
  try {
    const given = await load();
    const model = build(typeof given === "string" ? parseLines(given) : given);
    Object.assign(state, { played: false }, update(model), { model, error: "" });
    state.t = Math.max(0, Math.min(t ?? state.t, model.until));
  } catch (error) {
    state.error = error.message;
    state.playing = false;
  }
  changed("run");
  return state.error === "";
}

function remember() {
  if (state.scenario) state.undo.push({ story: state.story, variant: state.variant, scenario: state.scenario, t: state.t });
  if (state.undo.length > 100) state.undo.shift();
}

export const undo = () => inTurn(() => {
  const last = state.undo.pop();
  if (!last) return false;
  return last.story ? showStory(last.story, last.variant, last.t) : showScenario(last.scenario, last.t);
});

function showStory(story, variant, t) {
  const chosen = story.variants[variant];
  return show(() => text(chosen.trace), () => ({ story, variant, scenario: chosen.scenario }), t);
}

function showScenario(scenario, t) {
  for (const story of state.stories) {
    const variant = story.variants.findIndex((each) => JSON.stringify(each.scenario) === JSON.stringify(scenario));
    if (variant >= 0) return showStory(story, variant, t);
  }
  if (!live()) {
    state.error = state.options.engine === "page" ? "Python is not running in this page yet: wait until it is loaded, then try again."
      : "This copy of the page plays recorded scenarios only. Start 'fencepost sim' to run your own.";
    changed("run");
    return false;
  }
  return show(() => run(scenario), (model) => ({ story: null, variant: 0, scenario: model.scenario }), t);
}

/** Play a history. That of a simulation carries its scenario, so one can go on from it. */
async function showHistory(load, t) {
  const shown = await show(load, (model) => ({ story: null, variant: 0, scenario: model.scenario, played: true }), t);
  if (shown) hold(state.model);
  return shown;
}

/** Hold a history to its promises, as `fencepost check` does, while it is looked at already. */
async function hold(model) {
  if (!live()) return;
  let report;
  try {
    report = await check(model.given.map((line) => JSON.stringify(line)).join("\n"));
  } catch (error) {
    report = { violations: [], promises: {}, error: error.message };
  }
  model.report = report;
  if (state.model === model) changed("report");
}

/** Once Python is there: what was opened before it can be checked now. */
export function checkLate() {
  if (state.played && state.model && !state.model.report) hold(state.model);
}

export const openStory = (story, variant, t = 0) => inTurn(() => showStory(story, variant, t));
export const openScenario = (scenario, t = 0) => inTurn(() => showScenario(scenario, t));
export const openHistory = (load = () => text("data/history.jsonl"), t = 0, name = "") => inTurn(() => {
  state.name = name;
  return showHistory(load, t);
});

/** The same by hand, so that it can be undone: a guided scenario, what --play was given, or an empty world. */
export const pickStory = (story, variant = 0, t = 0) => inTurn(() => {
  remember();
  return showStory(story, variant, t ?? state.t);
});

/** What comes next is decided in turn too: a change that is still under way may have left the scenario. */
export const nextStory = () => inTurn(() => {
  remember();
  state.playing = false;
  return showStory(state.stories[(state.stories.indexOf(state.story) + 1) % state.stories.length], 0, 0);
});

export const nextVariant = () => inTurn(() => {
  if (!state.story) return false;
  remember();
  return showStory(state.story, (state.variant + 1) % state.story.variants.length, state.t);
});

export function pickHistory() {
  inTurn(remember);
  return openHistory();
}

export const sandbox = () => inTurn(() => {
  remember();
  state.playing = false;
  const settings = { ...state.options.settings, ...(state.scenario && { fencing: state.scenario.settings.fencing }) };
  return showScenario({ seed: 1, settings, actions: [], until: 20 }, 0);
});

/** Open what a file holds: a scenario, as saved here or kept by a failing seed, or a history. */
export async function openGiven(load) {
  let given;
  try {
    given = await load();
  } catch (error) {
    state.error = error.message;
    return changed("run");
  }
  return given.scenario ? openScenario(given.scenario, 0) : openHistory(() => given.lines, 0, given.name);
}

/** Fork at the current time: what comes later is dropped, unless it is to be kept. */
export function act(action) {
  const at = Math.round(state.t * 1000) / 1000;
  return inTurn(() => perform(action, at));
}

async function perform(action, at) {
  if (!state.scenario || !live()) return;
  remember();
  const { scenario } = state;
  const before = scenario.actions.filter((each) => each.at <= at);
  const after = state.keepLater ? scenario.actions.filter((each) => each.at > at) : [];
  const longer = at + Math.max(10, 2 * scenario.settings.ttl, (action.for ?? 0) + 4);
  const until = Math.min(LONGEST, Math.max(scenario.until, Math.ceil(longer)));
  const done = await showScenario({ ...scenario, actions: [...before, { at, ...action }, ...after], until }, null);
  if (done && state.startClock && !state.playing) {
    state.playing = true;
    changed("play");
  }
}

/** Run the same actions with other settings; a guided scenario stays one if a variant has these. */
export const change = (settings) => inTurn(() => apply(settings));

function apply(settings) {
  if (!state.scenario || !live()) return;
  remember();
  const wanted = { ...state.scenario.settings, ...settings };
  const variants = state.story?.variants ?? [];
  const same = (a, b) => Object.keys(a).every((key) => JSON.stringify(a[key]) === JSON.stringify(b[key]));
  const found = variants.findIndex((each) => same(wanted, each.scenario.settings));
  if (found >= 0) return showStory(state.story, found, null);
  const told = new Set((variants[state.variant]?.notes ?? []).map((note) => note.text));
  const known = new Set([...wanted.clients, "service", "resource", "holder", "all", ...state.options.machines[wanted.backend]]);
  const there = (name) => (name === undefined || known.has(name) ? name : "service");
  const machines = state.options.machines[wanted.backend];
  const possible = (each) => machines.length > 0 || each.do === "evict" || !(each.who === "service" || state.options.service_actions.includes(each.do));
  const meant = (each) => ({ ...each, who: there(each.who) });
  const actions = state.scenario.actions.filter((each) => !told.has(each.text) && possible(meant(each))).map((each) => {
    const kept = { ...each };
    for (const key of ["who", "from"]) if (kept[key] !== undefined) kept[key] = there(kept[key]);
    return kept;
  });
  return showScenario({ ...state.scenario, settings: wanted, actions }, null);
}

const longer = () => !state.story && state.scenario && live() && state.scenario.until < LONGEST;
let extending = false;

/** More time at the end of a scenario of one's own; false if there is no more. The clock asks until it is there. */
export function extend() {
  if (!longer()) return false;
  if (!extending) {
    extending = true;
    inTurn(async () => {
      const { scenario } = state;
      if (longer() && state.t >= state.model.until) await showScenario({ ...scenario, until: Math.min(LONGEST, scenario.until + 10) }, null);
    }).finally(() => { extending = false; });
  }
  return true;
}

export function seek(t, playing = false) {
  if (!state.model) return;
  state.t = Math.max(0, Math.min(state.model.until, t));
  const stopped = state.playing && !playing;
  state.playing = playing && state.playing;
  changed("time");
  if (stopped) changed("play");
}
