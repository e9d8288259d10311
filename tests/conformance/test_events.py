"""What hooks are told, and that they cannot do harm."""

import asyncio

import pytest

from fencepost.errors import NotAcquired
from fencepost.events import Event
from tests.conformance.store import Store


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


async def test_a_lease_tells_its_story(store: Store) -> None:
    events: list[Event] = []
    client = store.connect(hooks=[events.append])
    lease = await client.acquire(store.name)
    await lease.renew()
    await lease.release()
    assert kinds(events) == ["attempt", "acquired", "renewed", "released"]
    assert {(event.name, event.source) for event in events} == {(store.name, store.url.partition(":")[0])}
    for event in events[1:]:
        assert (event.token, event.holder) == (lease.token, lease.holder)
    assert all(event.seconds is not None and event.seconds >= 0 for event in (events[1], events[3]))


async def test_a_timeout_is_told(store: Store) -> None:
    events: list[Event] = []
    holder, client = store.connect(), store.connect(hooks=[events.append])
    await holder.acquire(store.name)
    assert await client.try_acquire(store.name) is None
    with pytest.raises(NotAcquired):
        await client.acquire(store.name, timeout=0.02)
    assert kinds(events) == ["attempt", "timeout"] * 2


@pytest.mark.only("asyncio")
async def test_a_cancelled_acquire_is_told(store: Store) -> None:
    events: list[Event] = []
    holder, client = store.connect(), store.connect(hooks=[events.append])
    await holder.acquire(store.name)
    waiter = asyncio.create_task(client.acquire(store.name))

    async def begun() -> bool:
        return bool(events)

    await store.until(begun, "the attempt")
    await store.queue(holder, 1)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert kinds(events) == ["attempt", "abandoned"]
