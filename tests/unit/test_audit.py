"""The audit log: whole lines, whoever writes them and whatever happens to the file in between."""

import functools
import json
import os
from pathlib import Path

import pytest

from fencepost.errors import ConfigError, StaleToken
from fencepost.events import Event, Hooks, Kind
from fencepost.guards import memory
from fencepost.guards.policy import Policy
from fencepost.hooks.audit import Audit, Sync, read
from fencepost.rule import MAX_TOKEN, Stamp, Verdict
from tests.harness.child import Child
from tests.harness.disk import full_disk
from tests.harness.isolated import in_fork, isolated
from tests.harness.threads import background, held
from tests.harness.waiting import PATIENCE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "audit.jsonl"


def decision(number: int = 1, *, enforced: bool | None = None) -> Event:
    return Event(kind="decision", name=f"thing {number}", source="memory", token=number, enforced=enforced)


def test_every_decision_is_a_line_with_resource_token_and_verdict(path: Path) -> None:
    guard = memory.MemoryGuard[bytes]([Audit(path)], Policy(ceiling="off"))
    guard.write("thing", b"1", Stamp(MAX_TOKEN, 1, "ann"))
    with pytest.raises(StaleToken):
        guard.write("thing", b"2", Stamp(4, 1, "old"))
    admitted, refused = read(path)
    assert (admitted["name"], admitted["token"], admitted["verdict"]) == ("thing", str(MAX_TOKEN), "admit")
    assert "enforced" not in admitted
    assert (refused["token"], refused["seen"], refused["verdict"]) == (4, str(MAX_TOKEN), "stale")
    assert refused["enforced"] is True


def test_only_the_chosen_kinds_are_written(path: Path) -> None:
    audit = Audit(path, kinds=["lost"])
    audit(decision())
    audit(Event(kind="lost", name="thing", source="memory"))
    assert [facts["kind"] for facts in read(path)] == ["lost"]


@pytest.mark.parametrize(
    ("sync", "expected"), [("never", []), ("refusals", ["refused", "shadow"]), ("always", ["ok", "refused", "shadow"])]
)
def test_what_matters_is_on_disk_before_the_hook_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync, expected: list[str]
) -> None:
    synced: list[str] = []
    audit = Audit(path, sync=sync)
    for name, enforced in {"ok": None, "refused": True, "shadow": False}.items():
        monkeypatch.setattr(os, "fsync", lambda file, name=name: synced.append(name))
        audit(Event(kind="decision", name=name, source="memory", verdict=Verdict.STALE, enforced=enforced))
    assert synced == expected


def test_a_rotated_log_goes_on_in_a_new_file_and_nothing_is_lost(path: Path) -> None:
    audit = Audit(path)
    audit(decision(1))
    path.rename(path.with_suffix(".1"))
    audit(decision(2))
    path.unlink()
    audit(decision(3))
    audit.close()
    audit(decision(4))
    assert [facts["token"] for facts in read(path.with_suffix(".1"))] == [1]
    assert [facts["token"] for facts in read(path)] == [3, 4]


def append(path: Path, first: int) -> None:
    audit = Audit(path, sync="never")
    for number in range(first, first + 500):
        audit(Event(kind="decision", name="x" * (number % 400), source="memory", token=number + 1))


def test_lines_of_several_processes_and_threads_never_mix(path: Path) -> None:
    program = (
        "import sys, pathlib; from tests.unit.test_audit import append; print('ready', flush=True); "
        "sys.stdin.readline(); append(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
    )
    with Child.python("-c", program, path, 1000) as one, Child.python("-c", program, path, 2000) as two:
        for other in (one, two):
            other.heard("ready")
        for other in (one, two):
            other.tell("go")
        threads = [background(functools.partial(append, path, 1000 * number)) for number in (3, 4)]
        for thread in threads:
            thread.result()
        for other in (one, two):
            other.succeed()
    # One that opens the file while another writes takes that line for a torn one, and starts on a line of its own.
    lines = [line for line in path.read_text().splitlines() if line]
    assert sorted(json.loads(line)["token"] for line in lines) == sorted(
        1000 * worker + number + 1 for worker in (1, 2, 3, 4) for number in range(500)
    )


def test_a_torn_line_is_passed_over_and_spoils_no_other(path: Path) -> None:
    Audit(path)(decision(1))
    with path.open("a") as file:
        file.write('{"kind":"decisi')
    Audit(path)(decision(2))
    assert [facts["token"] for facts in read(path)] == [1, 2]


@isolated
def test_a_full_disk_is_told_and_the_next_line_is_whole(path: Path) -> None:
    audit = Audit(path)
    audit(decision(1))
    with full_disk(path.stat().st_size + 10), pytest.raises(OSError, match="only 10 of"):
        audit(decision(2))
    audit(decision(3))
    assert [facts["token"] for facts in read(path)] == [1, 3]


@isolated
async def test_a_forked_child_writes_on_although_a_thread_of_its_parent_was_writing(path: Path) -> None:
    audit = Audit(path)

    async def write() -> None:
        Hooks([audit])(decision(7))

    with held(audit._gate):
        await in_fork(write, PATIENCE)
    assert [facts["token"] for facts in read(path)] == [7]


def test_a_place_that_cannot_be_written_and_a_sync_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        Audit(tmp_path)
    with pytest.raises(ConfigError, match="never, refusals or always"):
        Audit(tmp_path / "log", sync="sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["override", "raise_mark", "lower_mark"])
def test_what_was_done_by_hand_is_on_disk_before_the_hook_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    synced: list[int] = []
    audit = Audit(path)
    monkeypatch.setattr(os, "fsync", synced.append)
    audit(Event(kind=kind, name="thing", source="policy", token=5, seconds=60.0, detail="restored from a backup"))
    assert len(synced) == 1
