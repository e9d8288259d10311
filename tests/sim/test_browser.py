"""The page in a real Chromium, by what a person clicks, types and reads."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fencepost_lab.history.format import lines
from fencepost_lab.sim import parse, run
from fencepost_lab.sim.guided import guided, variant
from fencepost_lab.sim.serve import server
from fencepost_lab.sim.site import export
from tests.sim.browser import Browser, says, score, serving, step_until, wait_score, wait_words

CARD = '.card[data-who="{}"] [data-do="{}"]'


def test_the_first_scenario_by_its_address_with_fencing_off_and_on(browser: Browser, page: str) -> None:
    browser.open(f"{page}#story=gc-pause&v=0")
    wait_score(browser, accepted="0")
    browser.choose("#speed", "8")
    browser.click("#play")
    wait_score(browser, accepted="2", refused="0", corrupted="1", lost="1", value="1")
    assert "from B, A" in browser.text("#score")
    assert "Corruption: A writes 1 (token 1)" in browser.text("#log")
    browser.wait("document.querySelector('#notes .current')?.innerText.includes('Two holders, one corrupted counter')")
    assert browser.run("return document.querySelectorAll('.verdict.corrupt').length") == 1

    browser.choose("#fencing", "enter")
    browser.wait("document.querySelector('#variants [aria-pressed=true]')?.innerText === 'Fencing on'")
    browser.click("#finish")
    wait_score(browser, accepted="1", refused="1", corrupted="0", lost="0", mark="2")
    assert "Refused: write of A with token 1, mark 2" in browser.text("#log")
    assert browser.run("return document.querySelector('.verdicts').textContent").count("token 1, mark 2") == 1
    drawn = "return [...document.querySelectorAll('{}')].map((each) => each.textContent)"
    assert browser.run(drawn.format("#timeline .mark .number")) == ["1", "2"]
    assert browser.run(drawn.format("#timeline .value .number")) == ["0", "1"]
    bars = ["A holds #1", "service #1", "B holds #2", "service #2", "believes #1", "believes #2"]
    assert browser.run(drawn.format("#timeline .barlabel")) == bars
    (bounced,) = browser.run(
        "return [...document.querySelectorAll('.arrow.refused')].map((each) => each.getAttribute('d'))"
    )
    assert bounced.count("L") == 2


@pytest.mark.parametrize(
    ("fencing", "outcome"),
    [
        ("off", {"accepted": "2", "refused": "0", "corrupted": "1", "lost": "1"}),
        ("enter", {"accepted": "1", "refused": "1", "corrupted": "0", "lost": "0"}),
    ],
)
def test_the_same_by_hand_in_an_empty_world(browser: Browser, page: str, fencing: str, outcome: dict[str, str]) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    browser.click("#sandbox")
    browser.wait("document.querySelector('#story').value === '*own'")
    browser.click("#startclock")
    browser.choose("#fencing", fencing)
    browser.wait(f"document.querySelector('#timeline').textContent.includes('fencing {fencing}')")

    def at(seconds: float) -> None:
        browser.run(
            f"const s = document.querySelector('#scrub'); s.value = {seconds}; s.dispatchEvent(new Event('input'))"
        )

    def do(who: str, what: str) -> None:
        count = "document.querySelectorAll('.action').length"
        before = browser.run(f"return {count}")
        browser.click(CARD.format(who, what))
        browser.wait(f"{count} > {before}")

    for seconds, who, what in [
        (0, "A", "acquire"),
        (0.1, "A", "read"),
        (0.2, "A", "pause"),
        (0.3, "A", "write"),
        (1, "B", "acquire"),
        (6, "B", "rmw"),
    ]:
        at(seconds)
        do(who, what)
    at(7)
    assert "paused" in browser.text('.card[data-who="A"] .status')
    assert "the service does not agree" in browser.text('.card[data-who="A"] .status')
    browser.click("#finish")
    wait_score(browser, **outcome)

    browser.wait("location.hash.endsWith(`&t=${document.querySelector('#scrub').max}`)")
    shared = browser.run("return location.href")
    browser.open(shared)
    wait_score(browser, **outcome)


def test_the_page_says_how_to_begin_and_it_goes_as_it_says(browser: Browser, page: str) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    browser.choose("#story", "*own")
    wait_words(browser, "#about", "Acquire on A, then GC pause; Acquire on B.")
    browser.choose("#fencing", "off")
    browser.choose("#speed", "0.1")  # the three clicks must come within the 8 s of the pause
    browser.click(CARD.format("A", "acquire"))
    wait_words(browser, "#log", "A has the lock (token 1)")  # paused before that, A finds its grant too old, and waits
    browser.click(CARD.format("A", "pause"))
    browser.click(CARD.format("B", "acquire"))
    wait_words(browser, "#log", "B asks for the lock")
    step_until(browser, score(holder="B", token="2"))
    browser.click(CARD.format("B", "write"))
    wait_score(browser, accepted="1")
    step_until(browser, says("#log", "A goes on"))
    browser.click(CARD.format("A", "write"))
    wait_score(browser, accepted="2", corrupted="1")
    browser.click("#play")


def test_a_write_without_a_lock_carries_no_token(browser: Browser, page: str) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    browser.choose("#story", "*own")
    browser.choose("#fencing", "enter")
    browser.wait("document.querySelector('#timeline').textContent.includes('fencing enter')")
    browser.click(CARD.format("C", "write"))
    wait_score(browser, refused="1")
    assert "Refused: write of C without a token, mark none" in browser.text("#log")
    browser.click("#play")


def test_going_back_and_acting_forks_and_undo_returns(browser: Browser, page: str) -> None:
    browser.open(f"{page}#story=gc-pause&v=0&t=5.5")
    wait_score(browser, holder="B")
    browser.click("#startclock")
    browser.click(CARD.format("B", "release"))
    browser.wait("document.querySelector('#story').value === '*own'")
    browser.click("#finish")
    wait_score(browser, accepted="1", holder="none")
    browser.click("#undo")
    browser.wait("document.querySelector('#story').value === 'gc-pause'")
    browser.click("#finish")
    wait_score(browser, accepted="2", corrupted="1")


def test_the_keyboard_does_it_too(browser: Browser, page: str) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    browser.press("x")
    browser.wait("document.querySelector('#story').value === '*own'")
    browser.press("c", "2", "a")
    browser.wait("document.querySelectorAll('.action').length === 1")
    browser.press(".", ".", ".")
    wait_score(browser, holder="B", token="1")
    browser.press("?")
    browser.wait("document.querySelector('#keys').open")
    assert "client: acquire" in browser.text("#keys")


def test_every_guided_variant_is_scored_as_its_trace_ends(browser: Browser, page: str) -> None:
    browser.open(page)
    for story in guided():
        for number in range(len(story["variants"])):
            scenario = variant(story, number)
            end = run(scenario)[-1]
            browser.run(f"location.hash = '#story={story['name']}&v={number}&t={scenario.until}'")
            wait_words(browser, "#variants [aria-pressed=true]", story["variants"][number]["label"])
            assert browser.run("return document.querySelector('#story').value") == story["name"]
            counts = {name: str(end[name]) for name in ("value", "accepted", "refused", "corrupted")}
            wait_score(browser, **counts, lost=str(end["lost_updates"]))


def test_an_export_plays_what_was_recorded_and_offers_no_more(browser: Browser, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text(lines(run(parse({"actions": [{"at": 0, "who": "C", "do": "acquire"}], "until": 2}))))
    export(tmp_path / "site", history, recorded=True)

    class Files(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    files = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path / "site")))
    with serving(files, browser) as url:
        browser.open(f"{url}#story=gc-pause&v=1&t=12")
        wait_score(browser, refused="1")
        assert browser.run("return document.querySelector('#cards fieldset').disabled") is True
        assert "recorded scenarios" in browser.text("#recorded")
        browser.open(f"{url}#play")
        wait_score(browser, accepted="0")
        browser.click("#finish")
        wait_score(browser, holder="C", token="1")


def test_a_history_that_only_clients_wrote_shows_the_overlap(browser: Browser, tmp_path: Path) -> None:
    kept = ("run", "asked", "acquired", "renewed", "lost", "releasing", "released", "read", "wrote")
    trace = [line for line in run(variant(guided()[0], 0)) if line["ev"] in kept]
    head = {name: value for name, value in trace[0].items() if name != "scenario"}
    history = tmp_path / "history.jsonl"
    history.write_text(lines([head, *trace[1:]]))
    with serving(server(0, history), browser) as url:
        browser.open(url)
        wait_score(browser, accepted="0")
        browser.click("#finish")
        wait_score(browser, accepted="2", corrupted="1")
        assert browser.run("return document.querySelectorAll('.bar.belief').length") == 2
        assert browser.run("return document.querySelectorAll('#timeline .overdue').length") == 1
