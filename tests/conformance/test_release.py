"""Giving back: only what is still one's own, once, and never at the cost of the next holder."""

import asyncio

from tests.conformance.store import Store


async def test_a_second_release_changes_nothing_and_says_so(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    assert await lease.release() is True
    other = await there.try_acquire(store.name)
    assert other is not None
    assert await lease.release() is False
    status = await here.status(store.name)
    assert status is not None
    assert status.holder == other.holder


async def test_the_stores_own_release_asks_for_holder_and_token(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    backend = client.raw._core.backend

    async def release(holder: str, token: int) -> bool:
        done: bool = await backend.release(store.name, holder, token)
        return done

    for holder, token in ((lease.stored, lease.token + 1), ("f" * 32, lease.token), (lease.stored, lease.token - 1)):
        assert await release(holder, token) is False
    status = await client.status(store.name)
    assert status is not None
    assert (status.holder, status.token) == (lease.holder, lease.token)
    assert await release(lease.stored, lease.token) is True
    assert await release(lease.stored, lease.token) is False


async def test_a_release_of_a_lock_that_nobody_has_had_is_false(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    await client.break_lock(store.name)
    assert await lease.release() is False
    assert await client.status(store.name) is None


async def test_releases_of_one_lease_at_once_count_once(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    done = await asyncio.gather(*(lease.release() for _ in range(4)))
    assert sorted(done) == [False, False, False, True]


async def test_leaving_makes_sure_of_neither_holding_nor_waiting(store: Store) -> None:
    """The contract's clean-up, whatever became of the requests before it."""
    client, watcher = store.connect(), store.connect()
    backend = client.raw._core.backend
    await backend.leave(store.name, "e" * 32)
    assert await watcher.status(store.name) is None
    lease = await client.acquire(store.name)
    await backend.leave(store.name, "e" * 32)
    status = await watcher.status(store.name)
    assert status is not None
    assert status.holder == lease.holder, "somebody else's leaving is nothing to a holder"
    await backend.leave(store.name, lease.stored)
    assert await watcher.status(store.name) is None


async def test_close_releases_what_is_held_and_tells_the_holders(store: Store) -> None:
    here, there = store.connect(), store.connect()
    leases = [await here.acquire(f"{store.prefix}/{each}") for each in range(3)]
    told = asyncio.create_task(leases[0].wait_lost(store.patience))
    await here.close()
    assert await told is True
    for lease in leases:
        assert lease.ended
        assert lease.remaining == 0
        assert await there.try_acquire(lease.name)
    await here.close()
