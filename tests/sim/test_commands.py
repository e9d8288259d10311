"""``fencepost sim`` and ``fencepost check`` on the command line."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fencepost.cli.app import app
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import lines, load, save
from fencepost_lab.history.kept import found
from fencepost_lab.sim import run
from fencepost_lab.sim.guided import guided, variant
from tests.harness.child import Child
from tests.harness.waiting import until

invoke = CliRunner().invoke


@pytest.mark.slow
def test_seeds_that_keep_every_promise() -> None:
    done = invoke(app, ["sim", "--seeds", "20", "--workers", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["failures"] == []


def test_seeds_that_fail_name_the_command_that_replays_them_and_are_kept(tmp_path: Path) -> None:
    done = invoke(app, ["sim", "--seeds", "20", "--workers", "1", "--fencing", "off", "--keep", str(tmp_path)])
    assert done.exit_code == 1
    replay = next(line for line in done.stdout.splitlines() if "replay:" in line).partition("replay: fencepost ")[2]
    kept = sorted(tmp_path.glob("*.json"))
    assert kept
    again = invoke(app, replay.split())
    assert again.exit_code == 1
    assert "data:" in again.stderr
    assert invoke(app, ["sim", "--run", str(kept[0])]).exit_code == 1


def test_a_scenario_file_is_run(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text('{"actions": [{"at": 0, "who": "A", "do": "acquire"}], "until": 1}')
    done = invoke(app, ["sim", "--run", str(path)])
    assert done.exit_code == 0
    assert json.loads(done.stdout.splitlines()[-1])["holder"] == "A1"
    assert invoke(app, ["sim", "--run", str(tmp_path / "none")]).exit_code == 2


def test_the_page_is_opened_and_served_until_interrupted(tmp_path: Path) -> None:
    (opened := tmp_path / "opened").touch()
    (browser := tmp_path / "browser").write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    with Child.fencepost("sim", "--port", "0", "--json", env={"BROWSER": str(browser)}) as child:
        url = child.json()["url"]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url) as reply:
            assert b"fencepost" in reply.read()
        until(lambda: opened.read_text().strip() == url, "the page is opened", watching=[child])
        child.signal(signal.SIGINT)
        assert child.wait() == 0


def test_check_reports_what_a_history_breaks(tmp_path: Path) -> None:
    good, bad = (tmp_path / name for name in ("good.jsonl", "bad.jsonl"))
    good.write_text(lines(run(variant(guided()[0], 1))))
    bad.write_text(lines(run(variant(guided()[0], 0))))
    assert invoke(app, ["check", str(good), "--promise", "data", "--promise", "order"]).exit_code == 0
    quiet = invoke(app, ["check", str(good), "--promise", "data", "--promise", "told"])
    assert quiet.exit_code == 3, "nobody was told of a loss: whether that promise is kept, this history cannot say"
    assert "data: kept" in quiet.stdout
    assert "told: not checked: no holder was told" in quiet.stdout
    done = invoke(app, ["check", str(bad), "--promise", "data", "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["ok"], report["counts"]["lost_updates"]) == (1, False, 1)
    assert any("1 lost" in each["what"] for each in report["violations"])
    assert "data: broken" in invoke(app, ["check", str(bad), "--promise", "data"]).stdout


def test_check_holds_the_results_of_a_folder_to_their_histories(tmp_path: Path) -> None:
    for name, number in (("good", 1), ("bad", 0)):
        history = run(variant(guided()[0], number))
        head = history[0] | {"promises": ["data", "order"]}
        save(tmp_path / f"{name}.jsonl.gz", [head, *history[1:]])
    said = [{"file": path.name} | found(check(load(path))) for path in sorted(tmp_path.iterdir())]
    result = tmp_path / "pause.json"
    result.write_text(json.dumps({"experiment": "pause", "histories": said}))
    done = invoke(app, ["check", str(tmp_path)])
    assert (done.exit_code, "2 histories: 2 as reported" in done.stdout) == (0, True), done.stdout
    assert "bad.jsonl.gz: as reported; data broken" in done.stdout
    both = invoke(app, ["check", *(str(tmp_path / f"{name}.jsonl.gz") for name in ("good", "bad")), "--json"])
    assert (both.exit_code, [each["verdict"] for each in json.loads(both.stdout)]) == (1, ["kept", "broken"])
    whole = (tmp_path / "good.jsonl.gz").read_bytes()
    (tmp_path / "bad.jsonl.gz").write_bytes(whole)
    swapped = invoke(app, ["check", str(tmp_path)])
    assert (swapped.exit_code, "bad.jsonl.gz: not as reported, and its result says broken" in swapped.stdout) == (
        1,
        True,
    )
    (tmp_path / "bad.jsonl.gz").unlink()
    assert "bad.jsonl.gz: missing" in invoke(app, ["check", str(tmp_path)]).stdout
    (tmp_path / "bad.jsonl.gz").write_bytes(whole[:-20])
    cut = invoke(app, ["check", str(tmp_path)])
    assert (cut.exit_code, "copy it again" in cut.stderr) == (2, True)
    for path in tmp_path.iterdir():
        path.unlink()
    assert "there are no histories" in invoke(app, ["check", str(tmp_path)]).stderr


def test_check_names_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"t": 0, "ev": "run"}\nnonsense\n')
    done = invoke(app, ["check", str(path)])
    assert (done.exit_code, f"{path}:2" in done.stderr) == (2, True)
    assert invoke(app, ["check", str(tmp_path / "none")]).exit_code == 2
    assert invoke(app, ["check", str(path), "--promise", "peace"]).exit_code == 2
