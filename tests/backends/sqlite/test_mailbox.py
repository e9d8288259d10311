"""What wakes a waiter on an SQLite file, and what waiting costs."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.sqlite import mailbox
from tests.conformance.worker import Worker
from tests.harness.isolated import in_fork, isolated
from tests.harness.threads import Background
from tests.harness.waiting import PATIENCE, until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def worker(url: str) -> Iterator[Worker]:
    worker = Worker("blocking", url)
    yield worker
    worker.close()


class Waiter(Background[None]):
    """A thread that acquires."""

    def __init__(self, locks: sync.Locks) -> None:
        self.locks = locks
        self.lease: sync.Lease | None = None
        super().__init__(self._acquire)

    def _acquire(self) -> None:
        self.lease = self.locks.acquire("a")

    def served(self) -> sync.Lease:
        self.result()
        assert self.lease is not None
        return self.lease


def queued(locks: sync.Locks, count: int, *waiters: Waiter) -> None:
    def line() -> bool:
        status = locks.status("a")
        return status is not None and len(status.waiters) == count

    until(line, f"{count} waiters", watching=waiters)


def test_waiting_reads_the_file_a_bounded_number_of_times(url: str) -> None:
    """A poller would read it again and again: here time passes, and nothing is asked."""
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(url, ttl=60) as there:
        holder = here.acquire("a")
        statements: list[str] = []
        there.status("a")
        file = there._core.backend._file  # type: ignore[attr-defined]  # SQLite's own
        file._connection.set_trace_callback(statements.append)
        waiters = [Waiter(there) for _ in range(5)]
        queued(here, 5, *waiters)
        until(lambda: _quiet(statements), "it stops asking")
        before = len(statements)
        time.sleep(0.5)
        assert len(statements) == before
        file._connection.set_trace_callback(None)
        assert holder.release()
        for _ in waiters:
            assert next(_served(waiters)).release()


def _quiet(statements: list[str]) -> bool:
    before = len(statements)
    time.sleep(0.05)
    return len(statements) == before


def _served(waiters: list[Waiter]) -> Iterator[sync.Lease]:
    until(lambda: any(w.lease and not w.lease.ended for w in waiters), "one is served", watching=waiters)
    yield from (w.lease for w in waiters if w.lease and not w.lease.ended)


def test_a_release_sends_one_wake_up_and_only_to_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    really = mailbox.wake

    def counted(folder: Path, address: str, holder: str) -> None:
        sent.append(holder)
        really(folder, address, holder)

    monkeypatch.setattr(mailbox, "wake", counted)
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(url, ttl=60) as there:
        lease = here.acquire("a")
        waiters = [Waiter(there) for _ in range(8)]
        queued(here, 8, *waiters)
        for turn in range(1, 9):
            assert lease.release()
            lease = next(_served(waiters))
            assert len(sent) == turn
            assert sent[-1] == lease.holder
        assert lease.release()


@pytest.mark.parametrize("depth", [1, 4])
def test_very_long_paths_still_wake_waiters(tmp_path: Path, depth: int) -> None:
    """A socket's address holds 108 bytes; folders may be far deeper."""
    path = tmp_path.joinpath(*["deep" * 25] * depth, "locks.db")
    assert len(str(path)) > 108
    with fencepost.connect(f"sqlite://{path}", ttl=60) as here, fencepost.connect(f"sqlite://{path}", ttl=60) as there:
        holder = here.acquire("a")
        waiter = Waiter(there)
        queued(here, 1, waiter)
        assert holder.release()
        assert waiter.served().release()


def test_a_dead_waiter_is_skipped_at_once_and_its_mailbox_removed(url: str, tmp_path: Path, worker: Worker) -> None:
    with fencepost.connect(url, ttl=60) as locks:
        holder = locks.acquire("a")
        worker.tell("acquire", "a", {"ttl": 60})
        queued(locks, 1)
        boxes = set((tmp_path / "locks.db.wake").iterdir())
        assert len(boxes) == 1
        behind = Waiter(locks)
        queued(locks, 2, behind)
        worker.kill()
        assert holder.release()
        assert behind.served().release(), "long before the dead one's ttl"
        assert not boxes & set((tmp_path / "locks.db.wake").iterdir())


def test_closing_removes_the_mailbox(url: str, tmp_path: Path) -> None:
    with fencepost.connect(url, ttl=60) as locks:
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()
        assert list((tmp_path / "locks.db.wake").iterdir())
    assert not list((tmp_path / "locks.db.wake").iterdir())


def test_a_lost_wake_up_delays_no_longer_than_the_holders_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "wake", lambda folder, address, holder: None)
    with fencepost.connect(url, ttl=1) as here, fencepost.connect(url, ttl=60) as there:
        holder = here.acquire("a")
        waiter = Waiter(there)
        queued(here, 1, waiter)
        assert holder.release()
        assert waiter.served().release()


def test_a_full_queue_forgets_the_dead_before_it_refuses(url: str, worker: Worker) -> None:
    with fencepost.connect(url, ttl=60, queue_limit=1) as locks:
        holder = locks.acquire("a")
        worker.tell("acquire", "a", {"ttl": 60})
        queued(locks, 1)
        dead = locks.list()[0].waiters
        worker.kill()
        waiter = Waiter(locks)
        until(lambda: locks.list()[0].waiters != dead, "the dead one is forgotten", watching=[waiter])
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()


@isolated
def test_locks_that_are_dropped_unclosed_leave_no_thread_and_no_mailbox(url: str, tmp_path: Path) -> None:
    """As by a function that connects each time it is called, and waits now and then."""

    def turn() -> None:
        locks = fencepost.connect(url, ttl=0.6)
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()
        assert listeners() > before

    before = listeners()
    for _ in range(3):
        turn()

    def gone() -> bool:
        gc.collect()
        return listeners() == before and not list(tmp_path.glob("locks.db.wake/*"))

    until(gone, "no thread and no mailbox")


def listeners() -> int:
    return sum(thread.name == "fencepost-wake" for thread in threading.enumerate())


@isolated
async def test_a_child_that_drops_its_parents_locks_leaves_them_their_mailbox(url: str, tmp_path: Path) -> None:
    # No lease before the fork: the child would keep the stack of the thread that renews, and with it the locks.
    mine: dict[str, sync.Locks] = {"locks": fencepost.connect(url, ttl=60)}
    assert mine["locks"].status("a") is None
    mine["locks"]._core.backend._mailbox.open()  # type: ignore[attr-defined]  # SQLite's own
    mailbox = weakref.ref(mine["locks"]._core.backend._mailbox)  # type: ignore[attr-defined]  # SQLite's own

    async def drop() -> bool:
        mine.clear()
        gc.collect()
        return mailbox() is None

    assert await in_fork(drop, PATIENCE), "the child has dropped them"
    assert len(list((tmp_path / "locks.db.wake").iterdir())) == 1
    with mine["locks"] as locks:
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()
