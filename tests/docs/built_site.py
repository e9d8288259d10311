"""The built site: no warning, no broken link, nothing from another host; and a person can use it on any screen.

`make docs` runs this, and `.ci/run` runs that: a build costs as much CPU as a thousand other tests.
"""

from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.docs.site import broken, outside, pages, repository
from tests.sim.browser import Browser, wait_score

pytestmark = [pytest.mark.slow, pytest.mark.browser]  # the simulator inside comes from the same place

KINDS = [
    "index.html",
    "start/tutorial.html",
    "reference/api-6-hooks.html",
    "redis.html",
]
"""One page of each kind: prose, programs, docstrings, wide tables."""
SCREENS = {"phone": (360, 740, "light"), "dark": (1280, 900, "dark")}


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in ROOT.glob("docs/**/*.md")}
    made = {path.relative_to(site) for path in pages(site)}
    assert documents - made == set()
    assert len(made) > 70


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    assert sum(len(page.links) for page in pages(site).values()) > 5000
    assert list(broken(site)) == []


def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#no"></a><img src="c.png">')
    (tmp_path / "b.html").write_text('<p id="there"></p><script src="//example.org/x.js"></script>')
    assert len(list(broken(tmp_path))) == 2
    assert list(outside(tmp_path)) == ["b.html: //example.org/x.js"]


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    assert list(outside(site)) == []


def test_a_page_names_the_version_and_where_to_edit_it(site: Path) -> None:
    text = (site / "redis.html").read_text("utf-8")
    assert "fencepost 0.1.0" in text
    assert ("/edit/main/docs/redis.md" in text) is bool(repository())
    assert f"{repository()}/edit/main/docs/redis.md" in text or not repository()


def violations(browser: Browser, axe: str) -> list[str]:
    """What axe-core finds, of any weight."""
    found: dict[str, Any] = browser.later(
        f"{axe}; axe.run(document, {{resultTypes: ['violations']}})"
        ".then((found) => done({violations: found.violations, passes: found.passes.length}))"
    )
    assert found["passes"] > 10, "axe looked at next to nothing"
    return [
        f"{each['id']} ({each['impact']}): {node['target']}" for each in found["violations"] for node in each["nodes"]
    ]


@pytest.mark.parametrize("screen", SCREENS)
def test_a_page_fits_the_screen_and_keeps_nobody_out(browser: Browser, site_url: str, axe: str, screen: str) -> None:
    width, height, scheme = SCREENS[screen]
    browser.looks(width, height, prefers_color_scheme=scheme)
    found = {}
    for page in KINDS:
        browser.open(site_url + page)
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") is (scheme == "light")
        found[page] = [*too_wide(browser, width), *violations(browser, axe)]
    assert {page: faults for page, faults in found.items() if faults} == {}


def too_wide(browser: Browser, width: int) -> list[str]:
    """Whether one has to scroll sideways."""
    wide = browser.run("return document.documentElement.scrollWidth")
    return [f"{wide} pixels wide"] if wide > width else []


def test_the_search_finds_a_page_and_code_can_be_copied(browser: Browser, site_url: str) -> None:
    browser.open(f"{site_url}search.html?q=FencingTokenClash")
    browser.wait("document.querySelectorAll('#search-results li a').length > 0")
    assert "Runbook" in browser.text("#search-results")
    browser.open(f"{site_url}start/tutorial.html")
    browser.wait("document.querySelectorAll('button.copybtn').length >= 5")


def test_a_reader_gets_from_the_first_page_to_the_simulator_and_plays(browser: Browser, site_url: str) -> None:
    browser.looks(1280, 1000, prefers_reduced_motion="reduce")  # or a click meets a page that still scrolls
    browser.open(site_url)
    assert browser.run("return getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    browser.click('article a[href="sim.html"]')
    browser.wait("document.title.startsWith('The simulator')")
    frame = "document.querySelector('iframe').contentDocument"
    browser.run("document.querySelector('iframe').scrollIntoView()")
    browser.wait(f"{frame}?.querySelector('[data-score=accepted]')?.innerText === '0'")
    with browser.inside("iframe"):
        browser.choose("#speed", "8")
        browser.click("#play")
        wait_score(browser, accepted="2", corrupted="1")
        browser.choose("#story", "write-only")
        wait_score(browser, accepted="0")
        browser.click("#finish")
        wait_score(browser, lost="1")
    browser.open("about:blank")
