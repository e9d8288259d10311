// What is read rather than seen: the scoreboard, the event log, the guide's sentences, the live region.
import { byId, el, seconds } from "./dom.js";
import { live } from "./engine.js";
import { pickHistory, pickStory, sandbox, seek, state } from "./state.js";
import { indexAt, scoreAt } from "./trace.js";
import { describe } from "./words.js";

const MOST = 200;
const FIRST = "An empty world. Try this: Acquire on A, then GC pause; Acquire on B. After 5 seconds B has the lock: Write. A wakes after 8: Write on A, too.";
let records = [];
let shown = "";
let told = -1;
let scored = "";

export function newTrace() {
  const { model } = state;
  records = [];
  for (const line of model.lines) {
    const said = model.unkept.has(line) ? { kind: "worse", text: `⚠ ${line.who} was told 'done', but its write (token ${line.token}) was never made` } : describe(line, model.owner);
    if (said) records.push({ t: line.t, ...said });
  }
  const found = (model.report?.violations ?? []).slice(0, 500);
  if (found.length) records = [...records, ...found.map(({ t, check, what }) => ({ t, kind: "worse", text: `⚠ Broken promise, ${check}: ${what}` }))].sort((a, b) => a.t - b.t);
  shown = "";
  scored = "";
  told = indexAt(records, state.t);
  showGuide();
}

export function showScore() {
  const score = scoreAt(state.model, state.t);
  const fenced = state.scenario?.settings.fencing !== "off";
  const rows = [
    ["holder", "Holder", score.holders.map((each) => each.who).join(" + ") || "none"],
    ["token", "Token", score.holders.map((each) => each.token).join(" + ") || "–"],
    fenced ? ["mark", "Mark", score.mark ?? "–"] : ["mark", "Highest token", score.highest ?? "–", "seen, not compared"],
    ["value", "Value", score.value ?? 0],
    ["accepted", "Accepted", score.accepted, score.writers.length ? `from ${score.writers.join(", ")}` : ""],
    ["refused", "✗ Refused", score.refused],
    ["corrupted", "⚠ Corrupted", score.corrupted],
    ["lost", "⚠ Lost updates", score.lost, score.unkept ? `${score.unkept} told 'done', never made` : ""],
  ];
  const key = JSON.stringify(rows);
  if (key === scored) return;
  scored = key;
  byId("score").replaceChildren(...rows.map(([name, label, value, more]) => el("div", { class: `cell ${name}${["refused", "corrupted", "lost"].includes(name) && value ? " on" : ""}` }, el("dt", null, label), el("dd", { "data-score": name }, String(value)), el("dd", { class: "more" }, more ?? ""))));
}

export function showLog() {
  const all = byId("quiet").checked;
  const last = indexAt(records, state.t);
  if (shown === `${last} ${all}`) return;
  shown = `${last} ${all}`;
  const listed = [];
  for (let at = last; at >= 0 && listed.length < MOST; at--) if (all || records[at].kind !== "quiet") listed.push(records[at]);
  byId("log").replaceChildren(...listed.map((record) => el("li", { class: record.kind },
    el("button", { type: "button", class: "when", "aria-label": `Go to ${seconds(record.t)}`, onclick: () => seek(record.t) }, seconds(record.t)), el("span", null, record.text))));
}

/** Say aloud what has happened since the last time, if time went on by itself. */
export function announce() {
  const last = indexAt(records, state.t);
  const fresh = records.slice(Math.max(told + 1, last - 3), last + 1).filter((record) => record.kind !== "quiet");
  told = last;
  if (fresh.length) byId("live").textContent = fresh.map((record) => record.text).join(". ");
}

export function showNotes() {
  const { notes } = state.model;
  const count = indexAt(notes, state.t) + 1;
  const list = byId("notes");
  if (Number(list.dataset.count) === count && list.dataset.of === String(notes.length)) return;
  list.dataset.count = count;
  list.dataset.of = notes.length;
  list.replaceChildren(...notes.slice(0, count).map((note, at) => el("li", at === count - 1 ? { class: "current" } : null, note.text)));
  list.scrollTop = list.scrollHeight;
}

function showGuide() {
  const { story, variant, stories, scenario } = state;
  const select = byId("story");
  if (!select.options.length) {
    select.append(...stories.map((each, at) => el("option", { value: each.name }, `${at + 1}. ${each.title}`)));
    if (state.options.play) select.append(el("option", { value: "*play" }, "What --play was given"));
    select.append(el("option", { value: "*own" }, "Your own, from an empty world"));
    showLive();
  }
  select.value = story ? story.name : state.played && state.options.play ? "*play" : "*own";
  const own = scenario?.actions.length ? "Your own scenario. The link holds all of it." : FIRST;
  byId("about").textContent = story ? story.about : state.played ? `A recorded history${state.name ? `, ${state.name}` : ""} (${state.model.source}). ${held(state.model.report)}` : own;
  byId("variants").replaceChildren(...(story?.variants ?? []).map((each, at) => el("button", {
    type: "button", "aria-pressed": String(at === variant), onclick: () => pickStory(story, at, null),
  }, each.label)));
  byId("notes").dataset.count = -1;
  byId("notes").hidden = state.model.notes.length === 0;
}

/** What `fencepost check` says of a history. */
function held(report) {
  if (!report) return "";
  if (report.error) return `It could not be checked: ${report.error}`;
  const those = (state) => Object.keys(report.promises).filter((name) => report.promises[name] === state);
  const [broken, kept, open] = ["broken", "kept", "not checked"].map(those);
  const parts = [
    broken.length ? `⚠ Broken: ${broken.join(", ")} (${report.violations.length} times; the log says when).` : "",
    kept.length ? `✓ Kept: ${kept.join(", ")}.` : "",
    open.length ? `? Not checked: ${open.map((name) => `${name} (${report.unchecked[name]})`).join(", ")}.` : "",
  ];
  return `fencepost check: ${parts.filter(Boolean).join(" ")}`;
}

/** Scenarios of one's own are there to be picked only while they can be run. */
export function showLive() {
  const own = byId("story").querySelector('option[value="*own"]');
  if (own) own.disabled = !live();
}

function pick(name) {
  if (name === "*own") return sandbox();
  state.playing = false;
  if (name === "*play") return pickHistory();
  return pickStory(state.stories.find((each) => each.name === name));
}

/** The time of the event before or after now; the ends if there is none. */
export function neighbour(direction) {
  const at = indexAt(records, state.t);
  if (direction > 0) return records[at + 1]?.t ?? Infinity;
  const earlier = records.findLast((record) => record.t < state.t - 1e-9);
  return earlier?.t ?? 0;
}

export function setUp() {
  byId("story").addEventListener("change", (event) => pick(event.target.value));
  byId("quiet").addEventListener("change", showLog);
}
