"""A waiter whose event loop was closed, or stopped, does not stay in the queue for the life of its process."""

import asyncio
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import aio
from fencepost_lab.servers import QUICK_ETCD, Etcd
from tests.backends.etcd.tools import LONG, queued
from tests.harness.forsaken import forsake, stopped
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, run, until, until_async


@pytest.fixture(scope="module")
def server() -> Iterator[Etcd]:
    with Etcd(args=QUICK_ETCD) as started:
        yield started


def test_a_waiter_whose_event_loop_was_closed_leaves_the_queue(server: Etcd) -> None:
    name = "closed"
    with fencepost.connect(server.url, ttl=LONG) as others:
        holder = others.acquire(name)
        left = forsake(server.url, name, lambda: queued(others, name, 1), ttl=3)
        until(lambda: queued(others, name, 0), "it leaves", poll=0.1)
        assert holder.release()
        assert others.acquire(name, timeout=PATIENCE).release()
    run(left.close())


@pytest.mark.parametrize("turn", [True, False], ids=["its-turn", "in-line"])
def test_a_waiter_whose_event_loop_was_stopped_leaves_the_queue_and_joins_it_again(server: Etcd, turn: bool) -> None:
    name = f"stopped-{turn}"
    with fencepost.connect(server.url, ttl=LONG) as others:
        holder = others.acquire(name)
        with stopped(server.url, name, lambda: queued(others, name, 1), ttl=3) as left:
            if turn:
                assert holder.release()
                holder = others.acquire(name, timeout=PATIENCE)
            else:
                until(lambda: queued(others, name, 0), "it leaves", poll=0.1)
            freed = background(lambda: until(lambda: queued(others, name, 1), "it joins again") and holder.release())
            lease, status = left.go_on()
            assert freed.result()
            assert lease.token > holder.token
            assert status is not None
            assert (status.holder, status.token) == (lease.holder, lease.token)


async def test_a_waiter_whose_coroutine_was_closed_leaves_the_queue(server: Etcd) -> None:
    """No clean-up can be awaited in it, although its event loop lives on."""
    locks = aio.connect(server.url, ttl=3)
    with fencepost.connect(server.url, ttl=LONG) as others:
        holder = others.acquire("thrown")
        waiting = locks.acquire("thrown")
        task = asyncio.create_task(waiting)
        await until_async(lambda: queued(others, "thrown", 1), "it waits", watching=[task])
        waiting.close()
        task.cancel()
        await until_async(lambda: queued(others, "thrown", 0), "it leaves", poll=0.1)
        assert holder.release()
        assert others.acquire("thrown", timeout=PATIENCE).release()
    await locks.close()
