"""Waiters of one process whose store has no queue: the first of them asks, the others wait behind it."""

import asyncio
import contextlib
import gc
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from fencepost import aio
from fencepost.address import Address
from fencepost.backend import Hold, Promises, Renewal, Status
from fencepost.backends import local_queue
from fencepost.backends.local_queue import LocalQueues
from fencepost.backends.polling import Polling
from fencepost.driver import Driver, Signal
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.lease import Grant
from fencepost.locks import Core
from tests.harness.isolated import isolated
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import PATIENCE, run, until_async

_kept: list[object] = []  # for good: Python complains of a task that is destroyed while it is pending


class Plain(Polling):
    """A store that is one dict."""

    scheme = "plain"
    promises = Promises(
        reach="", fair=False, consensus=False, failover="", clock="", token="", wakeup="", shared=False, observe=""
    )

    def __init__(self, driver: Driver) -> None:
        super().__init__(Address("plain"), driver)
        self.held: dict[str, str] = {}
        self.token = 0
        self._start()

    async def _attempt(self, name: str, holder: str, ttl: float) -> Grant | None:
        if self.held.setdefault(name, holder) != holder:
            return None
        self.token += 1
        return Grant(self.token, ttl, self.driver.now())

    async def _stand(self, name: str, holder: str, ttl: float, until: float) -> Grant | None:
        while self.driver.now() < until:
            if grant := await self._attempt(name, holder, ttl):
                return grant
            await self.driver.sleep(0.01)
        return None

    async def leave(self, name: str, holder: str) -> None:
        self._queues.leave(name, holder)
        await self.release(name, holder, 0)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        return [Renewal.RENEWED] * len(holds)

    async def release(self, name: str, holder: str, token: int) -> bool:
        return self.held.get(name) == holder and bool(self.held.pop(name))

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        return []

    async def break_lock(self, name: str) -> Status | None:
        return None

    async def bump(self, name: str, above: int) -> None:
        self.token = max(self.token, above)


def connected(queue: int = 10) -> tuple[aio.Locks, Plain]:
    driver = Asyncio()
    backend = Plain(driver)
    return aio.Locks(Core(backend, driver, aio.Lease, ttl=300, queue_limit=queue, hooks=())), backend


def test_one_whose_event_loop_was_closed_keeps_nobody_from_asking() -> None:
    locks, store = connected()
    store.held["a"] = "somebody"

    async def wait() -> None:
        task = asyncio.create_task(locks.acquire("a"))
        _kept.append(task)
        await until_async(lambda: known_to_wait(locks) == 1, "it waits", watching=[task])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    loop.close()

    async def next_one() -> None:
        assert await locks.try_acquire("a") is None
        del store.held["a"]
        assert await (await locks.acquire("a", timeout=PATIENCE)).release()
        await locks.close()

    run(next_one())


def test_one_whose_event_loop_was_stopped_keeps_nobody_from_asking_and_keeps_its_place() -> None:
    locks, store = connected(queue=1)
    store.held["a"] = "somebody"
    loop = asyncio.new_event_loop()

    async def wait() -> asyncio.Task[aio.Lease]:
        task = asyncio.create_task(locks.acquire("a"))
        await until_async(lambda: known_to_wait(locks) == 1, "it waits", watching=[task])
        return task

    async def next_one() -> None:
        behind = asyncio.create_task(locks.acquire("a", timeout=PATIENCE))
        await until_async(lambda: known_to_wait(locks) == 2, "it fills the queue", watching=[behind])
        del store.held["a"]
        assert await (await behind).release()
        lease = await locks.try_acquire("a")
        assert lease is not None
        assert await lease.release()

    stopped = loop.run_until_complete(wait())
    run(next_one())
    assert loop.run_until_complete(loop.run_until_complete(stopped).release())
    loop.run_until_complete(locks.close())
    loop.close()


async def test_those_behind_one_whose_coroutine_was_closed_go_on() -> None:
    locks, store = connected()
    store.held["a"] = "somebody"
    waiting = locks.acquire("a")
    first = asyncio.create_task(waiting)
    await until_async(lambda: known_to_wait(locks) == 1, "it waits", watching=[first])
    behind = asyncio.create_task(locks.acquire("a", timeout=PATIENCE))
    await until_async(lambda: known_to_wait(locks) == 2, "another one waits", watching=[behind])
    waiting.close()
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError, RuntimeError):  # it cannot be cancelled, being closed
        await first
    del store.held["a"]
    assert await (await behind).release()
    await locks.close()


def test_one_whose_event_loop_was_closed_is_not_woken_in_place_of_the_next() -> None:
    queues, driver = LocalQueues(), Asyncio()
    live, gone = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def join(holder: str) -> Signal:
        signal = driver.signal()
        await signal.wait(0)  # from now on it belongs to this event loop
        return queues.await_turn("a", holder, signal)

    live.run_until_complete(join("first"))
    gone.run_until_complete(join("gone"))
    last = live.run_until_complete(join("last"))
    gone.close()
    queues.leave("a", "first")
    live.run_until_complete(asyncio.sleep(0))
    assert last.is_set()
    assert queues.first("a", "last")
    live.close()


def test_one_that_leaves_while_it_is_looked_at_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``__del__`` does when the garbage collector closes its coroutine."""
    queues, driver = LocalQueues(), Blocking()
    gone, last = driver.signal(), driver.signal()
    queues.await_turn("a", "gone", gone)
    queues.await_turn("a", "last", last)

    looks = []

    def abandoned(signal: Signal) -> bool:
        if signal is gone:
            looks.append(signal)
            if len(looks) == 2:  # just before it would be removed
                queues.leave("a", "gone")
        return signal is gone

    monkeypatch.setattr(local_queue, "abandoned", abandoned)
    assert queues.busy("a")
    assert len(looks) == 2
    assert queues.first("a", "last")
    assert last.is_set()


@types.coroutine
def _waits() -> Iterator[None]:
    yield


async def _wait_in(queues: LocalQueues, holder: str) -> None:
    try:
        await _waits()
    finally:
        queues.leave("a", holder)


@isolated
def test_a_collected_waiter_leaves_in_the_middle_of_every_call() -> None:
    """The coroutine of a closed event loop is garbage: the collector closes it wherever Python makes an object."""
    calls: dict[str, Callable[[LocalQueues], object]] = {
        "busy": lambda queues: queues.busy("a"),
        "first": lambda queues: queues.first("a", "last"),
        "join": lambda queues: queues.join("a", "new", 2, signal),
        "await_turn": lambda queues: queues.await_turn("a", "new", signal),
        "leave": lambda queues: queues.leave("a", "last"),
    }
    driver = Blocking()
    signal = driver.signal()
    inside: set[str] = set()
    for name, call in calls.items():
        for allocations in range(1, 60):
            gc.disable()
            gc.collect()
            queues = LocalQueues()
            for holder in ("gone", "last"):
                queues.await_turn("a", holder, driver.signal())
            waits = _wait_in(queues, "gone")
            waits.send(None)
            cycle: list[object] = [waits]
            cycle.append(cycle)
            del waits, cycle
            gc.set_threshold(allocations)
            gc.enable()
            try:
                call(queues)
            finally:
                gc.disable()
            if "gone" not in queues._queues.get("a", {}):
                inside.add(name)
            gc.collect()
            left = [holder for holder in queues._queues.get("a", {}) if holder != "new"]
            assert left == ([] if name == "leave" else ["last"]), (name, allocations)
    assert inside == set(calls), (inside, "the collector came in the middle of a call")


def test_many_threads_that_come_and_go_in_one_queue_see_one_first() -> None:
    queues, driver, served = LocalQueues(), Blocking(), list[str]()

    def one(holder: str) -> None:
        signal = driver.signal()
        queues.await_turn("a", holder, signal)
        while not queues.first("a", holder):
            run_wait(signal)
        served.append(holder)
        queues.leave("a", holder)

    def run_wait(signal: object) -> None:
        signal._flag.wait(0.01)  # type: ignore[attr-defined]

    for crowd in [[background(partial(one, f"{r}.{n}")) for n in range(20)] for r in range(5)]:
        for each in crowd:
            each.result()
    assert len(served) == len(set(served)) == 100
    assert not queues.busy("a")
