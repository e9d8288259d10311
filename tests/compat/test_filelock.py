"""The compat locks of filelock: a token in a file beside the lock's, and a removed lock file is told."""

import asyncio
import logging
import os
import threading
import time
from pathlib import Path

import filelock as original
import pytest

from fencepost.compat import filelock
from fencepost.errors import StaleToken
from fencepost.events import Event
from fencepost.guards.memory import MemoryGuard
from tests.harness.logs import logged

KINDS = pytest.mark.parametrize(
    ("old", "new"),
    [(original.FileLock, filelock.FileLock), (original.SoftFileLock, filelock.SoftFileLock)],
    ids=["FileLock", "SoftFileLock"],
)


@KINDS
def test_old_and_new_exclude_each_other_and_tokens_grow(
    old: type[original.BaseFileLock], new: type[filelock.FileLock], tmp_path: Path, told: list[Event]
) -> None:
    path = tmp_path / "a.lock"
    tokens = []
    for _ in range(3):
        lock = new(path, timeout=0)
        with lock, lock:
            assert lock.lease is not None
            tokens.append(lock.lease.token)
            with pytest.raises(original.Timeout):
                old(path, timeout=0).acquire()
        assert lock.lease is None
        with old(path, timeout=0), pytest.raises(filelock.Timeout):
            new(path, timeout=0).acquire()
    assert tokens == sorted(set(tokens))
    assert [event.kind for event in told] == ["attempt", "acquired", "released", "attempt", "timeout"] * 3


@KINDS
def test_a_lock_file_that_is_removed_lets_two_in_and_is_told(
    old: type[original.BaseFileLock], new: type[filelock.FileLock], tmp_path: Path, told: list[Event]
) -> None:
    path = tmp_path / "a.lock"
    first, second = new(path, timeout=0), new(path, timeout=0, thread_local=False)
    first.acquire()
    stale = first.lease
    assert stale is not None
    path.unlink()  # rm -f *.lock
    held: list[object] = []
    thread = threading.Thread(target=lambda: held.append(second.acquire()))  # filelock knows its own in one thread
    thread.start()
    thread.join()
    assert held, "two are inside"
    guard = MemoryGuard[str]()
    assert second.lease is not None
    guard.write("a", "second", second.lease)
    with pytest.raises(StaleToken):
        guard.write("a", "first", stale)
    first.release()
    second.release(force=True)
    assert [event.kind for event in told if event.kind not in ("attempt", "acquired", "released")] == [
        "not_owner",
        "lost",
    ]


def test_the_token_file_may_be_lost_torn_or_forged(tmp_path: Path) -> None:
    beside = tmp_path / "a.lock.fence"

    def token() -> int:
        with filelock.FileLock(tmp_path / "a.lock") as lock:
            assert lock.lease is not None
            return lock.lease.token

    ahead = time.time_ns() // 1000 + 60 * 10**6
    beside.write_text(str(ahead))
    assert token() == ahead + 1, "a clock that was set back"
    for content in (b"", b"12", b"not a number", b"9" * 40, b"\xff" * 100):
        beside.write_bytes(content)
        assert ahead - 70 * 10**6 < token() < ahead


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_token_file_that_cannot_be_written_costs_the_token_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "a.lock.fence").symlink_to(tmp_path / "target")
    with caplog.at_level(logging.ERROR, "fencepost"):
        for _ in range(2):
            with filelock.FileLock(tmp_path / "a.lock") as lock:
                assert lock.lease is None
    assert len(logged(caplog)) == 1
    assert (tmp_path / "target").read_text() == "precious"


def test_users_that_share_a_lock_by_its_mode_share_the_token_too(tmp_path: Path) -> None:
    for mode in (0o666, 0o600):
        with filelock.FileLock(tmp_path / "a.lock", mode=mode):
            assert (tmp_path / "a.lock.fence").stat().st_mode & 0o777 == mode


def test_asyncio(tmp_path: Path, told: list[Event]) -> None:
    async def test() -> None:
        kinds = (
            (original.AsyncFileLock, filelock.AsyncFileLock),
            (original.AsyncSoftFileLock, filelock.AsyncSoftFileLock),
        )
        for old, new in kinds:
            path = tmp_path / new.__name__
            async with new(path, timeout=0) as lock:
                assert lock.lease is not None
                with pytest.raises(filelock.Timeout):
                    await old(path, timeout=0).acquire()
            assert lock.lease is None
            async with old(path, timeout=0):
                pass

    asyncio.run(test())
    assert [event.kind for event in told] == ["attempt", "acquired", "released"] * 2


def test_singletons_and_decorators_work_as_before(tmp_path: Path) -> None:
    one, two = (filelock.FileLock(tmp_path / "a.lock", is_singleton=True) for _ in range(2))
    assert one is two

    @one
    def work() -> object:
        return one.lease

    assert work() is not None
    assert one.lease is None
    with one.acquire(timeout=1, poll_interval=0.01) as held:
        assert held is one
