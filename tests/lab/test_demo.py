"""`fencepost demo`: the picture it gives, and that nothing of it is left behind."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import ConfigError
from fencepost_lab.cli import demo as cli_demo
from fencepost_lab.stage import demo
from fencepost_lab.stage.processes import Unexpected, open_processes, together
from fencepost_lab.stage.timeline import Timeline
from fencepost_lab.stage.worker import Fact
from tests.harness.child import Child
from tests.harness.terminal import Terminal
from tests.harness.waiting import PATIENCE, until, until_async

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "fencepost", "demo", "--fast"]


def processes_in(folder: Path) -> list[str]:
    """The command lines of all processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in said:
            found.append(said)
    return found


def run(folder: Path, *options: str) -> list[str]:
    with Child([*COMMAND, *options], env={"TMPDIR": str(folder)}) as process:
        said = process.succeed()
    assert process.errors == ""
    assert list(folder.iterdir()) == []
    assert processes_in(folder) == []
    return said


def test_json_is_one_object_with_exactly_these_fields(tmp_path: Path) -> None:
    assert json.loads("\n".join(run(tmp_path, "--json"))) == {
        "fence_off": {"accepted_writers": 2, "corrupted": True},
        "fence_on": {"accepted_writers": 1, "stale_rejections": 1, "status": 409, "corrupted": False},
        "write_fence_only": {"lost_updates": 1},
        "enter_first": {"lost_updates": 0},
    }


@pytest.mark.slow
def test_the_text_shows_the_three_parts_in_order_and_plainly(tmp_path: Path) -> None:
    said = "\n".join(run(tmp_path))
    assert "\x1b" not in said
    parts = said.split("\nPart ")
    assert [part[:2].rstrip(".") for part in parts[1:]] == ["1", "2", "3a", "3b"]
    _, off, on, plain, entered = parts
    mixture = "".join(f"    {line}\n" for line in ("B: line 2 of 3", "A: line 1 of 3", "B: line 3 of 3"))
    assert mixture in off
    assert "A writes line 1 of 3 with token 1: 200, accepted" in off
    assert "A tries to write: 409, refused as stale: its token is 1, the resource has seen 2" in on
    assert "A: line" not in on
    assert "A writes '1' with token 1: 200, accepted" in plain
    assert "Lost: 1." in plain
    assert "A tries to write: 409" in entered
    assert "Lost: 0." in entered


@pytest.mark.slow
def test_on_a_terminal_it_has_colours_and_ending_it_early_leaves_nothing(tmp_path: Path) -> None:
    # Not --fast: a quarter of a minute is left for the signal to come before the end.
    with Terminal(COMMAND[:-1], env={"TMPDIR": str(tmp_path)}) as terminal:
        terminal.shows("freezes")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(PATIENCE) == 128 + signal.SIGINT
        assert "\x1b[" in terminal.screen
    until(lambda: not processes_in(tmp_path), "the end of all processes of the demo")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_a_resource_that_does_not_fence_is_found_out() -> None:
    """The second part alone, on a resource that takes every write."""
    async with open_processes() as built:
        url = await built.resource(fence=False)
        section = Timeline(quiet=True).section("Part 2")
        options = ["--resource", url, "--key", "document", "--ttl", "600ms"]
        options += ["--edit", "append", "--writes", str(demo.LINES), "--no-enter"]
        pause = ["--pause", "1200ms", "--pause-mode", "stop", "--pause-at", "before-read"]
        backend = f"sqlite://{built.folder}/locks.db"
        zombie, successor = await together(
            built.worker("A", section.hear, *options, *pause, backend=backend),
            built.worker("B", section.hear, *options, backend=backend),
        )
        seen = await demo.fence_on(demo.Part(zombie, successor, url, "document", section))
    assert seen != demo.EXPECTED["fence_on"]
    assert seen == {"accepted_writers": 2, "stale_rejections": 0, "status": None, "corrupted": True}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stop", "sleep"])
async def test_a_pause_that_was_over_before_anybody_looked_still_counts_if_it_was_a_stop(mode: str) -> None:
    """As if the demo itself had stood still for longer than its worker."""
    async with open_processes() as built:
        url = await built.resource(fence=True)
        pause = ["--pause", "10ms", "--pause-mode", mode, "--pause-at", "before-read", "--ttl", "60s"]
        told: list[Fact] = []
        worker = await built.worker(
            "A", told.append, "--resource", url, *pause, backend=f"sqlite://{built.folder}/a.db"
        )
        await worker.go("acquire")
        await until_async(lambda: any(fact["event"] == "resumed" for fact in told), "it is awake again")
        if mode == "stop":
            await worker.frozen()
        else:
            with pytest.raises(Unexpected, match="was not stopped"):
                await worker.frozen()


async def test_a_picture_that_is_not_as_expected_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def perform(*_: Any) -> demo.Picture:
        return demo.EXPECTED | {"fence_on": {"accepted_writers": 2}}

    monkeypatch.setattr(demo, "_run_parts", perform)
    with pytest.raises(Unexpected, match=r'and showed .*"fence_on": {"accepted_writers": 2'):
        await demo.run_demo(fast=True, quiet=True)


@pytest.mark.parametrize(
    ("lines", "is_mixed"),
    [([], False), (["A", "A", "B"], False), (["B", "A", "A"], False), (["B", "A", "B"], True)],
)
def test_lines_are_mixed_if_one_writer_stands_between_another(lines: list[str], is_mixed: bool) -> None:
    assert demo.mixed("".join(f"{writer}: line\n" for writer in lines)) is is_mixed


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_demo, "find_spec", lambda package: None if package == "uvicorn" else package)
    with pytest.raises(ConfigError, match=r"the package 'uvicorn': pip install 'fencepost-lab\[stage\]'"):
        cli_demo.demo()
