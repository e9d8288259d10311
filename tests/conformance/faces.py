"""Both faces behind one, so that each behaviour is written once.

Everything is awaited. On the blocking face each call runs on a plain thread of its own; on the
asyncio face it is a plain await in the one event loop of the test.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import fencepost
from fencepost import aio, sync
from fencepost.backend import Status
from tests.harness.threads import on_thread

FACES = ("blocking", "asyncio")

T = TypeVar("T")


async def in_loop(call: Callable[..., Awaitable[T]], /, *args: Any, **options: Any) -> T:
    return await call(*args, **options)


class Hold:
    """A lease of either face."""

    def __init__(self, raw: sync.Lease | aio.Lease, call: Callable[..., Awaitable[Any]]) -> None:
        self.raw = raw
        self._call = call
        self.name, self.holder, self.token, self.ttl = raw.name, raw.holder, raw.token, raw.ttl
        self.stored = raw._stored  # the holder as its store has it

    @property
    def lost(self) -> bool:
        return bool(self.raw.lost)

    @property
    def ended(self) -> bool:
        return bool(self.raw.ended)

    @property
    def remaining(self) -> float:
        return self.raw.remaining

    def check(self) -> None:
        self.raw.check()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        return bool(await self._call(self.raw.ended.wait, timeout))

    async def renew(self) -> None:
        await self._call(self.raw.renew)

    async def release(self) -> bool:
        return bool(await self._call(self.raw.release))


class Client:
    """One connection through either face."""

    def __init__(self, face: str, url: Any, **options: Any) -> None:
        blocking = face == "blocking"
        self.face = face
        self.raw: Any = fencepost.connect(url, **options) if blocking else aio.connect(url, **options)
        self._call: Callable[..., Awaitable[Any]] = on_thread if blocking else in_loop

    async def acquire(self, name: str, **options: Any) -> Hold:
        return Hold(await self._call(self.raw.acquire, name, **options), self._call)

    async def try_acquire(self, name: str, **options: Any) -> Hold | None:
        raw = await self._call(self.raw.try_acquire, name, **options)
        return None if raw is None else Hold(raw, self._call)

    async def share(self, name: str, permits: int | None = None, **options: Any) -> Hold:
        lock = self.raw.shared(name, **options) if permits is None else self.raw.semaphore(name, permits, **options)
        return Hold(await self._call(lock.acquire), self._call)

    async def try_share(self, name: str, permits: int | None = None, **options: Any) -> Hold | None:
        lock = self.raw.shared(name, **options) if permits is None else self.raw.semaphore(name, permits, **options)
        raw = await self._call(lock.try_acquire)
        return None if raw is None else Hold(raw, self._call)

    async def block(self, name: str, body: Callable[[Hold], Awaitable[T]], **options: Any) -> T:
        """Run ``body`` inside ``with lock(name)``; on the blocking face the block's thread waits for it."""
        lock = self.raw.lock(name, **options)
        if self.face == "asyncio":
            async with lock as lease:
                return await body(Hold(lease, self._call))
        loop = asyncio.get_running_loop()

        async def inside(lease: sync.Lease) -> T:
            return await body(Hold(lease, self._call))

        def whole() -> T:
            with lock as lease:
                return asyncio.run_coroutine_threadsafe(inside(lease), loop).result()

        return await on_thread(whole)

    async def status(self, name: str) -> Status | None:
        found: Status | None = await self._call(self.raw.status, name)
        return found

    async def list(self, prefix: str = "") -> list[Status]:
        found: list[Status] = await self._call(self.raw.list, prefix)
        return found

    async def break_lock(self, name: str) -> Status | None:
        ended: Status | None = await self._call(self.raw.break_lock, name)
        return ended

    async def bump(self, name: str, *, above: int, force: bool = False) -> None:
        await self._call(self.raw.bump, name, above=above, force=force)

    async def close(self) -> None:
        await self._call(self.raw.close)


_END = object()


async def each(client: Client, make: Callable[[], Any]) -> AsyncGenerator[Any, None]:
    """A loop of either face, as an async one; leaving it leaves the loop itself."""
    if client.face == "asyncio":
        async with aclosing(aiter(make())) as loop:
            async for item in loop:
                yield item
        return
    loop = iter(make())
    try:
        while (item := await on_thread(next, loop, _END)) is not _END:
            yield item
    finally:
        await on_thread(loop.close)


def changes(client: Client, name: str) -> Any:
    """Who leads ``name``, one after the other."""
    return aclosing(each(client, lambda: client.raw.election(name).changes()))
