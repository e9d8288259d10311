// A trace (the lines of a run) as a model that can be drawn and asked about any instant.
export const parseLines = (text) => text.split("\n").filter(Boolean).map((line) => JSON.parse(line));

const refusal = (line) => line.ev === "access" && !["admit", "replay", undefined].includes(line.verdict);

/** Microseconds since 1970 make long tokens: their end tells them apart. */
const shown = (token) => (String(token ?? "").length > 9 ? `…${String(token).slice(-6)}` : token);

/** A history without the resource's own lines: what the clients were told stands for them. */
function judged(given) {
  if (given.some((line) => line.ev === "access")) return given;
  const fenced = given[0]?.fence ?? true;
  let highest = -1n;
  let version = null;
  return given.flatMap((line) => {
    if (line.ev !== "wrote" || !["done", "refused"].includes(line.outcome)) return [line];
    const done = line.outcome === "done";
    const token = BigInt(line.token ?? 0);
    const corrupt = done && token < highest;
    if (done && !corrupt) highest = token;
    const overwrote = done && version !== null && (line.base ?? version) < version ? version - line.base : 0;
    if (done) version = Math.max(version ?? 0, (line.base ?? 0) + 1);
    const applied = done ? { version: null, corrupt, overwrote, zombie: false } : {};
    const mark = !fenced ? null : done ? line.token : line.seen ?? null;
    return [line, { ...line, ev: "access", do: "write", verdict: done ? "admit" : line.verdict ?? "refused", mark, ...applied }];
  });
}

export function build(given) {
  const lines = judged(given);
  const head = lines[0]?.ev === "run" ? lines[0] : {};
  const until = head.scenario?.until ?? (lines.at(-1)?.t || 1);
  const owners = new Map();
  const clients = [...(head.clients ?? [])];
  for (const line of lines) {
    if (line.who && line.holder) owners.set(line.holder, line.who);
    if (!head.clients && line.ev === "asked" && !clients.includes(line.who)) clients.push(line.who);
  }
  const owner = (holder) => owners.get(holder) ?? String(holder ?? "").replace(/\d+$/, "");
  const model = {
    given, lines, until, clients, owner, unkept: broken(given), report: null, scenario: head.scenario ?? null, source: head.source ?? "history",
    machines: head.service ?? [], beliefs: [], leases: [], waits: [], arrows: [], accesses: [],
    pauses: [], cuts: [], downs: [], points: [], notes: [], actions: [], scores: [],
  };
  model.actions = (model.scenario?.actions ?? []).filter((action) => action.do !== "note");
  spans(model);
  arrows(model);
  scores(model);
  return model;
}

const running = new WeakMap(); // a list -> those of its spans that may not be over

function open(list, span) {
  const begun = { end: Infinity, ...span };
  list.push(begun);
  if (!running.has(list)) running.set(list, new Set());
  running.get(list).add(begun);
}

function close(list, t, matches, more = {}) {
  const still = running.get(list) ?? [];
  for (const span of still) {
    if (span.end > t && span.start <= t && matches(span)) Object.assign(span, { end: t }, more);
    if (span.end <= t) still.delete(span);
  }
}

function spans(model) {
  for (const line of model.lines) {
    const { t, who, holder } = line;
    const same = (span) => span.holder === holder;
    const his = (span) => span.who === who;
    if (line.ev === "asked") open(model.waits, { who, start: t });
    if (["acquired", "timeout", "failed", "cancelled"].includes(line.ev)) close(model.waits, t, his);
    if (line.ev === "acquired") open(model.beliefs, { who, holder, token: shown(line.token), start: t, untils: [[t, line.until]] });
    if (line.ev === "renewed") model.beliefs.findLast(same)?.untils.push([t, line.until]);
    if (line.ev === "lost" || line.ev === "releasing") close(model.beliefs, t, same, { how: line.ev, why: line.why });
    if (line.ev === "granted") {
      open(model.leases, { who: model.owner(holder), holder, token: shown(line.token), start: t, untils: [[t, line.until]] });
    }
    if (line.ev === "extended") model.leases.findLast(same)?.untils.push([t, line.until]);
    if (line.ev === "freed") close(model.leases, t, same, { how: line.how });
    if (line.ev === "note") model.notes.push({ t, text: line.text });
    if (line.ev === "fault") fault(model, line);
  }
}

function fault(model, line) {
  const { t, who } = line;
  const every = !who || line.do === "calm";
  const mine = (span) => every || span.who === who || (who === "service" && model.machines.includes(span.who));
  if (line.do === "pause") open(model.pauses, { who, start: t });
  else if (line.do === "resume") close(model.pauses, t, mine);
  else if (line.do === "cut") open(model.cuts, { who, from: line.from ?? "all", start: t, end: t + (line.for ?? Infinity) });
  else if (line.do === "heal") close(model.cuts, t, (cut) => mine(cut) && (!line.from || line.from === "all" || cut.from === line.from));
  else if (line.do === "kill") {
    open(model.downs, { who, start: t });
    for (const list of [model.beliefs, model.waits, model.pauses]) close(list, t, (span) => span.who === who, { how: "kill" });
  } else if (line.do === "restart") close(model.downs, t, mine);
  else {
    if (line.do === "calm") for (const list of [model.pauses, model.cuts, model.downs]) close(list, t, () => true);
    model.points.push({ t, who: who ?? "service", do: line.do, line });
  }
}

function arrows(model) {
  const answered = new Map();
  for (const line of model.lines) {
    if (line.ev !== "access") continue;
    const access = { ...line, token: shown(line.token), given: line.token, refused: refusal(line) };
    model.accesses.push(access);
    if (line.message !== undefined) answered.set(line.message, access);
    else model.arrows.push({ src: line.who, dst: "resource", sent: line.t, t: line.t, what: line.do, token: access.token, fate: "arrived", access });
  }
  for (const line of model.lines) {
    if (line.ev === "message") model.arrows.push({ ...line, token: shown(line.token), access: line.answers === undefined ? answered.get(line.id) : undefined });
  }
}

/** The larger of two tokens; above 2^53 - 1 they are strings. */
export const higher = (token, known) => (token !== undefined && token !== null && (known === null || BigInt(token) > BigInt(known)) ? token : known);

/** Writes whose client was told "done", although the resource never made them. */
function broken(given) {
  const name = ({ token, seq, holder }) => `${token} ${seq} ${holder}`;
  const made = new Set();
  for (const line of given) if (line.ev === "access" && line.version !== undefined) made.add(name(line));
  const told = new Set();
  if (given.some((line) => line.ev === "access")) for (const line of given) if (line.ev === "wrote" && line.outcome === "done" && !made.has(name(line))) told.add(line);
  return told;
}

function scores(model) {
  const seen = model.lines.some((line) => line.ev === "granted");
  const starts = seen ? "granted" : "acquired";
  const ends = seen ? ["freed"] : ["lost", "releasing"];
  const holders = new Map();
  let score = { t: 0, holders: [], mark: null, highest: null, value: null, accepted: 0, refused: 0, corrupted: 0, lost: 0, unkept: 0, writers: [] };
  model.scores.push(score);
  for (const line of model.lines) {
    if (line.ev === starts) holders.set(line.holder, line.token);
    else if (ends.includes(line.ev)) holders.delete(line.holder);
    else if (line.ev !== "access" && !model.unkept.has(line)) continue;
    score = { ...score, t: line.t, holders: [...holders].map(([holder, token]) => ({ who: model.owner(holder), token })) };
    score.unkept += model.unkept.has(line) ? 1 : 0;
    if (line.ev === "access") {
      score.mark = line.mark ?? score.mark;
      score.highest = higher(line.token, score.highest);
      if (line.version !== undefined) Object.assign(score, { value: line.value, accepted: score.accepted + 1, writers: [...new Set([...score.writers, line.who])] });
      score.refused += refusal(line) ? 1 : 0;
      score.corrupted += line.corrupt ? 1 : 0;
      score.lost += line.overwrote ? 1 : 0;
    }
    model.scores.push(score);
  }
}

/** The last item of a list ordered by t that is not after t; -1 if there is none. */
export function indexAt(list, t) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].t <= t) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

export const scoreAt = (model, t) => model.scores[Math.max(0, indexAt(model.scores, t))];

const during = (list, who, t) => list.findLast((span) => span.who === who && span.start <= t && t < span.end);

export const deadline = (span, t) => span.untils.findLast(([since]) => since <= t)?.[1] ?? span.start;

/** What a client, or a machine of the service, is doing at an instant. */
export function stateAt(model, who, t) {
  return {
    paused: during(model.pauses, who, t), down: during(model.downs, who, t),
    cuts: model.cuts.filter((span) => span.who === who && span.start <= t && t < span.end),
    waiting: during(model.waits, who, t), belief: during(model.beliefs, who, t), lease: during(model.leases, who, t),
  };
}
