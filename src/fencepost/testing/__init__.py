"""Tests of code that holds locks: time that passes at once, holders that were replaced, stores that fail.

    def test_a_holder_that_was_replaced_is_refused(locks):      # a fixture of the pytest plugin, on memory://
        old = locks.acquire("account/42")
        new = zombie(old)                                       # its ttl has passed, and another holder took over
        pay_in(new, 10)
        with assert_refused():
            pay_in(old, 1)
        new.release()

pytest finds the fixtures ``locks`` and ``aio_locks`` by itself, and fails a test that leaves a lease behind. Nothing
here needs pytest. `aio` has the same names for asyncio.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta

from fencepost import registry, sync
from fencepost.driver import call
from fencepost.driver.threads import Blocking
from fencepost.events import Hook
from fencepost.signing import Keys
from fencepost.testing import leases
from fencepost.testing.clock import NAP, Clock
from fencepost.testing.refusals import Refusal, assert_refused
from fencepost.testing.store import FailingStore, Failure, Fault, Request, fresh_url
from fencepost.testing.watch import WatchedCore

__all__ = ["Clock", "Fault", "Locks", "Refusal", "assert_refused", "connect", "expire", "lose", "paused", "zombie"]


class Locks(sync.Locks):
    """Locks whose clock can be advanced, whose store can fail, and that know which leases are still held.

    For example::

        with fencepost.testing.connect() as locks:
            lease = locks.acquire("account/42", ttl=15)
            locks.clock.advance(16)
            assert lease.lost
    """

    _core: WatchedCore[sync.Lease]

    def __init__(
        self, core: WatchedCore[sync.Lease], keys: Keys | None, store: FailingStore, clock: Clock, url: str
    ) -> None:
        super().__init__(core, keys)
        self._store = store
        self.clock = clock
        self.url = url

    def failing(self, failure: Failure, *requests: Request) -> AbstractContextManager[Fault]:
        """Have the store fail inside the block, for these requests or all; the Fault counts how often it did.

        "refused": BackendError, and nothing was done. "unknown": it was done, but the answer is lost. "hung": there is
        no answer until the block ends, or the client has waited for 5 s. The requests are "acquire", "renew",
        "release", "status", "break_lock" and "bump".
        """
        return self._store.failing(failure, requests)

    def assert_released(self) -> None:
        """AssertionError if a lease of these locks is still held; it says where each was acquired."""
        __tracebackhide__ = True
        self._core.check_released()


def connect(
    url: str | None = None,
    /,
    *,
    ttl: float | timedelta = 15.0,
    queue_limit: int = 10_000,
    hooks: Iterable[Hook] = (),
    keys: Keys | None = None,
    clock: Clock | None = None,
) -> Locks:
    """Locks for a test, on a store of their own in memory; or behind ``url``, as ``fencepost.connect`` has them.

    The clock is the client's: a server counts a ttl by its own. For several clients, connect again with the ``url``
    and the ``clock`` of the first.

        with fencepost.testing.connect() as locks:
            first = locks.acquire("account/42")
            second = fencepost.testing.zombie(first)
            assert second.token > first.token
            second.release()
    """
    clock, url = clock or Clock(), url or fresh_url()
    driver = Blocking(clock.now, NAP)
    store = FailingStore(registry.connect(url, driver))
    lease = sync.Lease if keys is None else keys.signing(sync.Lease)
    core = WatchedCore[sync.Lease](store, driver, lease, ttl=ttl, queue_limit=queue_limit, hooks=hooks)
    return Locks(core, keys, store, clock, url)


def lose(lease: sync.Lease) -> None:
    """End a lease as a store does that gave the lock away or lost it: the holder is told, and the lock is free.

    For example::

        lose(lease)
        assert lease.lost
    """
    call(leases.lose, lease)


def expire(lease: sync.Lease) -> None:
    """Let the ttl of a lease pass at once: the holder is not told, and the lock is free, or goes to the next waiter.

    This is what happens to a holder that was suspended for too long: its lease is lost as soon as it asks.

        expire(lease)
        assert not lease.release()
    """
    call(leases.expire, lease)


def zombie(lease: sync.Lease) -> sync.Lease:
    """Let the ttl of a lease pass at once, and have another holder take over; return the lease of the new holder.

    Make a write with it, or enter: a guard refuses the zombie once it has seen a larger token, and not before.
    ConfigError if a waiter has taken the lock over instead: use ``expire`` then.
    """
    return call(leases.zombie, lease)


def paused(locks: sync.Locks, meanwhile: Callable[[], object]) -> AbstractContextManager[None]:
    """For code that acquires its own locks: the first lease acquired inside is a zombie before its holder goes on.

        with paused(locks, meanwhile=lambda: pay_in(42, 10)), assert_refused():
            pay_in(42, 1)

    The holder pauses as soon as it has its lease. Its ttl passes, and ``meanwhile`` is called: there another
    holder acquires the lock, and writes. Then the first one goes on. AssertionError if nothing is acquired inside.
    """
    return leases.paused(locks._core, meanwhile)
