"""How long a lease lasts: kept while it is renewed, over at its ttl, for the holder first, and never brought back."""

import asyncio
import functools
import gc
import logging
import time
from itertools import pairwise

import pytest

from fencepost.backend import Hold as Held
from fencepost.backend import Renewal
from fencepost.errors import ConfigError, LeaseLost
from fencepost.events import Event
from tests.conformance.faces import Hold, changes
from tests.conformance.store import Store


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

    def renewals() -> list[Event]:
        return [event for event in events if event.kind == "renewed"]

    await store.until(lambda: len(renewals()) >= 2, "a second renewal")
    assert all(event.ratio is not None and 0 < event.ratio < 1 for event in renewals())
    assert await lease.release() is True


async def max_hold_ends_the_renewing(store: Store) -> None:
    here, there = store.connect(), store.connect()
    start = time.monotonic()
    # As long as the ttl: a machine that stands still for a second when the renewal is due is not too late for it.
    lease = await here.acquire(store.name, ttl=store.kept, max_hold=store.kept)
    assert await lease.wait_lost(store.patience)
    assert time.monotonic() - start > store.past, "it was renewed until then"
    assert (await store.free(there)).token > lease.token


async def a_lease_can_be_renewed_by_hand(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.kept, renew=False)
    over = time.monotonic() + store.past
    while time.monotonic() < over:
        # Of what is left: granting it may have taken long.
        assert await lease.wait_lost(lease.remaining / 4) is False
        await lease.renew()
    assert await lease.release() is True


async def many_leases_of_one_client_are_all_kept(store: Store) -> None:
    client = store.connect()
    leases = [await client.acquire(f"{store.prefix}/{each}", ttl=store.kept) for each in range(20)]
    assert await leases[-1].wait_lost(store.past) is False
    for lease in leases:
        lease.check()
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))


async def a_hook_that_raises_disturbs_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
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


async def without_renewal_a_lease_ends_at_its_ttl_and_is_not_brought_back(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.short, renew=False)
    assert await lease.wait_lost(store.patience)
    with pytest.raises(LeaseLost) as raised:
        lease.check()
    assert (raised.value.name, raised.value.token) == (store.name, lease.token)
    assert lease.remaining == 0
    with pytest.raises(LeaseLost):
        await lease.renew()

    async def gone() -> bool:
        return await client.status(store.name) is None

    assert await store.until(gone, "the lock is free, renewing it changed nothing")
    held = Held(lease.name, lease.stored, lease.token, lease.ttl)
    assert list(await client.raw._core.backend.renew([held])) == [Renewal.LOST], "the store refuses it too"
    assert await client.status(store.name) is None


async def renewing_a_released_lease_brings_nothing_back(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    assert await lease.release()
    with pytest.raises(LeaseLost):
        await lease.renew()
    assert await client.status(store.name) is None


async def an_expired_lock_is_not_shown(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name, ttl=store.short, renew=False)

    async def gone() -> bool:
        return await client.status(store.name) is None and not await client.list(f"{store.prefix}/")

    await store.until(gone, "the expiry")
    assert lease.lost, "the holder knew no later than the store"


async def an_expiry_is_told(store: Store) -> None:
    events: list[Event] = []
    client = store.connect(hooks=[events.append])
    lease = await client.acquire(store.name, ttl=store.short, renew=False)
    await store.until(lambda: "lost" in [event.kind for event in events], "the event")
    assert (events[-1].kind, events[-1].token) == ("lost", lease.token)
    assert events[-1].detail


async def a_lease_that_ran_out_in_its_block_raises(store: Store) -> None:
    client = store.connect()

    async def body(lease: Hold) -> None:
        assert await lease.wait_lost(store.patience)

    with pytest.raises(LeaseLost):
        await client.block(store.name, body, ttl=store.short, renew=False)


async def a_release_after_expiry_does_not_hurt_the_new_holder(store: Store) -> None:
    events: list[Event] = []
    here, there = store.connect(hooks=[events.append]), store.connect()
    old = await here.acquire(store.name, ttl=store.short, renew=False)
    new = await store.free(there)
    assert await old.release() is False
    status = await there.status(store.name)
    assert status is not None
    assert (status.holder, status.token) == (new.holder, new.token)
    assert [(event.token, event.holder) for event in events if event.kind == "not_owner"] == [(old.token, old.holder)]
    assert not [event for event in events if event.kind == "released"]
    assert await new.release() is True


async def tokens_grow_across_expiry(store: Store) -> None:
    client = store.connect()
    tokens = []
    for _ in range(3):
        lease = await client.acquire(store.name, ttl=store.short, renew=False, timeout=store.long)
        tokens.append(lease.token)
    assert all(earlier < later for earlier, later in pairwise(tokens))


async def a_share_that_is_not_renewed_expires_by_itself(store: Store) -> None:
    if not store.promises.shared:
        return
    here, there = store.connect(), store.connect()
    kept = await here.share(store.name)
    short = await there.share(store.name, ttl=store.short, renew=False)
    writer = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    await store.queue(here, 1, watching=[writer])
    assert await short.wait_lost(store.patience)

    async def alone() -> bool:
        status = await here.status(store.name)
        return status is not None and status.sharers == (kept.holder,)

    await store.until(alone, "the expiry of one share")
    assert not writer.done()
    assert await short.release() is False
    assert await kept.release()
    assert await (await writer).release()


async def a_seat_that_expires_goes_to_the_next(store: Store) -> None:
    if not store.promises.shared:
        return
    here, there = store.connect(), store.connect()
    kept = await here.share(store.name, 2)
    short = await there.share(store.name, 2, ttl=store.short, renew=False)
    lease = await here.share(store.name, 2, timeout=store.long)
    assert short.lost
    kept.check()
    assert lease.token > short.token
    assert await lease.release()
    assert await kept.release()


async def a_seat_that_went_to_the_next_in_line_is_free_again_at_its_ttl(store: Store) -> None:
    """Those behind it knew of the sharers before, whose deadlines are far off."""
    if not store.promises.shared:
        return
    here, there = store.connect(), store.connect()
    kept, gone = await here.share(store.name, 2), await here.share(store.name, 2)
    short = asyncio.create_task(there.share(store.name, 2, ttl=store.short, renew=False, timeout=store.long))
    await store.queue(here, 1, watching=[short])
    last = asyncio.create_task(here.share(store.name, 2, timeout=store.long))
    await store.queue(here, 2, watching=[short, last])
    assert await gone.release()
    lease = await asyncio.wait_for(last, store.patience)
    assert await lease.release()
    brief = await short
    assert brief.lost or brief.token > lease.token, "one that slept through its grant asks again"
    kept.check()
    assert await kept.release()


async def the_next_in_line_is_served_at_the_ttl_although_the_first_has_left(store: Store) -> None:
    if not store.promises.fair:
        return
    here, leaver, there = store.connect(), store.connect(ttl=store.long), store.connect()
    holder = await here.acquire(store.name, ttl=3 * store.short, renew=False)
    first = asyncio.create_task(leaver.acquire(store.name))
    await store.settled(here, [first])
    second = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    await store.settled(here, [first, second])
    await leaver.close()
    await asyncio.wait([first])
    if first.exception() is None:
        assert first.result().token > holder.token, "this machine was slow: the holder's time was up before"
    else:
        assert isinstance(first.exception(), ConfigError)
    lease = await asyncio.wait_for(second, store.patience)
    assert holder.lost
    assert await lease.release()


async def observers_see_a_holder_go_whose_time_is_up(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name, ttl=3 * store.short, renew=False)
    async with changes(there, store.name) as seen:
        leader = await anext(seen)
        if leader is not None:  # else this machine was slow
            assert leader.token == lease.token
            async with asyncio.timeout(store.patience):
                assert await anext(seen) is None
    assert lease.lost


@pytest.mark.slow
async def test_leases_are_kept_while_they_are_renewed_and_end_at_their_ttl(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """All at once: most of them wait for a ttl."""
    await store.side_by_side(
        a_lease_outlives_its_ttl_under_the_same_token,
        max_hold_ends_the_renewing,
        a_lease_can_be_renewed_by_hand,
        many_leases_of_one_client_are_all_kept,
        functools.partial(a_hook_that_raises_disturbs_nothing, caplog=caplog),
        shares_are_renewed,
        without_renewal_a_lease_ends_at_its_ttl_and_is_not_brought_back,
        renewing_a_released_lease_brings_nothing_back,
        an_expired_lock_is_not_shown,
        an_expiry_is_told,
        a_lease_that_ran_out_in_its_block_raises,
        a_release_after_expiry_does_not_hurt_the_new_holder,
        tokens_grow_across_expiry,
        a_share_that_is_not_renewed_expires_by_itself,
        a_seat_that_expires_goes_to_the_next,
        a_seat_that_went_to_the_next_in_line_is_free_again_at_its_ttl,
        the_next_in_line_is_served_at_the_ttl_although_the_first_has_left,
        observers_see_a_holder_go_whose_time_is_up,
    )


async def test_a_dropped_lease_is_no_longer_renewed(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """By itself: it collects garbage, and finds its warning in the log."""
    here, there = store.connect(), store.connect()
    tokens: list[int] = []
    with caplog.at_level(logging.WARNING, logger="fencepost"):

        async def warned() -> bool:
            # On a busy machine a lease expires before it is dropped: the next one lasts longer.
            ttl = store.short * 1.5 ** len(tokens)
            lease = await here.acquire(store.name, ttl=ttl, timeout=store.long)
            tokens.append(lease.token)
            del lease
            gc.collect()
            return f"the lease of {store.name!r} was dropped without release" in caplog.text

        await store.until(warned, "the warning")
    assert (await store.free(there)).token > tokens[-1]


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
            Held(mine.name, mine.stored, mine.token, mine.ttl),
            Held(mine.name, mine.stored, mine.token + 1, mine.ttl),
            Held(mine.name, other.stored, mine.token, mine.ttl),
            Held(f"{store.prefix}/nobody", mine.stored, mine.token, mine.ttl),
            Held(other.name, other.stored, other.token, other.ttl),
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
