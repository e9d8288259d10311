"""Waiters whose event loop was closed or stopped while they waited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fencepost import aio
from fencepost.backend import Status
from fencepost.driver import tasks
from tests.harness.waiting import until_async

_kept: list[asyncio.Task[Any]] = []  # never emptied: Python complains if a pending task is destroyed


def forsake(url: str, name: str, waits: Callable[[], bool], *, ttl: float) -> aio.Locks:
    """Start a task that waits for a lock, and close its event loop once ``waits()`` is true; return its locks."""
    loop = asyncio.new_event_loop()
    try:
        locks, task = loop.run_until_complete(_waiting(url, name, waits, ttl))
        _kept.append(task)
        while not _all_begun(loop):
            loop.run_until_complete(asyncio.sleep(0))
        return locks
    finally:
        loop.close()


def _all_begun(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether each task of the driver has begun its job: Python complains of one that is destroyed before."""
    awaited = [getattr(task.get_coro(), "cr_await", None) for task in asyncio.all_tasks(loop)]
    return not any(inspect.isgenerator(each) and each.gi_code is tasks._pause.__code__ for each in awaited)


async def _waiting(
    url: str, name: str, waits: Callable[[], bool], ttl: float
) -> tuple[aio.Locks, asyncio.Task[aio.Lease]]:
    locks = aio.connect(url, ttl=ttl)
    task = asyncio.create_task(locks.acquire(name))
    await until_async(waits, "it waits", watching=[task])
    return locks, task


class Stopped:
    """A task that waits for a lock, and its event loop, which does not run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, locks: aio.Locks, task: asyncio.Task[aio.Lease]) -> None:
        self.loop = loop
        self.locks = locks
        self.task = task

    def go_on(self) -> tuple[aio.Lease, Status | None]:
        """Run the event loop until the task has had the lock; its lease, and the lock's status while it was held."""

        async def rest() -> tuple[aio.Lease, Status | None]:
            lease = await self.task
            status = await self.locks.status(lease.name)
            assert await lease.release()
            return lease, status

        return self.loop.run_until_complete(rest())


@contextmanager
def stopped(url: str, name: str, waits: Callable[[], bool], *, ttl: float) -> Iterator[Stopped]:
    """Start a task that waits for a lock, and stop its event loop once ``waits()`` is true."""
    loop = asyncio.new_event_loop()
    try:
        locks, task = loop.run_until_complete(_waiting(url, name, waits, ttl))
        try:
            yield Stopped(loop, locks, task)
        finally:
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
            loop.run_until_complete(locks.close())
    finally:
        loop.close()
