// The scenario in the address, so that it can be shared; and out as files.
import { getJSON, openHistory, openScenario, openStory, openText, state } from "./state.js";

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

/** Open what the address names; false if it names nothing that is here. */
export async function openAddress() {
  const named = new URLSearchParams(location.hash.slice(1));
  const t = Number(named.get("t")) || 0;
  const story = state.stories.find((each) => each.name === named.get("story"));
  if (story) return openStory(story, story.variants[named.get("v")] ? Number(named.get("v")) : 0, t);
  if (named.has("play") && state.options.play) return openHistory(undefined, t);
  try {
    if (named.has("seed") && state.options.live) return await openSeed(named.get("seed"), named.get("fencing"), t);
    if (!named.has("s")) return false;
    const given = decode(named.get("s"));
    return await openScenario({ ...given, settings: { ...state.options.settings, ...given.settings } }, t);
  } catch {
    return false;
  }
}

/** A scenario of the seeded tests by its number, as they run it or with other fencing. */
async function openSeed(number, fencing, t) {
  const given = await getJSON(`data/seeds/${Number(number)}.json`);
  return openScenario({ ...given, settings: { ...given.settings, fencing: fencing ?? given.settings.fencing } }, t);
}

export async function openFile(file) {
  if (file) await openText(await file.text());
}

function save(name, type, body) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([body], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export function saveJSON() {
  const kept = state.scenario ?? { history: state.model.lines };
  save("fencepost-scenario.json", "application/json", `${JSON.stringify(kept, null, 1)}\n`);
}

/** The picture as a file of its own: its style sheet inside, the theme's colours in place of variables. */
export async function picture(drawing) {
  const values = getComputedStyle(drawing);
  const css = (await (await fetch("timeline.css")).text()).replace(/var\((--[\w-]+)\)/g, (_, name) => values.getPropertyValue(name).trim());
  const copy = drawing.cloneNode(true);
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  style.textContent = css;
  copy.prepend(style);
  return new XMLSerializer().serializeToString(copy);
}

export const saveSVG = async (drawing) => save("fencepost.svg", "image/svg+xml", await picture(drawing));
