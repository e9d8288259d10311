"""Laying down held locks: `fencepost gen` against a plain redis-py loop."""

import itertools
import secrets
from collections.abc import Iterator

import redis

from bench.harness import Sides, bench
from fencepost_lab.gen.keys import batches
from fencepost_lab.gen.stores import ground
from fencepost_lab.servers import Redis

LOCKS = 5000
TTL = 60.0


@bench("gen: 5000 held locks in Redis, vs SET NX PX by redis-py", aim=1 / 5, iterations=1, rounds=20)
def lay() -> Iterator[Sides]:
    with Redis(args=["--save", ""]) as server:
        store = ground(server.url)
        client = redis.Redis(port=server.port)
        ours, theirs = itertools.count(0, LOCKS), itertools.count()

        def gen() -> None:
            start = next(ours)
            laid = sum(each.free for each in store.lay(batches(7, start, start + LOCKS, 1000), 7, TTL))
            assert laid == LOCKS

        def plain() -> None:
            holder = secrets.token_hex(16)
            for _ in range(LOCKS):
                assert client.set(f"plain:account/{next(theirs):020x}", holder, nx=True, px=int(TTL * 1000))

        yield {"fencepost gen": gen, "redis-py, SET NX PX": plain}
        store.close()
        client.close()
