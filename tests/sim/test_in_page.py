"""Python inside the page: what it is made of, and that it does from a plain file server what the server does."""

import gzip
import json
import shutil
import threading
from base64 import urlsafe_b64encode
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from fencepost_lab.history.format import lines
from fencepost_lab.servers.programs import PROGRAMS
from fencepost_lab.sim import parse, run, runtime
from fencepost_lab.sim.guided import guided, variant
from fencepost_lab.sim.site import export
from tests.harness.child import Child
from tests.harness.servers import unavailable
from tests.sim.browser import Browser, wait_score, wait_words
from tests.sim.in_page import here, in_page, static_server, wait_live
from tests.sim.test_controls import CARD

MISSING = ("ssl", "sqlite3", "asyncio", "multiprocessing", "concurrent.futures.process", "resource", "termios")
"""What Python in a browser does not have, or should not load."""


@pytest.mark.slow
def test_the_archive_has_all_that_the_simulator_imports_and_needs_nothing_that_a_browser_lacks(tmp_path: Path) -> None:
    archive = tmp_path / "fencepost.zip"
    archive.write_bytes(runtime.source())
    source = f"""
import json, sys
sys.modules.update(dict.fromkeys({MISSING}))
sys.path.insert(0, {str(archive)!r})
from {runtime.ENTRY} import attempt
from fencepost_lab.sim import answers
assert answers.__file__.startswith({str(archive)!r}), answers.__file__
for backend in ("redis", "redlock", "etcd", "zookeeper", "embedded"):
    scenario = {{"settings": {{"backend": backend}}, "actions": [{{"who": "A", "do": "work"}}]}}
    ok, trace = attempt("run", json.dumps(scenario))
    assert ok and '"accepted":1' in trace, trace
    assert attempt("check", trace)[0]
assert attempt("run", "[]")[0] is False
assert attempt("seed", "7")[0] and not attempt("seed", "-7")[0]
"""
    with Child.python("-I", "-S", "-c", source) as child:
        child.succeed()


@pytest.mark.slow
def test_the_archive_is_small_and_has_no_date() -> None:
    with ZipFile(BytesIO(runtime.source())) as archive:
        names = archive.namelist()
        assert {each.date_time[0] for each in archive.infolist()} == {1980}, "the same source, the same bytes"
    assert "fencepost/rule.py" in names
    assert not [name for name in names if "/cli/" in name or "/redis/" in name or "serve" in name]


@pytest.mark.slow
def test_without_npm_the_export_names_its_fallback_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    for name in ("setpriv", "env"):  # by which a child is started
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    env = {"FENCEPOST_SERVERS": str(tmp_path / "cache"), "PATH": str(tmp_path)}
    with Child.fencepost("sim", "--export", folder, env=env) as child:
        assert child.wait() == 2
        said = child.story
    assert f"cannot get {PROGRAMS['pyodide'].npm}" in said
    assert "npm is not on this machine" in said
    assert "--recorded" in said
    assert not folder.exists()
    with Child.fencepost("sim", "--export", folder, "--recorded", env=env) as child:
        child.succeed()
    assert not (folder / "python").exists()


@pytest.mark.slow
def test_an_archive_of_npm_that_is_another_one_is_refused(tmp_path: Path) -> None:
    (npm := tmp_path / "npm").write_text("#!/bin/sh\nprintf changed > pyodide.tgz\n")
    npm.chmod(0o755)
    env = {"FENCEPOST_SERVERS": str(tmp_path / "cache"), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    with Child.fencepost("sim", "--export", tmp_path / "site", env=env) as child:
        assert child.wait() == 2
        assert "do not use it" in child.story
    assert not (tmp_path / "site").exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with Python inside."""
    if not PROGRAMS["pyodide"].find():
        unavailable("pyodide is missing: scripts/servers pyodide")
    folder = tmp_path_factory.mktemp("site")
    export(folder)
    return folder


PLACES = """
  const note = () => [words.innerText, document.querySelector("#switches").getBoundingClientRect().top + scrollY];
  const words = document.querySelector("#enginewords");
  window.places = [note()];
  new MutationObserver(() => window.places.push(note())).observe(words, { childList: true });
"""
"""Where the first controls are, whenever the page says something new about Python."""


def link(actions: list[dict[str, object]], **settings: object) -> str:
    scenario = json.dumps({"seed": 1, "settings": settings, "actions": actions, "until": 20})
    return urlsafe_b64encode(scenario.encode()).decode().rstrip("=")


@pytest.mark.experiment
def test_a_static_page_plays_while_python_loads_then_runs_everything_itself(
    browser: Browser, site: Path, tmp_path: Path
) -> None:
    gate = threading.Event()
    with static_server(site, browser, gate) as url:
        # While Python is loaded, the recorded scenario plays, and a link that needs Python waits for it.
        held: dict[str, object] = {"at": 0, "who": "A", "do": "acquire"}
        browser.open(f"{url}#s={link([held], backend='zookeeper')}&t=3")
        wait_words(browser, "#enginewords", "Loading Python into this page")
        assert "Your link opens then" in browser.text("#enginewords")
        browser.wait("document.querySelector('#story').value === 'gc-pause'")  # it is fetched meanwhile
        assert browser.run("return document.querySelector('#cards fieldset').disabled") is True
        browser.wait("Number(document.querySelector('#loading').value) > 0.2")
        browser.wait("document.querySelector('#clock').innerText > '0.1'")
        browser.click("#play")
        browser.run(PLACES)
        gate.set()

        wait_live(browser)
        wait_words(browser, "#enginewords", "Python runs in this page: every control works now.")
        wait_score(browser, holder="A", token="2")
        assert browser.run("return document.querySelector('#loading').hidden") is True
        places = browser.run("return window.places")
        assert places[-1][0].startswith("Python runs in this page"), places
        assert len({place for _, place in places}) == 1, f"what a reader is about to click moves away: {places}"
        assert "ZooKeeper" in browser.text("#storename")

        seeds = range(8)
        assert in_page(browser, seeds) == here(seeds)

        # The page stays the same one: acting, refusals and links work as they do with the server.
        browser.click("#startclock")
        browser.click(CARD.format("B", "acquire"))
        wait_words(browser, "#log", "B asks for the lock")
        browser.run("document.querySelector('#ttl').select()")
        browser.type("#ttl", "1000\ue004")
        wait_words(browser, "#error", "ttl lies between 0.05 and 600 seconds")

        # A history of one's own is held to its promises by the same code as fencepost check.
        incident = tmp_path / "incident.jsonl.gz"
        trace = run(variant(guided()[0], 0))
        trace[0]["promises"] = ["data", "order"]
        incident.write_bytes(gzip.compress(lines(trace).encode()))
        browser.type("#file", str(incident))
        wait_words(browser, "#about", "incident.jsonl.gz (sim). fencepost check: ⚠ Broken: data")
        browser.click("#finish")
        wait_score(browser, accepted="2", corrupted="1")
        assert "Broken promise, data" in browser.text("#log")

        # What takes too long is given up; the page goes on, with a new Python.
        slow = json.dumps({"actions": [{"who": w, "do": "work", "rounds": 9999} for w in "ABCD"], "until": 3600})
        (tmp_path / "slow.json").write_text(slow)
        browser.later("import('./engine.js').then(({ engine }) => { engine.patience = 0.2; done() })")
        gate.clear()
        browser.type("#file", str(tmp_path / "slow.json"))
        wait_words(browser, "#error", "too much work for a page")
        wait_words(browser, "#enginewords", "Loading Python into this page")

        loaded = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert all(name.startswith(url) for name in loaded), loaded
        browser.open("about:blank")
        gate.set()


@pytest.mark.experiment
def test_a_file_that_is_missing_is_said_and_the_recordings_play(browser: Browser, site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    export(copy, recorded=True)
    (copy / "data" / "options.json").write_bytes((site / "data" / "options.json").read_bytes())
    with static_server(copy, browser) as url:
        browser.open(f"{url}#story=gc-pause&v=1&t=12")
        wait_score(browser, refused="1")
        wait_words(browser, "#enginewords", "Python could not be started in this page")
        assert browser.text("#load") == "Load Python"
        browser.complaints()  # the browser itself tells of the missing file


@pytest.mark.experiment
def test_without_its_recording_the_page_says_so_and_no_button_fails(browser: Browser, tmp_path: Path) -> None:
    export(tmp_path / "site", recorded=True)
    shutil.rmtree(tmp_path / "site" / "data" / "traces")
    with static_server(tmp_path / "site", browser) as url:
        browser.open(url)
        wait_words(browser, "#error", "404")
        for button in ("play", "start", "finish", "next", "back", "closer", "wider", "whole", "json", "svg"):
            browser.click(f"#{button}")
        assert not [said for said in browser.complaints() if "Failed to load resource" not in said]


def test_whole_numbers_and_floats_of_a_scenario_give_the_same_trace() -> None:
    """JavaScript writes 8.0 as 8."""
    actions = [{"at": 0, "who": "A", "do": "work", "rounds": 2}, {"at": 1, "who": "A", "do": "pause", "for": 8}]
    floats = [{"at": 0.0, "who": "A", "do": "work", "rounds": 2.0}, {"at": 1.0, "who": "A", "do": "pause", "for": 8.0}]
    traces = [lines(run(parse({"actions": given, "until": 20}))) for given in (actions, floats)]
    assert traces[0] == traces[1]
