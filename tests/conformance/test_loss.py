"""The holder of a lost lease learns of it, in whatever way it listens."""

import asyncio

import pytest

from fencepost.errors import LeaseLost
from fencepost.events import Event
from tests.conformance.faces import Hold
from tests.conformance.store import Store


async def lost_is_false_while_it_is_held_and_true_once_it_is_not(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.kept)
    assert lease.lost is False
    assert await lease.wait_lost(0.01) is False
    lease.check()
    await client.break_lock(store.name)
    assert await lease.wait_lost(store.patience) is True
    assert lease.lost is True
    with pytest.raises(LeaseLost):
        lease.check()


async def all_who_wait_for_the_loss_are_told(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.kept)
    told = [asyncio.create_task(lease.wait_lost(store.patience)) for _ in range(5)]
    await client.break_lock(store.name)
    assert all(await asyncio.gather(*told))


async def a_release_ends_the_wait_for_loss(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    told = asyncio.create_task(lease.wait_lost(store.patience))
    await asyncio.sleep(0)
    assert await lease.release()
    assert await told is True


async def leaving_the_block_of_a_lost_lease_raises(store: Store) -> None:
    events: list[Event] = []
    client = store.connect(hooks=[events.append])

    async def body(lease: Hold) -> None:
        await client.break_lock(store.name)
        await lease.wait_lost(store.patience)

    with pytest.raises(LeaseLost) as raised:
        await client.block(store.name, body, ttl=store.kept)
    assert raised.value.name == store.name

    def lost() -> list[Event]:
        return [event for event in events if event.kind == "lost"]

    await store.until(lambda: bool(lost()), "the event, which another thread may emit")
    assert [event.token for event in lost()] == [raised.value.token]
    assert lost()[0].detail


async def a_loss_that_only_the_release_notices_raises_too(store: Store) -> None:
    client, other = store.connect(), store.connect()

    async def body(lease: Hold) -> None:
        await other.break_lock(store.name)

    with pytest.raises(LeaseLost):
        await client.block(store.name, body, ttl=store.long)


async def the_bodys_own_error_goes_before_the_loss(store: Store) -> None:
    client = store.connect()

    async def body(lease: Hold) -> None:
        try:
            await client.break_lock(store.name)
            await lease.wait_lost(store.patience)
        finally:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.block(store.name, body, ttl=store.kept)


async def a_released_lease_leaves_its_block_quietly(store: Store) -> None:
    client = store.connect()

    async def body(lease: Hold) -> str:
        assert await lease.release()
        return "fine"

    assert await client.block(store.name, body) == "fine"


async def a_lost_block_does_not_hurt_the_new_holder(store: Store) -> None:
    client, other = store.connect(), store.connect()
    replacing: list[asyncio.Task[Hold]] = []

    async def replace() -> Hold:
        await other.break_lock(store.name)
        return await other.acquire(store.name)

    async def body(lease: Hold) -> None:
        replacing.append(asyncio.create_task(replace()))  # the body may be cancelled before it is done
        await asyncio.wait(replacing)

    with pytest.raises(LeaseLost):
        await client.block(store.name, body)
    new = await replacing[0]
    status = await other.status(store.name)
    assert status is not None
    assert status.holder == new.holder


async def test_a_block_whose_locks_are_closed_meanwhile_raises(store: Store) -> None:
    client = store.connect()

    async def body(lease: Hold) -> None:
        await client.close()

    with pytest.raises(LeaseLost):
        await client.block(store.name, body)


async def a_loss_is_told_once(store: Store) -> None:
    events: list[Event] = []
    client, other = store.connect(hooks=[events.append]), store.connect()
    lease = await client.acquire(store.name, ttl=store.kept)
    await other.break_lock(store.name)
    assert await lease.wait_lost(store.patience)

    await store.until(lambda: "lost" in [event.kind for event in events], "the event")
    assert await lease.release() is False
    seen = [event.kind for event in events if event.kind != "renewed"]
    assert seen == ["attempt", "acquired", "lost", "not_owner"]


async def the_evicted_holder_learns_of_it_by_its_next_renewal(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name, ttl=store.kept)
    await there.break_lock(store.name)
    new = await there.acquire(store.name)
    assert await lease.wait_lost(store.patience)
    new.check()
    status = await there.status(store.name)
    assert status is not None
    assert status.holder == new.holder


async def test_the_holder_of_a_lost_lease_learns_of_it(store: Store) -> None:
    await store.side_by_side(
        lost_is_false_while_it_is_held_and_true_once_it_is_not,
        all_who_wait_for_the_loss_are_told,
        a_release_ends_the_wait_for_loss,
        leaving_the_block_of_a_lost_lease_raises,
        a_loss_that_only_the_release_notices_raises_too,
        the_bodys_own_error_goes_before_the_loss,
        a_released_lease_leaves_its_block_quietly,
        a_lost_block_does_not_hurt_the_new_holder,
        a_loss_is_told_once,
        the_evicted_holder_learns_of_it_by_its_next_renewal,
    )
