"""What a store must still be told, tried again on one thread or task for each server."""

import asyncio
import threading

import pytest

from fencepost.backends.cleanups import Cleanups
from fencepost.driver import Driver, Signal
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError
from tests.harness.waiting import PATIENCE, run, until_async

DRIVERS = pytest.mark.parametrize("driver", [Blocking(), Asyncio()], ids=["threads", "tasks"])


class Store:
    """Fails as often as it is told, and notes who asked what."""

    def __init__(self, driver: Driver, failures: dict[str, int] | None = None) -> None:
        self.failures = failures or {}
        self.asked: list[str] = []
        self.threads = set[int]()
        self.open: Signal | None = None
        """Nothing is cleaned up before, if there is one."""
        self.cleanups: Cleanups[str] = Cleanups(
            driver, self.clean, "test-cleanups", pauses=(0.01, 0.05), lasting=600, home=lambda key: key[0]
        )

    async def clean(self, key: str) -> None:
        if self.open is not None:
            await self.open.wait(PATIENCE)
        self.asked.append(key)
        self.threads.add(threading.get_ident())
        if self.failures.get(key, 0) > 0:
            self.failures[key] -= 1
            raise BackendError("no answer", backend="test", ambiguous=True)

    async def settled(self) -> None:
        await until_async(lambda: not len(self.cleanups), "all is cleaned up")
        self.cleanups.close()


@DRIVERS
def test_a_hundred_clean_ups_share_one_thread_and_each_is_tried_until_it_is_answered(driver: Driver) -> None:
    async def scene() -> None:
        keys = [f"a{number}" for number in range(100)]
        store = Store(driver, {"a7": 3, "a50": 1})
        store.open = driver.signal()
        for key in keys:
            store.cleanups.add(key)
            store.cleanups.add(key)
        store.open.set()
        await store.settled()
        assert len(store.threads) == 1
        assert {key: store.asked.count(key) for key in keys} == {
            key: {"a7": 4, "a50": 2}.get(key, 1) for key in keys
        }, "what is owed already is not owed twice"

    run(scene())


@DRIVERS
def test_a_server_that_fails_is_asked_once_for_all_that_is_due(driver: Driver) -> None:
    async def scene() -> None:
        store = Store(driver, {f"a{number}": 1 for number in range(10)})
        store.cleanups._timers.close()  # nothing but what is called here
        keys = [f"a{number}" for number in range(10)]
        for key in keys:
            store.cleanups.add(key)
        await store.cleanups._see_to("a", keys)
        assert store.asked == ["a0"]
        store.cleanups.close()

    run(scene())


@DRIVERS
def test_a_server_that_hangs_delays_no_clean_up_elsewhere_and_has_one_thread(driver: Driver) -> None:
    async def scene() -> None:
        store = Store(driver)
        free = driver.signal()
        clean = store.cleanups._clean

        async def hang(key: str) -> None:
            await clean(key)
            if key[0] == "a":
                await free.wait()

        store.cleanups._clean = hang
        for number in range(10):
            store.cleanups.add(f"a{number}", at_once=True)
        await until_async(lambda: bool(store.asked), "the first one hangs")
        for number in range(10):
            store.cleanups.add(f"b{number}", at_once=True)
        await until_async(lambda: len(store.cleanups) == 10, "what is owed to the other server is cleaned up")
        assert sorted(store.asked) == ["a0", *(f"b{number}" for number in range(10))]
        assert len(store.threads) <= 2
        free.set()
        await store.settled()

    run(scene())


@DRIVERS
def test_a_clean_up_moves_with_what_it_cleans(driver: Driver) -> None:
    async def scene() -> None:
        store = Store(driver)
        homes = {"key": "a"}
        store.cleanups._home = homes.__getitem__
        gone = driver.signal()

        async def hang(key: str) -> None:
            store.asked.append(homes[key])
            if homes[key] == "a":
                await gone.wait()
                homes[key] = "b"
                raise BackendError("it went elsewhere", backend="test", ambiguous=True)

        store.cleanups._clean = hang
        store.cleanups.add("key", at_once=True)
        await until_async(lambda: bool(store.asked), "it is asked for")
        gone.set()
        await store.settled()
        assert store.asked == ["a", "b"]

    run(scene())


@DRIVERS
def test_one_that_is_refused_for_good_does_not_keep_the_others_of_its_server_waiting(driver: Driver) -> None:
    async def scene() -> None:
        store = Store(driver, {"a-bad": 10**9, "a-worse": 10**9})
        for key in ("a-bad", "a-worse", *(f"a{number}" for number in range(5))):
            store.cleanups.add(key)
        await until_async(lambda: len(store.cleanups) == 2, "the others are cleaned up")
        assert "a-bad" in store.cleanups
        store.cleanups.close()

    run(scene())


@DRIVERS
def test_closing_ends_what_is_under_way(driver: Driver) -> None:
    async def scene() -> None:
        store = Store(driver)
        store.cleanups._timers.close()
        for key in ("a1", "a2", "a3"):
            store.cleanups.add(key)
        clean = store.cleanups._clean

        async def close(key: str) -> None:
            await clean(key)
            store.cleanups.close()

        store.cleanups._clean = close
        await store.cleanups._see_to("a", ["a1", "a2", "a3"])
        assert store.asked == ["a1"]

    run(scene())


@DRIVERS
def test_it_is_given_up_in_the_end(driver: Driver) -> None:
    async def scene() -> None:
        store = Store(driver, {"a": 10**9})
        store.cleanups._lasting = 0.2
        store.cleanups.add("a", at_once=True)
        await store.settled()
        assert store.asked

    run(scene())


async def test_cancelling_all_tasks_loses_no_clean_up() -> None:
    store = Store(Asyncio())
    held = asyncio.Event()
    clean = store.cleanups._clean

    async def hang(key: str) -> None:
        held.set()
        store.cleanups._clean = clean
        await asyncio.sleep(600)

    store.cleanups._clean = hang
    for key in ("a", "b", "c"):
        store.cleanups.add(key)
    await held.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await store.settled()
    assert sorted(store.asked) == ["a", "b", "c"]
