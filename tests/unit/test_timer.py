"""Keys that are due at their time, on threads and in event loops; and the one run of a service."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from heapq import heappush
from typing import Any, TypeVar

import pytest

from fencepost.driver import Driver
from fencepost.driver.service import Run, Service
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.driver.timer import Timer
from tests.harness.child import Child
from tests.harness.isolated import in_fork, isolated
from tests.harness.threads import Background, background
from tests.harness.waiting import PATIENCE, run, until, until_async
from tests.unit.test_no_threads import Unstartable

T = TypeVar("T")


@pytest.fixture(params=[Blocking, Asyncio], ids=["threads", "tasks"])
def driver(request: pytest.FixtureRequest) -> Driver:
    made: Driver = request.param()
    return made


async def soon(condition: Callable[[], Any], what: str) -> None:
    await until_async(condition, what)


class Fired:
    """Notes what is fired."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.before: Callable[[list[Any]], Awaitable[None]] | None = None

    async def __call__(self, keys: list[Any]) -> None:
        self.calls.append(keys)
        if self.before is not None:
            await self.before(keys)

    def has(self, key: Any) -> bool:
        return key in self.keys

    @property
    def keys(self) -> list[Any]:
        return [key for call in self.calls for key in call]


class Clock:
    """A clock that stands still until the test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def reach(self, instant: float, timer: Timer[Any], fired: Fired) -> None:
        """Set it, and have the timer look once."""
        with timer._service.gate:  # it looks before, or sees both
            self.now = instant
            timer.set("now", instant)
        timer._service.wake()  # or else it waits for the end of its nap, if another key is due before this one
        await soon(lambda: "now" in fired.keys, "it has looked")


def stopped(driver: Driver) -> tuple[Driver, Clock]:
    """Such a driver, by such a clock."""
    clock = Clock()
    return (Blocking(clock) if driver.blocking else Asyncio(clock)), clock


def test_keys_are_fired_when_they_are_due_in_order(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        now = driver.now()
        with timer._service.gate:
            for key, wait in (("later", 0.3), ("sooner", 0.1), ("never", 600.0), ("at once", 0.0)):
                timer.set(key, now + wait)
        assert timer.left("never") is not None
        await soon(lambda: len(fired.keys) == 3, "three are due")
        assert fired.keys == ["at once", "sooner", "later"]
        assert timer.left("sooner") is None
        timer.close()
        assert len(timer) == 0

    run(scene())


def test_keys_that_are_due_together_are_fired_in_one_call_in_the_order_they_were_set(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test", most=4)
        for key in range(10):
            timer.set(key, 101.0)
        await clock.reach(102.0, timer, fired)
        assert fired.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, "now"]]
        timer.close()

    run(scene())


def test_keys_that_come_and_go_nudge_the_run_once_and_one_that_stays_is_fired(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        nudges: list[str] = []
        wake = timer._service.wake

        def counted() -> None:
            nudges.append("nudge")
            wake()

        timer._service.wake = counted  # type: ignore[method-assign]
        timer.set("first", 200.0)
        await soon(lambda: timer._next == 200.0, "the run has begun")
        timer.drop("first")
        timer.set("gone", 110.0)
        timer.drop("gone")  # before the run has looked, as after a short section
        await soon(lambda: timer._next != 200.0, "the run has looked")
        assert timer._next == 110.0
        nudges.clear()
        for key in range(50):
            timer.set(key, 111.0 + key)
            timer.drop(key)
        timer.set("stays", 112.0)
        assert nudges == []
        timer.set("sooner", 105.0)
        assert nudges == ["nudge"]
        await clock.reach(113.0, timer, fired)
        assert fired.keys == ["sooner", "stays", "now"]
        timer.close()

    run(scene())


def test_a_key_that_may_be_early_is_fired_with_others_and_not_for_itself(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        timer.set("a little later", 112.0, early=2.0)
        timer.set("later", 113.0, early=2.0)
        timer.set("punctual", 110.5)
        await clock.reach(109.0, timer, fired)
        assert fired.calls == [["now"]]
        fired.calls.clear()
        await clock.reach(110.0, timer, fired)
        assert fired.calls == [["now"]], "what stands before it in time is not due"
        fired.calls.clear()
        await clock.reach(110.5, timer, fired)
        assert fired.calls == [["punctual", "now", "a little later"]]
        timer.close()

    run(scene())


def test_a_key_can_be_posted_from_any_thread_and_only_if_it_is_set(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        timer.post("unset")
        assert not timer._service.running, "that starts nothing"
        timer.set("key", driver.now() + 600)
        await soon(lambda: not timer._new, "it has had its turn")
        for key in ("unset", "key"):
            poster = threading.Thread(target=timer.post, args=(key,))
            poster.start()
            poster.join()
        await soon(lambda: fired.keys == ["key"], "it is fired")
        timer.close()

    run(scene())


class Between:
    """A service's gate; the first to enter it waits for a turn of the timer."""

    def __init__(self, timer: Timer[Any], run: Run) -> None:
        self._service, self._gate = timer._service, timer._service.gate
        self._turn = partial(timer._turn, run, [])

    def __enter__(self) -> None:
        self._service.gate = self._gate
        self._turn()
        self._gate.acquire()

    def __exit__(self, *_: object) -> None:
        self._gate.release()


@pytest.mark.parametrize("method", ["set", "offer", "offer_all"])
def test_a_key_that_is_set_during_a_turn_is_not_lost(driver: Driver, method: str) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        timer.set("first", driver.now() + 600)
        await soon(lambda: not timer._new, "it has had its turn")
        timer.set("other", driver.now() + 700)  # later than the first, so that the run does not look yet
        run = timer._service._run
        assert run is not None
        timer._service.gate = Between(timer, run)  # type: ignore[assignment]
        due = driver.now() + 0.05
        if method == "offer_all":
            timer.offer_all([("second", due, 0.0)])
        else:
            getattr(timer, method)("second", due)
        timer._service.wake()
        await soon(lambda: fired.keys == ["second"], "it is fired")
        timer.close()

    run(scene())


def test_a_key_that_is_parked_is_fired_only_if_it_is_posted(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        now = driver.now()
        timer.set("key", now + 600)
        timer.park([("key", now), ("other", now)])
        timer.set("last", now + 0.05)
        await soon(lambda: fired.keys == ["last"], "what is parked is not fired with others")
        timer.post("key")
        await soon(lambda: fired.keys == ["last", "key"], "it is fired once it is posted")
        timer.drop("other")
        assert len(timer) == 0
        timer.close()

    run(scene())


def test_keys_that_were_set_again_and_again_take_no_room(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        for round in range(1, 1000):
            for key in range(10):
                timer.offer(key, driver.now() + 600 + round, early=1.0)
            timer._service.wake()
            if round % 10 == 0:
                await soon(lambda: not timer._new, "they have had their turn")
        with timer._service.gate:
            assert timer._inside < 200
            assert sum(map(len, timer._buckets.values())) == timer._inside
            assert len(timer._heap) == len(timer._buckets)
        assert len(timer) == 10
        assert not fired.calls
        timer.close()

    run(scene())


def test_others_have_their_turn_between_two_slices(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test", most=10)
        for key in range(100):
            timer.set(key, driver.now())
        seen = set[int]()
        while len(fired.keys) < 100:
            seen.add(len(fired.calls))
            await asyncio.sleep(0)
        assert driver.blocking or len(seen) >= 9
        timer.close()

    run(scene())


def test_a_key_that_has_little_time_does_not_wait_for_many_that_have_more(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test", most=10)
        now = driver.now()
        with timer._service.gate:
            timer.offer_all([(key, now - 1.0, 3.0) for key in range(500)])
            timer.offer_all([("short", now - 0.5, 0.1), ("soon", now + 3600.0, 0.1)])
        await soon(lambda: len(fired.keys) == 501, "all are fired")
        assert fired.keys.index("short") < 50
        assert [key for key in fired.keys if key != "short"] == [*range(500)]
        timer.close()

    run(scene())


class Pauses:
    """Calls ``then`` whenever the timer lets others have their turn, and notes how many keys it had moved by then."""

    def __init__(self, driver: Driver, timer: Timer[Any], then: Callable[[], object] = lambda: None) -> None:
        self.moved: list[int] = []
        sleep = driver.sleep

        async def paused(seconds: float) -> None:
            if seconds == 0.0:
                self.moved.append(timer._inside)
                then()
            await sleep(seconds)

        driver.sleep = paused  # type: ignore[method-assign]


MANY = 20_000


def many(at: float, first: int = 0, last: int = MANY) -> list[tuple[int, float, float]]:
    return [(key, at, 0.0) for key in range(first, last)]


def test_others_have_their_turn_while_many_new_keys_are_moved(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, Fired(), "test")
        pauses = Pauses(driver, timer)
        timer.offer_all(many(driver.now() + 600))
        turns = 0
        async with asyncio.timeout(PATIENCE):
            while timer._inside < MANY:
                turns += 1
                await asyncio.sleep(0)
        assert driver.blocking or turns >= 20
        assert len(pauses.moved) >= 20
        assert pauses.moved[0] <= 1000
        timer.close()

    run(scene())


@pytest.mark.parametrize("posted", [False, True], ids=["due", "posted"])
def test_a_key_that_is_due_does_not_wait_until_many_new_ones_are_moved(driver: Driver, posted: bool) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        moved = []

        async def note(_: list[Any]) -> None:
            moved.append(timer._inside)

        fired.before = note
        timer.set("key", 110.0)
        await soon(lambda: timer._inside == 1, "it is in its bucket")
        with timer._service.gate:
            timer.offer_all(many(200.0))
            if posted:
                timer.post("key")
            else:
                clock.now = 110.0
                timer._service.wake()
        await soon(lambda: timer._inside >= MANY, "all are moved")
        assert fired.calls == [["key"]]
        assert moved[0] <= 1000
        timer.close()

    run(scene())


def test_a_key_that_is_posted_while_many_are_moved_does_not_wait_for_them(driver: Driver) -> None:
    async def scene() -> None:
        by, _ = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        moved = []

        async def note(_: list[Any]) -> None:
            moved.append(timer._inside)

        def post() -> None:
            if len(pauses.moved) == 2:
                timer.post(MANY - 1)  # the last of those that wait
                timer.post("unset")

        fired.before = note
        pauses = Pauses(by, timer, post)
        timer.offer_all(many(200.0))
        await soon(lambda: timer._inside == MANY - 1, "all are moved")
        assert fired.calls == [[MANY - 1]]
        assert moved[0] <= 3000
        assert len(timer) == MANY - 1
        timer.close()

    run(scene())


def test_posted_keys_are_moved_in_slices_too_and_each_is_fired_once(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test", most=MANY)
        with timer._service.gate:
            timer.offer_all(many(driver.now() + 600))
            for key in range(MANY):
                timer.post(key)
        await soon(lambda: len(fired.keys) >= MANY, "all are fired")
        assert fired.keys == [*range(MANY)]
        assert len(fired.calls) >= 20
        timer.close()

    run(scene())


def test_many_new_keys_of_one_instant_are_fired_in_the_order_they_were_set(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test", most=2 * MANY)

        def more() -> None:
            if len(pauses.moved) == 2:
                timer.offer_all(many(101.0, MANY, MANY + 3000))

        pauses = Pauses(by, timer, more)
        timer.offer_all(many(101.0))
        await soon(lambda: timer._inside == MANY + 3000, "all are moved")
        await clock.reach(102.0, timer, fired)
        assert fired.calls == [[*range(MANY + 3000), "now"]]
        timer.close()

    run(scene())


def test_keys_can_be_cancelled_and_set_again_while_many_are_moved(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test", most=2 * MANY)
        first, last = [0, 1, 2, 3, 4], [MANY - 5, MANY - 4, MANY - 3, MANY - 2, MANY - 1]

        def change() -> None:
            if len(pauses.moved) != 1:
                return
            for dropped, cancelled, later, again, parked in (first, last):  # those that were moved, and that wait
                timer.drop(dropped)
                assert timer.cancel(cancelled)
                assert timer.extend(later, 103.0)
                timer.drop(again)
                timer.set(again, 101.0)
                timer.park([(parked, 105.0)])

        pauses = Pauses(by, timer, change)
        timer.offer_all(many(101.0))
        await soon(lambda: pauses.moved and not timer._behind, "all are moved")
        await clock.reach(102.0, timer, fired)
        assert sorted(key for key in fired.keys if key != "now") == [3, *range(5, MANY - 5), MANY - 2]
        fired.calls.clear()
        await clock.reach(104.0, timer, fired)
        assert fired.calls == [[2, MANY - 3, "now"]]
        assert len(timer) == 2, "those that are parked"
        timer.close()

    run(scene())


def test_what_is_cancelled_while_many_are_moved_takes_no_room(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, Fired(), "test")

        def drop() -> None:
            for key in range(MANY):
                timer.drop(key)

        pauses = Pauses(driver, timer, drop)
        timer.offer_all([*many(driver.now() + 600), ("last", driver.now() + 600, 0.0)])
        await soon(lambda: pauses.moved and not timer._behind, "all are moved")
        assert timer._inside < 1000
        assert len(timer) == 1
        timer.close()

    run(scene())


def test_keys_that_were_being_moved_when_the_timer_was_cancelled_are_fired(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")

        def cancel() -> None:
            if len(pauses.moved) == 2 and (task := asyncio.current_task()):
                task.cancel()

        pauses = Pauses(driver, timer, cancel)
        timer.offer_all(many(driver.now()))
        await soon(lambda: len(fired.keys) >= MANY, "all are fired")
        assert fired.keys == [*range(MANY)]
        timer.close()

    if not driver.blocking:  # nobody cancels a thread
        run(scene())


def test_keys_that_are_being_moved_when_an_action_raises_are_fired_once(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")

        async def fail(keys: list[Any]) -> None:
            if len(fired.calls) == 2:
                raise LookupError("as told")

        fired.before = fail
        timer.offer_all(many(driver.now()))
        await soon(lambda: len(fired.calls) > 1, "it raises")
        await soon(lambda: len(fired.keys) >= MANY + len(fired.calls[1]), "all are fired")
        done = [key for number, call in enumerate(fired.calls) if number != 1 for key in call]
        assert sorted(done) == [*range(MANY)]
        timer.close()

    run(scene())


def test_a_timer_that_is_closed_while_many_are_moved_fires_nothing(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        pauses = Pauses(by, timer, timer.close)
        timer.offer_all(many(101.0))
        await soon(lambda: pauses.moved, "some are moved")
        clock.now = 102.0
        await soon(lambda: not timer.busy, "it has ended")
        assert timer._inside == 0
        assert not fired.calls

    run(scene())


async def fill(timer: Timer[Any]) -> None:
    """Set many keys, each in a bucket of its own."""
    timer.offer_all([(key, 200.0 + key, 0.0) for key in range(MANY)])
    await soon(lambda: timer._inside == MANY and not timer._behind, "all are moved")


def drop_most(timer: Timer[Any]) -> None:
    """Leave every fourth."""
    with timer._service.gate:
        for key in range(MANY):
            if key % 4:
                timer.drop(key)
    timer._service.wake()


def test_others_have_their_turn_while_many_buckets_are_swept(driver: Driver) -> None:
    async def scene() -> None:
        by, _ = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        await fill(timer)
        pauses = Pauses(by, timer)
        drop_most(timer)
        await soon(lambda: timer._inside == MANY // 4, "they are swept")
        assert len(pauses.moved) >= 20
        assert pauses.moved[0] >= MANY - 1000
        with timer._service.gate:
            assert sum(map(len, timer._buckets.values())) == timer._inside
            assert len(timer._heap) == len(timer._buckets)
        assert not fired.calls
        timer.close()

    run(scene())


@pytest.mark.parametrize("due", [False, True], ids=["early", "due"])
def test_others_have_their_turn_while_many_stale_keys_are_passed_over(driver: Driver, due: bool) -> None:
    """They are too few for a sweep."""

    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test", most=MANY)
        timer.offer_all([(key, 200.0 + (not due) * key, 0.0) for key in range(MANY)])
        await soon(lambda: timer._inside == MANY and not timer._behind, "all are moved")
        pauses = Pauses(by, timer)
        stale = MANY * 9 // 20
        with timer._service.gate:
            for key in range(stale):
                timer.drop(key)
            clock.now = 200.0 if due else 199.0
        timer._service.wake()
        await soon(lambda: not timer._behind and timer._inside == (0 if due else MANY - stale), "they are gone")
        await soon(lambda: fired.calls or not due, "the rest is fired")
        assert len(pauses.moved) >= stale // 500
        assert fired.keys == ([*range(stale, MANY)] if due else [])
        timer.close()

    run(scene())


def test_keys_that_become_due_while_many_buckets_are_swept_are_fired_in_order(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test", most=MANY)

        def pass_time() -> None:
            if len(pauses.moved) == 3:
                clock.now = 200.0 + MANY / 2

        await fill(timer)
        pauses = Pauses(by, timer, pass_time)
        drop_most(timer)
        await soon(lambda: fired.calls and not timer._behind, "they are swept")
        assert fired.keys == [*range(0, MANY // 2 + 1, 4)]
        assert timer._inside == len(timer) == MANY // 4 - len(fired.keys)
        timer.close()

    run(scene())


@pytest.mark.slow
def test_a_key_that_is_set_again_moves_both_ways(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        timer.set("earlier", 160.0)
        timer.set("later", 110.0)
        await clock.reach(101.0, timer, fired)
        timer.set("later", 160.0)
        timer.set("earlier", 110.0)
        fired.calls.clear()
        await clock.reach(111.0, timer, fired)
        assert fired.keys == ["earlier", "now"]
        timer.close()

    run(scene())


def test_what_was_handed_over_can_neither_be_extended_nor_cancelled(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        timer.set("due", driver.now())
        timer.set("kept", driver.now() + 60)
        await soon(lambda: fired.keys, "one is due")
        assert not timer.extend("due", driver.now() + 60)
        assert not timer.cancel("due")
        assert timer.extend("kept", driver.now() + 120)
        assert timer.cancel("kept")
        assert not timer.cancel("kept")
        assert not timer.extend("kept", driver.now() + 60), "a key that is not set is not extended"
        timer.close()

    run(scene())


def test_a_key_that_is_due_cannot_be_extended_although_it_was_not_fired_yet(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        held = asyncio.Event() if not driver.blocking else threading.Event()

        async def busy(keys: list[Any]) -> None:
            if keys == ["first"]:
                if driver.blocking:
                    assert held.wait(PATIENCE)  # type: ignore[call-arg]
                else:
                    await held.wait()  # type: ignore[misc]

        fired.before = busy
        timer.set("first", driver.now())
        await soon(lambda: fired.keys, "it is busy")
        timer.set("second", driver.now() + 0.01)
        await asyncio.sleep(0.05)
        assert not timer.extend("second", driver.now() + 60)
        assert not timer.cancel("second")
        held.set()
        timer.close()

    run(scene())


def test_a_key_is_not_fired_twice_at_a_time(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        inside, most = 0, 0

        async def again(_: list[Any]) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            if len(fired.calls) < 3:
                timer.set("key", driver.now())
            await driver.sleep(0.02)
            inside -= 1

        fired.before = again
        timer.set("key", driver.now())
        await soon(lambda: len(fired.calls) == 3 and not inside, "it was fired three times")
        assert most == 1
        timer.close()

    run(scene())


def test_an_action_that_raises_ends_nothing(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")

        async def fail(keys: list[Any]) -> None:
            if len(fired.calls) == 1:
                raise LookupError("as told")

        fired.before = fail
        timer.set("first", driver.now())
        timer.set("later", driver.now() + 600)
        await soon(lambda: fired.keys == ["first", "first"], "the first is due, and is fired again")
        timer.set("second", driver.now())
        await soon(lambda: fired.keys == ["first", "first", "second"], "and the second")
        assert "as told" in caplog.text
        assert timer.left("later") is not None
        timer.close()

    run(scene())


class Hashed:
    """A key that calls ``then`` whenever it is hashed: in the middle of things, as a finalizer is called."""

    def __init__(self) -> None:
        self.then: Callable[[], object] = lambda: None

    def __hash__(self) -> int:
        self.then()
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def test_keys_that_are_dropped_and_set_while_others_are_put_back_harm_none(driver: Driver) -> None:
    async def scene() -> None:
        by, clock = stopped(driver)
        timer = Timer(by, fired := Fired(), "test")
        key, others = Hashed(), [*range(20)]

        def finalize() -> None:
            if len(others) > 1:
                timer.drop(others.pop())
                timer.set(str(len(others)), 110.0)

        async def fail(keys: list[Any]) -> None:
            if len(fired.calls) == 1:
                key.then = finalize
                raise LookupError("as told")

        fired.before = fail
        timer.set(key, 100.5)
        timer.offer_all([(other, 110.0, 0.0) for other in others])
        timer._service.wake()  # or it sleeps, if it has looked between the two: they are due later than the key
        await soon(lambda: not timer._new, "they have had their turn")
        clock.now = 101.0
        timer._service.wake()
        await soon(lambda: len(fired.calls) == 2, "it is fired again")
        key.then = lambda: None
        await clock.reach(111.0, timer, fired)
        assert fired.calls[:2] == [[key], [key]]
        assert len(others) < 20
        assert {*fired.calls[2]} == {*others, *map(str, range(len(others), 20)), "now"}
        timer.close()

    run(scene())


def test_keys_on_their_way_to_their_buckets_are_not_lost_for_want_of_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [MemoryError(), MemoryError()]

    def push(heap: list[Any], item: Any) -> None:
        if failures and len(heap) == 2:
            raise failures.pop()
        heappush(heap, item)

    async def scene() -> None:
        monkeypatch.setattr("fencepost.driver.timer.heappush", push)
        timer = Timer(driver, fired := Fired(), "test")
        now = driver.now()
        with timer._service.gate:
            for key in range(4):
                timer.set(key, now - key)  # each in a bucket of its own
        await soon(lambda: sorted(set(fired.keys)) == [0, 1, 2, 3], "all are fired")
        assert not failures
        timer.close()

    run(scene())


class Failing(dict[Any, Any]):
    """Does what it is told, and then raises MemoryError, ``times`` times."""

    def __init__(self, method: str, times: int) -> None:
        super().__init__()
        self.method = method
        self.left = times

    def _do(self, method: str, *args: Any) -> Any:
        done = getattr(super(), method)(*args)
        if method == self.method and self.left:
            self.left -= 1
            raise MemoryError
        return done

    def copy(self) -> Any:
        return self._do("copy")

    def pop(self, *args: Any) -> Any:
        return self._do("pop", *args)

    def setdefault(self, *args: Any) -> Any:
        return self._do("setdefault", *args)


@pytest.mark.parametrize("method", ["copy", "pop", "setdefault"])
def test_no_key_is_lost_if_there_is_no_memory_to_put_it_back(driver: Driver, method: str) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        timer._due = due = Failing(method, 3)

        async def fail(keys: list[Any]) -> None:
            if len(fired.calls) == 1:
                raise LookupError("as told")

        fired.before = fail
        now = driver.now()
        with timer._service.gate:
            for key, wait in (("first", 0.0), ("second", 0.0), ("other", 0.2)):
                timer.set(key, now + wait)
        await soon(lambda: {*fired.keys[2:]} == {"first", "second", "other"}, "all are fired")
        assert due.left == 0
        timer.close()

    run(scene())


def test_a_key_that_is_set_while_it_is_dropped_is_fired_or_gone(driver: Driver) -> None:
    class Beside(dict[Any, Any]):
        def pop(self, key: Any, *default: Any) -> Any:
            popped = super().pop(key, *default)
            if key == "key" and not fired.calls and not beside:
                beside.append(True)
                timer.offer("key", driver.now() + 0.1)  # as another thread may
            return popped

    beside: list[bool] = []
    fired = Fired()

    async def scene() -> None:
        timer._due = Beside()
        timer.set("key", driver.now() + 600)
        timer.drop("key")
        assert beside
        await soon(lambda: len(timer) == 0, "nothing is left")
        timer.close()

    timer = Timer(driver, fired, "test")
    run(scene())


def test_a_key_whose_firing_was_cancelled_is_fired_again(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")

        async def hang(keys: list[Any]) -> None:
            if len(fired.calls) == 1:
                await asyncio.sleep(600)

        fired.before = hang
        timer.set("key", driver.now())
        await soon(lambda: fired.keys, "it is fired")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await soon(lambda: fired.keys == ["key", "key"], "once more")
        timer.close()

    if not driver.blocking:  # nobody cancels a thread
        run(scene())


def test_a_key_whose_firing_ended_with_its_event_loop_is_fired_in_the_next(driver: Driver) -> None:
    if driver.blocking:
        return
    timer = Timer(driver, fired := Fired(), "test")

    async def hang(keys: list[Any]) -> None:
        if len(fired.calls) == 1:
            await asyncio.sleep(600)

    async def first() -> None:
        fired.before = hang
        timer.set("key", driver.now())
        await soon(lambda: fired.keys, "it is fired")

    async def second() -> None:
        timer.ensure()
        await soon(lambda: fired.keys == ["key", "key"], "once more")
        timer.close()

    run(first())
    run(second())


def test_what_an_earlier_event_loop_leaves_behind_wakes_the_run_of_the_next(driver: Driver) -> None:
    """Its task is collected, or fails, when another run has taken its place and sleeps."""
    if driver.blocking:
        return
    timer = Timer(driver, fired := Fired(), "test")

    async def hang(keys: list[Any]) -> None:
        if len(fired.calls) == 1:
            await asyncio.sleep(600)

    async def first() -> None:
        fired.before = hang
        timer.set("old", driver.now())
        await soon(lambda: fired.keys, "it is fired")

    async def second() -> None:
        timer.set("long", driver.now() + 600)
        current = timer._service._run
        assert current is not None
        await soon(lambda: timer._next > driver.now() + 100 and not current.nudge.is_set(), "it sleeps")
        for task in left:
            task.get_coro().close()
        await soon(lambda: fired.keys == ["old", "old"], "what was left behind is fired")
        timer.set("short", driver.now() + 0.05)
        await soon(lambda: fired.has("short"), "so is what comes later")
        timer.close()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    left = asyncio.all_tasks(loop)
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    run(second())


_ENDED = """
import threading
from fencepost.driver.threads import Blocking
from fencepost.driver.timer import Timer

fired, again = [], threading.Event()

async def fire(keys):
    fired.append(keys)
    if len(fired) == 1:
        raise SystemExit
    again.set()

driver = Blocking()
timer = Timer(driver, fire, "test")
timer.set("key", driver.now())
assert again.wait(60)
assert fired == [["key"], ["key"]], fired
"""


def test_a_thread_that_somebody_ended_is_started_again(driver: Driver) -> None:
    if driver.blocking:  # it would end the event loop
        with Child.python("-c", _ENDED) as child:
            child.succeed()


def test_who_comes_while_a_thread_is_refused_does_not_rely_on_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has its key set while the first one's thread is about to be refused."""
    if not driver.blocking:
        return
    timer = Timer(driver, fired := Fired(), "test")
    spawn, others = Blocking.spawn, list[Background[None]]()

    def refuse(self: Blocking, job: Any, name: str) -> None:
        monkeypatch.setattr(Blocking, "spawn", spawn)
        others.append(background(lambda: timer.set("second", driver.now())))
        others[0]._thread.join(0.5)  # it has its key set by then, or waits for this one
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Blocking, "spawn", refuse)
    with pytest.raises(RuntimeError):
        timer.set("first", driver.now())
    others[0].result()
    until(lambda: fired.keys == ["second"], "it is fired")
    timer.close()


def test_an_idle_timer_ends_and_starts_again(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test", linger=0.05)
        for number in range(3):
            timer.set(number, driver.now() + 0.01)
            await soon(partial(fired.has, number), "it is due")
            await soon(lambda: not timer._service.running, "it ends")
        timer.close()

    run(scene())


def test_keys_that_come_while_it_ends_are_not_forgotten(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test", linger=0.0)
        for number in range(300):
            timer.set(number, driver.now())
            if number % 3 == 0:
                await asyncio.sleep(0)
        await soon(lambda: len(fired.keys) == 300, "all are due")
        timer.close()

    run(scene())


def test_a_hundred_thousand_keys_that_are_cancelled_soon_leave_nothing(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, Fired(), "test")
        for number in range(100_000):
            timer.set(number, driver.now() + 60)
            timer.cancel(number)
        timer.set("last", driver.now() + 60)
        assert len(timer) == 1
        timer._service.wake()
        await soon(lambda: not timer._new, "it has had its turn")
        assert len(timer._heap) <= 2
        for number in range(10_000):
            timer.extend("last", driver.now() + 60 + number)
            if number % 100 == 0:
                timer._turn(timer._service._run, [])  # type: ignore[arg-type]
        assert len(timer._heap) < 300, "stale entries are dropped"
        timer.close()

    run(scene())


def test_a_service_that_was_cancelled_goes_on(driver: Driver) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test")
        for steps in (0, 1, 2):  # before its first step, too
            timer.set(steps, driver.now() + 0.2)
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await soon(partial(fired.has, steps), "it is fired all the same")
        timer.close()

    if not driver.blocking:  # nobody cancels a thread
        run(scene())


def test_a_key_is_not_set_if_nobody_can_fire_it_and_the_next_one_starts_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test-timer")
        with pytest.raises(RuntimeError):
            timer.set("first", driver.now())
        assert timer.left("first") is None
        assert not fault.left
        timer.set("second", driver.now())
        await soon(lambda: fired.keys == ["second"], "the second is due")
        timer.close()

    if driver.blocking:
        fault = Unstartable(monkeypatch, "test-timer")
        run(scene())


def test_an_offered_key_is_fired_once_a_thread_can_be_started(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        timer = Timer(driver, fired := Fired(), "test-timer")
        assert timer.offer("first", driver.now()) is not driver.blocking
        assert timer.offer("second", driver.now())
        await soon(lambda: sorted(fired.keys) == ["first", "second"], "both are due")
        timer.close()

    Unstartable(monkeypatch, "test-timer")
    run(scene())


async def _awaited(job: Awaitable[T]) -> T:
    return await job


@isolated
def test_a_forked_child_starts_its_own_and_fires_nothing_of_its_parents() -> None:
    driver = Blocking()  # an event loop does not survive a fork
    timer = Timer(driver, fired := Fired(), "test")
    timer.set("parents", driver.now() + 600)

    async def child() -> None:
        assert len(timer) == 0
        timer.set("childs", driver.now())
        timer.post("parents")
        until(lambda: fired.keys == ["childs"], "the child's is due")

    run(_awaited(in_fork(child, PATIENCE)))
    timer.post("parents")
    until(lambda: fired.keys == ["parents"], "the parent's is due")
    timer.close()


def test_a_service_whose_event_loop_was_closed_starts_again(driver: Driver) -> None:
    runs: list[Run] = []

    async def job(this: Run) -> None:
        runs.append(this)
        await this.nudge.wait()

    service = Service(driver, job, "test")

    async def begin(count: int) -> None:
        assert service.ensure()
        assert service.ensure(), "it runs already"
        await soon(lambda: len(runs) == count, "it runs")

    if driver.blocking:
        run(begin(1))
    else:
        for count in (1, 2):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(begin(count))
            left = asyncio.all_tasks(loop)
            loop.close()
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            assert not service.running
    service.close()
    assert not service.ensure()


def test_a_service_that_fails_is_started_again(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    begun = []

    async def job(this: Run) -> None:
        begun.append(this)
        if len(begun) == 1:
            raise LookupError("as told")
        await this.nudge.wait()

    async def scene() -> None:
        service = Service(driver, job, "test")
        assert service.ensure()
        await soon(lambda: begun and not service.running, "it has failed")
        assert service.ensure()
        await soon(lambda: len(begun) == 2, "it runs again")
        assert service.running
        service.close()

    run(scene())
    assert "as told" in caplog.text
