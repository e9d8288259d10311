"""After a fork, the leases are the parent's; the child has none, and can take its own."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from fencepost.errors import LeaseLost
from tests.conformance.faces import Client, Hold
from tests.conformance.store import Store
from tests.harness.descriptors import all_descriptors, no_descriptors
from tests.harness.isolated import in_fork, isolated

T = TypeVar("T")


def in_child(store: Store, job: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    return in_fork(job, store.patience)


@pytest.mark.slow
@isolated
async def test_leases_stay_the_parents_and_children_work(store: Store, tmp_path: Path) -> None:
    await leases_stay_the_parents_and_the_child_takes_its_own(store, tmp_path / "asked")
    await forks_amid_traffic_leave_children_that_work(store)


async def leases_stay_the_parents_and_the_child_takes_its_own(store: Store, asked: Path) -> None:
    client, there = store.connect(), store.connect()
    kept = await client.acquire(f"{store.prefix}/kept", ttl=store.kept)
    held = await client.acquire(f"{store.prefix}/held")
    waiter = asyncio.create_task(there.acquire(held.name, timeout=store.long))
    await store.queue(client, 1, held.name, watching=[waiter])

    async def is_still(lease: Hold) -> bool:
        status = await client.status(lease.name)
        return status is not None and (status.holder, status.token) == (lease.holder, lease.token)

    async def over_in_the_child() -> None:
        for lease in (kept, held):
            assert lease.lost
            assert lease.remaining == 0.0
            assert await lease.wait_lost(0.01) is True
            with pytest.raises(LeaseLost, match="it belongs to the parent process"):
                lease.check()
            with pytest.raises(LeaseLost, match="it belongs to the parent process"):
                await lease.renew()
            assert await lease.release() is False
        own = await client.acquire(f"{store.prefix}/own", ttl=store.kept, timeout=store.patience)
        assert await own.wait_lost(store.past) is False, "the child renews its own"
        assert await own.release() is True

    await in_child(store, over_in_the_child)
    kept.check()
    assert await is_still(kept), "the parent went on renewing it while the child lived"

    await in_child(store, client.close)
    assert await is_still(kept), "a child that closes and ends releases nothing"
    await store.queue(client, 1, held.name, watching=[waiter])
    assert await is_still(held)
    assert await held.release()
    assert await (await waiter).release(), "the parent's waiter waited on"

    if store.promises.reach != "one process":

        async def wait_in_the_child() -> int:
            assert await client.try_acquire(kept.name) is None, "parent and child exclude each other"
            asked.touch()
            return (await client.acquire(kept.name, timeout=store.patience)).token

        answer = asyncio.ensure_future(in_child(store, wait_in_the_child))
        await store.until(asked.exists, "the child's refusal", watching=[answer])
        await store.queue(client, 1, kept.name, watching=[answer])
        assert await kept.release() is True
        assert await answer > kept.token
    else:
        assert await kept.release() is True


async def forks_amid_traffic_leave_children_that_work(store: Store) -> None:
    """A fork copies whatever the other threads are in the middle of: locks taken, transactions begun."""
    client = store.connect()
    stop = asyncio.Event()

    async def traffic(number: int) -> None:
        while not stop.is_set():
            lease: Hold = await client.acquire(f"{store.prefix}/{number}")
            assert await lease.release()
            await asyncio.sleep(0)

    busy = [asyncio.create_task(traffic(each)) for each in range(3)]

    async def child() -> bool:
        lease = await client.acquire(f"{store.prefix}/child", timeout=store.patience)
        return await lease.release()

    for _ in range(10):
        assert await in_child(store, child) is True
    stop.set()
    await asyncio.gather(*busy)
    fresh: Client = store.connect()
    assert await fresh.try_acquire(store.name)


@isolated
async def test_a_child_forked_while_no_descriptor_was_free_uses_nothing_of_its_parents(
    store: Store, tmp_path: Path
) -> None:
    client = store.connect()
    held = await client.acquire(store.name)
    for number, short in enumerate((no_descriptors(), all_descriptors())):
        name, taken = f"{store.prefix}/{number}", tmp_path / f"{number}"

        async def child(name: str = name, taken: Path = taken) -> bool:
            await store.until(taken.exists, "the parent's lock")
            if store.promises.reach != "one process":
                for each in (name, held.name):
                    assert await client.try_acquire(each) is None, "parent and child exclude each other"
            lease = await client.acquire(f"{store.prefix}/child", timeout=store.patience)
            return await lease.release()

        answer = asyncio.ensure_future(in_fork(child, store.patience, during=short))
        lease = await client.acquire(name, timeout=store.patience)
        taken.touch()
        assert await answer
        assert await lease.release()
    held.check()
    assert await held.release()


@pytest.mark.only("blocking")
@isolated
async def test_a_child_forked_inside_a_reentrant_block_can_enter_the_lock_itself(store: Store) -> None:
    locks = store.connect().raw
    lock = locks.lock(store.name, reentrant=True, timeout=store.patience)

    async def enter() -> tuple[int, bool]:
        with lock as lease:
            lease.check()
            with lock as again:
                return lease.token, again is lease

    with lock as lease:
        entered = in_child(store, enter)
        before = lease.token
    token, again = await entered
    assert token > before
    assert again
