"""Signal handlers are held back in protected code, and run where it waits. Each test is a process of its own."""

import gc
import inspect
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

import fencepost
from fencepost import sync
from fencepost.driver import call, call_or_undo, interrupts
from fencepost.driver.interrupts import interruptible, masked, protected
from fencepost.driver.service import Run, Service
from fencepost.driver.threads import Blocking, Flag
from fencepost.events import Event
from tests.harness.interrupts import Interrupter
from tests.harness.isolated import isolated
from tests.harness.threads import background
from tests.harness.waiting import until


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@isolated
def test_an_interrupt_comes_after_protected_code() -> None:
    steps = []

    def work() -> str:
        press()
        steps.append("went on")
        return "done"

    with pytest.raises(KeyboardInterrupt):
        protected(work, lambda result: steps.append(f"undid {result}"))
    assert steps == ["went on", "undid done"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "everything is as before"
    assert protected(lambda: "again") == "again"


@isolated
def test_a_handler_that_comes_while_handlers_are_replaced_leaves_them_replaced() -> None:
    """It is protected itself, and what it puts back would be missing in the call that it interrupted."""
    steps: list[str] = []

    def handle(*_: object) -> None:
        protected(lambda: steps.append("handled"))

    def lookup(number: int) -> Any:
        if number == signal.SIGINT and not steps:  # the last one
            steps.append("came")
            press(signal.SIGALRM)
        return signal.getsignal(number)

    def work() -> None:
        assert steps == ["came", "handled"]
        press(signal.SIGALRM)
        steps.append("went on")

    signal.signal(signal.SIGALRM, handle)
    module: Any = interrupts
    module._getsignal = lookup
    protected(work)
    assert steps == ["came", "handled", "went on", "handled"]
    assert signal.getsignal(signal.SIGALRM) is handle
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@isolated
def test_a_child_forked_while_handlers_are_replaced_puts_them_back() -> None:
    """By another thread than the one that replaces them: in the child, nobody does."""
    module: Any = interrupts
    module._beginning = True
    child = os.fork()
    if child == 0:
        protected(lambda: None)
        os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)
    assert os.waitpid(child, 0)[1] == 0


@isolated
def test_a_service_that_is_interrupted_while_it_starts_runs_all_the_same() -> None:
    ran = Flag()

    class Pressing(Blocking):
        def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
            press()
            super().spawn(job, name)

    async def job(run: Run) -> None:
        ran.set()
        await run.nudge.wait()

    service = Service(Pressing(), job, "test")
    with pytest.raises(KeyboardInterrupt):
        service.start()
    assert ran.wait(60)
    assert service.running
    service.close()


@isolated
def test_an_interrupt_comes_at_once_where_the_code_waits() -> None:
    def wait() -> None:
        def send() -> None:
            time.sleep(0.05)
            press()

        sender = background(send)
        try:
            interruptible(time.sleep, 60)
        finally:
            sender.result()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        protected(wait)
    assert time.monotonic() - began < 30


@isolated
def test_an_interrupt_that_came_before_the_wait_ends_it() -> None:
    def wait() -> None:
        press()
        interruptible(time.sleep, 60)

    with pytest.raises(KeyboardInterrupt):
        protected(wait)


@isolated
def test_a_masked_wait_is_seen_through() -> None:
    steps = []

    def clean_up() -> None:
        with masked():
            press()
            interruptible(time.sleep, 0.01)
            steps.append("cleaned up")
        interruptible(time.sleep, 60)
        steps.append("unreachable")

    with pytest.raises(KeyboardInterrupt):
        protected(clean_up)
    assert steps == ["cleaned up"]


@isolated
def test_a_programs_own_handlers_are_held_back_too_and_need_not_raise() -> None:
    came: list[tuple[int, str]] = []
    state = "outside"

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, state))

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)

    def work() -> str:
        nonlocal state
        state = "inside"
        press(signal.SIGTERM)
        press(signal.SIGINT)
        assert came == []
        state = "waiting"
        interruptible(time.sleep, 0.001)
        state = "inside"
        press(signal.SIGTERM)
        state = "outside"
        return "done"

    assert protected(work) == "done"
    assert came == [(15, "waiting"), (2, "waiting"), (15, "outside")]
    assert signal.getsignal(signal.SIGTERM) is note


@isolated
def test_a_handler_may_use_protected_code_itself() -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        assert protected(lambda: interruptible(len, "four")) == 4
        raise SystemExit(3)

    signal.signal(signal.SIGTERM, handler)

    def wait() -> None:
        press(signal.SIGTERM)
        interruptible(time.sleep, 60)

    with pytest.raises(SystemExit):
        protected(wait)
    with pytest.raises(KeyboardInterrupt):
        protected(press)


@isolated
def test_an_interrupt_that_comes_while_a_handler_is_in_protected_code_ends_the_wait_around() -> None:
    signal.signal(signal.SIGTERM, lambda *_: protected(press))

    def wait() -> None:
        press(signal.SIGTERM)
        interruptible(time.sleep, 60)

    with pytest.raises(KeyboardInterrupt):
        protected(wait)


@isolated
def test_an_error_of_a_handler_is_not_taken_for_one_of_the_code_it_interrupts() -> None:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("my time is over")

    signal.signal(signal.SIGALRM, late)

    def wait() -> None:
        try:
            press(signal.SIGALRM)
            interruptible(time.sleep, 60)
        except OSError as error:  # as a client's code would
            raise AssertionError("taken for a network's error") from error

    with pytest.raises(TimeoutError, match="my time is over"):
        protected(wait)
    with pytest.raises(TimeoutError, match="my time is over"):
        protected(lambda: press(signal.SIGALRM))


@isolated
def test_a_child_forked_in_protected_code_can_be_interrupted_and_inherits_nothing() -> None:
    def work() -> int:
        press()  # the parent's own, which the child must not raise
        pid = os.fork()
        if pid == 0:
            try:
                interruptible(time.sleep, 0.01)
                press()
                time.sleep(60)
            except KeyboardInterrupt:
                os._exit(7)
            finally:
                os._exit(1)
        code.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return pid

    code: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        protected(work)
    assert code == [7]


@isolated
def test_of_several_signals_none_is_lost() -> None:
    came = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise RuntimeError(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)

    def work() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            press(number)

    with pytest.raises(RuntimeError):
        protected(work)
    with suppress(RuntimeError):
        while len(came) < 2:
            time.sleep(0.01)
    assert sorted(came) == [signal.SIGINT, signal.SIGTERM], "each once, as Python does"


@isolated
def test_an_interpreter_that_may_not_set_handlers_goes_without() -> None:
    def refuse(number: int, handler: object) -> None:
        raise ValueError("signal only works in main thread of the main interpreter")

    vars(interrupts)["_setsignal"] = refuse
    assert protected(lambda: "done") == "done"
    assert protected(lambda: interruptible(len, "four")) == 4


@isolated
def test_other_threads_are_left_alone() -> None:
    def elsewhere() -> object:
        return protected(lambda: signal.getsignal(signal.SIGINT))

    assert background(elsewhere).result() is signal.default_int_handler


@isolated
def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    protected(press)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@isolated
def test_a_child_forked_by_another_thread_can_be_interrupted() -> None:
    inside, forked = threading.Event(), threading.Event()

    def fork() -> int:
        assert inside.wait(60)
        pid = os.fork()
        if pid == 0:
            try:
                signal.default_int_handler  # noqa: B018
                try:
                    press()
                    time.sleep(60)
                except KeyboardInterrupt:
                    os._exit(7)
            finally:
                os._exit(1)
        forked.set()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    forker = background(fork)

    def work() -> None:
        inside.set()
        assert forked.wait(60)

    protected(work)
    assert forker.result() == 7


@pytest.mark.slow
@isolated
def test_a_thread_that_is_interrupted_while_it_starts_does_its_job() -> None:
    """The interrupt comes when the thread runs already: the job is the thread's, and must not be closed."""
    came: Counter[str] = Counter()
    driver = Blocking()
    for at in range(10_000):
        done = threading.Event()

        async def job(done: threading.Event = done) -> None:
            done.set()

        coroutine = job()
        interrupter = Interrupter(at)
        try:
            interrupter.run(lambda coroutine=coroutine: driver.spawn(coroutine, "job"))  # type: ignore[misc]
            came["started"] += 1
        except KeyboardInterrupt:
            came["interrupted"] += 1
        until(lambda: not any(thread.name == "job" for thread in threading.enumerate()), "the thread is done")
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            came["never started"] += 1  # interrupted before the thread was: its job is dropped with it
            coroutine.close()
        else:
            assert done.is_set()
        if not interrupter.sent:
            break
    assert came["interrupted"] > came["never started"], came


@isolated
def test_a_flag_survives_an_interrupt_at_every_place_of_its_wait() -> None:
    for at in range(10_000):
        flag = Flag()
        interrupter = Interrupter(at)
        try:
            interrupter.run(lambda flag=flag: flag.wait(0.001))  # type: ignore[misc]
        except KeyboardInterrupt:
            pass
        waiter = background(lambda flag=flag: flag.wait(60))  # type: ignore[misc]
        flag.set()
        assert waiter.result() is True
        if not interrupter.sent:
            break
    assert at > 3, "there was something to interrupt"


def test_a_flag_wakes_all_who_wait_and_can_be_cleared() -> None:
    flag = Flag()
    waiters = [background(lambda: flag.wait(60)) for _ in range(5)]
    assert flag.wait(0) is False
    assert flag.wait(0.001) is False
    flag.set()
    assert all(waiter.result() for waiter in waiters)
    assert flag.is_set()
    assert flag.wait(0)
    flag.clear()
    assert not flag.is_set()
    assert flag.wait(0.001) is False
    assert not flag._waiters


class Racing(deque[threading.Lock]):
    """The waiters of a flag that is set just before each of them can be seen."""

    def __init__(self, flag: Flag) -> None:
        super().__init__()
        self.flag = flag

    def append(self, waiter: threading.Lock) -> None:
        self.flag.set()
        super().append(waiter)


def test_a_flag_that_is_set_just_before_its_waiter_can_be_seen_wakes_it() -> None:
    flag = Flag()
    flag._waiters = Racing(flag)
    assert background(lambda: flag.wait(0.1)).result()
    flag.clear()
    assert flag.wait(0.1), "on the main thread too"
    assert not flag._waiters


@isolated
def test_a_coroutine_that_is_interrupted_on_its_way_back_is_undone() -> None:
    undone: list[Any] = []

    async def work() -> str:
        press()
        return "done"

    async def undo(result: str) -> None:
        undone.append(result)

    with pytest.raises(KeyboardInterrupt):
        call_or_undo(undo, work)
    assert undone == ["done"]
    with pytest.raises(KeyboardInterrupt):
        call(work)
    assert interrupts._depth == 0


@pytest.mark.parametrize("left", ["break", "raise", "close", "collect"])
@isolated
def test_an_interrupt_while_a_loop_over_an_election_is_left_is_not_lost(left: str) -> None:
    """Python drops what is raised in a generator that it collects, which is what most loops end with."""
    signal.signal(signal.SIGTERM, end)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        sent: list[signal.Signals] = []

        def interrupt(event: Event) -> None:
            if event.kind == "released" and not sent:  # noqa: B023
                sent.append(number)  # noqa: B023
                press(sent[0])  # noqa: B023

        with fencepost.connect("memory://", hooks=[interrupt]) as locks:
            with pytest.raises(error) as raised:
                leave(locks, left)
            assert sent == [number]
            assert getattr(raised.value, "code", 3) == 3
            assert locks.status("scheduler") is None, "it has resigned"
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def end(*_: object) -> None:
    raise SystemExit(3)


def leave(locks: sync.Locks, how: str) -> None:
    """Leave a loop in one of the ways there are, and go on with something else."""
    if how == "collect":
        terms: list[Any] = [iter(locks.election("scheduler"))]
        terms.append(terms)
        next(terms[0])
        del terms
        gc.collect()
    elif how == "close":
        loop = iter(locks.election("scheduler"))
        next(loop)
        loop.close()
    elif how == "raise":
        with suppress(ValueError):
            for _ in locks.election("scheduler"):
                raise ValueError
    else:
        for _ in locks.election("scheduler"):
            break
    for _ in range(1000):
        pass
