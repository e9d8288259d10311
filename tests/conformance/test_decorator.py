"""A lock around a function."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator

import pytest

from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from tests.conformance.store import Store
from tests.harness.threads import on_thread


@pytest.mark.only("blocking")
async def test_a_decorated_function_runs_under_its_lock(store: Store) -> None:
    locks = store.connect().raw

    @locks.lock(store.name)  # type: ignore[untyped-decorator]  # the adapter knows both faces as Any
    def work(number: int, *, plus: int = 0) -> int:
        """What it does."""
        assert locks.try_acquire(store.name) is None
        return number + plus

    assert await on_thread(work, 1, plus=2) == 3
    assert await on_thread(work, 5) == 5
    assert (work.__name__, work.__doc__) == ("work", "What it does.")
    assert locks.status(store.name) is None


@pytest.mark.only("asyncio")
async def test_a_decorated_coroutine_function_runs_under_its_lock(store: Store) -> None:
    locks = store.connect().raw

    @locks.lock(store.name)  # type: ignore[untyped-decorator]  # the adapter knows both faces as Any
    async def work(number: int, *, plus: int = 0) -> int:
        """What it does."""
        assert await locks.try_acquire(store.name) is None
        return number + plus

    assert await work(1, plus=2) == 3
    assert [*await asyncio.gather(work(5), work(6), work(7))] == [5, 6, 7]
    assert (work.__name__, work.__doc__) == ("work", "What it does.")
    assert await locks.status(store.name) is None


async def test_the_locks_options_hold_for_every_call(store: Store) -> None:
    client = store.connect()
    await client.acquire(store.name)

    async def body(lease: object) -> None:
        raise AssertionError("it must not run")

    for _ in range(2):
        with pytest.raises(NotAcquired):
            await client.block(store.name, body, timeout=0.01)


@pytest.mark.only("asyncio")
async def test_a_decorated_coroutine_is_cancelled_by_loss(store: Store) -> None:
    client = store.connect()

    @client.raw.lock(store.name, ttl=store.short)  # type: ignore[untyped-decorator]  # both faces are Any here
    async def work() -> None:
        await client.break_lock(store.name)
        await asyncio.sleep(store.long)

    with pytest.raises(LeaseLost):
        await work()


def plain() -> None: ...
def generator() -> Iterator[None]:
    yield


async def coroutine() -> None: ...
async def async_generator() -> AsyncIterator[None]:
    yield


OUTLIVING = [generator, coroutine, async_generator, functools.partial(coroutine), functools.partial(async_generator)]


@pytest.mark.core
async def test_a_call_that_returns_before_its_work_is_done_is_refused(store: Store) -> None:
    client = store.connect()
    lock = client.raw.lock(store.name)
    not_coroutines = [plain, generator, async_generator, functools.partial(plain)]
    for call in OUTLIVING if client.face == "blocking" else not_coroutines:
        try:
            lock(call)
        except ConfigError:
            continue
        raise AssertionError(f"it took {call}")


async def test_one_lock_object_serves_many_at_once(store: Store) -> None:
    client = store.connect()
    lock = client.raw.lock(store.name, timeout=store.long)
    inside: list[int] = []

    def blocking(number: int) -> None:
        with lock:
            inside.append(number)
            assert inside == [number]
            inside.remove(number)

    async def awaited(number: int) -> None:
        async with lock:
            inside.append(number)
            await asyncio.sleep(0)
            assert inside == [number]
            inside.remove(number)

    turn = functools.partial(on_thread, blocking) if client.face == "blocking" else awaited
    await asyncio.gather(*(turn(number) for number in range(12)))
    assert await client.status(store.name) is None
