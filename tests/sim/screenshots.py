"""Renew the pictures of the page in docs/: python -m tests.sim.screenshots. Look at them before you commit them.

`python -m tests.sim.screenshots contend` renews that of docs/contend.md: a new run, on a Redis that is started for it.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.run import contend
from fencepost_lab.servers.stores import store
from fencepost_lab.sim.serve import server
from tests import ROOT
from tests.harness.resource import Service
from tests.sim.browser import Browser, serving, wait_score

SHOTS = {
    "desktop": (1280, 1000, "light", "v=0&t=10.5", {"corrupted": "1"}),
    "dark": (1280, 1000, "dark", "v=1&t=9", {"refused": "1"}),
    "phone": (360, 740, "light", "v=1&t=12", {"refused": "1"}),
}


def keep(browser: Browser, name: str) -> None:
    path = ROOT / "docs" / f"{name}.png"
    path.write_bytes(browser.picture())
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def scenarios() -> None:
    """The first guided scenario, on a desk, in the dark and on a phone."""
    with serving(server(0)) as page, Browser() as browser:
        for name, (width, height, scheme, where, outcome) in SHOTS.items():
            browser.looks(width, height, prefers_color_scheme=scheme)
            browser.open(f"{page}#story=gc-pause&{where}")
            wait_score(browser, **outcome)
            if name == "phone":
                browser.run("document.querySelector('#score').scrollIntoView()")
            keep(browser, f"sim-{name}")


def contention() -> None:
    """The run of docs/contend.md: one process is stopped past its ttl, and nothing is fenced."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        resource = stack.enter_context(Service(args=["--fence", "off"]))
        plan = Plan(
            backend=stack.enter_context(store("redis", folder)).url,
            contenders=4,
            ttl=1.0,
            work=0.1,
            warmup=0,
            duration=6,
            pause=2.5,
            resource=resource.url,
            fence=False,
            history=True,
        )
        contend(plan, history=folder / "run.jsonl")
        page = stack.enter_context(serving(server(0, folder / "run.jsonl")))
        browser = stack.enter_context(Browser())
        browser.looks(1280, 650, prefers_color_scheme="light")
        browser.open(page)
        browser.wait("document.querySelector('[data-score=accepted]')")
        browser.click("#finish")
        wait_score(browser, corrupted="1")
        browser.run("document.querySelector('#score').scrollIntoView()")
        keep(browser, "contend-play")


if __name__ == "__main__":
    contention() if "contend" in sys.argv else scenarios()
