"""Waiters that nobody runs any more: their event loop was closed under them, or stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fencepost import aio
from fencepost.backend import Status
from tests.harness.waiting import until_async

_kept: list[asyncio.Task[Any]] = []  # for good: Python complains of a task that is destroyed while it is pending


def forsake(url: str, name: str, waits: Callable[[], bool], *, ttl: float) -> aio.Locks:
    """Have a task wait for a lock until ``waits`` says so, and close its event loop then; its locks."""
    loop = asyncio.new_event_loop()
    try:
        locks, task = loop.run_until_complete(_waiting(url, name, waits, ttl))
        _kept.append(task)
        return locks
    finally:
        loop.close()


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
        """Run the event loop again until the task has had the lock; its lease, and what the store said of the lock."""

        async def rest() -> tuple[aio.Lease, Status | None]:
            lease = await self.task
            status = await self.locks.status(lease.name)
            assert await lease.release()
            return lease, status

        return self.loop.run_until_complete(rest())


@contextmanager
def stopped(url: str, name: str, waits: Callable[[], bool], *, ttl: float) -> Iterator[Stopped]:
    """Have a task wait for a lock until ``waits`` says so, and stop its event loop then."""
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
