"""A waiter whose event loop was closed does not stay in the queue for the life of its process."""

import asyncio
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import aio, sync
from fencepost_lab.servers import ZooKeeper
from tests.backends.zookeeper.tools import LONG, line
from tests.harness.forsaken import forsake
from tests.harness.waiting import PATIENCE, run, until_async


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeper]:
    with ZooKeeper() as started:
        yield started


def waits(locks: sync.Locks, name: str) -> bool:
    status = locks.status(name)
    return status is not None and len(status.waiters) == 1


def test_a_waiter_whose_event_loop_was_closed_leaves_the_queue(server: ZooKeeper) -> None:
    url, name = f"{server.url}/closed", "x"
    with fencepost.connect(url, ttl=LONG) as others:
        holder = others.acquire(name)
        left = forsake(url, name, lambda: waits(others, name), ttl=3)
        assert waits(others, name), "it is still in the queue"
        line(others, name, 0)
        assert holder.release()
        assert others.acquire(name, timeout=PATIENCE).release()
    run(left.close())


async def test_a_waiter_whose_coroutine_was_closed_leaves_the_queue(server: ZooKeeper) -> None:
    """No clean-up can be awaited in it, although its event loop lives on."""
    url = f"{server.url}/thrown"
    locks = aio.connect(url, ttl=3)
    with fencepost.connect(url, ttl=LONG) as others:
        holder = others.acquire("x")
        waiting = locks.acquire("x")
        task = asyncio.create_task(waiting)
        await until_async(lambda: waits(others, "x"), "it waits", watching=[task])
        waiting.close()
        task.cancel()
        await until_async(lambda: not waits(others, "x"), "it leaves", poll=0.1)
        assert holder.release()
        assert others.acquire("x", timeout=PATIENCE).release()
    await locks.close()


async def test_a_waiter_that_lives_stays_in_the_queue(server: ZooKeeper) -> None:
    """While others use its session, and their requests keep it alive in place of pings."""
    url = f"{server.url}/stays"
    locks = aio.connect(url, ttl=3)
    with fencepost.connect(url, ttl=LONG) as others:
        holder = others.acquire("x")
        task = asyncio.create_task(locks.acquire("x"))
        await until_async(lambda: waits(others, "x"), "it waits", watching=[task])
        kept = await locks.acquire("y")
        first = kept.deadline
        await until_async(lambda: kept.deadline > first + 4, "it is renewed often enough", watching=[task])
        assert waits(others, "x")
        assert holder.release()
        assert await (await task).release()
    await locks.close()
