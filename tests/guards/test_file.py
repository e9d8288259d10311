"""The file guard across processes, and killed in the middle."""

import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from fencepost.errors import BackendError, ConfigError, StaleToken, TokenClash
from fencepost.events import Event
from fencepost.guards.envelope import unpack
from fencepost.guards.file import FileGuard
from fencepost.guards.policy import Policy
from fencepost.rule import Stamp
from tests.harness.child import Child
from tests.harness.leases import lease as lease_of

WRITER = """
import os, signal, sys
from fencepost.guards.file import FileGuard
from fencepost.rule import Stamp

where, folder = sys.argv[1:]
real = getattr(os, where)
def dying(*args):
    if where == "fsync" or not str(args[0]).endswith(".lock"):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
setattr(os, where, dying)
FileGuard(folder).write("thing", b"new", Stamp(9, 1, "bob"))
"""


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_killed_before_the_rename_neither_value_nor_mark_moved(tmp_path: Path, where: str) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"old", Stamp(5, 1, "ann"))
    with Child.python("-c", WRITER, where, tmp_path) as killed:
        assert killed.wait() == -signal.SIGKILL, killed.story
    assert (guard.peek("thing"), guard.mark("thing")) == (b"old", Stamp(5, 1, "ann"))
    assert guard.write("thing", b"newer", Stamp(5, 2, "ann")), "and its lock did not outlive it"


@pytest.mark.slow
def test_updates_of_many_processes_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from fencepost.guards.file import FileGuard; from fencepost.guards.policy import Policy\n"
        "guard = FileGuard(sys.argv[1], policy=Policy('off'))\n"
        "for _ in range(50): guard.update('thing', lambda before: b'%d' % (int(before or 0) + 1))"
    )
    with ExitStack() as stack:
        writers = [stack.enter_context(Child.python("-c", program, tmp_path)) for _ in range(4)]
        for writer in writers:
            writer.succeed()
    assert FileGuard(tmp_path).peek("thing") == b"200"


def test_updates_of_threads_under_one_lease_lose_nothing(tmp_path: Path) -> None:
    guard, held = FileGuard(tmp_path), lease_of("lock", "ann", 5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: guard.update("thing", lambda before: b"%d" % (int(before or 0) + 1), held), range(40)))
    assert guard.peek("thing") == b"40"


def test_names_stay_inside_the_folder(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path / "guarded")
    for name in ("..", "../out", "/etc/out", ".", "a" * 512, "ä" * 200):
        guard.write(name, name.encode(), 5)
        assert guard.path(name).parent == tmp_path / "guarded"
        assert guard.read(name, 5) == name.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["guarded"]


def test_deleting_leaves_the_mark(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"x", 5)
    guard.delete("thing", 6)
    assert (guard.peek("thing"), guard.mark("thing")) == (None, Stamp(6))
    with pytest.raises(StaleToken):
        guard.write("thing", b"zombie", 5)


def test_a_mark_is_lowered_unless_it_has_moved(tmp_path: Path) -> None:
    told: list[Event] = []
    guard = FileGuard(tmp_path, hooks=[told.append])
    with pytest.raises(ConfigError, match="not there"):
        guard.lower_mark("thing", to=5, seen=7)
    FileGuard(tmp_path, policy=Policy(ceiling="off")).write("thing", b"wild", 2**62)
    told.clear()
    with pytest.raises(ConfigError, match="and not at 7"):
        guard.lower_mark("thing", to=5, seen=7)
    assert guard.lower_mark("thing", to=5, seen=2**62) == Stamp(5)
    with pytest.raises(StaleToken):
        guard.write("thing", b"x", 5)
    assert guard.write("thing", b"x", 6)
    assert [event.kind for event in told] == ["lower_mark", "decision", "decision"]


def test_a_reset_raises_and_never_lowers(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"x", 5)
    assert guard.raise_mark("thing", to=50) == Stamp(50)
    assert guard.raise_mark("thing", to=20) == Stamp(50)
    with pytest.raises(StaleToken):
        guard.write("thing", b"y", 50)
    assert guard.peek("thing") == b"x"
    guard.write("thing", b"z", Stamp(51, 1, "ann"))
    assert guard.raise_mark("thing", to=51) == Stamp(51), "its own holder is refused too"
    with pytest.raises(TokenClash):
        guard.write("thing", b"y", Stamp(51, 2, "ann"))


def test_a_damaged_mark_lets_nobody_in(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"x", 5)
    path = guard.path("thing")
    path.write_bytes(path.read_bytes().replace(b'"token":"5"', b'"token":"five"'))
    with pytest.raises(BackendError, match="damaged"):
        guard.write("thing", b"y", 6)


def test_an_error_of_the_caller_s_own_comes_through(tmp_path: Path) -> None:
    def change(before: bytes | None) -> bytes:
        raise PermissionError("mine")

    with pytest.raises(PermissionError, match="mine"):
        FileGuard(tmp_path).update("thing", change, 5)
    assert FileGuard(tmp_path).mark("thing") is None


def test_a_folder_that_is_gone_is_no_empty_one(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path / "values")
    guard.write("thing", b"x", 5)
    (tmp_path / "values").rename(tmp_path / "elsewhere")
    for ask in (lambda: guard.write("thing", b"y", 4), lambda: guard.mark("thing"), lambda: guard.peek("thing")):
        with pytest.raises(BackendError, match="No such file"):
            ask()


def test_a_change_may_write_other_resources_and_not_its_own(tmp_path: Path) -> None:
    def move(before: bytes | None) -> bytes:
        guard.write("other", b"moved", held)
        return b"gone"

    def read_again(before: bytes | None) -> bytes | None:
        return guard.read("thing", held)

    held = lease_of("lock", "ann", 5)
    guard = FileGuard(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(guard.update, "thing", move, held).result(timeout=30)
        with pytest.raises(ConfigError, match="waits for the change"):
            pool.submit(guard.update, "thing", read_again, held).result(timeout=30)
    assert (guard.peek("thing"), guard.peek("other")) == (b"gone", b"moved")
    assert guard.read("thing", held) == b"gone", "and nothing is held any more"


def test_a_write_keeps_who_may_read_the_file(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"secret", 5)
    guard.path("thing").chmod(0o600)
    guard.write("thing", b"another", 6)
    assert stat.S_IMODE(guard.path("thing").stat().st_mode) == 0o600
    guard.path("thing").chmod(0o664)
    guard.enter("thing", 7)
    assert stat.S_IMODE(guard.path("thing").stat().st_mode) == 0o664


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_write_by_root_leaves_the_file_to_its_owner(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"x", 5)
    os.chown(guard.path("thing"), 12345, 23456)
    guard.write("thing", b"y", 6)
    found = guard.path("thing").stat()
    assert (found.st_uid, found.st_gid) == (12345, 23456)


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    guard, target = FileGuard(tmp_path / "guarded"), tmp_path / "target"
    target.write_bytes(b"precious")
    guard.path("thing").with_suffix(".new").symlink_to(target)
    guard.write("thing", b"x", 5)
    assert (target.read_bytes(), guard.peek("thing")) == (b"precious", b"x")
    assert not guard.path("thing").is_symlink()


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    guard, target = FileGuard(tmp_path / "guarded"), tmp_path / "target"
    guard.path("thing").with_suffix(".lock").symlink_to(target)
    with pytest.raises(BackendError, match="symbolic link") as caught:
        guard.write("thing", b"x", 5)
    assert not caught.value.ambiguous
    assert not target.exists()


def test_what_a_killed_process_left_is_no_hindrance(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.path("thing").with_suffix(".new").write_bytes(b"half a va")
    guard.write("thing", b"x", 5)
    assert guard.peek("thing") == b"x"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".fenced", ".lock"]


def test_names_that_differ_in_case_only_are_two_files_wherever_they_are(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    names = ["account", "Account", "ACCOUNT", "%41ccount", "%41CCOUNT", "\u00c4", "\u00e4", "A" * 300, "a" * 300]
    files = {guard.path(name).name.lower() for name in names}
    assert len(files) == len(names)


@pytest.mark.parametrize(
    "head",
    [
        b"[]",
        b"5",
        b'"token"',
        b"[" * 100_000,
        b'{"token":"12345678901234567890123","seq":"1","holder":"a","digest":null}',
        b'{"token":"0","seq":"1","holder":"a","digest":null}',
        b'{"token":"5","seq":"-1","holder":"a","digest":null}',
        b'{"token":"5","seq":"1","holder":["a"],"digest":null}',
        b'{"token":"5","seq":"1","holder":"a\\u0000","digest":null}',
        b'{"token":"5","seq":"1","holder":"a","digest":7}',
        b'{"token":"' + b"9" * 5000 + b'","seq":"1","holder":"a","digest":null}',
    ],
)
def test_a_first_line_that_no_guard_wrote_is_damaged(head: bytes) -> None:
    with pytest.raises(BackendError, match="damaged"):
        unpack(b"fencepost 1 " + head + b"\nvalue")


def test_a_value_and_its_name_are_on_disk_before_a_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    def renamed(before: Path, after: Path) -> None:
        steps.append("rename")
        replace(before, after)

    guard = FileGuard(tmp_path)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    guard.write("thing", b"x", 5)
    assert steps == ["file", "rename", "folder"]
