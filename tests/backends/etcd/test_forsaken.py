"""A waiter whose event loop was closed does not stay in the queue for the life of its process."""

import asyncio
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import aio
from fencepost_lab.servers import QUICK_ETCD, Etcd
from tests.backends.etcd.tools import LONG, queued
from tests.harness.forsaken import forsake
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
        assert queued(others, name, 1), "it is still in the queue"
        until(lambda: queued(others, name, 0), "it leaves", poll=0.1)
        assert holder.release()
        assert others.acquire(name, timeout=PATIENCE).release()
    run(left.close())


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
