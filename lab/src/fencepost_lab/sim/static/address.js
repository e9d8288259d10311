// The scenario in the address, so that it can be shared; and out as files.
import { live, seed } from "./engine.js";
import { read } from "./files.js";
import { changed, openGiven, openHistory, openScenario, openStory, state } from "./state.js";

const encode = (value) => {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
};

const decode = (text) => {
  const raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(raw, (each) => each.charCodeAt(0))));
};

/** Only what differs from the defaults is written down. */
function compact(scenario) {
  const defaults = state.options.settings;
  const settings = Object.fromEntries(
    Object.entries(scenario.settings).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(defaults[key])),
  );
  return { ...scenario, settings };
}

export function address() {
  const t = Math.round(state.t * 1000) / 1000;
  if (state.story) return `#story=${state.story.name}&v=${state.variant}&t=${t}`;
  if (state.scenario && !state.played) return `#s=${encode(compact(state.scenario))}&t=${t}`;
  return `#play&t=${t}`;
}

const MOST = 1 << 20;

/** The scenario of a link, complete; an Error says why there is none in it. */
function scenarioOf(text) {
  if (text.length > MOST) throw new Error("it is too long");
  let given;
  try {
    given = decode(text);
  } catch {
    throw new Error("it is cut off, or was changed on its way");
  }
  if (given === null || typeof given !== "object" || Array.isArray(given)) throw new Error("it holds no scenario");
  return given; // whatever is missing is as by default, and what cannot be is refused where it is run
}

/** Does the address name something that only a running engine can open? */
export const needsEngine = (hash) => ["s", "seed"].some((name) => new URLSearchParams(hash.slice(1)).has(name));

/** Open what the address names; false if it names nothing. What cannot be opened is said on the page. */
export async function openAddress(hash = location.hash) {
  const named = new URLSearchParams(hash.slice(1));
  const t = Number.isFinite(Number(named.get("t"))) ? Number(named.get("t")) : 0;
  try {
    if (named.has("story")) {
      const story = state.stories.find((each) => each.name === named.get("story"));
      if (!story) throw new Error(`there is no guided scenario ${JSON.stringify(named.get("story").slice(0, 40))}`);
      return await openStory(story, /^\d$/.test(named.get("v")) && story.variants[named.get("v")] ? Number(named.get("v")) : 0, t);
    }
    if (named.has("play")) {
      if (!state.options.play) throw new Error("the history that it played is not in it: open the file again");
      return await openHistory(undefined, t);
    }
    if (named.has("seed")) return await openSeed(named.get("seed"), named.get("fencing"), t);
    if (named.has("s")) return await openScenario(scenarioOf(named.get("s")), t);
  } catch (error) {
    state.error = `This link cannot be opened: ${error.message}.`;
    changed("run");
  }
  return false;
}

/** A scenario of the seeded tests by its number, as they run it or with other fencing. */
async function openSeed(number, fencing, t) {
  if (!/^\d{1,19}$/.test(number)) throw new Error("a seed is an integer from 0 up to 2^63");
  if (!live()) throw new Error("nothing can be run in this copy of the page");
  const given = await seed(number);
  return openScenario({ ...given, settings: { ...given.settings, fencing: fencing ?? given.settings.fencing } }, t);
}

export const openFile = (file) => (file ? openGiven(() => read(file)) : undefined);

function save(name, type, body) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([body], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export function saveJSON() {
  if (!state.model) return;
  const kept = state.scenario ?? { history: state.model.given };
  save("fencepost-scenario.json", "application/json", `${JSON.stringify(kept, null, 1)}\n`);
}

/** The picture as a file of its own: its style sheet inside, the theme's colours in place of variables. */
function picture(drawing) {
  const values = getComputedStyle(drawing);
  const rules = [...document.querySelector('link[href="timeline.css"]').sheet.cssRules].map((rule) => rule.cssText);
  const css = rules.join("\n").replace(/var\((--[\w-]+)\)/g, (_, name) => values.getPropertyValue(name).trim());
  const copy = drawing.cloneNode(true);
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  style.textContent = css;
  copy.prepend(style);
  return new XMLSerializer().serializeToString(copy);
}

export function saveSVG(drawing) {
  if (state.model) save("fencepost.svg", "image/svg+xml", picture(drawing));
}
