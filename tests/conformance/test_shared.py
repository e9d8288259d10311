"""Shared locks and semaphores: who may hold beside whom, in which order, and what the dead leave behind."""

import asyncio

import pytest

from fencepost import ambient
from fencepost.errors import ConfigError, LeaseLost, NotAcquired, QueueFull
from tests.conformance.cancel import Cutter, cuts
from tests.conformance.faces import Client, Hold
from tests.conformance.store import Store

pytestmark = pytest.mark.shared


async def line(store: Store, client: Client, count: int) -> None:
    await store.queue(client, count)


async def test_sharers_hold_together_each_under_a_token_of_its_own(store: Store) -> None:
    here, there = store.connect(), store.connect()
    first, second = await here.share(store.name), await there.share(store.name)
    third = await here.share(store.name)
    assert first.token < second.token < third.token
    status = await there.status(store.name)
    assert status is not None
    assert status.sharers == (first.holder, second.holder, third.holder)
    assert (status.holder, status.token, status.waiters) == (first.holder, third.token, ())
    assert 0 < status.remaining <= store.long
    assert [each.name for each in await here.list(store.prefix)] == [store.name]
    assert await there.try_acquire(store.name) is None
    for lease in (second, first):
        assert await lease.release()
        assert await there.try_acquire(store.name) is None
    assert await third.release()
    assert await here.status(store.name) is None
    alone = await there.try_acquire(store.name)
    assert alone is not None
    assert alone.token > third.token


async def test_shares_have_larger_tokens_than_one_that_was_raised(store: Store) -> None:
    client = store.connect()
    await client.bump(store.name, above=2**60, force=True)
    first, second = await client.share(store.name), await client.share(store.name)
    assert 2**60 < first.token < second.token


async def test_who_holds_alone_is_shared_with_nobody(store: Store) -> None:
    here, there = store.connect(), store.connect()
    alone = await here.acquire(store.name)
    assert await there.try_share(store.name) is None
    status = await there.status(store.name)
    assert status is not None
    assert status.sharers == ()
    readers = [asyncio.create_task(there.share(store.name, timeout=store.long)) for _ in range(3)]
    await line(store, here, 3)
    assert await alone.release()
    leases = await asyncio.gather(*readers)
    assert len({lease.token for lease in leases} | {alone.token}) == 4
    assert min(lease.token for lease in leases) > alone.token
    for lease in leases:
        assert await lease.release()
    assert await here.status(store.name) is None


async def test_who_tries_in_vain_stands_in_nobodys_way(store: Store) -> None:
    here, there = store.connect(), store.connect()
    reader, done = await here.share(store.name), asyncio.Event()

    async def try_alone() -> int:
        tries = 0
        while not done.is_set():
            assert await there.try_acquire(store.name) is None
            tries += 1
            await asyncio.sleep(0)
        return tries

    alone = asyncio.create_task(try_alone())
    for _ in range(30):
        await asyncio.sleep(0)
        beside = await here.try_share(store.name)
        assert beside is not None
        assert await beside.release()
    done.set()
    assert await alone
    assert await reader.release()


async def test_a_waiting_writer_is_not_overtaken_by_later_readers(store: Store) -> None:
    here, there, watcher = store.connect(), store.connect(), store.connect()
    reader = await here.share(store.name)
    writer = asyncio.create_task(there.acquire(store.name, timeout=store.long))
    await line(store, watcher, 1)
    assert await here.try_share(store.name) is None
    late = asyncio.create_task(here.share(store.name, timeout=store.long))
    await line(store, watcher, 2)
    behind = asyncio.create_task(there.share(store.name, timeout=store.long))
    await line(store, watcher, 3)
    assert await reader.release()
    alone = await writer
    assert not late.done()
    assert await alone.release()
    one, two = await late, await behind
    assert reader.token < alone.token < min(one.token, two.token)
    assert await one.release()
    assert await two.release()
    assert await here.status(store.name) is None


async def test_a_writer_that_leaves_lets_the_readers_behind_it_in(store: Store) -> None:
    here, there, watcher = store.connect(), store.connect(), store.connect()
    reader = await here.share(store.name)
    writer = asyncio.create_task(there.acquire(store.name, timeout=0.3))
    await store.settled(watcher, [writer])
    late = asyncio.create_task(here.share(store.name, timeout=store.long))
    with pytest.raises(NotAcquired):
        await writer
    lease = await late
    reader.check()
    assert await lease.release()
    assert await reader.release()
    assert await here.status(store.name) is None


async def test_a_release_frees_ones_own_share_only(store: Store) -> None:
    here, there = store.connect(), store.connect()
    first, second = await here.share(store.name), await there.share(store.name)
    assert await first.release() is True
    assert await first.release() is False
    status = await here.status(store.name)
    assert status is not None
    assert status.sharers == (second.holder,)
    await second.renew()
    assert await second.release() is True


async def test_a_semaphore_admits_as_many_as_it_has_permits_first_come_first_served(store: Store) -> None:
    clients = [store.connect() for _ in range(2)]
    held = [await clients[each % 2].share(store.name, 2) for each in range(2)]
    assert await clients[0].try_share(store.name, 2) is None
    waiting: list[asyncio.Task[Hold]] = []
    for each in range(4):
        waiting.append(asyncio.create_task(clients[each % 2].share(store.name, 2, timeout=store.long)))
        await line(store, clients[0], each + 1)
    tokens = [lease.token for lease in held]
    for task in waiting:
        assert await held.pop(0).release()
        held.append(await task)
        tokens.append(held[-1].token)
        status = await clients[0].status(store.name)
        assert status is not None
        assert set(status.sharers) == {lease.holder for lease in held}
    assert tokens == sorted(set(tokens))
    for lease in held:
        assert await lease.release()
    assert await clients[0].status(store.name) is None


async def test_a_timeout_leaves_nothing_behind(store: Store) -> None:
    here, there = store.connect(), store.connect()
    alone = await here.acquire(store.name)
    with pytest.raises(NotAcquired):
        await there.share(store.name, timeout=0.1)
    status = await here.status(store.name)
    assert status is not None
    assert status.waiters == ()
    assert await alone.release()
    assert await here.status(store.name) is None


async def test_a_full_queue_is_told(store: Store) -> None:
    here, there = store.connect(), store.connect(queue_limit=1)
    alone = await here.acquire(store.name)
    waiting = asyncio.create_task(there.share(store.name, timeout=store.long))
    await line(store, here, 1)
    with pytest.raises(QueueFull):
        await there.share(store.name)
    assert await alone.release()
    assert await (await waiting).release()


@pytest.mark.only("asyncio")
async def test_cancelling_at_any_await_leaves_nothing_behind(store: Store) -> None:
    watcher = store.connect()
    for busy in (False, True):
        for _, several in cuts():
            happened = False
            for cut in several:
                client = store.connect()
                alone = await watcher.acquire(store.name) if busy else await watcher.share(store.name)
                cutter = Cutter(cut)
                task = cutter.start(client.share(store.name, timeout=store.long))
                if busy:
                    await asyncio.wait([task], timeout=0.02)
                    await alone.release()
                (ended,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(ended, Hold):
                    assert await ended.release()
                happened = happened or cutter.happened
                if not busy:
                    assert await alone.release()

                async def free() -> bool:
                    return await watcher.status(store.name) is None

                await store.until(free, f"a free lock after {cut}")
                await client.close()
            if not happened:
                break


async def test_breaking_the_lock_ends_every_share(store: Store) -> None:
    here, there = store.connect(), store.connect()
    leases = [await here.share(store.name, ttl=store.kept), await there.share(store.name, ttl=store.kept)]
    ended = await there.break_lock(store.name)
    assert ended is not None
    assert set(ended.sharers) == {lease.holder for lease in leases}
    alone = await there.acquire(store.name, timeout=store.long)
    for lease in leases:
        assert await lease.wait_lost(store.patience)
        with pytest.raises(LeaseLost):
            lease.check()
    assert alone.token > max(lease.token for lease in leases)


async def test_a_guard_does_not_find_a_share_by_itself(store: Store) -> None:
    client = store.connect()
    if client.face == "asyncio":
        async with client.raw.shared(store.name):
            assert ambient.held() == ()
        return

    def block() -> tuple[object, ...]:
        with client.raw.shared(store.name):
            return ambient.held()

    assert await client._call(block) == ()


async def test_permits_are_a_positive_number(store: Store) -> None:
    client = store.connect()
    for permits in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="permits"):
            client.raw.semaphore(store.name, permits)
