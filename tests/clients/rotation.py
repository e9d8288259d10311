"""Credentials that are replaced while a lock is held and another client waits for it, the same for every store."""

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fencepost.errors import BackendError
from tests.conformance.faces import Client, Hold
from tests.harness.threads import known_to_wait, on_thread
from tests.harness.waiting import until_async


class Told:
    """The caller's function, which tells what is right at present, and how often it was asked."""

    def __init__(self, credentials: Any) -> None:
        self.credentials = credentials
        self.calls = 0
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self) -> Any:
        self.calls += 1
        assert self.answers.wait(60)
        return self.credentials

    async def awaited(self) -> Any:
        """The same for asyncio code."""
        await asyncio.sleep(0)
        if not self.answers.is_set():
            self.calls += 1
            await until_async(self.answers.is_set, "it is let go")
            return self.credentials
        return self()

    def on(self, face: str) -> Any:
        return self if face == "blocking" else self.awaited


@contextmanager
def unlogged(*words: str) -> Iterator[list[str]]:
    """What is logged meanwhile, by any library and at any level: these words are not in it."""
    told: list[str] = []
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield told
    finally:
        root.setLevel(before)
        root.removeHandler(handler)
    assert not [line for line in told for word in words if word in line]


async def renewed(hold: Hold) -> bool:
    """Try to renew a lease; whether the store did it."""
    try:
        await hold.renew()
    except BackendError:
        return False
    return True


async def goes_on(url: str, face: str, told: Told, rotate: Callable[[], Any], name: str = "a", **options: Any) -> None:
    """Hold a lock and wait for it; ``rotate`` replaces the credentials, ends the sessions, and returns the new ones.

    For a moment the function tells what is refused already, as it may in production: the waiter outlives that.
    No log has what it told.
    """
    name += secrets.token_hex(4)
    password = told.credentials if isinstance(told.credentials, str) else told.credentials[1]
    with unlogged(password):
        holder, waiter = (Client(face, url, credentials=told.on(face), **options) for _ in range(2))
        hold = await holder.acquire(name)
        waiting = asyncio.create_task(waiter.acquire(name))
        await until_async(lambda: known_to_wait(waiter.raw) == 1, "it waits")
        new, before = await on_thread(rotate), told.calls

        async def refused() -> bool:
            return not await renewed(hold) and told.calls > before

        await until_async(refused, "what it tells is refused", poll=0.05)
        told.credentials = new
        await until_async(lambda: renewed(hold), "it is renewed with the new credentials", poll=0.05)
        assert await hold.release()
        next_hold = await waiting
        assert next_hold.token > hold.token
        assert await next_hold.release()
        await holder.close()
        await waiter.close()
