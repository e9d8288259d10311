"""The page for everybody: with a keyboard, a screen reader, a phone, in the dark, without motion; and soon there."""

import json
import threading
from functools import partial
from http.server import ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fencepost_lab.servers.processes import Missing, program
from fencepost_lab.sim.serve import Page
from tests.harness.servers import unavailable
from tests.harness.waiting import PATIENCE
from tests.sim.browser import Browser, serving, wait_score

DESKTOP, PHONE = (1300, 1000), (360, 740)


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return Path(program("AXE")).read_text("utf-8")
    except Missing as missing:
        unavailable(str(missing))


def serious(browser: Browser, axe: str) -> list[str]:
    """What axe-core finds that keeps people out: its rule, its weight, and where."""
    found: dict[str, Any] = browser.later(
        f"{axe}; axe.run(document, {{resultTypes: ['violations']}})"
        ".then((found) => done({violations: found.violations, passes: found.passes.length}))"
    )
    assert found["passes"] > 10, "axe looked at next to nothing"
    return [
        f"{each['id']} ({each['impact']}): {node['target']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_serious_keeps_anybody_out(
    browser: Browser, page: str, axe: str, screen: tuple[int, int], scheme: str
) -> None:
    browser.looks(*screen, prefers_color_scheme=scheme)
    browser.open(f"{page}#story=gc-pause&v=0&t=9")
    wait_score(browser, corrupted="1")
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(238, 241, 244)", "dark": "rgb(12, 17, 22)"}[scheme]
    assert serious(browser, axe) == []
    browser.press("?")
    browser.wait("document.querySelector('#keys').open")
    assert serious(browser, axe) == []


def test_axe_would_notice(browser: Browser, page: str, axe: str) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    browser.run("document.querySelector('#ttl').parentElement.replaceWith(document.querySelector('#ttl'))")
    assert any("label" in each for each in serious(browser, axe))


def test_it_fits_a_narrow_phone_and_everything_is_in_reach(browser: Browser, page: str) -> None:
    browser.looks(*PHONE)
    browser.open(f"{page}#story=gc-pause&v=1&t=12")
    wait_score(browser, refused="1")
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    assert browser.run("return document.querySelector('#play').getBoundingClientRect().bottom") < 740
    browser.click("#sandbox")
    browser.wait("document.querySelector('#story').value === '*own'")
    browser.click('.card[data-who="C"] .badge')
    browser.click('.card[data-who="C"] [data-do="acquire"]')
    wait_score(browser, holder="C")
    browser.click("#play")


def test_the_theme_follows_the_system_until_it_is_chosen(browser: Browser, page: str) -> None:
    browser.looks(*DESKTOP, prefers_color_scheme="dark")
    browser.open(page)
    wait_score(browser, accepted="0")
    paper = "getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()"
    assert browser.run(f"return {paper}") == "#12181e"
    browser.click("#theme")
    assert browser.run(f"return {paper}") == "#ffffff"
    browser.open(page)
    wait_score(browser, accepted="0")
    assert browser.run(f"return {paper}") == "#ffffff"


@pytest.mark.parametrize(("motion", "smooth"), [("no-preference", True), ("reduce", False)])
def test_who_wants_no_motion_gets_steps(browser: Browser, page: str, motion: str, smooth: bool) -> None:
    browser.looks(*DESKTOP, prefers_reduced_motion=motion)
    browser.open(f"{page}#story=gc-pause&v=0")
    wait_score(browser, accepted="0")
    browser.click("#play")
    frames, changes = browser.later(
        "const clock = document.querySelector('#clock'), changes = []; let frames = 0, shown = clock.innerText;"
        "const look = (now) => { frames += 1;"
        " if (clock.innerText !== shown) { shown = clock.innerText; changes.push(now) }"
        " changes.length < 4 ? requestAnimationFrame(look) : done([frames, changes]) }; requestAnimationFrame(look)"
    )
    if smooth:
        assert frames <= 2 * len(changes), "it moves with every frame"
    else:
        assert all(after - before > 400 for before, after in pairwise(changes)), changes
    assert browser.run("return document.getAnimations().length") == 0


def test_what_happens_is_said_aloud(browser: Browser, page: str) -> None:
    browser.open(f"{page}#story=gc-pause&v=1&t=8.05")
    wait_score(browser, refused="0")
    assert browser.run("return document.querySelector('#live').getAttribute('aria-live')") == "polite"
    for _ in range(3):
        browser.click("#next")
    browser.wait("document.querySelector('#live').textContent.includes('Refused: write of A with token 1, mark 2')")
    said = browser.run("return document.querySelector('#timeline').getAttribute('aria-label')")
    assert "Holder: B. Mark 2, value 1, 1 refused, 0 corrupted." in said


CLIENT = (
    "acquire a",
    "read e",
    "write w",
    "rmw m",
    "release r",
    "pause g",
    "cut p",
    "cutservice P",
    "kill k",
    "skew s",
)
ACTIONS = dict(each.split() for each in CLIENT)
SERVICE = {"kill": "K", "restart": "R", "failover": "F", "jump": "J", "lose": "L"}
FOCUS = {
    "t": "#ttl",
    "y": '.chosen [data-amount="pause"]',
    "Y": '.chosen [data-amount="skew"]',
    "j": '[data-amount="jump"]',
}
EFFECTS = {
    "c": "!document.querySelector('#startclock').checked",
    "q": "document.querySelector('#keeplater').checked",
    "3": "document.querySelector('.card.chosen').dataset.who === 'C'",
    "1": "document.querySelector('.card.chosen').dataset.who === 'A'",
    "]": "document.querySelector('#speed').value === '2'",
    "[": "document.querySelector('#speed').value === '1'",
    "End": "document.querySelector('#clock').innerText.startsWith('12.000')",
    "Home": "document.querySelector('#clock').innerText.startsWith('0.000')",
    "ArrowRight": "document.querySelector('#clock').innerText.startsWith('0.100')",
    "ArrowLeft": "document.querySelector('#clock').innerText.startsWith('0.000')",
    ".": "document.querySelector('#clock').innerText > '0.001'",
    ",": "document.querySelector('#clock').innerText.startsWith('0.000')",
    " ": "document.querySelector('#play').innerText === '‖ Pause'",
    "0": "document.querySelector('#timeline .axis').textContent.includes('11 s')",
    "+": "!document.querySelector('#timeline .axis').textContent.includes('11 s')",
    "-": "document.querySelector('#timeline .axis').textContent.includes('11 s')",
    "v": "document.querySelector('#variants [aria-pressed=true]').innerText === 'Fencing on'",
    "f": "document.querySelector('#fencing').value === 'noseq'",
    "u": "document.querySelector('#fencing').value === 'enter'",
    "b": "document.querySelector('#backend').value === 'redlock'",
    "n": "!document.querySelector('#renew').checked",
    "d": "document.documentElement.dataset.theme === 'dark'",
    "l": "/Copied|Link is in/.test(document.querySelector('#live').textContent)",
    "o": "document.querySelector('#story').value === 'gc-pause'",
    "x": "document.querySelector('#story').value === '*own'",
}
"""A key -> what is true once it was pressed, in this order, on the first scenario."""
ELSEWHERE = {"?", "E", "G", "I"}
"""The list itself, and what saves and opens files."""
CODES = {"End": "\ue010", "Home": "\ue011", "ArrowLeft": "\ue012", "ArrowRight": "\ue014", "Escape": "\ue00c"}


def test_there_is_a_key_for_everything(browser: Browser, page: str) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    browser.press("?")
    browser.wait("document.querySelector('#keys').open")
    listed = browser.run("return [...document.querySelectorAll('#keylist kbd')].map((each) => each.innerText)")
    names = {" ": "Space", "ArrowLeft": "←", "ArrowRight": "→", "-": "\N{MINUS SIGN}", "1": "1 to 4"}
    tried = [*EFFECTS, *ACTIONS.values(), *SERVICE.values(), *FOCUS, *ELSEWHERE]
    shown = {names.get(key, f"Shift {key}" if key.isalpha() and key.isupper() else key) for key in tried if key != "3"}
    assert set(listed) == shown
    browser.press(CODES["Escape"])
    browser.wait("!document.querySelector('#keys').open")

    for key, holds in EFFECTS.items():
        browser.press(CODES.get(key, key))
        browser.wait(holds)
        if key == " ":
            browser.press(" ", CODES["Home"])
    for key, css in FOCUS.items():
        browser.press(key)
        browser.wait(f"document.activeElement === document.querySelector({json.dumps(css)})")
        browser.press(CODES["Escape"])
    count = "document.querySelectorAll('.action').length"
    for number, key in enumerate([*ACTIONS.values(), *SERVICE.values()], 1):
        browser.press(key)
        browser.wait(f"{count} === {number}")
    scenario = browser.run(
        "const text = new URLSearchParams(location.hash.slice(1)).get('s').replaceAll('-', '+').replaceAll('_', '/');"
        "return JSON.parse(atob(text)).actions.map((each) => `${each.who} ${each.do}`)"
    )
    done = [f"A {do.removesuffix('service')}" for do in ACTIONS]
    assert scenario == done + [f"service {do}" for do in SERVICE]
    browser.press("?")
    browser.click("#single")
    browser.click("#closekeys")
    browser.press("x")
    assert browser.run(f"return {count}") == len(scenario)


_HELD = """
const real = window.fetch;
window.held = [];
window.fetch = async (path, options) => {
  if (path === "run") await new Promise((go) => window.held.push(go));
  return real(path, options);
};
"""


def test_what_is_asked_for_last_is_shown_last(browser: Browser, page: str) -> None:
    """However long the answers take: here the first comes when everything has been asked for."""
    browser.open(page)
    wait_score(browser, accepted="0")
    browser.run(_HELD)
    for key in ("b", "n", "x"):
        browser.press(key)
    browser.wait("window.held.length")
    browser.run("window.open = setInterval(() => window.held.splice(0).forEach((go) => go()), 10)")
    browser.wait("location.hash.startsWith('#s=') && !document.querySelector('.action')")
    browser.press("a")
    browser.wait("document.querySelectorAll('.action').length === 1")
    settings = browser.run("return JSON.parse(atob(new URLSearchParams(location.hash.slice(1)).get('s'))).settings")
    assert not {"backend", "renew"} & set(settings), "those of the empty world"
    browser.press("u", "u", "u")  # as it was after the first key
    browser.wait("document.querySelector('#backend').value === 'redlock' && document.querySelector('#renew').checked")


_PAINTED = """
new PerformanceObserver((seen) => {
  if (seen.getEntriesByName("first-contentful-paint").length) fetch("painted");
}).observe({type: "paint", buffered: true});
"""


def test_the_first_paint_waits_for_nothing_but_the_page_and_its_style(browser: Browser) -> None:
    """So it is as soon as the machine allows: no program or answer has come by then. And all of it is small."""
    painted = threading.Event()
    held: list[str] = []
    too_late: list[str] = []

    class Patient(Page):
        """Holds everything else back until the browser says that it has painted."""

        def do_GET(self) -> None:
            if self.path == "/painted":
                painted.set()
                self._answer(200, b"", "painted.txt")
                return
            if self.path not in ("/", "/style.css", "/timeline.css"):
                held.append(self.path)
                if not too_late and not painted.wait(PATIENCE):
                    too_late.append(self.path)
            super().do_GET()

    patient = ThreadingHTTPServer(("127.0.0.1", 0), partial(Patient, None))
    patient.daemon_threads = True
    with serving(patient) as page, browser.in_every_page(_PAINTED):
        browser.open(page)
        wait_score(browser, accepted="0")
        loaded = browser.run(
            "return performance.getEntriesByType('resource').map((each) => [each.name, each.decodedBodySize])"
        )
        browser.plain()  # before its server ends
    assert "/main.js" in held
    assert not too_late, "these were not to be waited for"
    assert all(name.startswith(page) for name, _ in loaded), loaded
    assert sum(size for _, size in loaded) < 200_000
