"""Keeping a lease: renewed while it is wanted, never brought back once it is gone."""

import asyncio
import time

import pytest

from fencepost.backend import Hold as Held
from fencepost.backend import Renewal
from fencepost.errors import LeaseLost
from fencepost.events import Event
from tests.conformance.store import Store


@pytest.mark.slow
async def test_leases_are_kept_past_their_ttl(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def a_lease_outlives_its_ttl_under_the_same_token(store: Store) -> None:
        events: list[Event] = []
        here, there = store.connect(hooks=[events.append]), store.connect()
        lease = await here.acquire(store.name, ttl=store.kept)
        assert await lease.wait_lost(store.past) is False
        lease.check()
        assert await there.try_acquire(store.name) is None
        status = await there.status(store.name)
        assert status is not None
        assert (status.holder, status.token) == (lease.holder, lease.token)
        renewed = [event for event in events if event.kind == "renewed"]
        assert len(renewed) >= 2
        assert all(event.ratio is not None and 0 < event.ratio < 1 for event in renewed)
        assert await lease.release() is True

    async def max_hold_ends_the_renewing(store: Store) -> None:
        here, there = store.connect(), store.connect()
        start = time.monotonic()
        lease = await here.acquire(store.name, ttl=store.kept, max_hold=0.5 * store.kept)
        assert await lease.wait_lost(store.patience)
        assert time.monotonic() - start > store.past, "it was renewed until then"
        assert (await store.free(there)).token > lease.token

    async def a_lease_can_be_renewed_by_hand(store: Store) -> None:
        client = store.connect()
        lease = await client.acquire(store.name, ttl=store.kept, renew=False)
        for _ in range(3):
            assert await lease.wait_lost(store.past / 3) is False
            await lease.renew()
        assert await lease.release() is True

    async def many_leases_of_one_client_are_all_kept(store: Store) -> None:
        client = store.connect()
        leases = [await client.acquire(f"{store.prefix}/{each}", ttl=store.kept) for each in range(20)]
        assert await leases[-1].wait_lost(store.past) is False
        for lease in leases:
            lease.check()
        assert all(await asyncio.gather(*(lease.release() for lease in leases)))

    async def a_hook_that_raises_disturbs_nothing(store: Store) -> None:
        events: list[Event] = []

        def broken(event: Event) -> None:
            raise RuntimeError("broken on purpose")

        client = store.connect(hooks=[broken, events.append])
        lease = await client.acquire(store.name, ttl=store.kept)
        assert await lease.wait_lost(store.past) is False, "it is renewed all the same"
        assert await lease.release() is True
        kinds = {event.kind for event in events}
        assert {"attempt", "acquired", "renewed", "released"} <= kinds, "the other hooks are told"
        assert "broken on purpose" in caplog.text

    async def shares_are_renewed(store: Store) -> None:
        if not store.promises.shared:
            return
        here, there = store.connect(), store.connect()
        kept, other = await here.share(store.name, ttl=store.kept), await there.share(store.name, ttl=store.kept)
        assert await kept.wait_lost(store.past) is False
        other.check()
        assert await there.try_acquire(store.name) is None
        assert await kept.release()
        assert await other.release()

    await store.side_by_side(
        a_lease_outlives_its_ttl_under_the_same_token,
        max_hold_ends_the_renewing,
        a_lease_can_be_renewed_by_hand,
        many_leases_of_one_client_are_all_kept,
        a_hook_that_raises_disturbs_nothing,
        shares_are_renewed,
    )


async def test_renewing_an_evicted_lease_says_lost_and_brings_nothing_back(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    await client.break_lock(store.name)
    with pytest.raises(LeaseLost):
        await lease.renew()
    assert lease.lost
    assert await client.status(store.name) is None


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
