"""Looking at locks from outside, and acting on them by force."""

import asyncio

from tests.conformance.store import Store


async def test_status_tells_who_holds_under_which_token_for_how_long(store: Store) -> None:
    here, there = store.connect(), store.connect()
    assert await there.status(store.name) is None
    lease = await here.acquire(store.name)
    status = await there.status(store.name)
    assert status is not None
    assert (status.name, status.holder, status.token) == (store.name, lease.holder, lease.token)
    assert 0 < status.remaining <= lease.ttl
    assert status.waiters == ()
    await lease.release()
    assert await there.status(store.name) is None


async def test_list_shows_what_is_held_under_a_prefix_by_name(store: Store) -> None:
    client = store.connect()
    for name in ("b", "a", "c/d", "other"):
        await client.acquire(f"{store.prefix}/{name}")
    released = await client.acquire(f"{store.prefix}/z")
    await released.release()
    names = [status.name for status in await client.list(f"{store.prefix}/")]
    assert names == [f"{store.prefix}/{name}" for name in ("a", "b", "c/d", "other")]
    assert [status.name for status in await client.list(f"{store.prefix}/c")] == [f"{store.prefix}/c/d"]
    assert set(names) <= {status.name for status in await client.list()}


async def test_list_agrees_with_status(store: Store) -> None:
    client = store.connect()
    await client.acquire(store.name)
    waiter = asyncio.create_task(client.acquire(store.name, timeout=store.long))
    await store.queue(client, 1)
    (listed,) = await client.list(store.name)
    status = await client.status(store.name)
    assert status is not None
    assert (listed.holder, listed.token, listed.waiters) == (status.holder, status.token, status.waiters)
    await client.break_lock(store.name)
    assert await (await waiter).release()


async def test_breaking_a_lock_ends_the_hold_and_tells_whose_it_was(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    ended = await there.break_lock(store.name)
    assert ended is not None
    assert (ended.name, ended.holder, ended.token) == (store.name, lease.holder, lease.token)
    assert await there.break_lock(store.name) is None
    new = await there.try_acquire(store.name)
    assert new is not None
    assert new.token > lease.token


async def test_breaking_a_free_lock_changes_nothing(store: Store) -> None:
    client = store.connect()
    assert await client.break_lock(store.name) is None
    assert await client.status(store.name) is None
