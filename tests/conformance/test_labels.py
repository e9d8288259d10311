"""What the store tells of the process that holds a lock, or waits for it."""

import asyncio
import os

import pytest

from fencepost.errors import NotAcquired
from tests.conformance.store import Store

TELLS = {"memory", "sqlite", "redis", "redis+cluster", "postgresql", "etcd"}
"""The stores whose answer to one who gives up says who holds the lock."""


async def test_a_status_tells_the_processes_that_hold_and_wait(store: Store) -> None:
    here, there = store.connect(label="billing 1, on wéb@1~x"), store.connect()
    lease = await here.acquire(store.name)
    assert len(lease.holder) == 32, "the lease and its stamps carry the id alone"
    assert lease.raw.access().headers["X-Fence-Holder"] == lease.holder
    waiter = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    waiters = await store.queue(here, 1, watching=[waiter])
    status = await there.status(store.name)
    assert status is not None
    assert (status.holder, status.waiters) == (lease.holder, waiters)
    assert status.labels[lease.holder] == "billing 1, on wéb@1~x"
    for other in waiters:
        assert f"[{os.getpid()}] " in status.labels[other]
    [listed] = await there.list(store.name)
    assert (listed.holder, listed.labels) == (status.holder, status.labels)
    assert await lease.release()
    assert await (await waiter).release()


async def test_a_process_may_tell_nothing(store: Store) -> None:
    client = store.connect(label="")
    lease = await client.acquire(store.name)
    assert lease.stored == lease.holder
    status = await client.status(store.name)
    assert status is not None
    assert (status.holder, status.labels) == (lease.holder, {})
    ended = await client.break_lock(store.name)
    assert ended is not None
    assert ended.holder == lease.holder


async def test_one_who_gives_up_is_told_who_holds(store: Store) -> None:
    here, there = store.connect(label="billing on web-1"), store.connect()
    lease = await here.acquire(store.name)
    with pytest.raises(NotAcquired) as error:
        await there.acquire(store.name, timeout=0.05)
    if store.url.partition(":")[0] in TELLS:
        assert (error.value.holder, error.value.label) == (lease.holder, "billing on web-1")
        assert "billing on web-1 holds it" in str(error.value)
    else:
        assert (error.value.holder, error.value.label) == ("", "")
        assert "fencepost show" in str(error.value)
    assert await lease.release()


@pytest.mark.shared
async def test_a_share_has_a_label_too(store: Store) -> None:
    client = store.connect(label="reader")
    lease = await client.share(store.name)
    status = await client.status(store.name)
    assert status is not None
    assert (status.sharers, status.labels) == ((lease.holder,), {lease.holder: "reader"})
    assert await lease.release()
