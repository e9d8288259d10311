// The picture: swim-lanes over time. Drawn whole once per trace and view; what has not happened yet is cut off at the playhead.
import { byId, seconds, svg } from "./dom.js";
import { drawArrows, drawNumbers, drawVerdicts, row } from "./marks.js";
import { changed, seek, state } from "./state.js";
import { deadline, scoreAt } from "./trace.js";

const HEIGHTS = { axis: 34, service: 50, client: 62, resource: 54, mark: 46, value: 46 };
let frame = null;
let view = { from: 0, to: 1 };

function lanes(model) {
  const list = [];
  let y = HEIGHTS.axis;
  const add = (name, kind, title, sub) => {
    list.push({ name, kind, title, sub, top: y, bottom: y + HEIGHTS[kind] });
    y += HEIGHTS[kind];
  };
  const settings = model.scenario?.settings;
  add("service", "service", "service", settings?.backend ?? "lock");
  for (const client of model.clients) add(client, "client", client, "");
  add("resource", "resource", "resource", settings ? `fencing ${settings.fencing}` : "");
  if (settings?.fencing === "off") add("mark", "mark", "highest", "not compared");
  else add("mark", "mark", "mark", "highest token");
  add("value", "value", "value", "counter");
  return { list, height: y + 4 };
}

function look() {
  const { model, t } = state;
  const span = Math.min(state.span ?? (model.until > 60 ? 30 : model.until), model.until);
  let from = view.from;
  if (span >= model.until) from = 0;
  else if (t < from || t > from + span * 0.92) from = Math.max(0, Math.min(model.until - span, t - span * 0.25));
  if (from + span > model.until) from = model.until - span;
  return { from, to: from + span };
}

function makeFrame(model, width) {
  const { list, height } = lanes(model);
  const narrow = width < 560;
  const [left, right] = [narrow ? 62 : 104, width - 10];
  const { from, to } = view;
  const find = (name) => list.find((lane) => lane.name === name) ?? list[0];
  const middle = (name) => (find(name).top + find(name).bottom) / 2;
  const fenced = model.scenario ? model.scenario.settings.fencing !== "off" : true;
  return {
    list, height, width, left, right, from, to, narrow, lane: find, middle, fenced,
    x: (t) => left + ((t - from) / (to - from)) * (right - left),
    t: (x) => from + ((x - left) / (right - left)) * (to - from),
    edge: (name, side) => middle(name) + (side === "top" ? -1 : 1) * ({ client: 17, service: 12, resource: 18 }[find(name).kind] ?? 10),
    none: (lane) => (lane === "mark" ? "no token seen yet" : "nothing written yet"),
  };
}

const clip = (t) => Math.max(frame.from, Math.min(frame.to, t));
const seen = (span) => span.end > frame.from && span.start < frame.to;
const colour = (model, who) => `c${Math.max(0, model.clients.indexOf(who)) % 4}`;
const words = (x, y, content, cls) => svg("text", { x, y, class: cls }, content);

function bar(model, span, y, cls, label) {
  const [x1, x2] = [frame.x(clip(span.start)), frame.x(clip(span.end))];
  const node = svg("g", { class: `bar ${cls} ${colour(model, span.who)}` });
  node.append(svg("rect", { x: x1, y, width: Math.max(1.5, x2 - x1), height: 14, rx: 3 }));
  if (cls === "belief") node.append(svg("rect", { x: x1, y, width: Math.max(1.5, x2 - x1), height: 14, rx: 3, class: "texture" }));
  node.append(svg("title", null, `${label}, token ${span.token}, ${seconds(span.start)} to ${Number.isFinite(span.end) ? seconds(span.end) : "the end"}${span.how ? `: ${span.how}` : ""}`));
  const fitting = [`${label} #${span.token}`, `#${span.token}`].find((said) => x2 - x1 > said.length * 7.2 + 8);
  if (fitting) node.append(words(x1 + 4, y + 11, fitting, "barlabel"));
  return node;
}

/** The part of a belief that its own deadline no longer covers. */
function overdue(span, y) {
  const until = span.untils.at(-1)[1];
  const end = Math.min(span.end, frame.to);
  if (!(until < end) || until > frame.to) return null;
  return svg("rect", { x: frame.x(clip(until)), y, width: Math.max(1, frame.x(end) - frame.x(clip(until))), height: 14, class: "overdue" }, svg("title", null, "past its own deadline, and it has not noticed"));
}

/** Pauses, cuts and crashes; what they are called is drawn last, over the arrows. */
function bands(model) {
  const group = svg("g", { class: "bands" });
  const names = svg("g", { class: "names" });
  const draw = (list, cls, label) => {
    for (const span of list.filter(seen)) {
      const lane = frame.lane(span.who);
      const [x1, x2] = [frame.x(clip(span.start)), frame.x(clip(span.end))];
      group.append(svg("rect", { x: x1, y: lane.top + 2, width: Math.max(2, x2 - x1), height: lane.bottom - lane.top - 4, class: `band ${cls}` }));
      const said = label(span);
      if (x2 - x1 > said.length * 6 + 24) names.append(words(x1 + 24, lane.top + 12, said, `bandlabel ${cls}`));
    }
  };
  const name = (span) => (model.clients.includes(span.who) ? "" : `${span.who} `);
  draw(model.pauses, "pause", (span) => `‖ ${name(span)}paused`);
  draw(model.cuts, "cut", (span) => `✂ ${name(span)}cut off from ${span.from}`);
  draw(model.downs, "down", (span) => `✕ ${name(span)}down`);
  for (const wait of model.waits.filter(seen)) {
    const y = frame.middle(wait.who) + 9;
    group.append(svg("line", { x1: frame.x(clip(wait.start)), x2: frame.x(clip(wait.end)), y1: y, y2: y, class: "wait" }, svg("title", null, `${wait.who} waits`)));
  }
  return [group, names];
}

function bars(model) {
  const group = svg("g", { class: "bars" });
  const beside = (who) => frame.middle(who);
  for (const lease of model.leases.filter(seen)) {
    group.append(bar(model, lease, frame.middle("service") - 7, "lease", `${lease.who} holds`));
    if (model.clients.includes(lease.who)) group.append(bar(model, lease, beside(lease.who) - 15, "lease", "service"));
  }
  for (const belief of model.beliefs.filter(seen)) {
    group.append(bar(model, belief, beside(belief.who) + 2, "belief", "believes"));
    const late = overdue(belief, beside(belief.who) + 2);
    if (late) group.append(late);
  }
  return group;
}

/** Jumps, failovers and the like: a line each. Labels that would cover one another are put on lines of their own. */
function points(model) {
  const group = svg("g", { class: "points" });
  const rows = new Map();
  for (const point of model.points) {
    if (point.t < frame.from || point.t > frame.to) continue;
    const lane = frame.lane(point.who);
    if (!rows.has(lane)) rows.set(lane, [row(6), row(6), row(6)]);
    const said = `⚡${model.machines.length > 1 && model.machines.includes(point.who) ? `${point.who} ` : ""}${point.do}`;
    const x = frame.x(point.t);
    const at = rows.get(lane).findIndex((room) => room(x, 6.4 * said.length));
    const [top, bottom] = [lane.top + 12, lane.bottom - 3];
    group.append(svg("line", { x1: x, x2: x, y1: top - 9, y2: bottom, class: "pointline" }, svg("title", null, `${seconds(point.t)}: ${said}`)));
    if (at >= 0) group.append(words(x + 2, top + at * 13, said, "pointlabel"));
  }
  return group;
}

function axis(model) {
  const group = svg("g", { class: "axis" });
  const span = frame.to - frame.from;
  const wanted = span / ((frame.right - frame.left) / 70);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wanted);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (let n = Math.ceil(frame.from / step - 1e-9); n * step <= frame.to + 1e-9; n++) {
    const x = frame.x(n * step);
    group.append(svg("line", { x1: x, x2: x, y1: HEIGHTS.axis - 4, y2: frame.height - 4, class: "grid" }));
    group.append(svg("text", { x, y: 11, class: "small", "text-anchor": x < frame.left + 14 ? "start" : x > frame.right - 14 ? "end" : "middle" }, `${(n * step).toFixed(digits)} s`));
  }
  for (const action of model.actions.filter((each) => each.at >= frame.from && each.at <= frame.to)) {
    const x = frame.x(action.at);
    group.append(svg("path", { d: `M${x - 3.5} 15 h7 l-3.5 6 z`, class: "action" }, svg("title", null, `${seconds(action.at)}: ${action.who ?? ""} ${action.do}`)));
  }
  return group;
}

function labels() {
  const group = svg("g", { class: "lanes" });
  frame.list.forEach((lane, index) => {
    group.append(svg("rect", { x: 0, y: lane.top, width: frame.width, height: lane.bottom - lane.top, class: `lane ${index % 2 ? "odd" : "even"}` }));
    const y = (lane.top + lane.bottom) / 2;
    group.append(words(5, y + (lane.sub && !frame.narrow ? 0 : 4), lane.title, `lanetitle ${lane.kind}`));
    if (lane.sub && !frame.narrow) group.append(words(5, y + 13, lane.sub, "small"));
    if (lane.kind === "client" && !frame.narrow) {
      group.append(svg("text", { x: frame.left - 5, y: y - 4, class: "small", "text-anchor": "end" }, "service says"));
      group.append(svg("text", { x: frame.left - 5, y: y + 13, class: "small", "text-anchor": "end" }, `${lane.name} believes`));
    }
  });
  return group;
}

function defs() {
  const head = (kind) => svg("marker", { id: `head-${kind}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" }, svg("path", { d: "M0 0 L8 4 L0 8 z", class: `head ${kind}` }));
  const pattern = (id, size, ...shapes) => svg("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse" }, svg("rect", { width: size, height: size, class: "ground" }), ...shapes);
  return svg("defs", null,
    ["plain", "write", "refused", "corrupt", "lost"].map(head),
    pattern("p1", 7, svg("path", { d: "M3.5 0 V7", class: "ink" })),
    pattern("p2", 7, svg("circle", { cx: 3.5, cy: 3.5, r: 1.2, class: "dot" })), pattern("p3", 7, svg("path", { d: "M0 3.5 H7", class: "ink" })),
    svg("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse" }, svg("path", { d: "M-1 8 L8 -1", class: "hatchline" })),
    svg("pattern", { id: "dots", width: 7, height: 7, patternUnits: "userSpaceOnUse" }, svg("circle", { cx: 3, cy: 3, r: 1, class: "hatchdot" })),
    svg("pattern", { id: "cells", width: 8, height: 8, patternUnits: "userSpaceOnUse" }, svg("path", { d: "M0 0 L8 8 M8 0 L0 8", class: "hatchline" })),
    svg("clipPath", { id: "past" }, svg("rect", { id: "sofar", x: frame.left, y: 0, height: frame.height })),
    svg("clipPath", { id: "inside" }, svg("rect", { x: frame.left - 10, y: 0, width: frame.right - frame.left + 20, height: frame.height })));
}

export function draw() {
  const { model } = state;
  const drawing = byId("timeline");
  if (!model) return;
  view = look();
  frame = makeFrame(model, Math.max(300, drawing.parentElement.clientWidth));
  drawing.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  drawing.setAttribute("width", frame.width);
  drawing.setAttribute("height", frame.height);
  const [faults, names] = bands(model);
  const inside = svg("g", { "clip-path": "url(#past)" }, faults, bars(model), points(model), drawArrows(model, frame), drawNumbers(model, frame), names);
  const verdicts = svg("g", { "clip-path": "url(#inside)" }, drawVerdicts(model, frame));
  drawing.replaceChildren(defs(), labels(), axis(model), inside, verdicts, svg("g", { id: "now" }));
  move();
}

/** Only what moves with the time: how much is shown, the playhead, and how long each promise still runs. */
export function move() {
  const { model, t } = state;
  if (!model || !frame) return;
  const wanted = look();
  if (wanted.from !== view.from || wanted.to !== view.to) return draw();
  const x = frame.x(t);
  byId("sofar").setAttribute("width", Math.max(0, x - frame.left));
  for (const verdict of document.querySelectorAll(".verdicts > g")) verdict.classList.toggle("ahead", Number(verdict.dataset.t) > t);
  const now = byId("now");
  now.replaceChildren(svg("line", { x1: x, x2: x, y1: 30, y2: frame.height, class: "playhead" }), svg("path", { d: `M${x - 6} 23 h12 l-6 10 z`, class: "playheadtop" }));
  const promise = (span, y, cls) => {
    const end = Math.min(deadline(span, t), frame.to);
    if (span.start <= t && t < span.end && end > t) now.append(svg("rect", { x, y, width: frame.x(end) - x, height: 14, class: `promise ${cls} ${colour(model, span.who)}` }));
  };
  for (const lease of model.leases) if (model.clients.includes(lease.who)) promise(lease, frame.middle(lease.who) - 15, "lease");
  for (const belief of model.beliefs) promise(belief, frame.middle(belief.who) + 2, "belief");
  const score = scoreAt(model, t);
  byId("timeline").setAttribute("aria-label", `Timeline at ${seconds(t)}. Holder: ${score.holders.map((each) => each.who).join(" and ") || "none"}. Mark ${score.mark ?? "none"}, value ${score.value ?? 0}, ${score.refused} refused, ${score.corrupted} corrupted.`);
}

export function zoom(factor) {
  if (!state.model) return;
  const now = state.span ?? state.model.until;
  const next = factor === 0 ? null : Math.max(0.05, now * factor);
  state.span = next !== null && next >= state.model.until ? null : next;
  view = { from: Math.max(0, state.t - (state.span ?? 0) / 2), to: 1 };
  changed("view");
}

export function setUp() {
  const drawing = byId("timeline");
  const follow = (event) => seek(frame.t(event.clientX - drawing.getBoundingClientRect().left));
  drawing.addEventListener("pointerdown", (event) => {
    if (!state.model || event.button !== 0) return;
    drawing.setPointerCapture(event.pointerId);
    follow(event);
  });
  drawing.addEventListener("pointermove", (event) => {
    if (drawing.hasPointerCapture(event.pointerId)) follow(event);
  });
  new ResizeObserver(() => {
    if (frame && drawing.parentElement.clientWidth !== frame.width) draw();
  }).observe(drawing.parentElement);
}
