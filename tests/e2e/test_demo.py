"""`fencepost demo`: the picture it gives, and that nothing of it is left behind."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.lab import demo
from fencepost.lab.actors import Stage, Unexpected
from fencepost.lab.servers.processes import wait_until

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


def run(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, env=os.environ | {"TMPDIR": str(folder)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []
    assert processes_in(folder) == []
    return done.stdout


def test_json_is_one_object_with_exactly_these_fields(tmp_path: Path) -> None:
    assert json.loads(run(tmp_path, "--json")) == {
        "fence_off": {"accepted_writers": 2, "corrupted": True},
        "fence_on": {"accepted_writers": 1, "stale_rejections": 1, "status": 409, "corrupted": False},
        "write_fence_only": {"lost_updates": 1},
        "enter_first": {"lost_updates": 0},
    }


def test_the_text_shows_the_three_parts_in_order_and_plainly(tmp_path: Path) -> None:
    said = run(tmp_path)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_it_has_colours_and_ending_it_early_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TMPDIR": str(tmp_path), "TERM": "xterm-256color"},
            # A background job of a shell ignores Ctrl-C, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(theirs)
        said = b""
        while b"freezes" not in said:
            said += os.read(ours, 4096)
        process.send_signal(number)
        assert process.wait() == 128 + number
    finally:
        os.close(ours)
    assert b"\x1b[" in said
    assert wait_until(lambda: processes_in(tmp_path) == [], timeout=10)
    assert list(tmp_path.iterdir()) == []


def test_a_resource_that_does_not_fence_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Stage.resource

    async def fenceless(self: Stage, *, fence: bool) -> str:
        return await honest(self, fence=False)

    monkeypatch.setattr(Stage, "resource", fenceless)
    with pytest.raises(Unexpected, match=r'and showed .*"fence_on": {"accepted_writers": 2'):
        asyncio.run(demo.play(fast=True, quiet=True))


@pytest.mark.parametrize(
    ("lines", "is_mixed"),
    [([], False), (["A", "A", "B"], False), (["B", "A", "A"], False), (["B", "A", "B"], True)],
)
def test_lines_are_mixed_if_one_writer_stands_between_another(lines: list[str], is_mixed: bool) -> None:
    assert demo.mixed("".join(f"{writer}: line\n" for writer in lines)) is is_mixed
