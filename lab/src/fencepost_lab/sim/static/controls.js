// Everything that can be done to a client or to the service, and the switches.
import { byId, el, seconds } from "./dom.js";
import { live } from "./engine.js";
import { act, change, sandbox, state, undo } from "./state.js";
import { deadline, stateAt } from "./trace.js";

export const chosen = { client: 0 };
const amounts = { pause: 8, skew: 2, jump: 30 };
const EVERYTHING = 3600; // seconds: no run is longer
let built = "";

/** What each control does, by name; `who` is a client's name. The keyboard uses the same. */
export const CLIENT = {
  acquire: (who) => ({ who, do: "acquire" }),
  read: (who) => ({ who, do: "read" }),
  write: (who) => ({ who, do: "write" }),
  rmw: (who) => ({ who, do: "rmw" }),
  release: (who) => ({ who, do: "release" }),
  pause: (who, now) => (now.paused ? { who, do: "resume" } : { who, do: "pause", for: amounts.pause }),
  cutservice: (who, now) => (cutFrom(now, "service") ? { who, do: "heal", from: "service" } : { who, do: "cut", from: "service" }),
  cut: (who, now) => (cutFrom(now, "all") ? { who, do: "heal" } : { who, do: "cut" }),
  kill: (who, now) => ({ who, do: now.down ? "restart" : "kill" }),
  skew: (who) => ({ who, do: "skew", rate: amounts.skew }),
};

export const SERVICE = {
  kill: (who, now) => ({ who, do: now.down ? "restart" : "kill" }),
  empty: (who, now) => (now.down ? { who, do: "restart", tail: EVERYTHING } : null),
  failover: (who) => ({ who, do: "failover", lag: null }),
  jump: (who) => ({ who, do: "jump", by: amounts.jump }),
  lose: (who) => ({ who, do: "lose" }),
};

const NAMES = {
  acquire: "Acquire", read: "Read", write: "Write", rmw: "Read-modify-write", release: "Release",
  lose: "Lose the counter",
};

const cutFrom = (now, other) => now.cuts.some((cut) => cut.from === other);

export const can = () => Boolean(live() && state.scenario);

export function onClient(name, who = state.model?.clients[chosen.client]) {
  if (can() && who) act(CLIENT[name](who, stateAt(state.model, who, state.t)));
}

const machine = () => byId("machine")?.value ?? "service";

export function onService(name) {
  if (!can() || !state.model.machines.length) return;
  const action = SERVICE[name](machine(), stateAt(state.model, machine(), state.t));
  if (action) act(action);
}

function amount(kind, label, unit, min) {
  const input = el("input", { type: "number", value: amounts[kind], min, step: "any", inputmode: "decimal", "aria-label": label });
  input.addEventListener("change", () => {
    const given = Number(input.value);
    if (Number.isFinite(given) && input.value !== "" && (min === undefined || given >= min)) amounts[kind] = given;
    input.value = amounts[kind];
    document.querySelectorAll(`[data-amount="${kind}"]`).forEach((other) => { other.value = amounts[kind]; });
  });
  input.dataset.amount = kind;
  return [input, el("span", { class: "unit" }, unit)];
}

const CUTS = { cutservice: "Partition: service only", cut: "Partition: all" };

function card(who, index) {
  const press = (name, label, ...more) => el("span", { class: "with" }, el("button", {
    type: "button", "data-do": name, "aria-label": `${who}: ${label}`, onclick: () => { choose(index); onClient(name, who); },
  }, label), ...more);
  const node = el("fieldset", { class: `card c${index % 4}`, "data-who": who },
    el("legend", null, el("button", { type: "button", class: "badge", "aria-label": `${who}: choose this client`, onclick: () => choose(index) }, who)),
    el("output", { class: "status" }), el("div", { class: "countdown" }),
    el("div", { class: "buttons" },
      ["acquire", "read", "write", "rmw", "release"].map((name) => press(name, NAMES[name])),
      press("pause", "GC pause", amount("pause", `${who}: length of the pause in seconds`, "s", 0.01)),
      press("cutservice", CUTS.cutservice), press("cut", CUTS.cut), press("kill", "Kill"),
      press("skew", "Skew", amount("skew", `${who}: rate of its clock`, "×", 0.01))));
  node.addEventListener("focusin", () => choose(index));
  return node;
}

/** What a failover is here: consensus stores elect, and lose nothing; a Redis replica may have missed the last grant. */
const takeover = (backend) => (["etcd", "zookeeper"].includes(backend) ? "Failover: new leader" : "Failover: stale replica");

/** Whether a crash can cost it what it has answered. */
const forgets = (backend) => ["redis", "redlock"].includes(backend);

/** Where the tokens come from. */
function tokenOf({ backend, fence }) {
  if (backend === "redlock" && fence === "hybrid") return "the largest counter or clock, in microseconds, of a majority, which the majority then remembers";
  if (backend === "redis" && fence === "hybrid") return "the larger of the counter + 1 and the server's time in microseconds";
  return state.options.backends[backend]?.token ?? "the store's own";
}

function serviceCard(machines, backend) {
  const press = (name, label, ...more) => el("span", { class: "with" }, el("button", {
    type: "button", "data-do": name, "aria-label": `Service: ${label}`, onclick: () => onService(name),
  }, label), ...more);
  const which = machines.length > 1 ? el("label", { class: "which" }, "Machine ", el("select", { id: "machine" }, ["service", ...machines].map((name) => el("option", { value: name }, name === "service" ? "all" : name)))) : null;
  which?.addEventListener("change", show);
  return el("fieldset", { class: "card service", "data-who": "service" }, el("legend", null, el("span", { class: "badge" }, "Lock service")),
    el("output", { class: "status" }), el("p", { class: "token" }, `Token: ${tokenOf(state.scenario.settings)}`), which,
    el("div", { class: "buttons" }, press("kill", "Kill"), forgets(backend) ? press("empty", "Restart without its data") : null, press("failover", takeover(backend)),
      press("jump", "Clock jump", amount("jump", "Service: seconds that the clock jumps", "s")), press("lose", NAMES.lose)));
}

export function choose(index) {
  chosen.client = index;
  document.querySelectorAll("#cards .card").forEach((node, at) => {
    node.classList.toggle("chosen", at === index);
    node.querySelector("button.badge")?.setAttribute("aria-pressed", String(at === index));
  });
}

function statusOf(now) {
  const said = [];
  if (now.down) return "✕ down";
  if (now.paused) said.push("‖ paused");
  if (now.cuts.length) said.push(`✂ cut off from ${[...new Set(now.cuts.map((cut) => ({ all: "everything", service: "the lock service" }[cut.from] ?? cut.from)))].join(", ")}`);
  if (now.belief) said.push(`● believes it holds, token ${now.belief.token}`);
  else if (now.waiting) said.push("… waits for the lock");
  if (now.belief && !now.lease) said.push("⚠ the service does not agree");
  return said.join(" · ") || "○ idle";
}

/** One word for a card's state; its border is drawn by it, so that no state is told by colour alone. */
function stateOf(now) {
  if (now.down) return "down";
  if (now.belief) return now.lease ? "holds" : "zombie";
  return now.waiting ? "waits" : "idle";
}

/** How long a lease still runs, by the client's own clock and by the service's. */
function countdown(now, t) {
  if (!now.belief && !now.lease) return [];
  const part = (label, span, unnoticed) => {
    if (!span) return null;
    const end = deadline(span, t);
    const left = end - t;
    const whole = Math.max(0.001, end - (span.untils.findLast(([since]) => since <= t)?.[0] ?? span.start));
    return el("span", null, el("meter", { min: 0, max: whole, value: Math.max(0, left), "aria-label": label }), ` ${label}: ${left > 0 ? `${seconds(left)} left` : `passed ${seconds(-left)} ago${unnoticed}`}`);
  };
  return [part("its own deadline", now.belief, ", unnoticed"), now.lease ? part("lease at the service", now.lease, "") : el("span", null, "lease at the service: none")].filter(Boolean);
}

/** Cards are made once per set of clients and machines, so that the focus stays where it is. */
export function show() {
  const { model, scenario, options, t } = state;
  if (!model) return;
  const key = JSON.stringify([model.clients, model.machines, scenario?.settings.backend, scenario?.settings.fence, can(), live()]);
  if (key !== built) {
    built = key;
    byId("cards").replaceChildren(...model.clients.map(card), ...(scenario && model.machines.length ? [serviceCard(model.machines, scenario.settings.backend)] : []));
    choose(Math.min(chosen.client, model.clients.length - 1));
    for (const node of document.querySelectorAll("#cards fieldset")) node.disabled = !can();
    byId("recorded").hidden = options.engine !== "none";
    for (const id of ["sandbox", "backend", "fencing", "ttl", "renew"]) byId(id).disabled = !live() || (id !== "sandbox" && !scenario);
  }
  for (const node of document.querySelectorAll("#cards .card")) {
    const service = node.dataset.who === "service";
    const now = stateAt(model, service ? machine() : node.dataset.who, t);
    const said = service ? (now.down ? "✕ down" : "running") : statusOf(now);
    const status = node.querySelector(".status");
    if (status.textContent !== said) status.textContent = said;
    if (!service) {
      node.dataset.state = stateOf(now);
      node.querySelector(".countdown").replaceChildren(...countdown(now, t));
    }
    const relabel = (name, on, off, is) => {
      const button = node.querySelector(`[data-do="${name}"]`);
      if (!button || button.textContent === (is ? on : off)) return;
      button.textContent = is ? on : off;
      button.setAttribute("aria-label", `${service ? "Service" : node.dataset.who}: ${button.textContent}`);
    };
    relabel("pause", "Resume", "GC pause", now.paused);
    relabel("cutservice", "Heal: the service", CUTS.cutservice, cutFrom(now, "service"));
    relabel("cut", "Heal: all", CUTS.cut, cutFrom(now, "all"));
    const alone = node.querySelector('[data-do="cutservice"]');
    if (alone) alone.disabled = model.machines.length === 0; // the embedded store is on the client's own host
    relabel("kill", "Restart", "Kill", now.down);
    const empty = node.querySelector('[data-do="empty"]');
    if (empty) empty.disabled = !now.down;
  }
}

export function showSwitches() {
  const { scenario, options } = state;
  byId("undo").disabled = state.undo.length === 0;
  byId("switches").hidden = byId("inforce").hidden = !scenario;
  if (!scenario) return;
  const { settings } = scenario;
  if (!byId("backend").options.length) {
    byId("backend").append(...Object.entries(options.backends).map(([value, { name }]) => el("option", { value }, name)));
    byId("fencing").append(...Object.entries(options.fencings).map(([value, [label]]) => el("option", { value }, label)));
  }
  for (const name of ["backend", "fencing", "ttl"]) byId(name).value = settings[name];
  byId("renew").checked = settings.renew;
  const rows = Object.entries({ seed: scenario.seed, ...settings, until: scenario.until });
  byId("settings").replaceChildren(...rows.map(([name, value]) => el("div", null,
    el("dt", null, name), el("dd", null, Array.isArray(value) ? value.join(", ") : String(value)), el("dd", { class: "meaning" }, options.meanings[name] ?? ""))));
  const store = options.backends[settings.backend];
  byId("storename").textContent = `About ${store?.name ?? settings.backend}, its token, and fencing ${settings.fencing}`;
  byId("store").replaceChildren(store?.about ?? "", " ", el("b", null, `Token: ${tokenOf(settings)}.`));
  const [label, does] = options.fencings[settings.fencing] ?? ["", ""];
  byId("fencingabout").replaceChildren(el("b", null, `Fencing ${label}: `), does);
}

/** The next of a select's choices, as if picked by hand. */
export function cycle(id) {
  const select = byId(id);
  if (select.disabled) return;
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

export function setUp() {
  byId("backend").addEventListener("change", (event) => change({ backend: event.target.value }));
  byId("fencing").addEventListener("change", (event) => change({ fencing: event.target.value }));
  byId("ttl").addEventListener("change", (event) => change({ ttl: Number(event.target.value) }));
  byId("renew").addEventListener("change", (event) => change({ renew: event.target.checked }));
  byId("switches").addEventListener("submit", (event) => event.preventDefault());
  byId("startclock").addEventListener("change", (event) => { state.startClock = event.target.checked; });
  byId("keeplater").addEventListener("change", (event) => { state.keepLater = event.target.checked; });
  byId("undo").addEventListener("click", undo);
  byId("sandbox").addEventListener("click", sandbox);
}
