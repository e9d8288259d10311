"""`python -m bench.field`: faults of other libraries' locks that docs/comparison.md names, shown with a real server.

Each needs the package that it is about: `make setup`, and `.venv/bin/pip install -r bench/peers.txt` for the rest. One
that is not installed is named and left out. The exit code is 1 if a fault is no longer there, so that the page can be
corrected.
"""

import asyncio
import importlib.metadata
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fencepost_lab.servers import Etcd, Redis

Shown = tuple[bool, str]
"""Whether it happened, and what was seen."""


def no_expiry() -> Shown:
    """sherlock: a Redis lock without an expiry excludes nobody."""
    import redis
    import sherlock

    with Redis() as server:
        client = redis.Redis.from_url(server.url)
        first, second = (sherlock.RedisLock("a", client=client, expire=None, timeout=2) for _ in range(2))
        both = bool(first.acquire(blocking=False) and second.acquire(blocking=False))
        left = client.keys("*")
        del first, second  # they release when they are collected, and need the server for that
        return both and not left, f"both acquired: {both}; keys in Redis: {left}"


def cancelled() -> Shown:
    """redis-py: an acquire that is cancelled after the server granted leaves the lock taken, without an end."""
    import redis.asyncio
    from redis.asyncio.lock import Lock

    async def scene(url: str) -> Shown:
        granted = asyncio.Event()

        class Slow(redis.asyncio.Redis):
            async def set(self, *args: Any, **options: Any) -> Any:
                answer = await super().set(*args, **options)
                granted.set()
                await asyncio.Event().wait()  # the answer is under way when the task is cancelled
                return answer

        async with Slow.from_url(url) as client, redis.asyncio.Redis.from_url(url) as other:
            task = asyncio.create_task(Lock(client, "a", timeout=None).acquire())
            await granted.wait()
            task.cancel()
            await asyncio.wait([task])
            left = await other.pttl("a")
            again = await Lock(other, "a").acquire(blocking=False)
            return left == -1 and not again, f"pttl of the lock: {left} (-1: no expiry); acquired by another: {again}"

    with Redis() as server:
        return asyncio.run(scene(server.url))


def silent_renewal() -> Shown:
    """python-redis-lock: when a renewal fails its thread ends, and the holder is told nothing."""
    import redis
    import redis_lock

    raised: list[str] = []
    threading.excepthook = lambda given: raised.append(given.exc_type.__name__)
    try:
        with Redis() as server:
            client = redis.Redis.from_url(server.url)
            lock = redis_lock.Lock(client, "a", expire=2, auto_renewal=True)
            lock.acquire()
            thread = lock._lock_renewal_thread
            client.delete("lock:a")
            thread.join(10)
            other = redis_lock.Lock(client, "a", expire=60).acquire(blocking=False)
            gone = not thread.is_alive()
            return gone and other, f"thread ended: {gone}, by {raised} in that thread alone; another acquired: {other}"
    finally:
        threading.excepthook = threading.__excepthook__


def not_woken() -> Shown:
    """python-redis-lock: waiters are not woken when the holder's lock expires."""
    import redis
    import redis_lock

    with Redis() as server:
        client = redis.Redis.from_url(server.url, socket_timeout=None)  # redis-py 8 gives up after 5 s otherwise
        redis_lock.Lock(client, "a", expire=2).acquire()  # and dies
        begun = time.monotonic()
        got = redis_lock.Lock(client, "a", expire=8).acquire(timeout=8)
        waited = time.monotonic() - begun
        return waited > 4, f"ttl of the dead holder 2 s; acquired: {got}, after {waited:.1f} s"


def unlocked_body() -> Shown:
    """etcd3gw: a with block runs although the lock was not acquired."""
    import etcd3gw

    with Etcd() as server:
        host, port = server.address.rsplit(":", 1)
        client = etcd3gw.client(host=host, port=int(port), api_path="/v3/")
        with client.lock("a", ttl=60), client.lock("a", ttl=60) as second:
            inside = second.is_acquired()
            return not inside, f"two with blocks of one lock run; the inner one has it: {inside}"


FAULTS: list[tuple[str, Callable[[], Shown]]] = [
    ("sherlock", no_expiry),
    ("redis", cancelled),
    ("python-redis-lock", silent_renewal),
    ("python-redis-lock", not_woken),
    ("etcd3gw", unlocked_body),
]
"""The package of each."""


def main() -> int:
    there = True
    for package, fault in FAULTS:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{package} is not installed")
            continue
        happened, seen = fault()
        print(f"{package} {version}: {(fault.__doc__ or '').partition(': ')[2]}")
        print(f"  {'seen' if happened else 'NO LONGER'}: {seen}")
        there = there and happened
    return 0 if there else 1


if __name__ == "__main__":
    sys.exit(main())
