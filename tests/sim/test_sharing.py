"""What leaves the page and comes back: links, files, kept seeds, and the site that plays from any file server."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fencepost_lab.sim import lines, parse, run
from fencepost_lab.sim.chaos import chaos
from fencepost_lab.sim.seeds import keep, try_seeds
from fencepost_lab.sim.serve import server
from tests.harness.waiting import until
from tests.sim.browser import Browser, serving, wait_score
from tests.sim.test_controls import HELD, at, do, open_own

SVG = "{http://www.w3.org/2000/svg}"


def saved(folder: Path, name: str) -> Path:
    """The downloaded file, once it is complete."""
    path = folder / name
    until(lambda: path.is_file() and path.stat().st_size > 0, f"the download of {name}")
    return path


def corrupt(browser: Browser, page: str) -> None:
    """A scenario of one's own that ends badly, made by hand up to its last step."""
    stop = {"at": 1, "who": "A", "do": "pause", "for": 8}
    open_own(browser, page, *HELD, stop, {"at": 7, "who": "B", "do": "write"}, t=10, fencing="off")
    do(browser, "A", "write")
    at(browser, 11)
    wait_score(browser, accepted="2", corrupted="1", mark="2")


def test_a_copied_link_holds_the_whole_scenario(browser: Browser, page: str, tmp_path: Path) -> None:
    browser.allow(tmp_path)
    corrupt(browser, page)
    log = browser.text("#log")
    browser.click("#link")
    browser.wait("document.querySelector('#live').textContent === 'Copied'")
    link = browser.later("navigator.clipboard.readText().then(done)")
    assert link.startswith(f"{page}#s=")
    assert link.endswith("&t=11")
    browser.open(link)
    wait_score(browser, accepted="2", corrupted="1")
    assert browser.text("#log") == log


def test_a_saved_scenario_runs_to_the_same_trace_and_can_be_opened_again(
    browser: Browser, page: str, tmp_path: Path
) -> None:
    browser.allow(tmp_path)
    corrupt(browser, page)
    log = browser.text("#log")
    shown = browser.later("import('/state.js').then(({ state }) => done(state.model.lines))")
    browser.click("#json")
    path = saved(tmp_path, "fencepost-scenario.json")
    assert [json.loads(line) for line in lines(run(parse(path.read_bytes()))).splitlines()] == shown

    browser.open(page)
    wait_score(browser, accepted="0")
    browser.type("#file", str(path))
    browser.wait("document.querySelector('#story').value === '*own'")
    at(browser, 11)
    wait_score(browser, accepted="2", corrupted="1")
    assert browser.text("#log") == log


def test_a_saved_picture_stands_alone_and_shows_the_tokens(browser: Browser, page: str, tmp_path: Path) -> None:
    browser.allow(tmp_path)
    browser.open(f"{page}#story=gc-pause&v=1&t=12")
    wait_score(browser, refused="1")
    browser.click("#svg")
    path = saved(tmp_path, "fencepost.svg")
    picture = ElementTree.parse(path).getroot()
    said = {"".join(text.itertext()) for text in picture.iter(f"{SVG}text")}
    assert picture.tag == f"{SVG}svg"
    assert {"#1", "#2", "A holds #1", "B holds #2", "believes #1", "✗ refused: token 1, mark 2"} <= said
    (style,) = picture.iter(f"{SVG}style")
    assert style.text is not None
    assert "#b84200" in style.text
    assert "var(" not in style.text
    browser.open(path.as_uri())
    assert browser.run("return document.querySelector('svg').getBBox().width") > 1000
    browser.open(page)


@pytest.mark.parametrize("way", ["--play", "Open"])
def test_a_kept_seed_is_played_and_can_be_changed(browser: Browser, page: str, tmp_path: Path, way: str) -> None:
    failure = try_seeds(range(1000), fencing="off", stop=True).failures[0]
    kept = keep(failure, tmp_path)
    end = run(failure.scenario)[-1]
    outcome = {name: str(end[name]) for name in ("accepted", "corrupted", "value")}
    with serving(server(0, kept if way == "--play" else None), browser) as url:
        browser.open(url)
        wait_score(browser, accepted="0")
        if way == "Open":
            browser.type("#file", str(kept))
            browser.wait("document.querySelector('#story').value === '*own'")
        browser.click("#finish")
        wait_score(browser, **outcome, lost=str(end["lost_updates"]))
        assert end["lost_updates"] > 0
        if way == "--play":
            assert f"Broken: data: {failure.violations[0].what}" in browser.text("#notes")
        browser.choose("#fencing", "enter")
        browser.click("#finish")
        wait_score(browser, corrupted="0", lost="0")


def test_a_seed_is_opened_by_its_number(browser: Browser, page: str) -> None:
    seed = try_seeds(range(1000), fencing="off", stop=True).failures[0].scenario.seed
    for fencing in ("off", "enter"):
        end = run(chaos(seed, fencing=fencing))[-1]
        browser.open(f"{page}#seed={seed}&fencing={fencing}&t=99")
        wait_score(browser, accepted=str(end["accepted"]), lost=str(end["lost_updates"]))
        assert (end["lost_updates"] > 0) is (fencing == "off")


def test_a_file_that_is_none_of_these_is_explained(browser: Browser, page: str, tmp_path: Path) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    (tmp_path / "words.json").write_text("words")
    browser.type("#file", str(tmp_path / "words.json"))
    browser.wait("!document.querySelector('#error').hidden")
    assert "words.json, line 1: is not a line of a history" in browser.text("#error")
