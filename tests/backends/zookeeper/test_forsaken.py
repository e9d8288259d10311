"""A waiter whose event loop was closed, or stopped, does not stay in the queue for the life of its process."""

import asyncio
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import aio, sync
from fencepost_lab.servers import ZooKeeper
from tests.backends.zookeeper.tools import LONG
from tests.harness.forsaken import forsake, stopped
from tests.harness.threads import background, waiters_of
from tests.harness.waiting import PATIENCE, run, until, until_async


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
        waiters_of(others, name, 0)
        assert holder.release()
        assert others.acquire(name, timeout=PATIENCE).release()
    run(left.close())


@pytest.mark.parametrize("turn", [True, False], ids=["its-turn", "in-line"])
def test_a_waiter_whose_event_loop_was_stopped_leaves_the_queue_and_joins_it_again(
    server: ZooKeeper, turn: bool
) -> None:
    url, name = f"{server.url}/stopped", f"x-{turn}"
    with fencepost.connect(url, ttl=LONG) as others:
        holder = others.acquire(name)
        with stopped(url, name, lambda: waits(others, name), ttl=3) as left:
            if turn:
                assert holder.release()
                holder = others.acquire(name, timeout=PATIENCE)
            else:
                waiters_of(others, name, 0)
            freed = background(lambda: until(lambda: waits(others, name), "it joins again") and holder.release())
            lease, status = left.go_on()
            assert freed.result()
            assert lease.token > holder.token
            assert status is not None
            assert (status.holder, status.token) == (lease.holder, lease.token)


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
    locks = aio.connect(url, ttl=6)
    with fencepost.connect(url, ttl=LONG) as others:
        holder = others.acquire("x")
        task = asyncio.create_task(locks.acquire("x"))
        await until_async(lambda: waits(others, "x"), "it waits", watching=[task])
        kept = await locks.acquire("y")
        first = kept.deadline
        await until_async(lambda: kept.deadline > first + 8, "it is renewed often enough", watching=[task])
        assert waits(others, "x")
        assert holder.release()
        assert await (await task).release()
    await locks.close()
