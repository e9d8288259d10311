"""The built site: no warning, no broken link, nothing from another host; and a person can use it on any screen.

`make docs` runs this, and `.ci/run` runs that: a build costs as much CPU as a thousand other tests.
"""

import json
import re
import shutil
from datetime import date
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import docs.pages
from docs import switch
from tests import ROOT
from tests.docs.conftest import Files
from tests.docs.site import broken, outside, pages, repository
from tests.harness.child import Child
from tests.sim.browser import Browser, serving, wait_score

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


def small(folder: Path, repository: str) -> Path:
    """Two pages, built as the site is, for a repository that is known or not."""
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "index.md").write_text("# First\n\n```{toctree}\nredis\n```\n")
    (folder / "docs" / "redis.md").write_text("# Redis\n\n[a file](../Makefile)\n")
    command = ("-m", "sphinx", "-W", "-q", "-b", "html", "-c", ROOT / "docs", folder / "docs", folder / "site")
    with Child.python(*command, env={"FENCEPOST_REPOSITORY": repository}) as sphinx:
        sphinx.succeed(250)
    return folder / "site"


def test_edit_links_come_with_the_address_of_the_repository_and_nothing_breaks_without(tmp_path: Path) -> None:
    known = small(tmp_path / "known", "https://example.org/it")
    text = (known / "redis.html").read_text("utf-8")
    assert 'href="https://example.org/it/edit/main/docs/redis.md"' in text
    assert 'href="https://example.org/it/blob/main/Makefile"' in text
    unknown = small(tmp_path / "unknown", docs.pages.declared(ROOT / "pyproject.toml"))
    if not repository():
        assert "edit" not in re.findall(r'rel="(\w+)"', (unknown / "redis.html").read_text("utf-8"))
        assert "a file" in (unknown / "redis.html").read_text("utf-8")
    assert list(outside(known)) == list(outside(unknown)) == []


def few_pages(site: Path, folder: Path, *names: str) -> Path:
    """A build that has these pages alone."""
    for name in ("_images", "_static", *names):
        copy = shutil.copytree if (site / name).is_dir() else shutil.copy
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(site / name, folder / name)
    return folder


def test_one_version_says_so_and_several_have_a_switch(
    browser: Browser, site: Path, site_url: str, axe: str, tmp_path: Path
) -> None:
    browser.looks(1280, 900)
    for alone in (site_url, f"{site.as_uri()}/"):
        browser.open(f"{alone}redis.html")
        browser.wait("document.querySelector('.versions').innerText === 'development version'")
        assert browser.run("return document.querySelectorAll('.versions a').length") == 0

    # Three versions, of which the oldest has no page about etcd.
    listed = tmp_path / "releases.json"
    listed.write_text("[]\n")
    for number, version in enumerate(("0.1.0", "0.2.0"), 1):
        switch.release(version, date(2026, number, 1), listed)
    assert switch.releases(listed) == ["0.2.0", "0.1.0"]
    old = few_pages(site, tmp_path / "old", "index.html", "redis.html", "reference/exits.html")
    new = few_pages(site, tmp_path / "new", "index.html", "redis.html", "etcd.html", "reference/exits.html")
    published = tmp_path / "published"
    with pytest.raises(switch.Refused, match=r"releases\.json: scripts/site release 0\.3\.0"):
        switch.publish(published, "0.3.0", new, switch.releases(listed))
    for name, built in (("dev", new), ("0.1.0", old), ("0.2.0", new), ("dev", new)):
        there = switch.publish(published, name, built, switch.releases(listed))
    assert there == ["dev", "0.2.0", "0.1.0"]
    assert (old / "_static" / "versions.js").read_text("utf-8") == switch.alone(), "the build itself is not touched"

    def here() -> str:
        return str(browser.run("return location.pathname")).partition("/published/")[2] or "elsewhere"

    def go(words: str) -> None:
        browser.click(".versions summary")
        (link,) = [
            number
            for number, text in enumerate(
                browser.run("return [...document.querySelectorAll('.versions li')].map((each) => each.innerText)")
            )
            if text == words
        ]
        browser.click(f".versions li:nth-child({link + 1}) a")
        browser.wait(f"document.querySelector('.versions summary')?.innerText === {json.dumps(words)}")

    files = partial(Files, directory=str(tmp_path))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), files), browser) as url:
        for start in (f"{url}published/", f"{published.as_uri()}/"):
            browser.open(f"{start}index.html")
            browser.wait("document.title.startsWith('fencepost') && location.pathname.includes('/0.2.0/')")
            browser.open(f"{start}dev/reference/exits.html")
            go("version 0.1.0")
            assert here() == "0.1.0/reference/exits.html", "the same page"
            assert "There is a newer one: version 0.2.0" in browser.text(".versions")
            go("development version")
            assert here() == "dev/reference/exits.html"
            browser.open(f"{start}0.2.0/etcd.html")
            assert "newer" not in browser.text(".versions")
            go("version 0.1.0")
            assert here() == "0.1.0/index.html", "it has no page about etcd"
        browser.open(f"{url}published/0.1.0/redis.html")  # axe cannot read the style sheets of a file
        browser.click(".versions summary")
        assert violations(browser, axe) == []


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
