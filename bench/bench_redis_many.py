"""Redis: a process that holds many leases: what renewing them costs, and how long closing takes."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial

import fencepost
from bench.bench_redis import quiet
from bench.harness import UNSEEN, fact
from fencepost import aio

MANY, MOST = 10_000, 50_000
FEW = 300  # of a smoke test
TTL = 6.0  # each lease is renewed every two seconds
_PROBE = 0.001
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process spent on its leases."""

    stall: float
    """Seconds that the event loop's thread computed before it had a turn for anybody else, at the most."""
    share: float
    """The part of one core that the process took."""
    closing: float
    """Seconds until all were released."""


@cache
def held(
    count: int,
    ttl: float = TTL,
    window: float = 2 * TTL,
    sampling: AbstractContextManager[object] = UNSEEN,
) -> Cost:
    """Hold ``count`` leases in an event loop, measure for ``window`` seconds, and close.

    A stall is counted in CPU time, so that what else runs on the machine is not taken for one. The leases are frozen
    before (``gc.freeze``): a full collection of a heap with so many objects takes longer than anything else here, and
    when it comes is up to the whole program.
    """

    async def scenario(url: str) -> Cost:
        locks = aio.connect(url, ttl=ttl)
        leases: list[aio.Lease] = []
        for first in range(0, count, _AT_ONCE):
            names = (f"account/{each}" for each in range(first, min(first + _AT_ONCE, count)))
            leases += await asyncio.gather(*map(locks.acquire, names))
        gc.collect()
        gc.freeze()
        try:
            await asyncio.sleep(ttl / 3)
            spent, begun = time.process_time(), time.perf_counter()
            with sampling:
                stall = await _longest_step(begun + window)
            share = (time.process_time() - spent) / (time.perf_counter() - begun)
        finally:
            gc.unfreeze()
        _check(lease.lost for lease in leases)
        begun = time.perf_counter()
        await locks.close()
        return Cost(stall, share, time.perf_counter() - begun)

    with quiet() as server:
        return asyncio.run(scenario(server.url))


async def _longest_step(until: float) -> float:
    longest, last = 0.0, time.thread_time()
    while time.perf_counter() < until:
        await asyncio.sleep(_PROBE)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


def _check(lost: Iterable[bool]) -> None:
    if missing := sum(lost):
        raise RuntimeError(f"{missing} leases expired: this machine is too busy to renew them all; measure again")


def closing(count: int) -> float:
    """Seconds that blocking code takes to close with so many leases."""
    with quiet() as server:
        locks = fencepost.connect(server.url, ttl=300)
        leases = [locks.acquire(f"account/{each}") for each in range(count)]
        _check(lease.lost for lease in leases)
        begun = time.perf_counter()
        locks.close()
        return time.perf_counter() - begun


def smoke() -> Cost:
    """The same with few leases and for a short time, as ``--quick`` asks for it."""
    return held(FEW, 3.0, 3.0)


def sampled(count: int) -> Callable[[AbstractContextManager[object]], Cost]:
    """The same for a profile of the renewals alone."""
    return partial(held.__wrapped__, count, TTL, TTL / 2)


@fact(
    "redis: 10,000 renewed leases, longest stall of the loop in ms",
    bound="Between two turns of another task, the loop made three to five passes. Each took up to 2 ms, for the steps "
    "of two or three batches of 100 leases and for the answers to another.",
    aim=5,
    quick=lambda: 1000 * smoke().stall,
    profile=sampled(MANY),
)
def stall_of_many() -> float:
    return 1000 * held(MANY).stall


@fact(
    "redis: 50,000 renewed leases, longest stall of the loop in ms",
    bound="Every few seconds Python rebuilds the timer's dict of 50,000 leases in one step, which took 3 to 6 ms in "
    "trials; and a garbage collection looks at all of them. Many smaller dicts cost each renewal more, and were not "
    "kept.",
    aim=5,
    quick=lambda: 1000 * smoke().stall,
    profile=sampled(MOST),
)
def stall_of_most() -> float:
    return 1000 * held(MOST).stall


@fact(
    "redis: 50,000 renewed leases, 25,000 renewals/s, part of one core",
    bound="Some 10 microseconds of Python for each renewal: its request, its answer and its next due time.",
    aim=0.2,
    quick=lambda: smoke().share,
    profile=sampled(MOST),
)
def share_of_most() -> float:
    return held(MOST).share


@fact("redis: seconds to close with 50,000 leases, asyncio", aim=1, quick=lambda: smoke().closing)
def closing_asyncio() -> float:
    return held(MOST).closing


@fact("redis: seconds to close with 50,000 leases, blocking", aim=1, quick=lambda: closing(FEW))
def closing_blocking() -> float:
    return closing(MOST)
