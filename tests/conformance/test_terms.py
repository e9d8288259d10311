"""Leadership: one leader per epoch, epochs that only grow, and observers that learn of each change."""

import asyncio
from contextlib import aclosing, suppress
from typing import Any

import pytest

from fencepost import ambient
from fencepost.errors import ConfigError, LeaseLost
from tests.conformance.faces import Client, changes, each
from tests.conformance.store import Store
from tests.harness.threads import on_thread

ADDRESS = "http://10.0.0.5:8080/a b?c=d&ü"


def terms(client: Client, name: str, **options: Any) -> Any:
    return aclosing(each(client, lambda: client.raw.election(name, **options)))


async def current(client: Client, name: str) -> Any:
    return await client._call(client.raw.election(name).leader)


async def test_a_term_is_a_lease_whose_leader_can_be_found(store: Store) -> None:
    here, there = store.connect(), store.connect()
    assert await current(there, store.name) is None
    async with terms(here, store.name, metadata=ADDRESS) as mine:
        term = await anext(mine)
        assert (term.name, term.metadata) == (store.name, ADDRESS)
        assert term.access().headers["X-Fence-Token"] == str(term.token)
        term.check()
        leader = await current(there, store.name)
        assert (leader.name, leader.holder, leader.token) == (store.name, term.holder, term.token)
        assert leader.metadata == ADDRESS
        assert 0 <= leader.remaining <= term.ttl
    assert term.released
    assert await current(there, store.name) is None


async def test_candidates_without_metadata_have_none(store: Store) -> None:
    client = store.connect()
    async with terms(client, store.name) as mine:
        term = await anext(mine)
        assert term.metadata == ""
        leader = await current(client, store.name)
        assert (leader.holder, leader.metadata) == (term.holder, "")


@pytest.mark.fair
async def test_coming_back_to_the_loop_resigns_and_runs_again(store: Store) -> None:
    here, there = store.connect(), store.connect()
    async with terms(here, store.name) as mine, terms(there, store.name, metadata="next") as theirs:
        first = await anext(mine)
        waiting = asyncio.create_task(anext(theirs))
        await store.queue(here, 1)
        again = asyncio.create_task(anext(mine))
        second = await waiting
        assert first.released
        assert second.metadata == "next"
        await store.queue(here, 1)
        assert await there._call(second.resign) is True
        third = await again
        assert first.token < second.token < third.token


async def test_leaving_the_loop_with_an_error_resigns(store: Store) -> None:
    here, there = store.connect(), store.connect()
    with suppress(RuntimeError):
        if here.face == "asyncio":
            async with aclosing(aiter(here.raw.election(store.name))) as mine:
                async for _ in mine:
                    raise RuntimeError
        else:

            def lead() -> None:
                for _ in here.raw.election(store.name):
                    raise RuntimeError

            await on_thread(lead)
    assert await there.try_acquire(store.name) is not None


async def test_a_term_and_a_lock_of_one_name_exclude_each_other(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await there.acquire(store.name)
    async with terms(here, store.name, metadata="m") as mine:
        elected = asyncio.create_task(anext(mine))
        await store.queue(there, 1)
        assert not elected.done()
        assert await lease.release()
        term = await elected
        assert term.token > lease.token
        assert await there.try_acquire(store.name) is None


async def test_after_a_loss_the_loop_runs_for_election_again(store: Store) -> None:
    here, there = store.connect(), store.connect()
    async with terms(here, store.name, ttl=store.kept, metadata="m") as mine:
        first = await anext(mine)
        assert await there.break_lock(store.name)
        assert await here._call(first.ended.wait, store.patience)
        with pytest.raises(LeaseLost):
            first.check()
        second = await anext(mine)
        assert second.token > first.token
        second.check()


@pytest.mark.only("asyncio")
async def test_losing_the_term_cancels_its_block_and_the_loop_goes_on(store: Store) -> None:
    here, there = store.connect(), store.connect()
    led: list[int] = []
    async with aclosing(aiter(here.raw.election(store.name, ttl=store.short))) as mine:
        async for term in mine:
            async with term:
                assert ambient.held()[-1:] == (term,)
                led.append(term.token)
                if len(led) == 2:
                    break
                await there.break_lock(store.name)
                await asyncio.wait_for(asyncio.Event().wait(), store.patience)
                raise AssertionError("it is cancelled there")
            assert ambient.held() == ()
            assert term.lost
    assert led == sorted(set(led))


@pytest.mark.only("asyncio")
async def test_a_term_lost_on_the_way_to_its_block_cancels_that_at_once(store: Store) -> None:
    here, there = store.connect(), store.connect()
    led: list[int] = []
    async with aclosing(aiter(here.raw.election(store.name, ttl=store.short))) as mine:
        async for term in mine:
            led.append(term.token)
            if len(led) == 2:
                break
            await there.break_lock(store.name)
            await asyncio.wait_for(term.ended.wait(), store.patience)
            async with term:
                await asyncio.wait_for(asyncio.Event().wait(), store.patience)
                raise AssertionError("it is cancelled there")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert led == sorted(set(led))


@pytest.mark.only("asyncio")
async def test_a_term_that_was_resigned_before_its_block_is_not_taken_for_lost(store: Store) -> None:
    here = store.connect()
    async with aclosing(aiter(here.raw.election(store.name))) as mine:
        term = await anext(mine)
        assert await term.resign()
        async with term:
            await asyncio.sleep(0)


@pytest.mark.only("asyncio")
async def test_cancelling_a_leader_from_outside_is_not_taken_for_a_loss(store: Store) -> None:
    here, there = store.connect(), store.connect()

    async def lead() -> None:
        async for term in here.raw.election(store.name):
            async with term:
                await asyncio.Event().wait()

    task = asyncio.create_task(lead())

    async def leads() -> bool:
        return await current(there, store.name) is not None

    async def free() -> bool:
        return await there.try_acquire(store.name) is not None

    await store.until(leads, "the election")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.until(free, "the lock is free")


@pytest.mark.only("blocking")
async def test_a_blocks_own_lease_lost_ends_the_term_and_not_the_loop(store: Store) -> None:
    here, there = store.connect(), store.connect()

    def lead() -> list[int]:
        led: list[int] = []
        for term in here.raw.election(store.name, ttl=store.short):
            with term:
                assert ambient.held()[-1:] == (term,)
                led.append(term.token)
                if len(led) == 2:
                    break
                there.raw.break_lock(store.name)
                assert term.ended.wait(store.patience)
                term.check()
        return led

    led = await on_thread(lead)
    assert len(led) == 2
    assert led[0] < led[1]
    assert await there.status(store.name) is None


async def test_observers_see_each_leader_come_and_go(store: Store) -> None:
    here, there = store.connect(), store.connect()
    async with changes(there, store.name) as seen:
        assert await anext(seen) is None
        async with terms(here, store.name, metadata="first") as mine:
            change = asyncio.create_task(anext(seen))
            first = await anext(mine)
            assert (await change).holder == first.holder
            change = asyncio.create_task(anext(seen))
            done, _ = await asyncio.wait([change], timeout=0.05)
            assert not done, "it tells of changes only"
        assert await change is None
        change = asyncio.create_task(anext(seen))
        async with terms(there, store.name, metadata="second") as mine:
            second = await anext(mine)
            leader = await change
            assert (leader.token, leader.metadata) == (second.token, "second")
            assert second.token > first.token


async def test_observers_see_a_hand_over(store: Store) -> None:
    here, there, watcher = store.connect(), store.connect(), store.connect()
    async with (
        terms(here, store.name, metadata="first") as mine,
        terms(there, store.name, metadata="second") as theirs,
        changes(watcher, store.name) as seen,
    ):
        await anext(mine)
        assert (await anext(seen)).metadata == "first"
        waiting = asyncio.create_task(anext(theirs))
        await store.queue(watcher, 1)
        change = asyncio.create_task(anext(seen))
        await watcher.break_lock(store.name)
        await waiting
        leader = await change
        if leader is None:  # a store without a line is free for a moment
            leader = await anext(seen)
        assert leader.metadata == "second"


async def test_closing_ends_elections_and_observers(store: Store) -> None:
    here, there = store.connect(), store.connect()
    await there.acquire(store.name)
    loop, watch = (
        each(here, lambda: here.raw.election(store.name)),
        each(here, lambda: here.raw.election(store.name).changes()),
    )
    assert await anext(watch) is not None
    tasks = [asyncio.ensure_future(anext(loop)), asyncio.ensure_future(anext(watch))]
    await store.queue(there, 1)
    await here.close()
    for task in tasks:
        with pytest.raises(ConfigError, match="closed"):
            await task


async def test_metadata_that_is_too_long_is_refused(store: Store) -> None:
    client = store.connect()
    with pytest.raises(ConfigError, match="at most 400"):
        client.raw.election(store.name, metadata="x" * 401)


async def test_closing_an_election_resigns_and_ends_its_loops(store: Store) -> None:
    here, there = store.connect(), store.connect()
    mine = here.raw.election(store.name)
    waiting = there.raw.election(store.name)
    async with aclosing(each(here, lambda: mine)) as loop, aclosing(each(there, lambda: waiting)) as other:
        term = await anext(loop)
        queued = asyncio.create_task(anext(other, None))
        await store.queue(here, 1, watching=[queued])
        await here._call(mine.close)
        assert term.released
        assert await anext(loop, None) is None, "its loop ends"
        next_term = await queued
        assert next_term is not None
        assert next_term.token > term.token
        await there._call(waiting.close)
        assert next_term.released
        assert await anext(other, None) is None
    assert await here.status(store.name) is None
    async with terms(here, store.name) as again:
        assert (await anext(again)).token > next_term.token, "the locks themselves are open"


async def test_closing_an_election_ends_a_wait_in_it_and_leaves_no_place_in_the_queue(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    election = there.raw.election(store.name)
    async with aclosing(each(there, lambda: election)) as loop:
        queued = asyncio.create_task(anext(loop, None))
        await store.queue(here, 1, watching=[queued])
        await there._call(election.close)
        assert await queued is None
    status = await here.status(store.name)
    assert status is not None
    assert status.waiters == ()
    assert await lease.release()
