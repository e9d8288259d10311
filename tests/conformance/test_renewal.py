"""Keeping a lease: renewed while it is wanted, never brought back once it is gone."""

import asyncio
import gc
import logging

import pytest

from fencepost.backend import Hold as Held
from fencepost.backend import Renewal
from fencepost.errors import LeaseLost
from fencepost.events import Event
from tests.conformance.store import Store


async def test_a_lease_outlives_its_ttl_under_the_same_token(store: Store) -> None:
    events: list[Event] = []
    here, there = store.connect(hooks=[events.append]), store.connect()
    lease = await here.acquire(store.name, ttl=store.kept)
    assert await lease.wait_lost(1.5 * store.kept) is False
    lease.check()
    assert await there.try_acquire(store.name) is None
    status = await there.status(store.name)
    assert status is not None
    assert (status.holder, status.token) == (lease.holder, lease.token)
    renewed = [event for event in events if event.kind == "renewed"]
    assert len(renewed) >= 2
    assert all(event.ratio is not None and 0 < event.ratio < 1 for event in renewed)
    assert await lease.release() is True


async def test_without_renewal_a_lease_ends_at_its_ttl(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.short, renew=False)
    assert await lease.wait_lost(store.patience)
    with pytest.raises(LeaseLost) as raised:
        lease.check()
    assert (raised.value.name, raised.value.token) == (store.name, lease.token)
    assert lease.remaining == 0


async def test_max_hold_ends_the_renewing(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name, ttl=store.kept, max_hold=store.kept)
    assert await lease.wait_lost(1.2 * store.kept) is False, "it is renewed until then"
    assert await lease.wait_lost(store.patience)
    assert (await store.free(there)).token > lease.token


async def test_a_lease_can_be_renewed_by_hand(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.kept, renew=False)
    for _ in range(4):
        assert await lease.wait_lost(store.kept / 3) is False
        await lease.renew()
    assert await lease.release() is True


async def test_renewing_an_evicted_lease_says_lost_and_brings_nothing_back(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    await client.evict(store.name)
    with pytest.raises(LeaseLost):
        await lease.renew()
    assert lease.lost
    assert await client.status(store.name) is None


async def test_renewing_a_released_or_expired_lease_brings_nothing_back(store: Store) -> None:
    client = store.connect()
    released = await client.acquire(store.name)
    await released.release()
    expired = await client.acquire(store.name, ttl=store.short, renew=False)
    assert await expired.wait_lost(store.patience)
    for lease in (released, expired):
        with pytest.raises(LeaseLost):
            await lease.renew()

    async def gone() -> bool:
        return await client.status(store.name) is None

    assert await store.until(gone, "the lock to be free")


async def test_the_stores_own_renewal_asks_for_holder_and_token(store: Store) -> None:
    client = store.connect()
    mine = await client.acquire(f"{store.prefix}/mine")
    other = await client.acquire(f"{store.prefix}/other")
    backend = client.raw._core.backend
    answers = await backend.renew(
        [
            Held(mine.name, mine.holder, mine.token, mine.ttl),
            Held(mine.name, mine.holder, mine.token + 1, mine.ttl),
            Held(mine.name, other.holder, mine.token, mine.ttl),
            Held(f"{store.prefix}/nobody", mine.holder, mine.token, mine.ttl),
            Held(other.name, other.holder, other.token, other.ttl),
        ]
    )
    assert list(answers) == [Renewal.RENEWED, Renewal.LOST, Renewal.LOST, Renewal.LOST, Renewal.RENEWED]
    assert await client.status(f"{store.prefix}/nobody") is None


async def test_the_local_deadline_never_lies_behind_the_stores(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    await lease.renew()
    status = await client.status(store.name)
    assert status is not None
    assert lease.remaining <= status.remaining + 0.001


async def test_a_dropped_lease_is_no_longer_renewed(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name, ttl=store.short)
    token = lease.token
    assert await there.try_acquire(store.name) is None
    with caplog.at_level(logging.WARNING, logger="fencepost"):
        del lease
        gc.collect()
        assert (await store.free(there)).token > token

        async def warned() -> bool:
            return "dropped without release" in caplog.text

        await store.until(warned, "the warning")


async def test_many_leases_of_one_client_are_all_kept(store: Store) -> None:
    client = store.connect()
    leases = [await client.acquire(f"{store.prefix}/{each}", ttl=store.kept) for each in range(20)]
    await leases[-1].wait_lost(1.5 * store.kept)
    for lease in leases:
        lease.check()
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))
