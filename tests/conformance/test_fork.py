"""After a fork, the leases are the parent's; the child has none, and can take its own."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import LeaseLost
from tests.conformance.faces import Client, Hold, on_thread
from tests.conformance.store import Store


async def in_child(store: Store, job: Callable[[], Awaitable[Any]]) -> Any:
    """What ``job`` returns in a forked child, in an event loop of its own there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said: Any = {"error": "the child died"}
        try:
            os.close(reader)
            said = asyncio.run(_in_time(store, job))
        except BaseException as error:
            said = {"error": repr(error)}
        finally:
            os.write(writer, json.dumps(said).encode())
            os._exit(0)
    os.close(writer)

    def listen() -> bytes:
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read()

    try:
        async with asyncio.timeout(store.patience + 5):
            return json.loads(await on_thread(listen))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await on_thread(os.waitpid, pid, 0)


async def _in_time(store: Store, job: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(store.patience):
        return await job()


async def test_a_lease_is_over_in_the_child_and_lives_on_in_the_parent(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.kept)

    async def child() -> Any:
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

    said = await in_child(store, child)
    assert said == {
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


async def test_a_child_that_ends_releases_nothing(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)

    async def child() -> Any:
        await client.close()
        return "closed"

    assert await in_child(store, child) == "closed"
    status = await client.status(store.name)
    assert status is not None
    assert status.holder == lease.holder
    assert await lease.release() is True


async def test_a_child_takes_locks_of_its_own(store: Store) -> None:
    client = store.connect()
    mine = await client.acquire(f"{store.prefix}/parent")

    async def child() -> Any:
        lease = await client.acquire(f"{store.prefix}/child", ttl=store.kept, timeout=store.patience)
        kept = not await lease.wait_lost(1.5 * store.kept)
        return {"token": lease.token, "kept": kept, "released": await lease.release()}

    said = await in_child(store, child)
    assert said["kept"], said
    assert said["released"]
    mine.check()
    assert await mine.release() is True


@pytest.mark.processes
async def test_parent_and_child_exclude_each_other(store: Store, tmp_path: Path) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    asked = tmp_path / "asked"

    async def child() -> Any:
        refused = await client.try_acquire(store.name) is None
        asked.touch()
        return {"refused": refused, "token": (await client.acquire(store.name, timeout=store.patience)).token}

    answer = asyncio.create_task(in_child(store, child))

    async def refused() -> bool:
        return asked.exists()

    await store.until(refused, "the child's refusal")
    await store.queue(client, 1)
    assert await lease.release()
    said = await answer
    assert said["refused"]
    assert said["token"] > lease.token


async def test_a_parents_waiter_goes_on_waiting(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    waiter = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    await store.queue(here, 1)

    async def child() -> Any:
        return "alive"

    assert await in_child(store, child) == "alive"
    await store.queue(here, 1)
    assert await lease.release()
    assert await (await waiter).release()


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

    async def child() -> Any:
        lease = await client.acquire(f"{store.prefix}/child", timeout=store.patience)
        return await lease.release()

    for _ in range(10):
        assert await in_child(store, child) is True
    stop.set()
    await asyncio.gather(*busy)
    fresh: Client = store.connect()
    assert await fresh.try_acquire(store.name)
