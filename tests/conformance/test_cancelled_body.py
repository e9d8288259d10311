"""Losing a lease cancels the asyncio body that runs under it, and nothing else."""

import asyncio
import contextlib

import pytest

from fencepost import aio
from fencepost.errors import LeaseLost
from tests.conformance.store import Store

pytestmark = pytest.mark.only("asyncio")


def this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def nothing_pending() -> None:
    """No cancellation may be left over, neither counted nor still to come."""
    assert this_task().cancelling() == 0
    await asyncio.sleep(0)


async def the_body_is_cancelled_where_it_stands(store: Store) -> None:
    client = store.connect()
    reached = []

    async def work() -> None:
        async with client.raw.lock(store.name, ttl=store.kept):
            reached.append("before")
            await client.break_lock(store.name)
            await asyncio.sleep(store.long)
            reached.append("after")

    with pytest.raises(LeaseLost) as raised:
        await work()
    assert reached == ["before"]
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    await nothing_pending()


async def a_body_that_swallows_the_cancellation_still_raises(store: Store) -> None:
    client = store.connect()

    async def work() -> None:
        async with client.raw.lock(store.name, ttl=store.kept):
            await client.break_lock(store.name)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(store.long)

    with pytest.raises(LeaseLost):
        await work()
    await nothing_pending()


async def a_body_that_ends_before_its_next_await_still_raises(store: Store) -> None:
    client = store.connect()

    async def work() -> None:
        async with client.raw.lock(store.name, ttl=store.kept) as lease:
            told = asyncio.Event()
            lease._when_lost(told.set)
            with contextlib.suppress(asyncio.CancelledError):
                await client.break_lock(store.name)
                await told.wait()

    with pytest.raises(LeaseLost):
        await work()
    await nothing_pending()


async def a_cancellation_from_outside_stays_one(store: Store) -> None:
    client = store.connect()
    inside = asyncio.Event()

    async def work() -> None:
        async with client.raw.lock(store.name):
            inside.set()
            await asyncio.sleep(store.long)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await client.try_acquire(store.name), "and the lock is free"


async def a_cancellation_from_outside_at_the_moment_of_the_loss_stays_one(store: Store) -> None:
    client = store.connect()
    left: list[int] = []

    async def work() -> None:
        try:
            async with client.raw.lock(store.name, ttl=store.kept) as lease:
                task = this_task()
                lease._when_lost(lambda: task.cancel("from outside"))
                await client.break_lock(store.name)
                await asyncio.sleep(store.long)
        finally:
            left.append(this_task().cancelling())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    assert left == [1], "only the one from outside is left"


async def a_cancellation_from_outside_is_kept_when_the_body_has_just_ended(store: Store) -> None:
    client = store.connect()

    async def work() -> None:
        async with client.raw.lock(store.name, ttl=store.kept):
            try:
                await client.break_lock(store.name)
                await asyncio.sleep(store.long)
            except asyncio.CancelledError:
                this_task().cancel("from outside")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def an_outer_lease_lost_inside_an_inner_block(store: Store) -> None:
    client = store.connect()
    outer, inner = f"{store.prefix}/outer", f"{store.prefix}/inner"

    async def work() -> None:
        async with client.raw.lock(outer, ttl=store.kept), client.raw.lock(inner):
            await client.break_lock(outer)
            await asyncio.sleep(store.long)

    with pytest.raises(LeaseLost) as raised:
        await work()
    assert raised.value.name == outer
    await nothing_pending()
    assert await client.try_acquire(inner), "the inner one was released on the way out"


async def an_inner_lease_lost_leaves_the_outer_one_alone(store: Store) -> None:
    client = store.connect()
    outer, inner = f"{store.prefix}/outer", f"{store.prefix}/inner"

    async def work() -> None:
        async with client.raw.lock(inner, ttl=store.kept):
            await client.break_lock(inner)
            await asyncio.sleep(store.long)

    async with client.raw.lock(outer) as kept:
        with pytest.raises(LeaseLost) as raised:
            await work()
        assert raised.value.name == inner
        kept.check()
        await nothing_pending()
    await nothing_pending()


async def both_leases_lost_at_once(store: Store) -> None:
    client = store.connect()
    outer, inner = f"{store.prefix}/outer", f"{store.prefix}/inner"

    async def work() -> None:
        async with client.raw.lock(outer, ttl=store.kept) as first, client.raw.lock(inner, ttl=store.kept) as second:
            await client.break_lock(outer)
            await client.break_lock(inner)
            while not (first.lost and second.lost):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.001)

    with pytest.raises(LeaseLost):
        await work()
    await nothing_pending()


async def an_asyncio_timeout_around_a_block_is_not_confused_with_a_loss(store: Store) -> None:
    client = store.connect()

    async def lose() -> None:
        async with asyncio.timeout(store.patience), client.raw.lock(store.name, ttl=store.kept):
            await client.break_lock(store.name)
            await asyncio.sleep(store.long)

    async def be_late() -> None:
        async with asyncio.timeout(0.05), client.raw.lock(store.name):
            await asyncio.sleep(store.long)

    with pytest.raises(LeaseLost):
        await lose()
    with pytest.raises(TimeoutError):
        await be_late()
    await nothing_pending()

    async def free() -> bool:
        return await client.try_acquire(store.name) is not None

    await store.until(free, "the end of the clean-up, if the timeout came during the acquire")


async def a_plain_lease_cancels_nobody(store: Store) -> None:
    client = store.connect()
    lease: aio.Lease = await client.raw.acquire(store.name, ttl=store.kept)
    await client.break_lock(store.name)
    assert await lease.ended.wait(store.patience)
    await nothing_pending()


async def test_a_body_is_cancelled_by_loss_and_by_nothing_else(store: Store) -> None:
    await store.side_by_side(
        the_body_is_cancelled_where_it_stands,
        a_body_that_swallows_the_cancellation_still_raises,
        a_body_that_ends_before_its_next_await_still_raises,
        a_cancellation_from_outside_stays_one,
        a_cancellation_from_outside_at_the_moment_of_the_loss_stays_one,
        a_cancellation_from_outside_is_kept_when_the_body_has_just_ended,
        an_outer_lease_lost_inside_an_inner_block,
        an_inner_lease_lost_leaves_the_outer_one_alone,
        both_leases_lost_at_once,
        an_asyncio_timeout_around_a_block_is_not_confused_with_a_loss,
        a_plain_lease_cancels_nobody,
    )
