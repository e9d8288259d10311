"""A block that is left by another thread or task than entered it, as frameworks do with the two ends of a generator."""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator

import pytest

import fencepost
from fencepost import aio, sync
from fencepost.errors import ConfigError, LeaseLost, NotAcquired


@pytest.fixture
def locks() -> Iterator[sync.Locks]:
    with fencepost.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as connected:
        yield connected


def aside(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def resource(locks: sync.Locks, name: str) -> Iterator[sync.Lease]:
    """As a dependency of a web framework is written, whose two halves run on any thread of a pool."""
    with locks.lock(name) as lease:
        yield lease


def test_another_thread_releases(locks: sync.Locks) -> None:
    given = resource(locks, "a")
    aside(lambda: next(given))
    assert locks.status("a")
    assert next(given, None) is None
    assert locks.status("a") is None


def test_another_thread_is_told_of_the_loss(locks: sync.Locks) -> None:
    lock = locks.lock("a")
    aside(lock.__enter__)
    locks.break_lock("a")
    with pytest.raises(LeaseLost):
        lock.__exit__(None, None, None)


def test_blocks_that_cannot_be_told_apart_are_refused(locks: sync.Locks) -> None:
    lock = locks.shared("a")
    inside = threading.Barrier(3)
    leave = threading.Event()

    def hold() -> None:
        with lock:
            inside.wait()
            leave.wait()

    crowd = [threading.Thread(target=hold) for _ in range(2)]
    for each in crowd:
        each.start()
    inside.wait()
    with pytest.raises(ConfigError, match="which of 2 blocks of lock 'a'"):
        lock.__exit__(None, None, None)
    leave.set()
    for each in crowd:
        each.join()
    assert locks.status("a") is None


async def test_another_task_releases() -> None:
    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        lock = locks.lock("a")
        await asyncio.create_task(lock.__aenter__())
        assert await locks.status("a")
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert await locks.status("a") is None


async def test_another_task_is_told_of_the_loss() -> None:
    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        lock = locks.lock("a")
        lease = await asyncio.create_task(lock.__aenter__())
        await locks.break_lock("a")
        with pytest.raises(LeaseLost):
            await lease.renew()
        with pytest.raises(LeaseLost):
            await lock.__aexit__(None, None, None)


def test_a_thread_with_the_number_of_one_that_ended_is_not_taken_for_it(locks: sync.Locks) -> None:
    """It would enter a re-entrant lock that somebody else is inside of."""
    numbers: list[int] = []

    def given() -> Iterator[sync.Lease]:
        with locks.lock("a", reentrant=True) as lease:
            yield lease

    block = given()

    def enter() -> None:
        numbers.append(threading.get_ident())
        next(block)

    aside(enter)
    entered = []

    def again() -> None:
        numbers.append(threading.get_ident())
        with contextlib.suppress(NotAcquired), locks.lock("a", reentrant=True, timeout=0.01) as lease:
            entered.append(lease)

    while numbers[-1] != numbers[0] or len(numbers) == 1:
        aside(again)
    assert not entered
    assert next(block, None) is None
    assert locks.status("a") is None
