"""Every token is larger than every token granted before for that lock, whatever ended the lease before it."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from fencepost.errors import BackendError, ConfigError
from fencepost.rule import MAX_TOKEN
from tests.conformance.faces import Client
from tests.conformance.store import Store


def increasing(tokens: list[int]) -> bool:
    return all(1 <= earlier < later <= MAX_TOKEN for earlier, later in pairwise(tokens))


async def test_tokens_grow_across_releases(store: Store) -> None:
    client = store.connect()
    tokens = []
    for _ in range(20):
        lease = await store.free(client)
        tokens.append(lease.token)
        assert await lease.release()
    assert increasing(tokens)


async def test_tokens_grow_when_every_client_reconnects(store: Store) -> None:
    tokens = []
    for _ in range(4):
        client = store.connect()
        lease = await store.free(client)
        tokens.append(lease.token)
        await client.close()
    assert increasing(tokens)


async def test_tokens_grow_across_eviction(store: Store) -> None:
    client = store.connect()
    first = await client.acquire(store.name)
    await client.break_lock(store.name)
    second = await store.free(client)
    assert first.token < second.token


async def test_tokens_grow_in_the_order_of_the_hand_overs(store: Store) -> None:
    clients = [store.connect(), store.connect()]
    holder = await clients[0].acquire(store.name)
    granted = [holder.token]

    async def serve(client: Client) -> None:
        lease = await client.acquire(store.name, timeout=store.long)
        granted.append(lease.token)
        assert await lease.release()

    waiters = [asyncio.create_task(serve(clients[each % 2])) for each in range(10)]
    await store.queue(clients[0], 10)
    assert await holder.release()
    await asyncio.gather(*waiters)
    assert increasing(granted)


async def test_renewing_keeps_the_token(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    await lease.renew()
    status = await client.status(store.name)
    assert status is not None
    assert status.token == lease.token == lease.raw.token


async def test_bump_makes_the_next_token_larger_and_exact(store: Store) -> None:
    client = store.connect()
    for above in (2**53 - 1, 2**53 + 1, 2**62):
        name = f"{store.prefix}/{above}"
        await client.bump(name, above=above, force=True)
        tokens = [above]
        for _ in range(3):
            lease = await store.free(client, name)
            tokens.append(lease.token)
            assert await lease.release()
        assert increasing(tokens)


async def test_bump_never_lowers_a_token(store: Store) -> None:
    client = store.connect()
    await client.bump(store.name, above=5_000_000)
    lease = await store.free(client)
    assert lease.token > 5_000_000
    await lease.release()
    await client.bump(store.name, above=1)
    assert (await store.free(client)).token > lease.token
    far = f"{store.prefix}/far"
    await client.bump(far, above=2**60, force=True)
    await client.bump(far, above=7)
    assert (await store.free(client, far)).token > 2**60, "a later bump to less takes nothing back"


async def test_bump_of_a_held_lock_leaves_the_holder_its_token(store: Store) -> None:
    client = store.connect()
    lease = await client.acquire(store.name)
    above = lease.token + 10**7  # also past what a clock in microseconds comes to meanwhile
    waiter = asyncio.create_task(store.connect().acquire(store.name, timeout=store.long))
    await store.queue(client, 1)
    await client.bump(store.name, above=above)
    await client.bump(store.name, above=above + 1)
    await lease.renew()
    status = await client.status(store.name)
    assert status is not None
    assert status.token == lease.token
    assert await lease.release()
    served = await waiter
    assert served.token > above + 1, "although it waited before that"
    status = await client.status(store.name)
    assert status is not None
    assert status.token == served.token
    await served.renew()
    assert await served.release()
    broken = await store.free(client)
    assert broken.token > served.token
    ended = await client.break_lock(store.name)
    assert ended is not None
    assert ended.token == broken.token


async def test_the_last_token_is_never_followed_by_a_smaller_one(store: Store) -> None:
    client = store.connect()
    await client.bump(store.name, above=MAX_TOKEN - 1, force=True)
    try:
        last = await store.free(client)
    except BackendError:
        pass  # a store that numbers more than grants may have used up the last one already
    else:
        assert last.token == MAX_TOKEN
        assert await last.release()
    with pytest.raises(BackendError):
        await client.acquire(store.name, timeout=store.long)
    assert await client.status(store.name) is None


async def test_bump_refuses_what_no_token_can_exceed(store: Store) -> None:
    client = store.connect()
    refused: list[Any] = [0, -1, MAX_TOKEN, MAX_TOKEN + 1, True, 1.5, MAX_TOKEN - 2]  # the last needs force
    for above in refused:
        try:
            await client.bump(store.name, above=above)
        except ConfigError:
            continue
        raise AssertionError(f"it was raised above {above}")
