"""Locks shared by processes: who is served and kept, and what the killed and the frozen leave behind.

A process is costly to start, so everything is asked of the same three.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.faces import Client
from tests.conformance.store import Store
from tests.conformance.worker import Worker

pytestmark = pytest.mark.processes


def asked(worker: Worker, verb: str, *arguments: Any) -> "asyncio.Task[Any]":
    """Have the worker do it while the test goes on."""
    return asyncio.create_task(worker.ask(verb, *arguments))


async def in_line(store: Store, client: Client, tasks: "list[asyncio.Task[Any]]", task: "asyncio.Task[Any]") -> None:
    """Add a task to those that acquire the lock, and return once it waits or is served."""
    tasks.append(task)
    await store.settled(client, tasks)


@pytest.mark.slow
@pytest.mark.long
async def test_processes_share_locks_alive_frozen_and_killed(store: Store, tmp_path: Path) -> None:
    workers = [store.spawn() for _ in range(3)]
    await living_processes_take_turns_and_keep_what_they_hold(store, workers, tmp_path / "counter")

    async def frozen(store: Store) -> None:
        await a_frozen_process_holds_nobody_up_and_learns_what_it_lost(store, workers[0])

    async def killed(store: Store) -> None:
        await killed_processes_leave_nothing_that_outlives_their_ttl(store, workers[1], workers[2])

    await store.side_by_side(frozen, killed)


async def living_processes_take_turns_and_keep_what_they_hold(
    store: Store, workers: list[Worker], counter: Path
) -> None:
    async def a_living_holder_keeps_its_lock_past_its_ttl(store: Store) -> None:
        client = store.connect()
        said = await workers[0].ask("acquire", store.name, {"ttl": store.kept})
        assert await workers[0].ask("wait_lost", store.name, store.past) is False
        status = await client.status(store.name)
        assert status is not None
        assert status.token == said["token"]
        assert await workers[0].ask("release", store.name) is True

    async def processes_are_served_in_the_order_they_came(store: Store) -> None:
        if not store.promises.fair:
            return
        client = store.connect()
        holder = await client.acquire(store.name)
        line: list[asyncio.Task[Any]] = []
        for worker in workers:
            await in_line(store, client, line, asked(worker, "acquire", store.name, {"ttl": store.long}))
        assert await holder.release()
        for place, worker in enumerate(workers):
            said = await line[place]
            waiting = await store.queue(client, 2 - place)
            status = await client.status(store.name)
            assert status is not None
            assert status.holder == said["holder"]
            assert said["holder"] not in waiting
            assert await worker.ask("release", store.name) is True

    async def processes_lose_no_increment(store: Store) -> None:
        counter.write_text("0")
        order = ("increment", store.name, str(counter), 20, {"ttl": store.long})
        tokens = await asyncio.gather(*(worker.ask(*order) for worker in workers))
        assert counter.read_text() == "60"
        assert len({token for mine in tokens for token in mine}) == 60

    await store.side_by_side(
        a_living_holder_keeps_its_lock_past_its_ttl,
        processes_are_served_in_the_order_they_came,
        processes_lose_no_increment,
    )


async def a_frozen_process_holds_nobody_up_and_learns_what_it_lost(store: Store, frozen: Worker) -> None:
    client = store.connect()
    held, queue = f"{store.prefix}/held", f"{store.prefix}/queue"
    said = await frozen.ask("acquire", held, {"ttl": store.short})
    holder = await client.acquire(queue)
    line = [asked(frozen, "acquire", queue, {"ttl": store.short})]
    await store.settled(client, line, queue)
    behind = asyncio.create_task(client.acquire(queue, timeout=store.long))
    await store.settled(client, [*line, behind], queue)

    frozen.freeze()
    assert await holder.release()
    lease = await behind
    replaced = await store.free(client, held)
    assert replaced.token > said["token"], "the holder was replaced at its ttl"

    frozen.thaw()
    assert await client.try_acquire(queue) is None, "the thawed waiter took nothing"
    await store.queue(client, 1, queue)
    assert await lease.release()
    assert (await line[0])["token"] > lease.token, "the thawed waiter waited on, at the end of the line"
    assert await frozen.ask("wait_lost", held, store.patience) is True, "the thawed holder learned that it was replaced"
    assert await frozen.ask("release", held) is False
    status = await client.status(held)
    assert status is not None
    assert status.holder == replaced.holder


async def killed_processes_leave_nothing_that_outlives_their_ttl(store: Store, one: Worker, two: Worker) -> None:
    client = store.connect()
    held, queue, shared, read = (f"{store.prefix}/{each}" for each in ("held", "queue", "shared", "read"))
    short = {"ttl": store.short}

    # One holds a lock that the other waits for. Both wait for another lock, before a living client.
    first = await one.ask("acquire", held, short)
    next_holder = asked(two, "acquire", held, {**short, "timeout": store.long})
    await store.settled(client, [next_holder], held)
    holder = await client.acquire(queue)
    dead: list[asyncio.Task[Any]] = []
    for worker in (one, two):
        dead.append(asked(worker, "acquire", queue, short))
        await store.settled(client, dead, queue)
    last = asyncio.create_task(client.acquire(queue, timeout=store.long))
    await store.settled(client, [*dead, last], queue)
    if store.promises.shared:
        # One shares a lock that a living writer waits for, and waits to write before a living reader.
        mine = await client.share(shared)
        share = await one.ask("share", shared, short)
        writer = asyncio.create_task(client.acquire(shared, timeout=store.long))
        await store.settled(client, [writer], shared)
        my_read = await client.share(read, ttl=store.kept)  # some stores look for the dead when a share is renewed
        dead.append(asked(one, "acquire", read, short))
        await store.settled(client, dead[-1:], read)
        reader = asyncio.create_task(client.share(read, timeout=store.long))
        await store.settled(client, [dead[-1], reader], read)

    one.kill()
    second = await next_holder
    two.kill()
    third = await store.free(client, held)
    assert first["token"] < second["token"] < third.token, "the killed holders' lock went on, with larger tokens"
    assert await holder.release()
    assert await (await last).release(), "the killed waiters were skipped"

    async def empty() -> bool:
        return await client.status(queue) is None

    await store.until(empty, "the killed waiters left the line")
    if store.promises.shared:
        assert await mine.release()
        assert (await writer).token > share["token"], "the killed sharer's share ended"
        lease = await reader
        my_read.check()
        assert await lease.release(), "the reader behind the killed writer was let in"
        assert await my_read.release()
    await asyncio.gather(*dead, return_exceptions=True)
