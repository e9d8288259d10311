"""One holder at a time, whoever asks and from wherever."""

import asyncio
from pathlib import Path

import pytest

from tests.conformance.store import Store
from tests.conformance.worker import increment


async def test_a_held_lock_is_not_given_to_anybody_else(store: Store) -> None:
    here, there = store.connect(), store.connect()
    async with asyncio.timeout(store.patience):
        lease = await here.acquire(store.name)
    assert await there.try_acquire(store.name) is None
    assert await here.try_acquire(store.name) is None, "not even on the connection that holds it"
    assert await lease.release()
    assert (await store.free(there)).token > lease.token


async def test_two_locks_do_not_hinder_each_other(store: Store) -> None:
    client = store.connect()
    first = await client.try_acquire(f"{store.prefix}/a")
    second = await client.try_acquire(f"{store.prefix}/b")
    assert first
    assert second


async def test_a_waiter_acquires_when_the_holder_releases(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    waiter = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    await store.queue(here, 1)
    assert not waiter.done()
    assert await lease.release()
    assert (await waiter).token > lease.token


async def test_many_at_once_lose_no_increment(store: Store, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    clients = [store.connect() for _ in range(3)]
    jobs = [increment(clients[each % 3], store.name, counter, 5) for each in range(10)]
    async with asyncio.timeout(60):
        tokens = await asyncio.gather(*jobs)
    assert counter.read_text() == "50"
    assert len({token for mine in tokens for token in mine}) == 50
    assert all(mine == sorted(mine) for mine in tokens)
    status = await clients[0].status(store.name)
    assert status is None, "everybody released, nobody waits"


async def test_a_lock_is_taken_by_a_block_and_free_after_it(store: Store) -> None:
    client = store.connect()

    async def body(lease: object) -> str:
        assert await client.try_acquire(store.name) is None
        return "done"

    assert await client.block(store.name, body) == "done"
    assert await client.try_acquire(store.name)


async def test_a_block_that_raises_frees_its_lock_too(store: Store) -> None:
    client = store.connect()

    async def body(lease: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.block(store.name, body)
    assert await client.try_acquire(store.name)
