"""What killed and frozen processes leave behind: nothing that outlives their ttl."""

import asyncio

import pytest

from tests.conformance.faces import Hold
from tests.conformance.store import Store

pytestmark = pytest.mark.processes


async def test_a_killed_holders_lock_goes_on_at_its_ttl(store: Store) -> None:
    client = store.connect()
    worker = store.spawn()
    said = await worker.ask("acquire", store.name, {"ttl": store.short})
    waiter = asyncio.create_task(client.acquire(store.name, timeout=store.long))
    await store.queue(client, 1)
    worker.kill()
    assert (await waiter).token > said["token"]


async def test_a_living_holder_keeps_its_lock_past_its_ttl(store: Store) -> None:
    client = store.connect()
    worker = store.spawn()
    said = await worker.ask("acquire", store.name, {"ttl": store.kept})
    assert await worker.ask("wait_lost", store.name, 1.5 * store.kept) is False
    status = await client.status(store.name)
    assert status is not None
    assert status.token == said["token"]
    assert await worker.ask("release", store.name) is True


@pytest.mark.fair
async def test_killed_waiters_are_skipped(store: Store) -> None:
    client = store.connect()
    holder = await client.acquire(store.name)
    dead = [store.spawn() for _ in range(3)]
    for place, worker in enumerate(dead):
        worker.tell("acquire", store.name, {"ttl": store.short})
        await store.queue(client, place + 1)
    last = asyncio.create_task(client.acquire(store.name, timeout=store.long))
    await store.queue(client, 4)
    for worker in dead:
        worker.kill()
    assert await holder.release()
    lease = await last
    assert await lease.release()
    assert await client.status(store.name) is None


@pytest.mark.fair
async def test_a_frozen_waiter_holds_nobody_up_for_longer_than_its_ttl(store: Store) -> None:
    client = store.connect()
    holder = await client.acquire(store.name)
    frozen = store.spawn()
    frozen.tell("acquire", store.name, {"ttl": store.short})
    await store.queue(client, 1)
    behind = asyncio.create_task(client.acquire(store.name, timeout=store.long))
    await store.queue(client, 2)
    frozen.freeze()
    assert await holder.release()
    lease = await behind
    frozen.thaw()
    assert await client.try_acquire(store.name) is None, "the thawed one took nothing"
    await store.queue(client, 1)
    assert await lease.release()
    assert (await frozen.answer())["token"] > lease.token, "it waited on, at the end of the line"


async def test_a_frozen_holder_learns_that_it_was_replaced(store: Store) -> None:
    client = store.connect()
    frozen = store.spawn()
    said = await frozen.ask("acquire", store.name, {"ttl": store.short})
    frozen.freeze()
    lease = await store.free(client)
    assert lease.token > said["token"]
    frozen.thaw()
    assert await frozen.ask("wait_lost", store.name, store.patience) is True
    assert await frozen.ask("release", store.name) is False
    status = await client.status(store.name)
    assert status is not None
    assert status.holder == lease.holder


@pytest.mark.fair
async def test_processes_are_served_in_the_order_they_came(store: Store) -> None:
    client = store.connect()
    holder: Hold | None = await client.acquire(store.name)
    assert holder is not None
    workers = [store.spawn() for _ in range(3)]
    for place, worker in enumerate(workers):
        worker.tell("acquire", store.name, {})
        await store.queue(client, place + 1)
    assert await holder.release()
    for place, worker in enumerate(workers):
        said = await worker.answer()
        waiting = await store.queue(client, 2 - place)
        status = await client.status(store.name)
        assert status is not None
        assert status.holder == said["holder"]
        assert said["holder"] not in waiting
        assert await worker.ask("release", store.name) is True
