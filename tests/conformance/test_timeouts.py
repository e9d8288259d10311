"""How long acquiring waits, and what it leaves when it gave up."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from fencepost.errors import ConfigError, NotAcquired, QueueFull
from tests.conformance.store import Store


async def test_not_acquired_is_a_timeout_that_names_the_lock(store: Store) -> None:
    here, there = store.connect(), store.connect()
    await_me = await here.acquire(store.name)
    with pytest.raises(TimeoutError) as raised:
        await there.acquire(store.name, timeout=0.05)
    assert isinstance(raised.value, NotAcquired)
    assert raised.value.name == store.name
    assert raised.value.timeout == 0.05
    assert not await_me.lost


async def test_a_timed_out_waiter_leaves_no_queue_entry(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    with pytest.raises(NotAcquired):
        await there.acquire(store.name, timeout=0.05)
    status = await here.status(store.name)
    assert status is not None
    assert status.waiters == ()
    assert await lease.release()
    assert await here.status(store.name) is None
    assert await here.try_acquire(store.name), "nobody who gave up is in the way"


async def test_try_acquire_never_queues(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    assert await there.try_acquire(store.name) is None
    with pytest.raises(NotAcquired):
        await there.acquire(store.name, timeout=0)
    status = await here.status(store.name)
    assert status is not None
    assert status.waiters == ()
    assert status.holder == lease.holder


@pytest.mark.fair
async def test_try_acquire_does_not_overtake_a_waiter(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    waiter = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    await store.queue(here, 1)
    assert await lease.release()
    assert await here.try_acquire(store.name) is None
    assert await (await waiter).release()


async def test_durations_may_be_timedeltas(store: Store) -> None:
    here, there = store.connect(), store.connect()
    ttl = timedelta(seconds=store.long)
    lease = await here.acquire(store.name, ttl=ttl, max_hold=timedelta(hours=1))
    assert lease.ttl >= ttl.total_seconds()
    with pytest.raises(NotAcquired) as raised:
        await there.acquire(store.name, timeout=timedelta(milliseconds=50))
    assert raised.value.timeout == 0.05


async def test_an_endless_timeout_waits_like_none(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    endless: list[float | timedelta] = [float("inf"), threading.TIMEOUT_MAX, 1e300, timedelta.max]
    waiters = [asyncio.create_task(there.acquire(store.name, timeout=timeout)) for timeout in endless]
    await store.queue(here, len(waiters), watching=waiters)
    assert await lease.release()
    for served in asyncio.as_completed(waiters):
        assert await (await served).release()


SENSELESS: list[dict[str, Any]] = [
    *({"ttl": ttl} for ttl in (0, -1, float("nan"), float("inf"), "5", True)),
    *({"timeout": timeout} for timeout in (-1, float("nan"))),
    {"max_hold": -1},
]


async def test_senseless_durations_are_refused_and_change_nothing(store: Store) -> None:
    client = store.connect()
    for options in SENSELESS:
        try:
            await client.acquire(store.name, **options)
        except ConfigError:
            continue
        raise AssertionError(f"it took {options}")
    assert await client.status(store.name) is None


async def test_a_ttl_outside_the_promised_range_is_refused(store: Store) -> None:
    client = store.connect()
    for ttl in (store.promises.min_ttl / 2, store.promises.max_ttl * 2):
        with pytest.raises(ConfigError):
            await client.acquire(store.name, ttl=ttl)
    assert await client.status(store.name) is None


async def test_waiters_of_mixed_patience_each_get_what_they_asked_for(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    patient = [asyncio.create_task(there.acquire(store.name, timeout=store.long)) for _ in range(2)]
    await store.queue(here, 2)
    hasty = [asyncio.create_task(here.acquire(store.name, timeout=0.05 * each)) for each in (1, 2, 3)]
    for waiter in hasty:
        with pytest.raises(NotAcquired):
            await waiter
    await store.queue(here, 2)
    assert await lease.release()
    for served in asyncio.as_completed(patient):
        assert await (await served).release()


@pytest.mark.fair
async def test_a_full_queue_refuses_at_once_and_is_left_as_it_was(store: Store) -> None:
    here, there = store.connect(), store.connect(queue_limit=2)
    lease = await here.acquire(store.name)
    waiters = [asyncio.create_task(there.acquire(store.name, timeout=store.long)) for _ in range(2)]
    before = await store.queue(here, 2)
    with pytest.raises(QueueFull) as raised:
        await there.acquire(store.name, timeout=store.long)
    assert isinstance(raised.value, NotAcquired)
    assert raised.value.limit == 2
    assert await store.queue(here, 2) == before
    assert await lease.release()
    for served in asyncio.as_completed(waiters):
        assert await (await served).release()
    assert await there.try_acquire(store.name)
