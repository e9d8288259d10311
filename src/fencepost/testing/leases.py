"""The worst that can happen to a lease, on demand; shared by the blocking and the asyncio functions."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from fencepost.driver import settle
from fencepost.errors import BackendError, ConfigError
from fencepost.lease import BaseLease
from fencepost.locks import Core
from fencepost.testing.store import FailingStore
from fencepost.testing.watch import WatchedCore

L = TypeVar("L", bound=BaseLease)

_SOON = 5.0  # seconds in which the service that watches a lease has ended it


def _core(lease: L) -> Core[L]:
    return cast(Core[L], lease._core)


async def _free(lease: BaseLease) -> None:
    """Release the lock in the store, without telling its holder; the next waiter gets it."""
    backend = _core(lease).backend
    if isinstance(backend, FailingStore):
        backend = backend.inner  # the test's own request must not fail
    await backend.release(lease.name, lease._stored, lease.token)


def _check_held(lease: BaseLease, what: str) -> None:
    if not isinstance(lease, BaseLease):
        raise ConfigError(f"{what}() takes a lease, such as 'with locks.lock(...) as lease' gives, not {lease!r}")
    if lease.reason is not None:
        raise ConfigError(f"{what}() takes a lease that is held; this one is over: {lease._why}")


async def lose(lease: BaseLease) -> None:
    """End a lease as a store does that gave the lock to another holder."""
    _check_held(lease, "lose")
    await _free(lease)
    _core(lease).backend.report(lease._stored, "it was taken away by fencepost.testing")
    if not await lease._until_over(_SOON):
        raise BackendError("the loss was not noticed in time", backend="testing", ambiguous=True)


async def expire(lease: BaseLease) -> None:
    """Let the ttl of a lease pass, without telling its holder."""
    _check_held(lease, "expire")
    lease.deadline = min(lease.deadline, _core(lease).driver.now())
    await _free(lease)


async def zombie(lease: L) -> L:
    """The same, and acquire the lock for another holder."""
    _check_held(lease, "zombie")
    if lease.shared:
        raise ConfigError(f"the lease on {lease.name!r} is a share, and others may hold theirs; use expire(lease)")
    await expire(lease)
    core = _core(lease)
    successor = await Core.acquire(core, lease.name, ttl=lease.ttl, timeout=0, renew=True, max_hold=None)
    if successor is None:
        raise ConfigError(
            f"somebody waited for {lease.name!r}, and has taken over already: use expire(lease), and let that one write"
        )
    if isinstance(core, WatchedCore):
        core.exempt(successor)
    return successor


@contextmanager
def paused(core: Core[Any], meanwhile: Callable[[], Awaitable[object] | object]) -> Iterator[None]:
    """The first holder inside pauses once it has its lease, until the ttl has passed and ``meanwhile`` is done."""
    acquire, leases = core.acquire, list[BaseLease]()

    async def acquire_and_pause(name: str, **options: Any) -> Any:
        lease = await acquire(name, **options)
        if lease is not None and not leases:
            leases.append(lease)
            await expire(lease)
            await settle(meanwhile())
        return lease

    if "acquire" in vars(core):
        raise ConfigError("these locks have a paused holder already; one at a time")
    vars(core)["acquire"] = acquire_and_pause
    try:
        yield
        if not leases:
            raise AssertionError("no lock was acquired inside, so that no holder was paused: the test shows nothing")
    finally:
        del vars(core)["acquire"]
