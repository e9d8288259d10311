"""Ctrl-C in a blocking program."""

import signal
import threading
import time

import pytest

import fencepost
from fencepost import sync
from tests.conformance.store import Store

pytestmark = pytest.mark.only("blocking")


def interrupt(done: threading.Event) -> None:
    """Press Ctrl-C; again after a second, for Python can miss one that comes just as it begins to wait."""
    while not done.is_set():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        done.wait(1)


def test_a_waiter_that_is_interrupted_leaves_nothing(store: Store) -> None:
    with fencepost.connect(store.url, ttl=store.long) as here, fencepost.connect(store.url, ttl=store.long) as there:
        holder = here.acquire(store.name)
        done = threading.Event()

        def watch() -> None:
            deadline = time.monotonic() + store.patience
            while store.promises.fair and not ((status := here.status(store.name)) and status.waiters):
                assert time.monotonic() < deadline, "nobody waits"
                time.sleep(0.005)
            interrupt(done)

        watcher = threading.Thread(target=watch)

        def wait() -> None:
            watcher.start()  # in here, for where nobody sees who waits the interrupt may come at once
            there.acquire(store.name, timeout=store.long)

        with pytest.raises(KeyboardInterrupt):
            wait()
        done.set()
        watcher.join()
        status = here.status(store.name)
        assert status is not None
        assert status.waiters == ()
        assert holder.release()
        lease = there.try_acquire(store.name)
        assert lease is not None
        assert lease.release()


def test_an_interrupted_block_releases(store: Store) -> None:
    inside, done = threading.Event(), threading.Event()

    def after() -> None:
        inside.wait(store.patience)
        interrupt(done)

    def work(locks: sync.Locks) -> None:
        with locks.lock(store.name) as lease:
            inside.set()
            lease.lost.wait(store.patience)

    with fencepost.connect(store.url, ttl=store.long) as locks:
        sender = threading.Thread(target=after)
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            work(locks)
        done.set()
        sender.join()
        assert locks.status(store.name) is None
