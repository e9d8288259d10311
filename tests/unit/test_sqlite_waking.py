"""What wakes a waiter on an SQLite file, and what waiting costs."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost.backends import wake
from fencepost.lab.servers.processes import wait_until
from tests.conformance.worker import Worker

PATIENCE = 20.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def worker(url: str) -> Iterator[Worker]:
    worker = Worker("blocking", url)
    yield worker
    worker.close()


class Waiter(threading.Thread):
    def __init__(self, locks: sync.Locks) -> None:
        super().__init__(daemon=True)
        self.locks = locks
        self.lease: sync.Lease | None = None
        self.start()

    def run(self) -> None:
        self.lease = self.locks.acquire("a")

    def served(self) -> sync.Lease:
        self.join(PATIENCE)
        assert self.lease is not None, "never woken"
        return self.lease


def queued(locks: sync.Locks, count: int) -> None:
    def line() -> bool:
        status = locks.status("a")
        return status is not None and len(status.waiters) == count

    assert wait_until(line, timeout=PATIENCE, poll=0.002)


def test_waiting_reads_the_file_a_bounded_number_of_times(url: str) -> None:
    """A poller would read it again and again: here time passes, and nothing is asked."""
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(url, ttl=60) as there:
        holder = here.acquire("a")
        statements: list[str] = []
        there.status("a")
        file = there._core.backend._file  # type: ignore[attr-defined]  # SQLite's own
        file._connection.set_trace_callback(statements.append)
        waiters = [Waiter(there) for _ in range(5)]
        queued(here, 5)
        assert wait_until(lambda: _quiet(statements), timeout=PATIENCE), "it never stops asking"
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
    assert wait_until(lambda: any(w.lease and not w.lease.lost for w in waiters), timeout=PATIENCE, poll=0.002)
    yield from (w.lease for w in waiters if w.lease and not w.lease.lost)


def test_a_release_sends_one_wake_up_and_only_to_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    really = wake.wake

    def counted(folder: Path, address: str, holder: str) -> None:
        sent.append(holder)
        really(folder, address, holder)

    monkeypatch.setattr(wake, "wake", counted)
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(url, ttl=60) as there:
        lease = here.acquire("a")
        waiters = [Waiter(there) for _ in range(8)]
        queued(here, 8)
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
        queued(here, 1)
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
        queued(locks, 2)
        worker.kill()
        assert holder.release()
        assert behind.served().release(), "long before the dead one's ttl"
        assert not boxes & set((tmp_path / "locks.db.wake").iterdir())


def test_closing_removes_the_mailbox(url: str, tmp_path: Path) -> None:
    with fencepost.connect(url, ttl=60) as locks:
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1)
        assert holder.release()
        assert waiter.served().release()
        assert list((tmp_path / "locks.db.wake").iterdir())
    assert not list((tmp_path / "locks.db.wake").iterdir())


def test_a_lost_wake_up_delays_no_longer_than_the_holders_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "wake", lambda folder, address, holder: None)
    with fencepost.connect(url, ttl=1) as here, fencepost.connect(url, ttl=60) as there:
        holder = here.acquire("a")
        waiter = Waiter(there)
        queued(here, 1)
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
        assert wait_until(lambda: locks.list()[0].waiters != dead, timeout=PATIENCE)
        queued(locks, 1)
        assert holder.release()
        assert waiter.served().release()


def test_locks_that_are_dropped_unclosed_leave_no_thread_and_no_mailbox(url: str, tmp_path: Path) -> None:
    """As by a function that connects each time it is called, and waits now and then."""

    def turn() -> None:
        locks = fencepost.connect(url, ttl=0.6)
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1)
        assert holder.release()
        assert waiter.served().release()
        assert listeners() > before

    before = listeners()
    for _ in range(3):
        turn()

    def gone() -> bool:
        gc.collect()
        return listeners() == before and not list(tmp_path.glob("locks.db.wake/*"))

    assert wait_until(gone, timeout=PATIENCE)


def listeners() -> int:
    return sum(thread.name == "fencepost-wake" for thread in threading.enumerate())


def test_a_child_that_drops_its_parents_locks_leaves_them_their_mailbox(url: str) -> None:
    locks = fencepost.connect(url, ttl=60)
    holder = locks.acquire("a")
    waiter = Waiter(locks)
    queued(locks, 1)
    child = os.fork()
    if not child:
        locks = waiter.locks = None  # type: ignore[assignment]
        del holder
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert holder.release()
    assert waiter.served().release()
    locks.close()
