"""Code that interrupts its own thread inside a store, as a signal handler or ``__del__`` may, and uses locks."""

import gc
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import sync
from fencepost.errors import BackendError
from tests.harness.isolated import isolated
from tests.harness.threads import Background
from tests.harness.waiting import until

STORES = {"memory": "memory://reentry", "sqlite": "sqlite://{folder}/locks.db"}
stores = pytest.mark.parametrize("url", STORES.values(), ids=STORES)


def inside(locks: sync.Locks, interruption: Callable[[], object]) -> None:
    """Have the next request interrupted while it has the store to itself: that is where it asks for the time."""
    driver: Any = locks._core.driver
    backend: Any = locks._core.backend
    gate = backend._store.gate if hasattr(backend, "_store") else backend._file._gate
    really = driver.now

    def now() -> float:
        if gate.inside():
            driver.now = really
            interruption()
        return float(really())

    driver.now = now


@stores
@isolated
def test_a_release_by_the_garbage_collector_inside_the_store_is_refused(url: str, tmp_path: Path) -> None:
    """A deadlock of a thread with itself would be worse: no time-out ends it."""
    errors: list[BackendError] = []

    class Owner:
        def __init__(self) -> None:
            self.itself = self
            self.lease = locks.acquire("dropped")
            leases.append(self.lease)

        def __del__(self) -> None:
            try:
                self.lease.release()
            except BackendError as error:
                errors.append(error)

    leases: list[sync.Lease] = []
    with fencepost.connect(url.format(folder=tmp_path), ttl=60) as locks:
        gc.disable()
        Owner()
        inside(locks, gc.collect)
        Background(lambda: locks.acquire("other").release()).result()
        (error,) = errors
        assert "inside" in str(error)
        assert not error.ambiguous
        assert leases[0].release(), "it can be tried again"
        assert locks.status("dropped") is None


@stores
@isolated
def test_a_signal_handler_inside_the_store_is_refused(url: str, tmp_path: Path) -> None:
    """Handlers of most signals are held back meanwhile; this one's is not."""
    errors: list[BackendError] = []

    def handle(*_: object) -> None:
        for use in (locks.try_acquire, locks.status, locks.break_lock):
            try:
                use("a")
            except BackendError as error:
                errors.append(error)

    signal.signal(signal.SIGCHLD, handle)
    with fencepost.connect(url.format(folder=tmp_path), ttl=60) as locks:
        inside(locks, lambda: signal.raise_signal(signal.SIGCHLD))
        lease = locks.acquire("a")
        assert len(errors) == 3
        lease.check()
        signal.raise_signal(signal.SIGCHLD)
        assert lease.lost or locks.status("a") is None, "outside, the handler does what it says: it breaks the lock"


@stores
@isolated
def test_handlers_that_use_locks_run_between_the_steps_of_others(url: str, tmp_path: Path) -> None:
    """Such as SIGTERM's, which releases; here it comes again and again, also while it runs."""
    turns: list[int] = []
    depth: list[int] = []
    over: list[int] = []

    def handle(*_: object) -> None:
        if over:
            return
        depth.append(1)
        turns.append(1)
        if len(depth) < 4:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
        lease = locks.try_acquire(f"handler-{len(turns)}")
        if lease is not None:
            lease.release()
        depth.pop()

    with fencepost.connect(url.format(folder=tmp_path), ttl=60) as locks:
        signal.signal(signal.SIGALRM, handle)
        signal.signal(signal.SIGUSR1, handle)

        def work() -> bool:
            signal.raise_signal(signal.SIGUSR1)
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            locks.acquire("a").release()
            return len(turns) > 500

        try:
            until(work, "500 signals", poll=0)
        finally:
            over.append(1)  # first: a handler that is still to run would wind the timer up again
            signal.setitimer(signal.ITIMER_REAL, 0)
