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


async def test_a_loss_is_told_once(store: Store) -> None:
    events: list[Event] = []
    client, other = store.connect(hooks=[events.append]), store.connect()
    lease = await client.acquire(store.name, ttl=store.short)
    await other.evict(store.name)
    assert await lease.wait_lost(store.patience)

    async def told() -> bool:
        return "lost" in kinds(events)

    await store.until(told, "the event")
    assert await lease.release() is False
    seen = [kind for kind in kinds(events) if kind != "renewed"]
    assert seen == ["attempt", "acquired", "lost", "not_owner"]


async def test_an_expiry_is_told(store: Store) -> None:
    events: list[Event] = []
    client = store.connect(hooks=[events.append])
    lease = await client.acquire(store.name, ttl=store.short, renew=False)

    async def told() -> bool:
        return "lost" in kinds(events)

    await store.until(told, "the event")
    assert (events[-1].kind, events[-1].token) == ("lost", lease.token)
    assert events[-1].detail


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


async def test_a_hook_that_raises_disturbs_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("broken on purpose")

    client = store.connect(hooks=[broken, events.append])
    lease = await client.acquire(store.name, ttl=store.kept)
    assert await lease.wait_lost(1.5 * store.kept) is False, "it is renewed all the same"
    assert await lease.release() is True
    assert {"attempt", "acquired", "renewed", "released"} <= set(kinds(events)), "the other hooks are told"
    assert "broken on purpose" in caplog.text
