"""redis-py's asyncio Lock, with a fencing token: instead of ``from redis.asyncio.lock import Lock``.

A client whose ``lock()`` makes such locks is `Redis` (or `RedisCluster`) from here.
"""

import asyncio
import contextlib
from typing import Any, ClassVar, Literal

import redis.asyncio
import redis.asyncio.lock
from redis.exceptions import LockNotOwnedError

from fencepost.compat import minting
from fencepost.compat.observed import Blocks, Hold, Lease, asked, gave_up, text
from fencepost.compat.redis import SOURCE, milliseconds, seconds
from fencepost.driver import boottime

__all__ = ["Lock", "Redis", "RedisCluster", "StrictRedis", "from_url"]


class Lock(redis.asyncio.lock.Lock):
    """redis-py's asyncio Lock: its signature, its keys, its errors, its polling.

    Taking it mints a fencing token: ``lease`` carries it to a guard, which in an ``async with`` block finds it by the
    lock's name. What went wrong is told to the hooks of `fencepost.compat.observe`.

        async with Lock(client, "report", timeout=30, blocking_timeout=5) as lock:
            print(lock.lease.token)
    """

    prefix: ClassVar[str] = ""
    """What the keys of these locks begin with: the ``?prefix=`` of fencepost's own locks, if those use the same keys.
    The counter of tokens begins with it too, for users of Redis that may only use such keys."""

    # redis-py stores its registered scripts here, for locks of this class.
    lua_release: Any = None
    lua_extend: Any = None
    lua_reacquire: Any = None

    @property
    def lease(self) -> Lease | None:
        """The hold, for a guard; None while the lock is not held, or if no token could be minted."""
        hold = self._hold
        return None if hold is None else hold.lease

    @property
    def _hold(self) -> Hold | None:
        return getattr(self.local, "hold", None)

    @property
    def _blocks(self) -> Blocks:
        if (blocks := getattr(self.local, "blocks", None)) is None:
            blocks = self.local.blocks = Blocks()
        return blocks

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """As redis-py's: True once the lock is held, False if it was not free in time."""
        name = text(self.name)
        began = asked(SOURCE, name)
        held = bool(await super().acquire(blocking, blocking_timeout, token))
        if held and (hold := self._hold) is not None:
            hold.acquired(began)
        elif not held:
            gave_up(SOURCE, name, began)
        return held

    async def do_acquire(self, token: str | bytes) -> bool:
        """Try once to take the key, as redis-py does; a grant mints a token."""
        ms = milliseconds(self.timeout)
        try:
            taken = await minting.take(self.redis, self.name, token, ms, self.prefix)
        except Exception:
            raise
        except BaseException:  # cancelled: it may have been taken
            await asyncio.shield(self._undo(token))
            raise
        if taken.held:
            self.local.hold = Hold(SOURCE, text(self.name), token, taken.token, seconds(ms), taken.since)
        return taken.held

    async def _undo(self, token: str | bytes) -> None:
        with contextlib.suppress(Exception):
            await self.lua_release(keys=[self.name], args=[token], client=self.redis)

    async def do_release(self, expected_token: str | bytes) -> None:
        """Release the key if it is still this lock's, as redis-py does."""
        hold = self._hold
        try:
            await super().do_release(expected_token)  # type: ignore[arg-type]
        except LockNotOwnedError:
            self.local.hold = None
            if hold is not None:
                hold.gone(releasing=True)
            raise
        self.local.hold = None  # only after success: if the release failed or was cancelled, it can be tried again
        if hold is not None:
            hold.released()

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """Let the key expire later, as redis-py does."""
        sent = boottime()
        try:
            await super().do_extend(additional_time, replace_ttl)
        except LockNotOwnedError:
            self._lost()
            raise
        if (hold := self._hold) is not None:
            hold.extended((sent if replace_ttl else hold.deadline) + int(additional_time * 1000) / 1000)
        return True

    async def do_reacquire(self) -> Literal[True]:
        """Begin the key's ttl again, as redis-py does."""
        sent = boottime()
        try:
            await super().do_reacquire()
        except LockNotOwnedError:
            self._lost()
            raise
        if (hold := self._hold) is not None:
            hold.extended(sent + (seconds(milliseconds(self.timeout)) or 0.0))
        return True

    def _lost(self) -> None:
        # redis-py also refuses to extend a key that never expires: that does not mean that the lock is lost.
        if self.timeout and (hold := self._hold) is not None:
            hold.gone()

    async def __aenter__(self) -> "Lock":
        await super().__aenter__()  # type: ignore[no-untyped-call]
        self._blocks.enter(self.lease)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._blocks.leave()
        await super().__aexit__(*error)  # type: ignore[no-untyped-call]


class Redis(redis.asyncio.Redis):
    """redis-py's asyncio client, whose ``lock()`` makes locks with fencing tokens.

    For example::

        client = Redis(host="localhost")
        async with client.lock("report", timeout=30): ...
    """

    def lock(
        self,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        lock_class: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """As redis-py's; ``lock_class`` is `Lock` unless given."""
        return super().lock(name, timeout, sleep, blocking, blocking_timeout, lock_class or Lock, *args, **options)


StrictRedis = Redis


class RedisCluster(redis.asyncio.RedisCluster):
    """redis-py's asyncio client of a cluster, whose ``lock()`` makes locks with fencing tokens.

    For example::

        client = RedisCluster(host="localhost", port=7000)
        async with client.lock("report", timeout=30): ...
    """

    def lock(
        self,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        lock_class: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """As redis-py's; ``lock_class`` is `Lock` unless given."""
        return super().lock(name, timeout, sleep, blocking, blocking_timeout, lock_class or Lock, *args, **options)


def from_url(url: str, **options: Any) -> Redis:
    """redis-py's ``from_url``, for a client whose ``lock()`` makes locks with fencing tokens.

    For example::

        client = from_url("redis://localhost:6379/0")
    """
    client: Any = Redis.from_url(url, **options)
    return client  # type: ignore[no-any-return]  # redis-py says that it returns its own
