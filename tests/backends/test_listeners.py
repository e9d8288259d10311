"""The thread that listens for the waiters of a process: it starts when it is needed, and again if it has ended."""

import ctypes
import os
import socket
import threading
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.postgres.listener import Waker
from tests.harness.isolated import isolated
from tests.harness.threads import background, waiters_of
from tests.harness.waiting import PATIENCE, until

LISTENERS = {
    "sqlite": "fencepost-wake",
    "redis_server": "fencepost-redis-listener",
    "postgres_server": "fencepost-postgres-listener",
}


@pytest.fixture(params=LISTENERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Its URL, and the name of the thread."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/locks.db", LISTENERS["sqlite"]
    return request.getfixturevalue(request.param).url, LISTENERS[request.param]


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def hand_over(holder: sync.Locks, waiter: sync.Locks, name: str) -> bool:
    """Whether the waiter, once it had the lock, released it in time."""
    held = holder.acquire(name, timeout=PATIENCE)
    waits = background(lambda: waiter.acquire(name, timeout=PATIENCE).release())
    waiters_of(holder, name, 1)
    held.release()
    return waits.result()


@isolated
def test_a_listener_whose_thread_somebody_ended_listens_again(store: tuple[str, str]) -> None:
    """As a hook of a debugger or a profiler may, with sys.exit()."""
    url, name = store
    with fencepost.connect(url, ttl=3) as holder, fencepost.connect(url, ttl=3) as waiter:
        assert hand_over(holder, waiter, "ended")
        (first,) = threads(name)
        assert first.ident is not None
        threading.excepthook = threading.__excepthook__  # which passes SystemExit over
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        assert raise_in(ctypes.c_ulong(first.ident), ctypes.py_object(SystemExit)) == 1

        def ended() -> bool:
            # The thread may end with a wake-up that it has received. Then the waiter looks when the lease before its
            # own would have expired, and has its own for as short as that lease was held.
            hand_over(holder, waiter, "ended")
            return not first.is_alive()

        until(ended, "its thread has ended")
        until(lambda: threads(name), "another has its place")
        assert hand_over(holder, waiter, "ended")
        assert len(threads(name)) == 1
    until(lambda: not threads(name), "it ends with its locks")


@isolated
def test_waiters_that_come_at_once_start_one_listener_and_closing_ends_it(store: tuple[str, str]) -> None:
    url, name = store
    with fencepost.connect(url, ttl=60) as holder:
        for _ in range(3):
            with fencepost.connect(url, ttl=60) as waiter:
                held = [holder.acquire(f"many/{each}") for each in range(20)]
                ready = threading.Barrier(20)

                def wait(which: int, ready: threading.Barrier = ready, waiter: sync.Locks = waiter) -> bool:
                    ready.wait(PATIENCE)
                    return waiter.acquire(f"many/{which}", timeout=PATIENCE).release()

                waits = [background(lambda each=each: wait(each)) for each in range(20)]  # type: ignore[misc]
                for each in range(20):
                    waiters_of(holder, f"many/{each}", 1)
                assert len(threads(name)) == 1
                assert all(lease.release() for lease in held)
                assert all(each.result() for each in waits)
            until(lambda: not threads(name), "it ended")


def test_a_wait_for_a_session_ends_although_a_forked_child_has_a_copy_of_what_ends_it() -> None:
    waker = Waker()
    near, far = socket.socketpair()
    with near, far, socket.socket(fileno=os.dup(waker._there.fileno())):
        waiting = background(lambda: waker.wait(600, near.fileno()))
        waker.wake()
        waiting.result()
        waker.wake()
        waker.close()
        waker.wake()
