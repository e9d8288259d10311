"""After close: nothing is taken any more, and nobody is left hanging."""

import pytest

from fencepost.errors import ConfigError
from tests.conformance.store import Store


async def test_closed_locks_take_nothing(store: Store) -> None:
    here, there = store.connect(), store.connect()
    await here.close()
    with pytest.raises(ConfigError):
        await here.acquire(store.name)
    with pytest.raises(ConfigError):
        await here.try_acquire(store.name)
    assert await there.status(store.name) is None


async def test_a_lease_of_closed_locks_is_released_already(store: Store) -> None:
    here, there = store.connect(), store.connect()
    lease = await here.acquire(store.name)
    await here.close()
    new = await there.try_acquire(store.name)
    assert new is not None
    assert await lease.release() is False
    new.check()
    status = await there.status(store.name)
    assert status is not None
    assert status.holder == new.holder


async def test_a_with_block_closes(store: Store) -> None:
    watcher, client = store.connect(), store.connect()
    if client.face == "asyncio":
        async with client.raw as locks:
            lease = await locks.acquire(store.name)
    else:
        with client.raw as locks:
            lease = locks.acquire(store.name)
    assert lease.lost
    assert await watcher.try_acquire(store.name)


async def test_an_unused_connection_closes(store: Store) -> None:
    await store.connect().close()
