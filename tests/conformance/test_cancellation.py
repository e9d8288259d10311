"""Cancelled at any await, acquire and release leave neither a held lock nor a queue entry."""

import asyncio

import pytest

from fencepost import locks
from fencepost.errors import QueueFull
from tests.conformance.cancel import Cutter, at_every_await
from tests.conformance.faces import Client, Hold
from tests.conformance.store import Store
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.only("asyncio")


async def outcome(victim: "asyncio.Task[Hold]") -> Hold | None:
    """What the victim acquired, or None if it was cancelled."""
    await asyncio.wait([victim])
    return None if victim.cancelled() else victim.result()


async def nothing_left(store: Store, client: Client) -> None:
    """The lock becomes free and nobody waits, long before any ttl could have helped."""

    async def free() -> bool:
        # On a busy machine the clean-up outlasts its grace, and what it cleans up may still be under way: the cancelled
        # request can be granted after this client was. All three are asked again until they agree.
        lease = await client.try_acquire(store.name)
        return lease is not None and await lease.release() and await client.status(store.name) is None

    await store.until(free, "the end of the clean-up")


async def test_an_acquire_of_a_free_lock_can_be_cancelled_anywhere(store: Store) -> None:
    client, watcher = store.connect(), store.connect()

    async def trial(cutter: Cutter) -> None:
        lease = await outcome(cutter.start(client.acquire(store.name)))
        if lease is not None:
            assert await lease.release()
        await nothing_left(store, watcher)

    await at_every_await(trial)


async def test_a_waiting_acquire_can_be_cancelled_anywhere_up_to_the_hand_over(store: Store) -> None:
    client, watcher = store.connect(), store.connect()

    async def trial(cutter: Cutter) -> None:
        holder = await watcher.acquire(store.name)
        victim = cutter.start(client.acquire(store.name, timeout=store.long))

        async def settled() -> bool:
            status = await watcher.status(store.name)
            assert status is not None
            return victim.done() or len(status.waiters) == 1 or not store.promises.fair

        await store.until(settled, "the victim in the queue, or cancelled")

        async def follow() -> bool:
            return await (await watcher.acquire(store.name, timeout=store.long)).release()

        behind = asyncio.create_task(follow())
        assert await holder.release()
        lease = await outcome(victim)
        if lease is not None:
            assert await lease.release()
        assert await behind, "the following waiter acquired"
        await nothing_left(store, watcher)

    assert await at_every_await(trial) >= 1, "there was something to cancel"


async def test_an_acquire_that_times_out_can_be_cancelled_anywhere(store: Store) -> None:
    client, watcher = store.connect(), store.connect()

    async def trial(cutter: Cutter) -> None:
        holder = await watcher.acquire(store.name)
        victim = cutter.start(client.acquire(store.name, timeout=0.02))
        await asyncio.wait([victim])
        assert victim.cancelled() or isinstance(victim.exception(), TimeoutError)

        async def alone() -> bool:
            status = await watcher.status(store.name)
            assert status is not None
            assert status.holder == holder.holder
            return not status.waiters

        await store.until(alone, "an empty queue")
        assert await holder.release()
        await nothing_left(store, watcher)

    assert await at_every_await(trial) >= 1


async def test_a_release_can_be_cancelled_anywhere(store: Store) -> None:
    client, watcher = store.connect(), store.connect()

    async def trial(cutter: Cutter) -> None:
        lease = await client.acquire(store.name)
        await asyncio.wait([cutter.start(lease.release())])
        assert lease.ended
        await nothing_left(store, watcher)

    await at_every_await(trial)


async def test_a_release_that_hands_over_can_be_cancelled_anywhere(store: Store) -> None:
    client, watcher = store.connect(), store.connect()

    async def trial(cutter: Cutter) -> None:
        lease = await client.acquire(store.name)
        behind = asyncio.create_task(watcher.acquire(store.name, timeout=store.long))
        await store.queue(watcher, 1)
        await asyncio.wait([cutter.start(lease.release())])
        assert await (await behind).release()
        await nothing_left(store, watcher)

    await at_every_await(trial)


async def test_a_whole_block_can_be_cancelled_anywhere(store: Store) -> None:
    client, watcher = store.connect(), store.connect()

    async def block() -> None:
        async with client.raw.lock(store.name):
            await asyncio.sleep(0)

    async def trial(cutter: Cutter) -> None:
        task = cutter.start(block())
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None
        assert task.cancelled() or not cutter.happened
        await nothing_left(store, watcher)

    assert await at_every_await(trial) >= 1


async def test_many_cancelled_waiters_leave_a_clean_line(store: Store) -> None:
    client, watcher = store.connect(), store.connect()
    holder = await watcher.acquire(store.name)
    tasks = [asyncio.create_task(client.acquire(store.name, timeout=store.long)) for _ in range(30)]
    await store.queue(watcher, 30)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks[::2], return_exceptions=True)
    await store.queue(watcher, 15)
    assert await holder.release()
    for served in asyncio.as_completed(tasks[1::2]):
        assert await (await served).release()
    await nothing_left(store, watcher)


@pytest.mark.fair
async def test_a_cancelled_waiter_gives_its_place_in_a_full_line_to_the_next_one(store: Store) -> None:
    client, watcher = store.connect(queue_limit=3), store.connect()
    holder = await watcher.acquire(store.name)
    line: list[asyncio.Task[Hold]] = []
    for _ in range(3):
        line.append(asyncio.create_task(client.acquire(store.name, timeout=store.long)))
        named = await store.queue(watcher, len(line))
    with pytest.raises(QueueFull):
        await client.acquire(store.name, timeout=store.long)
    line.pop(1).cancel()
    assert await store.queue(watcher, 2) == (named[0], named[2])
    line.append(asyncio.create_task(client.acquire(store.name, timeout=store.long)))
    assert (await store.queue(watcher, 3))[:2] == (named[0], named[2])
    with pytest.raises(QueueFull):
        await client.acquire(store.name, timeout=store.long)
    assert await holder.release()
    for task in line:
        assert await (await task).release()
    await nothing_left(store, watcher)


async def test_an_event_loop_that_ends_takes_its_waiters_along(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio.run cancels what still runs, and then there is no loop left for a clean-up."""
    monkeypatch.setattr(locks, "GRACE", PATIENCE)  # the store may be silent for as long as the clean-up usually gets
    watcher = store.connect()
    holder = await watcher.acquire(store.name)

    def another_loop() -> None:
        async def main() -> None:
            client = Client("asyncio", store.url, ttl=store.long)
            waiter = asyncio.create_task(client.acquire(store.name))
            await store.queue(client, 1)
            assert not waiter.done()

        asyncio.run(main())

    await asyncio.to_thread(another_loop)
    await store.queue(watcher, 0)
    assert await holder.release()
    await nothing_left(store, watcher)
