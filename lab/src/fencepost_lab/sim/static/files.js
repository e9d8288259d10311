// Files from elsewhere: a scenario, a kept seed or a history. Whatever is wrong with one is said in a sentence.
const MEGABYTE = 1 << 20;
const MOST = { bytes: 64 * MEGABYTE, lines: 200000, clients: 40, scenario: MEGABYTE };

const NUMBERS = ["t", "until", "sent", "asked", "ttl", "version", "base", "overwrote", "for", "by", "rate", "seq"];
const WORDS = ["who", "holder", "src", "dst", "what", "do", "text", "how", "why", "outcome", "verdict", "from", "lock", "key", "fate", "source"];
const TOKENS = ["token", "mark", "seen", "above"];

const CHECK = "fencepost check tells what is in it.";

/** The bytes of a file as text, unpacked if they are gzip; no more than a page can hold. */
async function textOf(file) {
  const large = () => new Error(`${file.name} is too large to be drawn: this page takes ${MOST.bytes / MEGABYTE} MB. ${CHECK}`);
  if (file.size > MOST.bytes) throw large();
  const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  let stream = file.stream();
  if (first === 0x1f && second === 0x8b) stream = stream.pipeThrough(new DecompressionStream("gzip"));
  const parts = [];
  let size = 0;
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.byteLength;
    if (size > MOST.bytes) {
      reader.cancel();
      throw large();
    }
    parts.push(value);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await new Blob(parts).arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not text: a history is JSON lines in UTF-8, a scenario is JSON`);
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Why a line cannot be drawn, or "". */
function wrong(line) {
  if (!isObject(line) || typeof line.ev !== "string" || typeof line.t !== "number") return "is not a line of a history: a JSON object with t and ev";
  const given = (names) => names.filter((name) => line[name] !== undefined && line[name] !== null);
  for (const name of given(NUMBERS)) if (!Number.isFinite(line[name]) || Math.abs(line[name]) > 1e9) return `has ${name} = ${said(line[name])}, which is not a number of a history`;
  if (line.t < 0) return "happens before the history begins: t is seconds since then";
  for (const name of given(WORDS)) if (typeof line[name] !== "string") return `has ${name} = ${said(line[name])}, which is not a word`;
  for (const name of given(TOKENS)) if (!/^\d{1,19}$/.test(String(line[name]))) return `has ${name} = ${said(line[name])}, which is not a token`;
  if (line.value !== undefined && isObject(line.value)) return `has value = ${said(line.value)}, which is neither a number nor a word`;
  if (line.ev === "run") return wrongHead(line);
  return "";
}

const said = (value) => JSON.stringify(value).slice(0, 40);

function wrongHead({ clients, service, scenario, format }) {
  if (format !== undefined && format !== 1) return `is of format ${said(format)}; this page knows 1`;
  for (const names of [clients, service]) if (names !== undefined && names !== null && !(Array.isArray(names) && names.every((name) => typeof name === "string"))) return "has clients or service that are no lists of names";
  if (scenario === undefined || scenario === null) return "";
  const known = isObject(scenario) && isObject(scenario.settings) && Array.isArray(scenario.actions) && scenario.until > 0 && Number.isFinite(scenario.until);
  if (!known || !scenario.actions.every((each) => isObject(each) && Number.isFinite(each.at) && typeof each.do === "string")) return "has a scenario without settings, actions and until";
  return "";
}

function historyOf(name, lines) {
  if (!lines.length) throw new Error(`${name} is empty: no scenario, and no history`);
  if (lines.length > MOST.lines) throw new Error(`${name} has ${lines.length} lines; this page draws ${MOST.lines}. Cut out the minutes that matter, and keep its first line. ${CHECK}`);
  const names = new Set();
  lines.forEach((line, at) => {
    const why = wrong(line);
    if (why) throw new Error(`${name}, line ${at + 1}: ${why}`);
    if (line.ev === "asked" || line.ev === "acquired") names.add(line.who);
  });
  if (names.size > MOST.clients) throw new Error(`${name} has ${names.size} clients; this page draws ${MOST.clients}. Keep the lines of those that matter. ${CHECK}`);
  return { name, lines: lines.toSorted((a, b) => a.t - b.t) };
}

function parsed(name, text) {
  let whole;
  try { whole = JSON.parse(text); } catch { /* a history has many lines */ }
  if (isObject(whole) && whole.ev === undefined) {
    if (Array.isArray(whole.history)) return historyOf(name, whole.history);
    if (!["seed", "settings", "actions", "until"].some((key) => key in whole)) throw new Error(`${name} is JSON, but neither a scenario (seed, settings, actions, until) nor a history`);
    if (text.length > MOST.scenario) throw new Error(`${name} is too large for a scenario`);
    return { name, scenario: whole };
  }
  if (whole !== undefined && !isObject(whole)) throw new Error(`${name} is JSON, but neither a scenario nor a history`);
  const lines = [];
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    try { lines.push(JSON.parse(line)); } catch {
      throw new Error(`${name}, line ${lines.length + 1}: is not a line of a history: a JSON object with t and ev`);
    }
    if (lines.length > MOST.lines) break;
  }
  return historyOf(name, lines);
}

/** What a file holds: {name, scenario} or {name, lines}. An Error says what is wrong with it. */
export async function read(file) {
  try {
    return parsed(file.name, await textOf(file));
  } catch (error) {
    if (error instanceof TypeError || error instanceof RangeError || error instanceof DOMException) throw new Error(`${file.name} cannot be read: ${error.message}`);
    throw error;
  }
}
