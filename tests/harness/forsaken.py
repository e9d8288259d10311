"""Waiters that nobody runs any more: their event loop was closed under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fencepost import aio
from tests.harness.waiting import until_async

_kept: list[asyncio.Task[Any]] = []  # for good: Python complains of a task that is destroyed while it is pending


def forsake(url: str, name: str, waits: Callable[[], bool], *, ttl: float) -> aio.Locks:
    """Have a task wait for a lock until ``waits`` says so, and close its event loop then; its locks."""

    async def scene() -> aio.Locks:
        locks = aio.connect(url, ttl=ttl)
        task = asyncio.create_task(locks.acquire(name))
        _kept.append(task)
        await until_async(waits, "it waits", watching=[task])
        return locks

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(scene())
    finally:
        loop.close()
