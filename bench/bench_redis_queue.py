"""Redis: many who contend for one lock, against python-redis-lock; and what is left behind."""

import asyncio
import importlib.util
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

import fencepost
from bench.bench_redis import TTL, looped, quiet, sections
from bench.harness import Sides, bench, fact
from fencepost import aio
from fencepost_lab.servers import Redis


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


AIMS = {"fencepost, tasks": 0.35, "fencepost, threads": 0.35}


_SWITCH = (
    "Each hand-over wakes a thread, and Python has only one run at a time: the switch takes longer than the section."
)


@bench("redis: hot lock, 50 contenders, 1000 sections", bound=_SWITCH, aim=AIMS, iterations=1, rounds=9)
def hot_50() -> Iterator[Sides]:
    yield from hot(50, 1000)


@bench("redis: hot lock, 200 contenders, 1000 sections", bound=_SWITCH, aim=AIMS, iterations=1, rounds=7)
def hot_200() -> Iterator[Sides]:
    yield from hot(200, 1000)


@bench("redis: hot lock, 1000 contenders, 2000 sections", bound=_SWITCH, aim=AIMS, iterations=1, rounds=5)
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


def residue_of(locks_used: int) -> float:
    """Bytes in Redis per lock, after as many locks were used once."""
    together = 100

    async def scenario(server: Redis) -> float:
        async with aio.connect(server.url, ttl=TTL) as locks:
            client: Any = redis.Redis(port=server.port)

            async def use(first: int, last: int) -> None:
                for number in range(first, last):
                    await (await locks.acquire(f"account/{number}")).release()

            await asyncio.gather(*(use(0, 10) for _ in range(together)))
            before = int(client.info("memory")["used_memory"])
            each = locks_used // together
            await asyncio.gather(*(use(start, start + each) for start in range(0, locks_used, each)))
            await asyncio.sleep(0.2)
            assert client.dbsize() == 1, "only the counter stays"
            left = int(client.info("memory")["used_memory"]) - before
            client.close()
            return max(0.0, left / locks_used)

    with quiet() as server:
        return asyncio.run(scenario(server))


@fact("redis: bytes left in Redis per lock, after 300,000 were used", aim=0.5, quick=lambda: residue_of(20_000))
def residue() -> float:
    return residue_of(300_000)


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
