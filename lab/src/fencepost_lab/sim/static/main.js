// Puts the page together: loads what there is, runs the clock, and shows every change.
import * as controls from "./controls.js";
import { byId, el, seconds } from "./dom.js";
import * as keys from "./keys.js";
import * as panels from "./panels.js";
import { address, openAddress, openFile, saveJSON, saveSVG } from "./address.js";
import { changed, extend, getJSON, openHistory, openStory, seek, state, subscribe } from "./state.js";
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
function showAddress() {
  if (!state.model) return;
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
    if (!state.playing) { last = null; return; }
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
  click("finish", () => seek(state.model.until));
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
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });
  click("json", saveJSON);
  click("svg", () => saveSVG(byId("timeline")));
  click("theme", () => theme());
  for (const part of [controls, panels, keys, timeline]) part.setUp();
  addEventListener("hashchange", () => { if (location.hash !== named) openAddress(); });
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
  if (await openAddress()) return;
  const said = state.error;
  await (state.options.play ? openHistory() : openStory(state.stories[0], 0));
  if (said) Object.assign(byId("error"), { hidden: false, textContent: said });
}

begin();
