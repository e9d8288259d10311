"""A lock inside a block of its own: who would wait for itself is told so, and nobody else is."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import fencepost
from fencepost import aio
from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from tests.harness.waiting import PATIENCE, until, until_async


@pytest.fixture
def locks() -> fencepost.Locks:
    return fencepost.connect(f"memory://{id(object())}")


def test_a_thread_that_would_wait_for_itself_is_told_at_once(locks: fencepost.Locks) -> None:
    with locks, locks.lock("n") as lease:
        with pytest.raises(ConfigError, match=r"this thread holds lock 'n' already.*reentrant=True"), locks.lock("n"):
            pass
        with pytest.raises(ConfigError, match="reentrant=True"):
            locks.acquire("n")
        with pytest.raises(ConfigError, match="make both re-entrant"), locks.lock("n", reentrant=True):
            pass
        lease.check()
        assert locks.status("n").waiters == ()  # type: ignore[union-attr]


def test_a_decorated_function_that_calls_itself_is_told(locks: fencepost.Locks) -> None:
    @locks.holding("{what}")
    def again(what: str, depth: int) -> int:
        return depth if depth == 0 else again(what, depth - 1)

    with locks:
        assert again("n", 0) == 0
        with pytest.raises(ConfigError, match="reentrant=True"):
            again("n", 1)


async def test_a_task_that_would_wait_for_itself_is_told_at_once() -> None:
    async with aio.connect("memory://nested-task") as locks, locks.lock("n"):
        with pytest.raises(ConfigError, match=r"this task holds lock 'n' already.*reentrant=True"):
            async with locks.lock("n"):
                pass
        with pytest.raises(ConfigError, match="reentrant=True"):
            await locks.acquire("n")


def test_with_a_timeout_it_is_said_when_the_time_is_up(locks: fencepost.Locks) -> None:
    with locks, locks.lock("n") as lease:
        with pytest.raises(NotAcquired, match="this thread holds lock 'n' already") as error:
            locks.acquire("n", timeout=0.01)
        assert error.value.holder == lease.holder
        with pytest.raises(NotAcquired, match="this thread"):
            locks.acquire("n", timeout=0)
        assert locks.try_acquire("n") is None


def test_shares_stand_in_the_way_of_the_lock_and_the_lock_of_shares(locks: fencepost.Locks) -> None:
    with locks:
        with locks.shared("n"), locks.shared("n"), pytest.raises(ConfigError, match="a share cannot become the lock"):
            locks.acquire("n")
        with locks.lock("n"), pytest.raises(ConfigError, match="already"), locks.shared("n"):
            pass


def test_who_has_all_permits_of_a_semaphore_does_not_wait_for_another(locks: fencepost.Locks) -> None:
    with locks, locks.semaphore("s", permits=2), ExitStack() as blocks:
        blocks.enter_context(locks.semaphore("s", permits=2))  # there is another one
        with pytest.raises(ConfigError, match=r"this thread holds all 2 permits of 's'.*leave one of those blocks"):
            blocks.enter_context(locks.semaphore("s", permits=2))
        with pytest.raises(NotAcquired, match="holds all 2 permits"):
            blocks.enter_context(locks.semaphore("s", permits=2, timeout=0.01))
        blocks.enter_context(locks.semaphore("s", permits=3))


def test_a_lease_with_its_own_block_counts_too(locks: fencepost.Locks) -> None:
    with locks, locks.acquire("n"), pytest.raises(ConfigError, match="already"):
        locks.acquire("n")


def test_another_thread_waits(locks: fencepost.Locks) -> None:
    with locks, ThreadPoolExecutor(1) as pool:
        with locks.lock("n"):
            # With the context of this one, as asyncio.to_thread and many frameworks have it.
            waiter = pool.submit(contextvars.copy_context().run, locks.acquire, "n")
            until(lambda: len(locks.status("n").waiters) == 1, "it waits")  # type: ignore[union-attr]
        assert waiter.result(PATIENCE).release()


async def test_another_task_waits() -> None:
    async with aio.connect("memory://nested-other") as locks:
        async with locks.lock("n"):
            waiter = asyncio.create_task(locks.acquire("n"))  # which has the context of this one

            async def waits() -> bool:
                return bool((await locks.status("n")).waiters)  # type: ignore[union-attr]

            await until_async(waits, "it waits", watching=[waiter])
        assert await (await waiter).release()


def test_a_lease_that_another_thread_releases_is_waited_for(locks: fencepost.Locks) -> None:
    with locks:
        lease = locks.acquire("n")
        threading.Timer(0.02, lease.release).start()
        assert locks.acquire("n").release()


def test_a_block_that_another_thread_entered_is_waited_for(locks: fencepost.Locks) -> None:
    block = ExitStack()
    with locks, ThreadPoolExecutor(1) as pool:
        pool.submit(block.enter_context, locks.lock("n")).result(PATIENCE)
        waiter = threading.Timer(0.02, block.close)
        waiter.start()
        assert locks.acquire("n").release()
        waiter.join(PATIENCE)


def test_a_block_in_another_context_of_the_same_thread_is_waited_for(locks: fencepost.Locks) -> None:
    """Frameworks run the two ends of a generator on threads of a pool, each in a context of its own."""
    block = ExitStack()
    with locks:
        contextvars.copy_context().run(block.enter_context, locks.lock("n"))
        closing = threading.Timer(0.02, block.close)
        closing.start()
        assert contextvars.copy_context().run(locks.acquire, "n").release()
        closing.join(PATIENCE)


def test_a_lock_that_was_given_away_is_acquired_again(locks: fencepost.Locks) -> None:
    def block() -> None:
        with locks.lock("n"):
            locks.break_lock("n")  # its holder does not know yet
            with locks.lock("n") as again:
                again.check()

    with locks, pytest.raises(LeaseLost):
        block()


def test_a_lock_that_somebody_else_has_by_now_is_waited_for(locks: fencepost.Locks) -> None:
    def block() -> None:
        with locks.lock("n"):
            locks.break_lock("n")
            other = locks.try_acquire("n")
            assert other is not None
            threading.Timer(0.02, other.release).start()
            assert locks.acquire("n").release()

    with locks, pytest.raises(LeaseLost):
        block()


def test_a_lease_that_ends_by_itself_is_waited_for(locks: fencepost.Locks) -> None:
    with locks, pytest.raises(LeaseLost), locks.lock("n", ttl=0.05, renew=False), locks.lock("n") as again:
        again.check()


def test_after_the_block_it_is_free(locks: fencepost.Locks) -> None:
    with locks:
        with locks.lock("n"):
            pass
        with locks.lock("n") as lease:
            lease.release()
            with locks.lock("n"):
                pass
