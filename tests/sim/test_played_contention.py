"""A real contention run on Redis, with one process stopped by SIGSTOP past its ttl, played in the page."""

from pathlib import Path

import pytest

from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.run import contend
from fencepost_lab.history import checks
from fencepost_lab.history.format import load
from fencepost_lab.sim.serve import server
from tests.harness.resource import Service
from tests.harness.servers import Endpoint
from tests.sim.browser import Browser, serving

BELIEFS = """
return [...document.querySelectorAll('.bar.belief')].map((bar) => {
  const box = bar.querySelector('rect').getBoundingClientRect();
  return [box.left, box.right, box.top];
})"""


@pytest.mark.parametrize("fence", ["off", "on"])
def test_the_page_shows_two_who_believe_that_they_hold(
    browser: Browser, redis_server: Endpoint, tmp_path: Path, fence: str
) -> None:
    history = tmp_path / "history.jsonl"
    with Service(args=["--fence", fence]) as resource:
        plan = Plan(
            backend=redis_server.url,
            contenders=3,
            ttl=0.5,
            work=0.1,
            warmup=0,
            duration=8,  # it is stopped half way
            pause=4,  # the others get the lock meanwhile, also if the machine stands still for 2 s
            resource=resource.url,
            fence=fence == "on",
            history=True,
        )
        result = contend(plan, history=history)
    assert result.pauses[0] > plan.ttl, "it was stopped past its ttl"
    counts = checks.check(load(history)).counts
    assert counts["overlapping_beliefs"] > 0

    with serving(server(0, history), browser) as url:
        browser.open(url)
        browser.wait("document.querySelector('[data-score=accepted]')")
        browser.click("#finish")
        outcome = {"corrupted": fence == "off", "lost": fence == "off", "refused": fence == "on"}
        for name, seen in outcome.items():
            browser.wait(f"(document.querySelector('[data-score={name}]')?.innerText !== '0') === {str(seen).lower()}")
        assert browser.run("return document.querySelectorAll('#timeline .overdue').length") >= 1
        assert "stops: a pause" in browser.text("#log")
        bars: list[list[float]] = browser.run(BELIEFS)
        assert len(bars) == result.counts["acquired"]
        zombie = max(bars, key=lambda bar: bar[1] - bar[0])
        beside = [bar for bar in bars if bar[2] != zombie[2] and bar[0] < zombie[1] and zombie[0] < bar[1]]
        assert beside, "another lane's belief lies below the zombie's"
        told = browser.text("#log")
        assert ("Corruption: a" if fence == "off" else "Refused: write of a") in told
