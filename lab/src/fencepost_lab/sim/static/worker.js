// Python in a worker: the real core, guard and rule, compiled to WebAssembly, so that the page itself runs new scenarios.
import { loadPyodide } from "./python/pyodide.mjs";

const real = self.fetch.bind(self);
let loaded = 0;

/** The body of a file, counted as it comes. */
async function counted(name) {
  const reply = await real(`python/${name}`);
  if (!reply.ok) throw new Error(`python/${name}: ${reply.status}`);
  return reply.body.pipeThrough(new TransformStream({
    transform(chunk, out) {
      loaded += chunk.byteLength;
      postMessage({ loaded });
      out.enqueue(chunk);
    },
  }));
}

const KINDS = { "pyodide.asm.wasm": "application/wasm", "python_stdlib.zip": "application/zip" };

/** Pyodide's own requests: its program is kept compressed, for not every file server compresses. */
self.fetch = async (resource, ...more) => {
  const name = String(resource?.url ?? resource).split("/").at(-1);
  if (!KINDS[name]) return real(resource, ...more);
  const packed = name.endsWith(".wasm");
  const body = await counted(packed ? `${name}.bin` : name);
  return new Response(packed ? body.pipeThrough(new DecompressionStream("gzip")) : body, { headers: { "Content-Type": KINDS[name] } });
};

let attempt = null;

async function start() {
  const [python, source] = await Promise.all([
    loadPyodide({ indexURL: new URL("python/", self.location.href).href }),
    counted("fencepost.zip").then((body) => new Response(body).arrayBuffer()),
  ]);
  postMessage({ starting: true });
  python.FS.writeFile("/fencepost.zip", new Uint8Array(source));
  python.runPython("import sys; sys.path.insert(0, '/fencepost.zip')");
  attempt = python.pyimport("fencepost_lab.sim.answers").attempt;
  postMessage({ ready: true });
}

self.onmessage = ({ data: { id, what, body } }) => {
  try {
    const told = attempt(what, body);
    const [ok, text] = told;
    told.destroy();
    postMessage({ id, ok, text });
  } catch (error) {
    postMessage({ id, ok: false, text: String(error.message).trim().split("\n").at(-1) });
  }
};

start().catch((error) => postMessage({ failed: String(error.message).trim().split("\n").at(-1) }));
