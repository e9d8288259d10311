// Puts the page together: loads what there is, runs the clock, and shows every change.
import * as controls from "./controls.js";
import { byId, el, seconds } from "./dom.js";
import * as keys from "./keys.js";
import * as panels from "./panels.js";
import { address, needsEngine, openAddress, openFile, saveJSON, saveSVG } from "./address.js";
import * as engine from "./engine.js";
import { changed, checkLate, extend, getJSON, openHistory, openStory, seek, state, subscribe } from "./state.js";
import * as timeline from "./timeline.js";

const SPEEDS = [0.01, 0.1, 0.25, 0.5, 1, 2, 4, 8];

function stored(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch { /* without storage the theme lasts as long as the page */ }
  return null;
}

function showTime() {
  const { model, t } = state;
  const scrub = byId("scrub");
  scrub.max = model.until;
  scrub.value = t;
  scrub.setAttribute("aria-valuetext", seconds(t));
  byId("clock").textContent = `${t.toFixed(3)} of ${model.until.toFixed(0)} s`;
  panels.showScore();
  panels.showLog();
  panels.showNotes();
  controls.show();
}

function showPlay() {
  byId("play").textContent = state.playing ? "‖ Pause" : "▶ Play";
}

let named = "";
let awaited = ""; // an address that waits for Python
function showAddress() {
  if (!state.model || awaited) return;
  named = address();
  history.replaceState(null, "", named);
}

function show(what) {
  if (what === "run") {
    byId("error").hidden = !state.error;
    byId("error").textContent = state.error;
    if (!state.model) return;
    panels.newTrace();
    controls.showSwitches();
    timeline.draw();
    showTime();
    showPlay();
    showAddress();
  } else if (what === "time") {
    timeline.move();
    showTime();
    if (!state.playing) {
      panels.announce();
      later();
    }
  } else if (what === "view") timeline.draw();
  else if (what === "report") panels.newTrace(true);
  else if (what === "play") {
    showPlay();
    if (state.playing) start();
    else showAddress();
  }
}

let waiting = 0;
/** Browsers limit how often the address may change. */
function later() {
  clearTimeout(waiting);
  waiting = setTimeout(showAddress, 400);
}

let last = null;
function start() {
  if (last !== null) return;
  const tick = (now) => {
    if (!state.playing || !state.model) { last = null; return; } // a recording that could not be fetched plays nothing
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const passed = (now - last) / 1000;
    if (!calm || passed > 0.5) {
      last = now;
      const t = state.t + Math.min(passed, 1) * state.speed;
      seek(t, true);
      panels.announce();
      if (t >= state.model.until && !extend()) {
        state.playing = false;
        changed("play");
      }
    }
    requestAnimationFrame(tick);
  };
  last = performance.now();
  requestAnimationFrame(tick);
}

function toggle() {
  if (!state.model) return;
  if (!state.playing && state.t >= state.model.until && !extend()) seek(0);
  state.playing = !state.playing;
  changed("play");
}

function theme(next) {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = next ?? (dark === "dark" ? "light" : "dark");
  stored("theme", document.documentElement.dataset.theme);
}

async function copyLink() {
  if (!state.story && !state.scenario) return say("A history has no link");
  showAddress();
  try {
    await navigator.clipboard.writeText(location.href);
    say("Copied");
  } catch {
    say("Link is in the address bar");
  }
}

function say(words) {
  byId("live").textContent = byId("link").textContent = words;
  setTimeout(() => { byId("link").textContent = "Copy link"; }, 2500);
}

function setUp() {
  const click = (id, does) => byId(id).addEventListener("click", does);
  byId("speed").append(...SPEEDS.map((each) => el("option", { value: each }, `${each}×`)));
  byId("speed").value = state.speed;
  byId("speed").addEventListener("change", (event) => { state.speed = Number(event.target.value); });
  byId("scrub").addEventListener("input", (event) => seek(Number(event.target.value)));
  byId("more").open = innerWidth > 860;
  click("play", toggle);
  click("start", () => seek(0));
  click("finish", () => seek(Infinity));
  click("next", () => seek(panels.neighbour(1)));
  click("back", () => seek(panels.neighbour(-1)));
  click("closer", () => timeline.zoom(0.5));
  click("wider", () => timeline.zoom(2));
  click("whole", () => timeline.zoom(0));
  click("link", copyLink);
  click("open", () => byId("file").click());
  byId("file").addEventListener("change", async (event) => {
    await openFile(event.target.files[0]);
    event.target.value = "";
  });
  takeDrops();
  click("json", saveJSON);
  click("svg", () => saveSVG(byId("timeline")));
  click("theme", () => theme());
  for (const part of [controls, panels, keys, timeline]) part.setUp();
  // What it was changed to: since then the page may have written another address over it.
  addEventListener("hashchange", (event) => {
    const { hash } = new URL(event.newURL);
    if (state.options && hash !== named) follow(hash);
  });
  click("load", engine.load);
  for (const kind of ["change", "click", "keydown"]) byId("guide").addEventListener(kind, () => { awaited = ""; }); // the reader has chosen something else
  byId("stores").open = innerWidth > 860;
  byId("what").open = innerWidth > 860 && stored("what") !== "closed"; // a reader who has closed it knows it
  byId("what").addEventListener("toggle", () => { if (innerWidth > 860) stored("what", byId("what").open ? "open" : "closed"); });
}

/** A file may be dropped anywhere; while one is dragged over the page, it says so. */
function takeDrops() {
  const over = (is) => { byId("drop").hidden = !is; };
  const files = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => over(files(event)));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    const [file, ...more] = event.dataTransfer.files;
    if (more.length) return Object.assign(byId("error"), { hidden: false, textContent: "One file at a time: a scenario or a history." });
    return openFile(file);
  });
}

/** Open an address now, or once Python is there if it needs that. */
async function follow(hash) {
  awaited = "";
  if (needsEngine(hash) && !engine.live() && state.options.engine === "page" && engine.engine.stage !== "failed") {
    awaited = hash;
    showEngine();
    return false;
  }
  return openAddress(hash);
}

const RUNS = "Python runs in this page: every control works now.";
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

function showEngine() {
  const { stage, loaded, total, why } = engine.engine;
  const words = {
    asked: `You asked for little data: Python in this page is ${megabytes(total)} MB. Without it the recorded scenarios play.`,
    loading: `Loading Python into this page: ${megabytes(loaded)} of ${megabytes(total)} MB.`,
    starting: "Starting Python in this page.",
    failed: `Python could not be started in this page (${why}). The recorded scenarios play without it.`,
    live: total ? RUNS : "",
  }[stage];
  const box = byId("engine");
  const more = stage === "live" ? "" : awaited ? " Your link opens then." : ["loading", "starting"].includes(stage) ? " The recorded scenario plays meanwhile." : "";
  // Nothing below it moves when Python is there: a reader may be about to click.
  box.style.minHeight = stage === "live" && !box.hidden ? `${box.offsetHeight}px` : "";
  box.classList.toggle("done", stage === "live");
  box.hidden = !words;
  byId("enginewords").textContent = words ? `${words}${more}` : "";
  byId("loading").hidden = !["loading", "starting"].includes(stage);
  if (stage === "loading") byId("loading").value = loaded / total;
  else byId("loading").removeAttribute("value");
  byId("load").hidden = !["asked", "failed"].includes(stage);
}

let stage = "";
/** Python is there, is loading, or has stopped. */
async function engineChanged() {
  const before = stage;
  ({ stage } = engine.engine);
  if (stage === "failed" && awaited) {
    awaited = "";
    Object.assign(byId("error"), { hidden: false, textContent: "This link cannot be opened: Python is not running in this page." });
  }
  showEngine();
  if (!state.model || stage === before) return;
  controls.show();
  controls.showSwitches();
  panels.showLive();
  if (!engine.live()) return;
  if (state.options.engine === "page") byId("live").textContent = RUNS;
  checkLate();
  const hash = awaited;
  awaited = "";
  if (hash) await openAddress(hash);
}

async function begin() {
  const kept = stored("theme");
  if (kept === "dark" || kept === "light") theme(kept);
  subscribe(show);
  setUp();
  try {
    [state.options, state.stories] = await Promise.all([getJSON("data/options.json"), getJSON("data/scenarios.json")]);
  } catch (error) {
    state.error = `The page's data could not be loaded: ${error.message}`;
    return changed("run");
  }
  const asked = location.hash;
  engine.setUp(state.options, engineChanged);
  if (await follow(asked)) return;
  const said = state.error;
  await (state.options.play ? openHistory() : openStory(state.stories[0], 0));
  if (said) Object.assign(byId("error"), { hidden: false, textContent: said });
  showEngine();
  // Something to look at while Python is loaded.
  if (!engine.live() && engine.engine.stage !== "none" && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
    state.playing = true;
    changed("play");
  }
}

begin();
