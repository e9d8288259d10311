"""Other people's locks, each behind a few lines, so that they meet the same load as ours.

Each is used as its own documentation shows, with no more connections than it needs to work. What they lack stays
lacking: none of them has a token, and only kazoo's is kept alive beyond its ttl.
"""

import asyncio
import importlib
import secrets
import time
from collections.abc import Iterable
from math import inf
from typing import Any, ClassVar

from fencepost.address import parse
from fencepost.driver import boottime
from fencepost.events import Hook
from fencepost_lab.contend.clients import Client, Held

_SPIN = 0.01
_LUA_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Peer(Client):
    """A client from a package that fencepost itself does not need."""

    packages: ClassVar[tuple[str, ...]]

    def __init__(self, backend: str, ttl: float, hooks: Iterable[Hook]) -> None:
        self.ttl = ttl
        self.url = backend
        self.host, self.port = (parse(backend).hosts or (("localhost", None),))[0]

    @classmethod
    def load(cls) -> None:
        """Import what it needs; ModuleNotFoundError if that is not there."""
        for package in cls.packages:
            importlib.import_module(package)

    def held(self, lease: Any, asked: float | None = None) -> Held:
        """A lock of which only the ttl is known, counted from when it was asked for."""
        until = None if asked is None else asked + self.ttl
        return Held(secrets.token_hex(8), lease, ttl=self.ttl, until=until)


class RedisSpin(Peer):
    """The lock that everybody writes first: SET NX PX, sleep, again; freed by compare-and-delete."""

    tasks = True
    packages = ("redis.asyncio",)

    def __init__(self, backend: str, ttl: float, hooks: Iterable[Hook]) -> None:
        super().__init__(backend, ttl, hooks)
        import redis.asyncio

        self.redis: Any = redis.asyncio.Redis.from_url(backend, max_connections=5000)

    async def acquire(self, name: str, timeout: float) -> Held | None:
        owner = secrets.token_hex(16)
        until = boottime() + timeout
        while True:
            asked = boottime()
            if await self.redis.set(name, owner, nx=True, px=int(self.ttl * 1000)):
                return self.held((name, owner), asked)
            if boottime() + _SPIN > until:
                return None
            await asyncio.sleep(_SPIN)

    async def release(self, held: Held) -> bool:
        name, owner = held.lease
        return bool(await self.redis.eval(_LUA_RELEASE, 1, name, owner))

    async def close(self) -> None:
        await self.redis.aclose()


class RedisPy(RedisSpin):
    """redis-py's own Lock, with its default of a try every 100 ms."""

    async def acquire(self, name: str, timeout: float) -> Held | None:
        lock = self.redis.lock(name, timeout=self.ttl, blocking_timeout=None if timeout == inf else timeout)
        return self.held(lock) if await lock.acquire() else None

    async def release(self, held: Held) -> bool:
        from redis.exceptions import LockError

        try:
            await held.lease.release()
        except LockError:
            return False
        return True


class Pottery(RedisSpin):
    """pottery's Redlock for asyncio, on the one Redis there is."""

    packages = ("pottery",)

    async def acquire(self, name: str, timeout: float) -> Held | None:
        from pottery import AIORedlock

        lock = AIORedlock(key=name, masters={self.redis}, auto_release_time=self.ttl)
        return self.held(lock) if await lock.acquire(timeout=-1 if timeout == inf else timeout) else None

    async def release(self, held: Held) -> bool:
        from pottery.exceptions import ReleaseUnlockedLock

        try:
            await held.lease.release()
        except ReleaseUnlockedLock:
            return False
        return True


class PythonRedisLock(Peer):
    """python-redis-lock: waiters sleep in BLPOP."""

    tasks = False
    packages = ("redis_lock",)

    def __init__(self, backend: str, ttl: float, hooks: Iterable[Hook]) -> None:
        super().__init__(backend, ttl, hooks)
        import redis

        # A blocking read may take as long as it takes.
        self.redis = redis.Redis.from_url(backend, max_connections=5000, socket_timeout=None)

    async def acquire(self, name: str, timeout: float) -> Held | None:
        import redis_lock

        lock = redis_lock.Lock(self.redis, name, expire=max(1, round(self.ttl)))
        # It cannot wait longer than the lock it waits for lasts.
        patience = min(timeout, max(1, round(self.ttl)))
        until = boottime() + timeout
        while not lock.acquire(timeout=max(1, round(patience))):
            if boottime() >= until:
                return None
        return self.held(lock)

    async def release(self, held: Held) -> bool:
        import redis_lock

        try:
            held.lease.release()
        except redis_lock.NotAcquired:
            return False
        return True

    async def close(self) -> None:
        self.redis.close()


class Kazoo(Peer):
    """kazoo's Lock recipe over one session for the whole process, which keeps every lock of it alive."""

    tasks = False
    packages = ("kazoo",)

    def __init__(self, backend: str, ttl: float, hooks: Iterable[Hook]) -> None:
        super().__init__(backend, ttl, hooks)
        from kazoo.client import KazooClient

        self.client = KazooClient(f"{self.host}:{self.port or 2181}", timeout=ttl)
        self.client.start(15)

    async def acquire(self, name: str, timeout: float) -> Held | None:
        from kazoo.exceptions import LockTimeout

        lock = self.client.Lock("/" + name)
        try:
            lock.acquire(timeout=None if timeout == inf else timeout)
        except LockTimeout:
            return None
        return self.held(lock)

    async def release(self, held: Held) -> bool:
        return bool(held.lease.release())

    async def close(self) -> None:
        self.client.stop()
        self.client.close()


class Aetcd(Peer):
    """aetcd's Lock: waiters watch the key, all of them the same one."""

    tasks = True
    packages = ("aetcd",)

    def __init__(self, backend: str, ttl: float, hooks: Iterable[Hook]) -> None:
        super().__init__(backend, ttl, hooks)
        self.client: Any = None

    async def acquire(self, name: str, timeout: float) -> Held | None:
        import aetcd

        if self.client is None:
            self.client = aetcd.Client(host=self.host, port=self.port or 2379)
            await self.client.connect()
        lock = self.client.lock(name.encode(), ttl=max(1, round(self.ttl)))
        return self.held(lock) if await lock.acquire(timeout=None if timeout == inf else timeout) else None

    async def release(self, held: Held) -> bool:
        return bool(await held.lease.release())

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()


class Etcd3gw(Peer):
    """etcd3gw's Lock, which only ever tries once: so it is tried again every 100 ms."""

    tasks = False
    packages = ("etcd3gw",)

    def __init__(self, backend: str, ttl: float, hooks: Iterable[Hook]) -> None:
        super().__init__(backend, ttl, hooks)
        import etcd3gw

        self.client = etcd3gw.client(host=self.host, port=self.port or 2379, api_path="/v3/")

    async def acquire(self, name: str, timeout: float) -> Held | None:
        until = boottime() + timeout
        while True:
            lock = self.client.lock(name, ttl=max(1, round(self.ttl)))
            if lock.acquire():
                return self.held(lock)
            if boottime() + 0.1 > until:
                return None
            time.sleep(0.1)

    async def release(self, held: Held) -> bool:
        return bool(held.lease.release())
