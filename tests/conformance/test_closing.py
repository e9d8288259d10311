"""After close: nothing is taken any more, and nobody is left hanging."""

import asyncio

import pytest

from fencepost import locks
from fencepost.errors import ConfigError
from fencepost.lease import Reason
from tests.conformance.cancel import Cutter, at_every_await
from tests.conformance.store import Store


async def test_closed_locks_take_nothing(store: Store) -> None:
    here, there = store.connect(), store.connect()
    await here.close()
    with pytest.raises(ConfigError):
        await here.acquire(store.name)
    with pytest.raises(ConfigError):
        await here.try_acquire(store.name)
    assert await there.status(store.name) is None


async def test_closed_locks_tell_and_change_nothing(store: Store) -> None:
    here = store.connect()
    await here.try_acquire(store.name)
    await here.close()
    for call in (here.status, here.list, here.break_lock):
        with pytest.raises(ConfigError, match="closed"):
            await call(store.name)
    with pytest.raises(ConfigError, match="closed"):
        await here.bump(store.name, above=1)


async def test_a_lease_of_closed_locks_is_released_already(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    await here.close()
    new = await there.try_acquire(store.name)
    assert new is not None
    assert await lease.release() is False
    new.check()
    status = await there.status(store.name)
    assert status is not None
    assert status.holder == new.holder


async def test_a_with_block_closes(store: Store) -> None:
    watcher, client = store.connect(), store.connect()
    if client.face == "asyncio":
        async with client.raw as locks:
            lease = await locks.acquire(store.name)
    else:
        with client.raw as locks:
            lease = locks.acquire(store.name)
    assert lease.reason is Reason.CLOSED
    assert await watcher.try_acquire(store.name)


async def test_an_unused_connection_closes(store: Store) -> None:
    client = store.connect()
    await client.close()
    with pytest.raises(ConfigError, match="closed"):
        await client.try_acquire(store.name)


async def test_closing_ends_those_who_wait_and_leaves_nobody_in_line(store: Store) -> None:
    here, there = store.connect(), store.connect()
    holder = await there.acquire(store.name)
    waiters = [asyncio.create_task(here.acquire(store.name, timeout=timeout)) for timeout in (None, store.long, None)]
    await store.queue(there, 3)
    await asyncio.sleep(0)
    await here.close()
    for waiter in waiters:
        with pytest.raises(ConfigError, match="these locks are closed"):
            await waiter
    status = await there.status(store.name)
    assert status is not None
    assert (status.holder, status.waiters) == (holder.holder, ())
    assert await holder.release()
    assert await there.status(store.name) is None, "it went to nobody who had left"


@pytest.mark.core
async def test_closing_disconnects_only_after_a_slow_store_has_let_its_waiters_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a cancelled acquire waits for its clean-up."""
    monkeypatch.setattr(locks, "GRACE", 0.01)
    here, there = store.connect(), store.connect()
    holder = await there.acquire(store.name)
    backend, sleep = here.raw._core.backend, here.raw._core.driver.sleep
    leave, disconnect = backend.leave, backend.close
    done: list[str] = []

    async def leave_slowly(name: str, who: str) -> str | None:
        await sleep(0.3)
        left: str | None = await leave(name, who)
        done.append("left")
        return left

    async def disconnects() -> None:
        done.append("disconnected")
        await disconnect()

    monkeypatch.setattr(backend, "leave", leave_slowly)
    monkeypatch.setattr(backend, "close", disconnects)
    waiter = asyncio.create_task(here.acquire(store.name))
    await store.queue(there, 1, watching=[waiter])
    if store.face == "asyncio":  # one that was cancelled before no longer waits for its own clean-up
        cancelled = asyncio.create_task(here.acquire(store.name))
        await store.queue(there, 2, watching=[cancelled])
        cancelled.cancel()
        await asyncio.wait([cancelled])
    await here.close()
    assert done == [*["left"] * (2 if store.face == "asyncio" else 1), "disconnected"]
    with pytest.raises(ConfigError, match="these locks are closed"):
        await waiter
    assert await holder.release()


async def test_closing_does_not_end_the_waits_of_others(store: Store) -> None:
    here, there, watcher = store.connect(), store.connect(), store.connect()
    holder = await watcher.acquire(store.name)
    gone = asyncio.create_task(here.acquire(store.name))
    await store.queue(watcher, 1)
    stays = asyncio.create_task(there.acquire(store.name))
    await store.queue(watcher, 2)
    await here.close()
    with pytest.raises(ConfigError):
        await gone
    assert await holder.release()
    assert await (await stays).release()


@pytest.mark.only("asyncio")
async def test_closing_that_is_cancelled_anywhere_is_seen_through(store: Store) -> None:
    """As by a timeout around it: nothing stays held, least of all renewed for ever by locks that are closed."""
    watcher = store.connect()
    names = [f"{store.name}/{number}" for number in range(2)]

    async def trial(cutter: Cutter) -> None:
        here = store.connect()
        leases = [await here.acquire(name) for name in names]
        closing = cutter.start(here.close())
        await asyncio.wait([closing])

        async def free() -> bool:
            return not any([await watcher.status(name) for name in names])

        await store.until(free, "the end of the clean-up")
        assert all(lease.ended for lease in leases)

    awaits = await at_every_await(trial)
    assert awaits or store.url.startswith("memory:"), "there was something to cancel"
