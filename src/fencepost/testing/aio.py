"""The same for asyncio: ``await zombie(lease)``. ``assert_refused`` and ``paused`` are plain ``with`` blocks here."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta

from fencepost import aio, registry
from fencepost.driver.tasks import Asyncio
from fencepost.events import Hook
from fencepost.signing import Keys
from fencepost.testing import leases
from fencepost.testing.clock import NAP, Clock
from fencepost.testing.refusals import Refusal, assert_refused
from fencepost.testing.store import FailingStore, Failure, Fault, Request, fresh_url
from fencepost.testing.watch import WatchedCore

__all__ = ["Clock", "Fault", "Locks", "Refusal", "assert_refused", "connect", "expire", "lose", "paused", "zombie"]


class Locks(aio.Locks):
    """Locks whose clock can be advanced, whose store can fail, and that know which leases are still held.

    For example::

        async with fencepost.testing.aio.connect() as locks:
            lease = await locks.acquire("account/42", ttl=15)
            locks.clock.advance(16)
            assert lease.lost
    """

    _core: WatchedCore[aio.Lease]

    def __init__(
        self, core: WatchedCore[aio.Lease], keys: Keys | None, store: FailingStore, clock: Clock, url: str
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
    """Locks for a test, on a store of their own in memory; or behind ``url``, as ``fencepost.aio.connect`` has them.

    The clock is the client's: a server counts a ttl by its own. For several clients, connect again with the ``url``
    and the ``clock`` of the first.

        async with fencepost.testing.aio.connect() as locks:
            first = await locks.acquire("account/42")
            second = await fencepost.testing.aio.zombie(first)
            assert second.token > first.token
            await second.release()
    """
    clock, url = clock or Clock(), url or fresh_url()
    driver = Asyncio(clock.now, NAP)
    store = FailingStore(registry.connect(url, driver))
    lease = aio.Lease if keys is None else keys.signing(aio.Lease)
    core = WatchedCore[aio.Lease](store, driver, lease, ttl=ttl, queue_limit=queue_limit, hooks=hooks)
    return Locks(core, keys, store, clock, url)


async def lose(lease: aio.Lease) -> None:
    """End a lease as a store does that gave the lock away or lost it: its block is cancelled, and the lock is free.

    For example::

        await lose(lease)
        assert lease.lost
    """
    await leases.lose(lease)


async def expire(lease: aio.Lease) -> None:
    """Let the ttl of a lease pass at once: the holder is not told, and the lock is free, or goes to the next waiter.

    This is what happens to a holder that was suspended for too long: its lease is lost as soon as it asks, and its
    block is cancelled when its next renewal would be due.

        await expire(lease)
        assert not await lease.release()
    """
    await leases.expire(lease)


async def zombie(lease: aio.Lease) -> aio.Lease:
    """Let the ttl of a lease pass at once, and have another holder take over; return the lease of the new holder.

    Make a write with it, or enter: a guard refuses the zombie once it has seen a larger token, and not before.
    ConfigError if a waiter has taken the lock over instead: use ``expire`` then.

        second = await zombie(first)
        await guard.write("account/42", b"90", second)
    """
    return await leases.zombie(lease)


def paused(locks: aio.Locks, meanwhile: Callable[[], Awaitable[object]]) -> AbstractContextManager[None]:
    """For code that acquires its own locks: the first lease acquired inside is a zombie before its holder goes on.

        with paused(locks, meanwhile=lambda: pay_in(42, 10)), assert_refused():
            await pay_in(42, 1)

    The holder pauses as soon as it has its lease. Its ttl passes, and ``meanwhile`` is awaited: there another
    holder acquires the lock, and writes. Then the first one goes on. AssertionError if nothing is acquired inside.
    """
    return leases.paused(locks._core, meanwhile)
