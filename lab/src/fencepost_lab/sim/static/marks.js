// The marks of the picture: arrows with their tokens, verdicts at the resource, the steps of mark and value.
import { svg } from "./dom.js";
import { higher } from "./trace.js";

const MOST = 1500;
const text = (x, y, content, cls, more = {}) => svg("text", { x, y, class: cls, ...more }, content);

/** A row of labels that skips those which would cover their neighbour. */
export function row(gap) {
  let last = -Infinity;
  return (x, width) => {
    if (x - last < gap) return false;
    last = x + width;
    return true;
  };
}

function kindOf(arrow) {
  const { access } = arrow;
  if (access?.refused) return "refused";
  if (access?.corrupt || access?.overwrote || (access?.zombie && access.version !== undefined)) return "corrupt";
  if (arrow.fate && arrow.fate !== "arrived" && arrow.fate !== "flying") return "lost";
  return arrow.what === "write" ? "write" : "plain";
}

export function drawArrows(model, frame) {
  const group = svg("g", { class: "arrows" });
  const shown = model.arrows.filter((arrow) => arrow.t >= frame.from && arrow.sent <= frame.to);
  const rows = new Map();
  const last = ["refused", "corrupt"];
  const kinds = shown.slice(0, MOST).map((arrow) => [arrow, kindOf(arrow)]);
  kinds.sort(([, a], [, b]) => last.indexOf(a) - last.indexOf(b));
  for (const [arrow, kind] of kinds) {
    const [x1, x2] = [frame.x(arrow.sent), frame.x(Math.min(arrow.t, frame.to))];
    const up = frame.middle(arrow.src) > frame.middle(arrow.dst);
    const y1 = frame.edge(arrow.src, up ? "top" : "bottom");
    let y2 = frame.edge(arrow.dst, up ? "bottom" : "top");
    if (kind === "lost") y2 = y1 + (y2 - y1) * 0.55;
    const said = arrow.token === undefined || arrow.token === null ? "" : `, token ${arrow.token}`;
    const title = svg("title", null, `${arrow.what} from ${arrow.src} to ${arrow.dst}${said}: ${kind === "plain" || kind === "write" ? arrow.fate : kind}`);
    const bounce = kind === "refused" ? ` L${x2 + 12} ${y2 - 26}` : "";
    const path = svg("path", { d: `M${x1} ${y1} L${x2} ${y2}${bounce}`, class: `arrow ${kind}`, "marker-end": `url(#head-${kind})` }, title);
    group.append(path);
    if (kind === "lost") group.append(text(x2, y2 + 4, "✗", "fate", { "text-anchor": "middle" }));
    if (said === "") continue;
    const client = arrow.src === "resource" || !model.clients.includes(arrow.src) ? arrow.dst : arrow.src;
    const key = `${client} ${arrow.src === "resource" || arrow.dst === "resource"}`;
    if (!rows.has(key)) rows.set(key, row(5));
    const important = last.includes(kind);
    const near = frame.middle(client) + (arrow.src === "resource" || arrow.dst === "resource" ? 27 : -27);
    const label = `#${arrow.token}`;
    const width = 7.8 * label.length;
    const start = x1 + 3 + width > frame.right ? x1 - 3 - width : x1 + 3; // at the right edge it stands before its arrow
    if (rows.get(key)(start, width) || important) group.append(text(start, near + 4, label, `token ${kind}`));
  }
  if (shown.length > MOST) group.append(text(frame.x(frame.from) + 4, 14, `${shown.length - MOST} more messages: zoom in`, "small"));
  return group;
}

export function drawVerdicts(model, frame) {
  const group = svg("g", { class: "verdicts" });
  const y = frame.middle("resource") - 9;
  const below = row(6);
  const shown = model.accesses.filter((access) => access.t >= frame.from && access.t <= frame.to);
  shown.forEach((access, at) => {
    const x = frame.x(access.t);
    const next = at + 1 < shown.length ? frame.x(shown[at + 1].t) : Infinity;
    const one = svg("g", { "data-t": access.t });
    group.append(one);
    const verdict = (said, cls) => {
      const start = Math.max(frame.left, Math.min(x - 8, frame.right - 7.2 * said.length));
      if (below(start, 7.2 * said.length)) one.append(text(start, y + 26, said, `verdict ${cls}`));
      else one.append(svg("title", null, said));
    };
    const carried = access.token === null ? "no token" : `token ${access.token}`;
    if (access.refused) {
      one.append(svg("path", { d: `M${x - 6} ${y - 6} l12 12 m0 -12 l-12 12`, class: "cross" }));
      verdict(`✗ refused: ${carried}, mark ${access.mark ?? "none"}`, "refused");
    } else if (access.version === undefined) {
      one.append(svg("circle", { cx: x, cy: y, r: 2.5, class: "look" }));
    } else if (access.corrupt || access.overwrote || access.zombie) {
      one.append(svg("path", { d: `M${x} ${y - 9} l9 16 l-18 0 z`, class: "warning" }));
      one.append(text(x, y + 5, "!", "bang", { "text-anchor": "middle" }));
      const words = access.corrupt ? "CORRUPTION" : access.overwrote ? "LOST UPDATE" : "ZOMBIE WRITE";
      verdict(`${words}: ${carried}, value ${access.value}`, "corrupt");
    } else {
      one.append(svg("circle", { cx: x, cy: y, r: 6, class: "applied" }));
      one.append(svg("path", { d: `M${x - 3} ${y} l2 3 l4 -6`, class: "tick" }));
      const value = `${access.value}`; // left out where the next mark would cover it; the lane below has it too
      if (next - x > 18 + 7 * value.length) one.append(text(x + 9, y + 4, value, "verdict good"));
    }
  });
  return group;
}

/** Steps of one number: the mark goes up, the value is what the last applied write said. */
function steps(frame, lane, points, cls) {
  const group = svg("g", { class: cls });
  const { top, bottom } = frame.lane(lane);
  const all = points.filter((point) => point.t <= frame.to);
  const before = all.findLastIndex((point) => point.t <= frame.from);
  const known = all.slice(Math.max(0, before));
  const numberOf = (value) => (Number.isFinite(Number(value)) ? Number(value) : 0); // a value may be a word
  const numbers = known.map((point) => numberOf(point.value));
  const [least, most] = [Math.min(0, ...numbers), Math.max(1, ...numbers)];
  const y = (value) => bottom - 6 - ((numberOf(value) - least) / (most - least)) * (bottom - top - 20);
  let path = "";
  const room = row(4);
  let last = null;
  for (const point of known) {
    const x = frame.x(Math.max(point.t, frame.from));
    path += path ? ` H${x} V${y(point.value)}` : `M${x} ${y(point.value)}`;
    if ((String(point.value) !== last || point.bad) && room(x, 7 * String(point.value).length)) {
      group.append(text(x + 3, y(point.value) - 4, point.bad ? `⚠ ${point.value}` : `${point.value}`, point.bad ? "number bad" : "number"));
    }
    last = String(point.value);
  }
  if (path) group.append(svg("path", { d: `${path} H${frame.right}`, class: "steps" }));
  else group.append(text(frame.left + 6, (top + bottom) / 2 + 4, frame.none(lane), "small"));
  return group;
}

export function drawNumbers(model, frame) {
  const marks = [];
  let highest = null;
  const values = [{ t: 0, value: 0 }];
  for (const access of model.accesses) {
    if (frame.fenced) {
      if (access.mark !== undefined && access.mark !== null) marks.push({ t: access.t, value: access.mark });
    } else if (higher(access.given, highest) !== highest) marks.push({ t: access.t, value: highest = access.given });
    if (access.version !== undefined) values.push({ t: access.t, value: access.value, bad: access.corrupt || access.overwrote > 0 });
  }
  return [steps(frame, "mark", marks, frame.fenced ? "mark" : "mark unused"), steps(frame, "value", values, "value")];
}
