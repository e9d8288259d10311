// Who runs new scenarios: the server that this page came from, or Python in a worker of the page itself.
/** stage: none (this copy plays recordings), asked (only if the reader wants to), loading, starting, live, failed. Patience: seconds for an answer. */
export const engine = { stage: "none", loaded: 0, total: 0, why: "", patience: 60 };

let tell = () => {};
let sizes = {};
let worker = null;
let asked = new Map();
let number = 0;

function become(stage, more = {}) {
  Object.assign(engine, { stage }, more);
  tell();
}

export const live = () => engine.stage === "live";

/** Find out who runs scenarios here; `changed` is called whenever the engine's stage or progress changes. */
export function setUp(options, changed) {
  tell = changed;
  if (options.engine === "server") return become("live");
  if (options.engine !== "page") return;
  sizes = options.python;
  engine.total = Object.values(sizes).reduce((sum, size) => sum + size, 0);
  if (navigator.connection?.saveData) become("asked");
  else load();
}

export function load() {
  worker?.terminate();
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => heard(data);
  worker.onerror = (event) => failed(event.message || "a file of it is missing");
  become("loading", { loaded: 0, why: "" });
}

function failed(why) {
  worker?.terminate();
  worker = null;
  for (const { reject } of asked.values()) reject(new Error(`Python in this page has stopped: ${why}`));
  asked.clear();
  become("failed", { why });
}

function heard(data) {
  if (data.loaded !== undefined) return become("loading", { loaded: data.loaded });
  if (data.starting) return become("starting");
  if (data.ready) return become("live");
  if (data.failed) return failed(data.failed);
  const { resolve, reject } = asked.get(data.id) ?? {};
  asked.delete(data.id);
  if (data.ok) return resolve?.(data.text);
  return reject?.(new Error(data.text));
}

/** An answer of Python in the page. If it takes too long, Python is stopped and started again. */
function askWorker(what, body) {
  if (!worker) return Promise.reject(new Error("Python is not running in this page"));
  const id = ++number;
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      asked.delete(id);
      reject(new Error(`No answer within ${engine.patience} seconds: this is too much work for a page. Try a shorter time or fewer rounds.`));
      failed("it was busy for too long");
      load();
    }, engine.patience * 1000);
    const done = (settle) => (value) => { clearTimeout(timer); settle(value); };
    asked.set(id, { resolve: done(resolve), reject: done(reject) });
    worker.postMessage({ id, what, body });
  });
}

export async function text(path, options) {
  const reply = await fetch(path, { signal: AbortSignal.timeout(engine.patience * 1000), ...options }); // the next change waits for it
  const body = await reply.text();
  if (!reply.ok) {
    let said = body;
    try { said = JSON.parse(body).error; } catch { /* the body is the message */ }
    throw new Error(said);
  }
  return body;
}

const post = (what, body) => text(what, { method: "POST", headers: { "Content-Type": "application/json" }, body });
const ask = (what, body) => (engine.total ? askWorker(what, body) : post(what, body));

/** The trace of a scenario, as JSON lines. */
export const run = (scenario) => ask("run", JSON.stringify(scenario));
/** What `fencepost check` says of a history. */
export const check = async (history) => JSON.parse(await ask("check", history));
/** The scenario of a seed of the seeded tests. */
export const seed = async (digits) => JSON.parse(await (engine.total ? askWorker("seed", digits) : text(`data/seeds/${encodeURIComponent(digits)}.json`)));
