"""A lock around a function."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from fencepost.lease import Reason
from tests.conformance.faces import Hold
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


async def test_each_call_holds_the_lock_that_its_arguments_name(store: Store) -> None:
    here, there = store.connect(), store.connect()
    template = f"{store.prefix}/{{account}}"
    calls: list[int] = []

    def work(account: int, day: str = "monday") -> int:
        calls.append(account)
        return account

    async def awaited(account: int, day: str = "monday") -> int:
        return work(account, day)

    def put(busy: str) -> Any:
        decorated = here.raw.holding(template, busy=busy)(work if here.face == "blocking" else awaited)
        return functools.partial(on_thread, decorated) if here.face == "blocking" else decorated

    skip, wait, fail = put("skip"), put("wait"), put("raise")
    other = await there.acquire(f"{store.prefix}/42")
    assert await skip(42) is None
    with pytest.raises(NotAcquired):
        await fail(account=42)
    assert await skip(43, day="tuesday") == 43
    waiting = asyncio.create_task(wait(42, "sunday"))
    await store.queue(there, 1, f"{store.prefix}/42", watching=[waiting])
    assert calls == [43]
    await other.release()
    assert await waiting == 42
    assert await skip(account=42) == 42
    assert await there.status(f"{store.prefix}/42") is None


async def test_a_quick_block_leaves_its_lock_taken_for_at_least_so_long(store: Store) -> None:
    """It is kept by the store: nobody sleeps, and the holder may close. It expires then, and not at its ttl."""
    here, there = store.connect(), store.connect()
    held: list[Hold] = []

    async def body(lease: Hold) -> None:
        held.append(lease)

    async def block(name: str, at_least: float) -> None:
        await here.block(name, body, ttl=store.long, at_least=at_least)

    if store.promises.keeps == "no":
        with pytest.raises(ConfigError, match="no at_least"):
            await block(store.name, 1)
        with pytest.raises(ConfigError, match="no at_least"):
            here.raw.holding("a", at_least=1)
        assert await there.status(store.name) is None
        return
    brief, kept = f"{store.prefix}/brief", f"{store.prefix}/kept"
    await block(brief, 0.2)
    await block(kept, store.long)
    assert [lease.raw.reason for lease in held] == [Reason.RELEASED] * 2

    async def free() -> bool:
        return await there.status(brief) is None

    await store.until(free, "the shorter one expires")
    await here.close()
    status = await there.status(kept)
    assert status is not None
    assert (status.holder, status.token) == (held[1].holder, held[1].token)
    assert await there.try_acquire(kept) is None
    await there.break_lock(kept)
