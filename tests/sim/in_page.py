"""Run seeds by Python inside the exported page, and compare each trace with this Python's, byte for byte.

    python -m tests.sim.in_page --seeds 200

Prints also how large the export is, and how long a page takes until it can be looked at and until it is live.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fencepost_lab.sim.answers import answer
from fencepost_lab.sim.site import export
from tests.sim.browser import Browser, serving

_RUN = """
const bytes = (text) => new TextEncoder().encode(text);
const hex = (hash) => Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
(async () => {
  const { run, seed } = await import("./engine.js");
  const digests = [];
  for (const number of NUMBERS) {
    const trace = await run(await seed(String(number)));
    digests.push(hex(await crypto.subtle.digest("SHA-256", bytes(trace))));
  }
  return digests;
})().then(done, (error) => done(String(error)));
"""


@contextmanager
def static_server(folder: Path, gate: threading.Event | None = None) -> Iterator[str]:
    """A plain file server; with ``gate``, Python's program is sent only once that is set."""

    class Files(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if gate is not None and self.path.endswith(".wasm.bin"):
                gate.wait(120)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    files = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder)))
    files.daemon_threads = True
    with serving(files) as url:
        yield url


def wait_live(browser: Browser) -> None:
    """Until Python runs in the page."""
    browser.wait("document.querySelector('#cards fieldset')?.disabled === false", deadline=120)


def in_page(browser: Browser, seeds: Iterable[int]) -> list[str]:
    """The digest of each seed's trace, as the page runs it."""
    found = browser.later(_RUN.replace("NUMBERS", json.dumps(list(seeds))))
    assert isinstance(found, list), found
    return found


def here(seeds: Iterable[int]) -> list[str]:
    """The same by this Python, as the server runs it."""
    return [sha256(answer("run", answer("seed", str(seed))).encode()).hexdigest() for seed in seeds]


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: 0)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = export(Path(folder))
        python = [path for path in files if path.parent.name == "python"]
        sizes = [sum(path.stat().st_size for path in some) / 1e6 for some in (files, python)]
        print(f"{len(files)} files, {sizes[0]:.1f} MB, of which Python {sizes[1]:.1f} MB")
        with static_server(Path(folder)) as url, Browser() as browser:
            began = time.monotonic()
            browser.open(url)
            browser.wait("document.querySelector('[data-score=accepted]')")
            shown = time.monotonic()
            wait_live(browser)
            print(f"{shown - began:.1f} s until it plays, {time.monotonic() - began:.1f} s until it is live")
            wrong: list[int] = []
            began = time.monotonic()
            for first in range(options.first, options.first + options.seeds, 20):
                batch = range(first, min(first + 20, options.first + options.seeds))
                pairs = zip(batch, in_page(browser, batch), here(batch), strict=True)
                wrong += [seed for seed, there, mine in pairs if there != mine]
            same = options.seeds - len(wrong)
            print(f"{same} of {options.seeds} seeds have the same trace, in {time.monotonic() - began:.0f} s")
            if wrong:
                print(f"these differ: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
