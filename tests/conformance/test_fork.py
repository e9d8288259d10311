"""After a fork, the leases are the parent's; the child has none, and can take its own."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fencepost.errors import LeaseLost
from tests.conformance.faces import Client, Hold
from tests.conformance.store import Store
from tests.harness.isolated import in_fork, isolated

T = TypeVar("T")


def in_child(store: Store, job: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    return in_fork(job, store.patience)


@isolated
async def test_a_lease_is_over_in_the_child_and_lives_on_in_the_parent(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.kept)

    async def child() -> dict[str, Any]:
        said: dict[str, Any] = {"lost": lease.lost, "remaining": lease.remaining, "waited": await lease.wait_lost(0.01)}
        for act in (lease.raw.check, lease.renew):
            try:
                done = act()
                if done is not None:
                    await done
            except LeaseLost as error:
                said[act.__name__] = error.reason
        said["released"] = await lease.release()
        return said

    assert await in_child(store, child) == {
        "lost": True,
        "remaining": 0.0,
        "waited": True,
        "check": "it belongs to the parent process",
        "renew": "it belongs to the parent process",
        "released": False,
    }
    assert await lease.wait_lost(1.5 * store.kept) is False, "the parent goes on renewing it"
    status = await client.status(store.name)
    assert status is not None
    assert status.holder == lease.holder
    assert await lease.release() is True


@isolated
async def test_a_child_that_ends_releases_nothing(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    await in_child(store, client.close)
    status = await client.status(store.name)
    assert status is not None
    assert status.holder == lease.holder
    assert await lease.release() is True


@isolated
async def test_a_child_takes_locks_of_its_own(store: Store) -> None:
    client = store.connect()
    mine = await client.acquire(f"{store.prefix}/parent")

    async def child() -> None:
        lease = await client.acquire(f"{store.prefix}/child", ttl=store.kept, timeout=store.patience)
        assert await lease.wait_lost(1.5 * store.kept) is False, "the child renews it"
        assert await lease.release() is True

    await in_child(store, child)
    mine.check()
    assert await mine.release() is True


@isolated
@pytest.mark.processes
async def test_parent_and_child_exclude_each_other(store: Store, tmp_path: Path) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    asked = tmp_path / "asked"

    async def child() -> int:
        assert await client.try_acquire(store.name) is None
        asked.touch()
        return (await client.acquire(store.name, timeout=store.patience)).token

    answer = asyncio.ensure_future(in_child(store, child))
    await store.until(asked.exists, "the child's refusal", watching=[answer])
    await store.queue(client, 1, watching=[answer])
    assert await lease.release()
    assert await answer > lease.token


@isolated
async def test_a_parents_waiter_goes_on_waiting(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    waiter = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    await store.queue(here, 1, watching=[waiter])

    async def child() -> str:
        return "alive"

    assert await in_child(store, child) == "alive"
    await store.queue(here, 1, watching=[waiter])
    assert await lease.release()
    assert await (await waiter).release()


@isolated
async def test_forks_amid_traffic_leave_children_that_work(store: Store) -> None:
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
