"""Run seeds by Python inside the exported page, and compare each trace with this Python's, byte for byte.

    python -m tests.sim.in_page --seeds 200 --loads 5

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
def static_server(folder: Path, to: Browser | None = None, gate: threading.Event | None = None) -> Iterator[str]:
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
    with serving(files, to) as url:
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


def _load(browser: Browser, url: str) -> tuple[float, float]:
    """Seconds until the recorded scenario plays, and until the page is live."""
    began = time.monotonic()
    browser.open(url)
    browser.wait("document.querySelector('[data-score=accepted]')")
    shown = time.monotonic()
    wait_live(browser)
    return shown - began, time.monotonic() - began


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--loads", type=int, default=1, help="how often the page is loaded (default: once)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: 0)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = export(Path(folder))
        python = [path for path in files if path.parent.name == "python"]
        sizes = [sum(path.stat().st_size for path in some) / 1e6 for some in (files, python)]
        print(f"{len(files)} files, {sizes[0]:.1f} MB, of which Python {sizes[1]:.1f} MB")
        with static_server(Path(folder)) as url, Browser() as browser:
            loads = [_load(browser, url) for _ in range(options.loads)]
            shown, live = (min(each) for each in zip(*loads, strict=True))
            print(f"{shown:.1f} s until it plays, {live:.1f} s until it is live (the best of {options.loads} loads)")
            wrong: list[int] = []
            spent = [0.0, 0.0]
            for first in range(options.first, options.first + options.seeds, 20):
                batch = range(first, min(first + 20, options.first + options.seeds))
                began = time.monotonic()
                there = in_page(browser, batch)
                between = time.monotonic()
                mine = here(batch)
                spent = [spent[0] + between - began, spent[1] + time.monotonic() - between]
                wrong += [seed for seed, one, other in zip(batch, there, mine, strict=True) if one != other]
            each = [seconds * 1000 / max(1, options.seeds) for seconds in spent]
            print(f"{options.seeds - len(wrong)} of {options.seeds} seeds have the same trace")
            print(f"one seed takes {each[0]:.0f} ms in the page, {each[1]:.0f} ms here")
            if wrong:
                print(f"these differ: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
