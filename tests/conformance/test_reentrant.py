"""A lock entered again by who holds it already."""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fencepost import ambient
from fencepost.errors import LeaseLost, NotAcquired
from tests.conformance.faces import Client
from tests.conformance.store import Store
from tests.harness.threads import on_thread


async def inside(client: Client, lock: Any, body: Callable[[Any, int], Any], depth: int) -> None:
    """Enter ``lock`` ``depth`` times from one thread or task; ``body(lease, level)`` runs at each level, going in."""

    def blocking(level: int) -> None:
        with lock as lease:
            body(lease, level)
            if level < depth:
                blocking(level + 1)

    async def awaited(level: int) -> None:
        async with lock as lease:
            result = body(lease, level)
            if isinstance(result, Awaitable):
                await result
            if level < depth:
                await awaited(level + 1)

    await (on_thread(blocking, 1) if client.face == "blocking" else awaited(1))


async def test_entering_again_gives_the_same_lease_and_the_outermost_frees_it(store: Store) -> None:
    client, other = store.connect(), store.connect()
    lock = client.raw.lock(store.name, reentrant=True)
    seen: list[tuple[int, int, int]] = []

    await inside(client, lock, lambda lease, level: seen.append((level, lease.token, id(lease))), 4)
    assert [level for level, _, _ in seen] == [1, 2, 3, 4]
    assert len({token for _, token, _ in seen}) == len({lease for _, _, lease in seen}) == 1
    assert await other.status(store.name) is None
    after = await other.acquire(store.name)
    assert after.token > seen[0][1]


async def test_it_is_held_until_the_last_level_has_left(store: Store) -> None:
    client, other = store.connect(), store.connect()
    lock = client.raw.lock(store.name, reentrant=True)
    held: list[bool] = []
    loop = asyncio.get_running_loop()

    async def look() -> None:
        held.append(await other.try_acquire(store.name) is None)

    def nested() -> None:
        with lock:
            for _ in range(3):
                with lock:
                    pass
                asyncio.run_coroutine_threadsafe(look(), loop).result()

    async def awaited() -> None:
        async with lock:
            for _ in range(3):
                async with lock:
                    pass
                await look()

    await (on_thread(nested) if client.face == "blocking" else awaited())
    assert held == [True, True, True]
    assert await other.status(store.name) is None


@pytest.mark.core
async def test_two_lock_objects_of_one_connection_share_the_hold(store: Store) -> None:
    client = store.connect()
    outer, inner = (client.raw.lock(store.name, reentrant=True, timeout=0.05) for _ in range(2))
    tokens: list[int] = []

    def blocking() -> None:
        with outer as first, inner as second:
            tokens.extend((first.token, second.token))

    async def awaited() -> None:
        async with outer as first, inner as second:
            tokens.extend((first.token, second.token))

    await (on_thread(blocking) if client.face == "blocking" else awaited())
    assert tokens[0] == tokens[1]


@pytest.mark.core
async def test_a_plain_lock_still_waits_for_itself(store: Store) -> None:
    client = store.connect()
    lock = client.raw.lock(store.name, reentrant=True)
    plain = client.raw.lock(store.name, timeout=0.05)

    def blocking() -> None:
        with lock, pytest.raises(NotAcquired), plain:
            raise AssertionError("it must not run")

    async def awaited() -> None:
        async with lock:
            with pytest.raises(NotAcquired):
                async with plain:
                    raise AssertionError("it must not run")

    await (on_thread(blocking) if client.face == "blocking" else awaited())


async def test_another_thread_or_task_waits_also_one_that_the_holder_started(store: Store) -> None:
    client = store.connect()
    lock = client.raw.lock(store.name, reentrant=True, timeout=0.05)
    refused: list[bool] = []

    def enter() -> None:
        try:
            with lock:
                refused.append(False)
        except NotAcquired:
            refused.append(True)

    async def enter_async() -> None:
        try:
            async with lock:
                refused.append(False)
        except NotAcquired:
            refused.append(True)

    def blocking() -> None:
        with lock:
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()

    async def awaited() -> None:
        async with lock:
            # A child task inherits its parent's context, and yet does not hold.
            await asyncio.create_task(enter_async())

    await (on_thread(blocking) if client.face == "blocking" else awaited())
    assert refused == [True]


@pytest.mark.core
async def test_many_take_turns_and_each_enters_twice(store: Store) -> None:
    client = store.connect()
    lock = client.raw.lock(store.name, reentrant=True, timeout=store.long)
    order: list[int] = []

    def turn(number: int) -> None:
        with lock:
            order.append(number)
            with lock:
                order.append(number)

    async def awaited(number: int) -> None:
        async with lock:
            order.append(number)
            await asyncio.sleep(0)
            async with lock:
                order.append(number)

    run = functools.partial(on_thread, turn) if client.face == "blocking" else awaited
    await asyncio.gather(*(run(number) for number in range(8)))
    assert [pair[0] for pair in zip(order[::2], order[1::2], strict=True) if pair[0] == pair[1]] == order[::2]
    assert sorted(order[::2]) == list(range(8))
    assert await client.status(store.name) is None


@pytest.mark.only("blocking")
async def test_a_recursive_function_holds_its_lock_once(store: Store) -> None:
    locks = store.connect().raw

    @locks.lock(store.name, reentrant=True)  # type: ignore[untyped-decorator]  # both faces are Any here
    def factorial(number: int) -> int:
        assert locks.status(store.name) is not None
        return 1 if number <= 1 else number * int(factorial(number - 1))

    assert await on_thread(factorial, 6) == 720
    assert locks.status(store.name) is None


@pytest.mark.only("asyncio")
async def test_a_recursive_coroutine_holds_its_lock_once(store: Store) -> None:
    locks = store.connect().raw

    @locks.lock(store.name, reentrant=True)  # type: ignore[untyped-decorator]  # both faces are Any here
    async def factorial(number: int) -> int:
        assert await locks.status(store.name) is not None
        return 1 if number <= 1 else number * int(await factorial(number - 1))

    assert await factorial(6) == 720
    assert await locks.status(store.name) is None


@pytest.mark.only("blocking")
async def test_a_lost_lease_is_told_at_every_level(store: Store) -> None:
    client, other = store.connect(), store.connect()
    lock = client.raw.lock(store.name, reentrant=True)
    loop = asyncio.get_running_loop()
    told: list[str] = []

    def lose() -> None:
        ended = asyncio.run_coroutine_threadsafe(other.break_lock(store.name), loop).result()
        assert ended is not None

    def blocking() -> None:
        with lock as lease:
            try:
                with lock:
                    lose()
                    with pytest.raises(LeaseLost):
                        lease.renew()  # which finds out at once
            except LeaseLost:
                told.append("inner")
            with pytest.raises(LeaseLost), lock:
                raise AssertionError("it must not run unprotected")
            told.append("outer")

    with pytest.raises(LeaseLost):
        await on_thread(blocking)
    assert told == ["inner", "outer"]
    assert (await store.free(client)).token > 0


@pytest.mark.only("asyncio")
async def test_loss_cancels_the_innermost_block_and_is_told_at_every_level(store: Store) -> None:
    client, other = store.connect(), store.connect()
    lock = client.raw.lock(store.name, ttl=store.kept, reentrant=True)
    told: list[str] = []

    async def lose() -> None:
        async with lock:
            assert await other.break_lock(store.name) is not None
            await asyncio.sleep(store.long)

    async def whole() -> None:
        async with lock:
            with pytest.raises(LeaseLost):
                await lose()
            told.append("inner")
            with pytest.raises(LeaseLost):
                await lock.__aenter__()
            told.append("outer")

    with pytest.raises(LeaseLost):
        await whole()
    assert told == ["inner", "outer"]
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.core
@pytest.mark.only("asyncio")
async def test_loss_after_an_inner_block_cancels_the_outer_one(store: Store) -> None:
    client, other = store.connect(), store.connect()
    lock = client.raw.lock(store.name, ttl=store.kept, reentrant=True)

    async def whole() -> None:
        async with lock:
            async with lock:
                pass
            assert await other.break_lock(store.name) is not None
            await asyncio.sleep(store.long)

    with pytest.raises(LeaseLost):
        await whole()


@pytest.mark.core
async def test_an_error_inside_frees_it_all_the_same(store: Store) -> None:
    client, other = store.connect(), store.connect()
    lock = client.raw.lock(store.name, reentrant=True)

    def fail(lease: object, level: int) -> None:
        if level == 3:
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await inside(client, lock, fail, 3)
    assert await other.status(store.name) is None


@pytest.mark.core
async def test_the_lease_stays_ambient_until_the_outermost_block_ends(store: Store) -> None:
    client = store.connect()
    lock = client.raw.lock(store.name, reentrant=True)
    found: list[bool] = []

    def blocking() -> None:
        with lock as lease:
            with lock:
                found.append(ambient.find(store.name) is lease)
            found.append(ambient.find(store.name) is lease)
        found.append(ambient.find(store.name) is None)

    async def awaited() -> None:
        async with lock as lease:
            async with lock:
                found.append(ambient.find(store.name) is lease)
            found.append(ambient.find(store.name) is lease)
        found.append(ambient.find(store.name) is None)

    await (on_thread(blocking) if client.face == "blocking" else awaited())
    assert found == [True, True, True]


@pytest.mark.core
async def test_a_lease_released_by_hand_can_be_taken_anew(store: Store) -> None:
    client = store.connect()
    lock = client.raw.lock(store.name, reentrant=True)
    tokens: list[int] = []

    def blocking() -> None:
        with lock as lease:
            assert lease.release()
            with lock as again:
                tokens.extend((lease.token, again.token))

    async def awaited() -> None:
        async with lock as lease:
            assert await lease.release()
            async with lock as again:
                tokens.extend((lease.token, again.token))

    await (on_thread(blocking) if client.face == "blocking" else awaited())
    assert tokens[0] < tokens[1]
    assert await client.status(store.name) is None


async def test_the_plain_form_never_enters_again(store: Store) -> None:
    """Its lease is released by itself: were it the block's own, that would free the lock under the block."""
    client = store.connect()
    lock = client.raw.lock(store.name, reentrant=True, timeout=0.05)

    def blocking() -> None:
        with lock as lease:
            assert lock.try_acquire() is None
            with pytest.raises(NotAcquired):
                lock.acquire()
            lease.check()

    async def awaited() -> None:
        async with lock as lease:
            assert await lock.try_acquire() is None
            with pytest.raises(NotAcquired):
                await lock.acquire()
            lease.check()

    await (on_thread(blocking) if client.face == "blocking" else awaited())
    lease = await client.acquire(store.name)
    assert await lease.release()
