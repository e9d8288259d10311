// Every control by a key, and the list of them.
import { chosen, choose, cycle, onClient, onService } from "./controls.js";
import { byId, el } from "./dom.js";
import { pickStory, sandbox, seek, state, undo } from "./state.js";
import { zoom } from "./timeline.js";

const press = (id) => () => byId(id).click();
const by = (seconds) => () => seek(state.t + seconds);
const client = (name) => () => onClient(name);
const service = (name) => () => onService(name);

function nextStory() {
  const at = state.stories.indexOf(state.story);
  state.playing = false;
  return pickStory(state.stories[(at + 1) % state.stories.length]);
}

function nextVariant() {
  const buttons = byId("variants").children;
  buttons[(state.variant + 1) % buttons.length]?.click();
}

const KEYS = [
  [" ", "Space", "play or pause", press("play")],
  [".", ".", "one event on", press("next")], [",", ",", "one event back", press("back")],
  ["ArrowRight", "→", "0.1 s on (with Shift: 1 s)", by(0.1)], ["ArrowLeft", "←", "0.1 s back (with Shift: 1 s)", by(-0.1)],
  ["Home", "Home", "to the start", press("start")], ["End", "End", "to the end", press("finish")],
  ["]", "]", "faster", () => speed(1)], ["[", "[", "slower", () => speed(-1)],
  ["+", "+", "zoom in", () => zoom(0.5)], ["-", "−", "zoom out", () => zoom(2)], ["0", "0", "show all of it", () => zoom(0)],
  ["1", "1 to 4", "choose client A to D", () => choose(0)],
  ["a", "a", "client: acquire", client("acquire")], ["e", "e", "client: read", client("read")], ["w", "w", "client: write", client("write")],
  ["m", "m", "client: read-modify-write", client("rmw")], ["r", "r", "client: release", client("release")],
  ["g", "g", "client: GC pause, or resume", client("pause")], ["p", "p", "client: partition from all, or heal", client("cut")],
  ["P", "Shift P", "client: partition from the service only, or heal", client("cutservice")],
  ["k", "k", "client: kill, or restart", client("kill")], ["s", "s", "client: skew its clock", client("skew")],
  ["K", "Shift K", "service: kill, or restart", service("kill")],
  ["R", "Shift R", "service: restart what is down without its data (Redis, Redlock)", service("empty")], ["F", "Shift F", "service: failover", service("failover")],
  ["J", "Shift J", "service: clock jump", service("jump")], ["L", "Shift L", "service: lose the counter", service("lose")],
  ["f", "f", "fencing: next", () => cycle("fencing")], ["b", "b", "backend: next", () => cycle("backend")],
  ["t", "t", "set the ttl", () => byId("ttl").focus()], ["n", "n", "renewal on or off", press("renew")],
  ["y", "y", "set the length of the pause", () => amountField("pause")], ["Y", "Shift Y", "set the skew", () => amountField("skew")],
  ["j", "j", "set the clock jump", () => document.querySelector('.service [data-amount="jump"]')?.focus()],
  ["q", "q", "keep later actions or fork", press("keeplater")], ["c", "c", "an action starts the clock, or not", press("startclock")],
  ["v", "v", "next variant", nextVariant], ["o", "o", "next guided scenario", nextStory], ["x", "x", "empty sandbox", sandbox],
  ["u", "u", "undo", undo], ["l", "l", "copy the link", press("link")], ["d", "d", "dark or light", press("theme")],
  ["I", "Shift I", "open a file", press("open")], ["E", "Shift E", "save as JSON", press("json")], ["G", "Shift G", "save as SVG", press("svg")],
  ["?", "?", "this list", () => openKeys()],
];

const amountField = (kind) => document.querySelectorAll("#cards .card")[chosen.client]?.querySelector(`[data-amount="${kind}"]`)?.focus();

function speed(step) {
  const select = byId("speed");
  select.selectedIndex = Math.max(0, Math.min(select.options.length - 1, select.selectedIndex + step));
  select.dispatchEvent(new Event("change"));
}

export function openKeys() {
  if (!byId("keys").open) byId("keys").showModal();
}

export function setUp() {
  byId("keylist").append(...KEYS.flatMap(([, label, does]) => [el("dt", null, el("kbd", null, label)), el("dd", null, does)]));
  byId("help").addEventListener("click", openKeys);
  byId("closekeys").addEventListener("click", () => byId("keys").close());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open || !state.model) return;
    const { target } = event;
    if (event.key === "Escape" && target.matches("input, select")) return target.blur();
    if (!byId("single").checked && event.key !== "?") return;
    if (target.matches("input[type=number], select")) return;
    if (event.key === " " && target.matches("button, input, summary, a")) return;
    if (target.matches("input[type=range]") && /^(Arrow|Home|End|Page)/.test(event.key)) return;
    if (event.shiftKey && event.key.startsWith("Arrow")) {
      if (/Left|Right/.test(event.key)) seek(state.t + (event.key === "ArrowRight" ? 1 : -1));
      return;
    }
    if (/^[1-9]$/.test(event.key)) {
      if (Number(event.key) <= state.model.clients.length) choose(Number(event.key) - 1);
      return;
    }
    const found = KEYS.find(([key]) => key === event.key) ?? (event.key === "=" ? KEYS.find(([key]) => key === "+") : undefined);
    if (!found) return;
    event.preventDefault();
    found[3]();
  });
}
