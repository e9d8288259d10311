"""One implementation, two drivers."""

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest

from fencepost import driver
from fencepost.driver import stood_still, tasks
from fencepost.driver.backoff import Backoff
from fencepost.driver.scope import Closed, Scope, deadline
from fencepost.driver.service import Run, Service
from fencepost.driver.tasks import Asyncio, TaskSignal
from fencepost.driver.threads import Blocking, ThreadSignal
from tests.harness.child import Child
from tests.harness.isolated import in_fork, isolated
from tests.harness.waiting import PATIENCE, run, until, until_async


async def never_suspends(value: int) -> int:
    return value + await inner()


async def inner() -> int:
    return 1


async def suspends() -> None:
    await asyncio.sleep(0)


def test_run_finishes_what_never_suspends() -> None:
    assert driver.run(never_suspends(1)) == 2


def test_run_passes_errors_on() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver.run(broken())


def test_run_refuses_what_suspends_and_lets_it_clean_up() -> None:
    cleaned = []

    async def careful() -> None:
        try:
            await suspends()
        finally:
            cleaned.append(True)

    with pytest.raises(RuntimeError, match="suspended in blocking code"):
        driver.run(careful())
    assert cleaned == [True]


def test_settle_awaits_what_is_awaitable() -> None:
    async def both() -> tuple[int, int]:
        given: int | Awaitable[int] = inner()
        return await driver.settle(given), await driver.settle(7)

    assert driver.run(both()) == (1, 7)


def test_a_thread_signal_is_set_waited_for_and_cleared() -> None:
    signal = ThreadSignal()
    assert driver.run(signal.wait(0.001)) is False
    threading.Thread(target=signal.set).start()
    assert driver.run(signal.wait(10)) is True
    signal.clear()
    assert not signal.is_set()
    assert driver.run(signal.wait(-1)) is False
    signal.set()
    assert driver.run(signal.wait(1e300)) is True, "more than threading takes"


async def test_another_thread_wakes_a_task_that_waits() -> None:
    signal = TaskSignal()
    waiters = [asyncio.create_task(signal.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    threading.Thread(target=signal.set).start()
    async with asyncio.timeout(PATIENCE):  # a set that does not wake the loop would be found only now
        assert await asyncio.gather(*waiters) == [True] * 3
    signal.clear()
    assert await signal.wait(0.001) is False
    assert await signal.wait(0) is False


def test_a_task_signal_set_before_the_loop_is_seen_in_it() -> None:
    signal = TaskSignal()
    signal.set()
    assert asyncio.run(signal.wait(10)) is True


def test_a_task_signal_can_be_set_after_its_loop_is_gone() -> None:
    signal = TaskSignal()
    asyncio.run(signal.wait(0.001))
    signal.set()
    assert signal.is_set()


def test_a_loop_that_runs_now_and_then_does_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(tasks, "boottime", lambda: now)
    loop = asyncio.new_event_loop()

    async def make() -> TaskSignal:
        made = TaskSignal()
        assert not made.inert
        assert not stood_still(made, 0.0), "it runs"
        return made

    async def ask(signal: TaskSignal) -> bool:
        return signal.inert

    async def ask_elsewhere() -> bool:
        return signal.inert

    signal = loop.run_until_complete(make())
    assert not stood_still(signal, 10.0), "nobody has asked before"
    for _ in range(3):
        now += 9.0
        assert not stood_still(signal, 10.0)
        assert not loop.run_until_complete(ask(signal))
        now += 9.0
        assert not stood_still(signal, 10.0)
    now += 10.0
    assert stood_still(signal, 10.0)
    assert not signal.inert, "nobody else could act here"
    assert run(ask_elsewhere())
    loop.close()
    assert stood_still(signal, 10.0)
    assert signal.inert


def test_a_service_whose_event_loop_was_stopped_goes_on_in_the_next_one_that_runs() -> None:
    runs: list[tuple[Run, asyncio.AbstractEventLoop]] = []
    over: list[Run] = []

    async def job(this: Run) -> None:
        runs.append((this, asyncio.get_running_loop()))
        while this.current:
            await this.nudge.wait()
            this.nudge.clear()
        over.append(this)

    service = Service(Asyncio(), job, "test")
    loops = [asyncio.new_event_loop() for _ in range(2)]

    async def begin(count: int) -> None:
        assert service.ensure()
        await until_async(lambda: len(runs) == count, "it runs")
        assert service.ensure(), "it runs already"
        await asyncio.sleep(0)
        assert len(runs) == count

    for count, loop in enumerate((loops[0], loops[0], loops[1], loops[0]), 1):
        loop.run_until_complete(begin(max(1, count - 1)))
    assert [loop for _, loop in runs] == [loops[0], loops[1], loops[0]]
    (first, _), (second, _), (last, _) = runs
    assert last.current
    for loop, ended in zip(loops, ([first], [first, second]), strict=True):
        loop.run_until_complete(until_async(partial(over.__eq__, ended), "it sees that another has its place"))
    service.close()
    loops[0].run_until_complete(until_async(lambda: over == [first, second, last], "it ends"))
    for loop in loops:
        loop.close()


@pytest.mark.parametrize("end", [Service.close, Service.wake])
def test_a_service_ends_a_wait_that_is_not_for_its_nudge(end: Callable[[Service], None]) -> None:
    here, there = socket.socketpair()
    runs: list[Run] = []
    read: list[bytes] = []

    async def job(this: Run) -> None:
        this.interrupt = partial(there.shutdown, socket.SHUT_RDWR)
        runs.append(this)
        read.append(here.recv(1))

    service = Service(Blocking(), job, "test")
    with here, there:
        here.settimeout(PATIENCE)
        service.start()
        until(lambda: runs, "it runs")
        end(service)
        until(lambda: read == [b""], "its read has ended")
    assert runs[0].nudge.is_set()


async def test_waiting_for_a_signal_does_not_eat_a_cancellation() -> None:
    signal = TaskSignal()
    waiter = asyncio.create_task(signal.wait(30))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


def test_offloaded_calls_run_one_after_another_in_their_order() -> None:
    async def main() -> list[int]:
        driver = Asyncio()
        done: list[int] = []

        def call(number: int) -> None:
            time.sleep(0.002 if number % 2 else 0)
            done.append(number)

        jobs = [asyncio.create_task(driver.offload(call, number)) for number in range(10)]
        await asyncio.gather(*jobs)
        driver.close()
        return done

    assert asyncio.run(main()) == list(range(10))


@isolated
async def test_offloading_works_in_a_forked_child() -> None:
    driver = Asyncio()
    await driver.offload(int)
    assert await in_fork(lambda: driver.offload(lambda: 7), PATIENCE) == 7
    driver.close()


async def test_a_clean_up_apart_outlives_its_callers_cancellation() -> None:
    driver = Asyncio()
    go, done = asyncio.Event(), asyncio.Event()

    async def clean_up() -> None:
        await go.wait()
        done.set()

    caller = asyncio.create_task(driver.apart(clean_up(), 30))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    go.set()
    async with asyncio.timeout(PATIENCE):
        await done.wait()


async def test_a_clean_up_apart_is_not_waited_for_beyond_its_grace() -> None:
    driver = Asyncio()
    stuck = asyncio.Event()

    async def clean_up() -> None:
        await stuck.wait()

    async with asyncio.timeout(PATIENCE):
        await driver.apart(clean_up(), 0.01)


ENDS = """
import threading
from fencepost.driver import run
from fencepost.driver.threads import Blocking

gone = threading.Event()

async def clean_up():
    gone.wait(60)
    print("cleaned up", flush=True)

run(Blocking().apart(clean_up(), 0.01))
print("gone on", flush=True)
gone.set()
"""


def test_a_program_that_ends_waits_for_a_clean_up_apart() -> None:
    with Child.python("-c", ENDS) as program:
        assert program.succeed() == ["gone on", "cleaned up"]


def test_the_blocking_driver_spawns_daemon_threads() -> None:
    seen: list[threading.Thread] = []
    done = threading.Event()

    async def job() -> None:
        seen.append(threading.current_thread())
        done.set()

    Blocking().spawn(job(), "a-name")
    assert done.wait(10)
    assert (seen[0].name, seen[0].daemon) == ("a-name", True)


def test_a_wait_may_be_dropped_in_another_context_than_it_began_in() -> None:
    async def wait() -> None:
        with Scope().inside():
            await suspends()

    job = wait()
    copy_context().run(job.send, None)
    job.close()  # as the garbage collector does, wherever it happens to run


async def test_what_a_wait_has_started_outlives_the_end_of_that_wait() -> None:
    driver, scope = Asyncio(), Scope()
    go = driver.signal()
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def service() -> None:
        try:
            await go.wait()
            ended.set_result("when it was done")
        except Closed:
            ended.set_result("with the wait that started it")

    with scope.inside():
        scope.join()
        driver.spawn(service(), "service")
        await asyncio.sleep(0)  # it waits now
    await scope.end(driver, 0)
    go.set()
    async with asyncio.timeout(PATIENCE):
        assert await ended == "when it was done"


async def test_background_work_started_in_a_request_does_not_end_with_its_deadline() -> None:
    tasks = Asyncio()
    seen: list[float | None] = []

    async def work() -> None:
        seen.append(deadline.get())

    async def request() -> None:
        assert deadline.get() is not None
        tasks.spawn(work(), "work")
        await asyncio.sleep(0)

    await tasks.within(PATIENCE, request())
    assert seen == [None]


def test_pauses_grow_up_to_the_longest_and_begin_again() -> None:
    pauses = Backoff(0.1, 0.5)
    assert [pauses.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    pauses.reset()
    assert pauses.pause == pauses.next() == 0.1
    drawn = [Backoff(1.0, 1.0, jitter=True).next() for _ in range(200)]
    assert 0.5 <= min(drawn) < 0.7
    assert 1.3 < max(drawn) <= 1.5


@pytest.mark.parametrize(("stalls", "runs"), [(False, 2), (True, 3)], ids=["prompt", "stalls"])
def test_the_end_of_an_event_loop_ends_background_work_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stalls: bool, runs: int
) -> None:
    """asyncio.run cancels all tasks, then shuts down generators, then waits for threads, and only then closes.

    Work that was cancelled begins again after _SOON. As a rule that is while the loop waits for its threads, which is
    too late. On a machine that stalls it is before the generators are shut down: then the work ends once more.
    """
    asked = 0

    async def job(run: Run) -> None:
        nonlocal asked
        asked += 1
        while run.current:
            await run.nudge.wait()

    ours = Asyncio()
    early, late = Service(ours, job, "early"), Service(ours, job, "late")

    async def main() -> None:
        loop, again = asyncio.get_running_loop(), list[Callable[[], object]]()
        call_later = loop.call_later

        def soon(delay: float, call: Callable[..., object], *args: Any) -> asyncio.Handle:
            if delay != tasks._SOON:
                return call_later(delay, call, *args)
            again.append(call)
            return loop.call_soon(call if stalls else int)

        def thread() -> None:
            until(lambda: len(again) == runs, "the generators are shut down, and everything was cancelled")
            made = threading.Event()
            for each in (*again, made.set):
                loop.call_soon_threadsafe(each)
            assert made.wait(PATIENCE)

        monkeypatch.setattr(loop, "call_later", soon)
        early.start()
        loop.run_in_executor(None, thread)
        waiting = asyncio.create_task(asyncio.sleep(PATIENCE))
        waiting.add_done_callback(lambda _: late.start())  # as what cleans up, while all tasks are cancelled, may do
        await asyncio.sleep(0)

    for _ in range(2):  # in the next loop there is work again
        asyncio.run(main())
        gc.collect()
    assert asked == 2 * runs
    assert not early.running
    assert not late.running
    assert not caplog.records


async def test_an_error_that_several_waited_for_is_not_kept_by_its_own_frames() -> None:
    class Broken(Exception):
        pass

    async def fail() -> None:
        raise Broken

    async def wait() -> "weakref.ref[Broken]":
        try:
            await tasks.joined(started[0])
        except Broken as error:
            return weakref.ref(error)
        raise AssertionError("it fails")

    started = [tasks.shared(fail(), "fails")]
    gc.disable()
    try:
        found = [await wait() for _ in range(2)]
        started.clear()
        await asyncio.sleep(0)
        assert [each() for each in found] == [None, None]
    finally:
        gc.enable()
