"""Redis: fencepost against a raw socket, redis-py's Lock and python-redis-lock."""

import asyncio
import contextlib
import importlib.util
import itertools
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import hiredis
import redis
import redis.asyncio

import fencepost
from bench.harness import Sides, bench, fact
from fencepost import aio
from fencepost.backends.redis_dial import pack
from fencepost.backends.redis_scripts import Layout, scripts
from fencepost.lab.servers import HOST, Redis

TTL = 30.0


def raw_cycle(port: int) -> Callable[[], None]:
    """The limit: fencepost's own two scripts over a bare socket, with everything packed in advance but the token."""
    parts, keys = scripts("clock"), Layout("raw:", "clock", False).keys("lock")[:4]
    wire = socket.create_connection((HOST, port))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = hiredis.Reader()

    def call(request: bytes) -> Any:
        wire.sendall(request)
        while (reply := reader.gets()) is False:
            reader.feed(wire.recv(4096))
        return reply

    for script in (parts.take, parts.release):
        call(pack(("SCRIPT", "LOAD", script.text)))
    holder = secrets.token_hex(16)
    take = pack(("EVALSHA", parts.take.sha, 4, *keys, holder, int(TTL * 1000), -1, "", 60_000))
    lock, queue, _, counter = keys

    def cycle() -> None:
        token = call(take)
        assert call(pack(("EVALSHA", parts.release.sha, 3, lock, queue, counter, f"{holder}:{token.decode()}"))) == 1

    return cycle


@contextlib.contextmanager
def quiet() -> Iterator[Redis]:
    """A Redis that does nothing besides, such as saving."""
    with Redis(args=["--save", ""]) as server:
        yield server


@bench("redis: acquire + release, blocking, vs the limit", aim=1.25, iterations=300, rounds=25)
def uncontended() -> Iterator[Sides]:
    with quiet() as server, fencepost.connect(server.url, ttl=TTL) as locks:

        def cycle() -> None:
            locks.acquire("lock").release()

        yield {"fencepost": cycle, "raw socket, two EVALSHA": raw_cycle(server.port)}


@bench("redis: acquire + release, blocking, vs redis-py", aim=1 / 1.3, iterations=300, rounds=25)
def uncontended_peer() -> Iterator[Sides]:
    with quiet() as server, fencepost.connect(server.url, ttl=TTL) as locks:
        client = redis.Redis(port=server.port)
        theirs = client.lock("peer", timeout=TTL)

        def ours() -> None:
            locks.acquire("lock").release()

        def peer() -> None:
            theirs.acquire()
            theirs.release()

        yield {"fencepost": ours, "redis-py Lock": peer}
        client.close()


@contextlib.contextmanager
def looped(url: str) -> Iterator[tuple[asyncio.AbstractEventLoop, aio.Locks, Any]]:
    """An event loop with both clients in it."""
    loop = asyncio.new_event_loop()
    locks = aio.connect(url, ttl=TTL)
    client = redis.asyncio.Redis.from_url(url, max_connections=2000)
    try:
        yield loop, locks, client
    finally:
        loop.run_until_complete(locks.close())
        loop.run_until_complete(client.aclose())
        loop.close()


Section = Callable[[str], Awaitable[None]]


def sections(locks: aio.Locks, client: Any) -> tuple[Section, Section]:
    """One acquire and release, by fencepost and by redis-py."""

    async def ours(name: str) -> None:
        await (await locks.acquire(name)).release()

    async def peer(name: str) -> None:
        theirs = client.lock(name, timeout=TTL)
        await theirs.acquire()
        await theirs.release()

    return ours, peer


@bench("redis: 50 x acquire + release, asyncio, vs redis-py", aim=0.5, iterations=4, rounds=25)
def uncontended_asyncio() -> Iterator[Sides]:
    with quiet() as server, looped(server.url) as (loop, locks, client):
        ours, peer = sections(locks, client)

        async def batch(section: Section) -> None:
            for _ in range(50):
                await section("lock")

        yield {
            "fencepost": lambda: loop.run_until_complete(batch(ours)),
            "redis-py asyncio Lock": lambda: loop.run_until_complete(batch(peer)),
        }


@bench("redis: 256 tasks x 8, each its own lock, vs redis-py", aim=1 / 12, iterations=1, rounds=15)
def distinct() -> Iterator[Sides]:
    with quiet() as server, looped(server.url) as (loop, locks, client):
        ours, peer = sections(locks, client)

        async def batch(section: Section) -> None:
            async def task(name: str) -> None:
                for _ in range(8):
                    await section(name)

            await asyncio.gather(*(task(f"lock {number}") for number in range(256)))

        yield {
            "fencepost": lambda: loop.run_until_complete(batch(ours)),
            "redis-py asyncio Lock": lambda: loop.run_until_complete(batch(peer)),
        }


def crowd(count: int, total: int, section: Callable[[], object]) -> None:
    """``total`` sections by ``count`` threads that all contend."""
    share = max(1, total // count)

    def run() -> None:
        for _ in range(share):
            section()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hot(count: int, total: int) -> Iterator[Sides]:
    with quiet() as server, looped(server.url) as (loop, locks, client):
        blocking = fencepost.connect(server.url, ttl=TTL)
        ours, _ = sections(locks, client)
        pool = redis.Redis(port=server.port, max_connections=4000)

        async def tasks() -> None:
            async def task() -> None:
                for _ in range(max(1, total // count)):
                    await ours("hot")

            await asyncio.gather(*(task() for _ in range(count)))

        sides: dict[str, Callable[[], object]] = {
            "fencepost, tasks": lambda: loop.run_until_complete(tasks()),
            "fencepost, threads": lambda: crowd(count, total, lambda: blocking.acquire("hot").release()),
        }
        if importlib.util.find_spec("redis_lock"):
            import redis_lock  # type: ignore[import-untyped, import-not-found, unused-ignore]

            def peer() -> None:
                with redis_lock.Lock(pool, "hot", expire=int(TTL)):
                    pass

            sides["python-redis-lock, threads"] = lambda: crowd(count, total, peer)
        yield sides
        blocking.close()
        pool.close()


@bench("redis: hot lock, 50 contenders, 1000 sections", aim=0.5, iterations=1, rounds=9)
def hot_50() -> Iterator[Sides]:
    yield from hot(50, 1000)


@bench("redis: hot lock, 200 contenders, 1000 sections", aim=0.5, iterations=1, rounds=7)
def hot_200() -> Iterator[Sides]:
    yield from hot(200, 1000)


@bench("redis: hot lock, 1000 contenders, 2000 sections", aim=1 / 3, iterations=1, rounds=5)
def hot_1000() -> Iterator[Sides]:
    yield from hot(1000, 2000)


def contend(count: int, rounds: int, work: float) -> tuple[float, int, list[float]]:
    """Requests per section, pairs served out of the order they came in, and how long each waited."""
    waits: list[float] = []
    arrived: list[int] = []
    served: list[int] = []

    async def scenario(server: Redis) -> float:
        async with aio.connect(server.url, ttl=TTL) as locks:
            client: Any = redis.Redis(port=server.port)

            def requests() -> int:
                return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

            async def task(number: int) -> None:
                for round_ in range(rounds):
                    begun = time.perf_counter()
                    arrived.append(number * rounds + round_)
                    async with locks.lock("hot"):
                        waits.append(time.perf_counter() - begun)
                        served.append(number * rounds + round_)
                        if work:
                            await asyncio.sleep(work)

            await (await locks.acquire("hot")).release()
            before = requests()
            await asyncio.gather(*map(task, range(count)))
            spent = requests() - before
            client.close()
            return spent / (count * rounds)

    with quiet() as server:
        cost = asyncio.run(scenario(server))
    place = {each: index for index, each in enumerate(arrived)}
    order = [place[each] for each in served]
    return cost, sum(later < earlier for earlier, later in itertools.pairwise(order)), waits


@fact("redis: requests per section on a hot lock, the most of 50, 200 and 1000 contenders", aim=2.2)
def requests_per_section() -> float:
    return max(contend(count, rounds, 0)[0] for count, rounds in ((50, 20), (200, 5), (1000, 2)))


@fact("redis: inversions between arrival and service, 200 contenders", aim=0)
def inversions() -> float:
    return contend(200, 5, 0)[1]


@fact("redis: p99 / p50 of the waits, 200 contenders, 1 ms of work", aim=1.3)
def tail() -> float:
    # The first round is the crowd's arrival: its first one does not wait at all.
    waits = sorted(contend(200, 5, 0.001)[2][200:])
    return waits[int(len(waits) * 0.99)] / statistics.median(waits)


@fact("redis: bytes left in Redis per lock, after 1,000,000 were used", aim=0.5)
def residue() -> float:
    async def scenario(server: Redis) -> float:
        async with aio.connect(server.url, ttl=TTL) as locks:
            client: Any = redis.Redis(port=server.port)

            async def use(first: int, last: int) -> None:
                for number in range(first, last):
                    await (await locks.acquire(f"account/{number}")).release()

            await asyncio.gather(*(use(0, 10) for _ in range(100)))
            before = int(client.info("memory")["used_memory"])
            await asyncio.gather(*(use(start, start + 10_000) for start in range(0, 1_000_000, 10_000)))
            await asyncio.sleep(0.2)
            assert client.dbsize() == 1, "only the counter stays"
            left = int(client.info("memory")["used_memory"]) - before
            client.close()
            return max(0.0, left / 1_000_000)

    with quiet() as server:
        return asyncio.run(scenario(server))


@fact("redis: seconds from the death of a holder past its ttl until a waiter has the lock", aim=0.1)
def succession() -> float:
    async def scenario(server: Redis) -> float:
        late = []
        async with aio.connect(server.url) as locks:
            for number in range(9):
                name = f"dead {number}"
                grant = await locks._core.backend.take(name, "dead", 0.3, None)
                assert grant is not None
                lease = await locks.acquire(name)
                late.append(time.clock_gettime(time.CLOCK_BOOTTIME) - grant.since - 0.3)
                await lease.release()
        return statistics.median(late)

    with quiet() as server:
        return asyncio.run(scenario(server))
