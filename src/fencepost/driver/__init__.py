"""What truly differs between blocking and asyncio code; everything else is written once.

The core and the backends are ``async def``. ``run`` drives such a coroutine in blocking code: under the driver of
`threads` nothing in it ever suspends, so a single ``send(None)`` finishes it. The driver of `tasks` is for asyncio.
`scope` ends waits from elsewhere; `interrupts` keeps Ctrl-C away from where it would leave something half done.
"""

import functools
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, TypeVarTuple

from fencepost.driver.interrupts import protected

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def _boot_clock() -> Callable[[], float]:
    """Seconds since the host booted, which wall-clock jumps do not move.

    It counts suspend, as CLOCK_MONOTONIC does not on Linux: a lease must not survive a closed lid. (That of macOS does,
    while ``time.monotonic`` does not there; on Windows it is the other way round.) In a time namespace the clock is set
    off: processes in several of them share the embedded store, so take that away.
    """
    if not hasattr(time, "clock_gettime"):
        return time.monotonic
    clock = functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    offset = _clock_offset()
    return (lambda: clock() - offset) if offset else clock


def _clock_offset() -> float:
    try:
        if os.readlink("/proc/self/ns/time") != os.readlink("/proc/self/ns/time_for_children"):
            return 0.0  # the file tells of the children's, and this process came from a namespace of its parent's
        with open("/proc/self/timens_offsets", encoding="utf-8") as offsets:
            found = {clock: int(seconds) + int(rest) / 1e9 for clock, seconds, rest in map(str.split, offsets)}
    except (OSError, ValueError):
        return 0.0
    return found.get("boottime", 0.0)


boottime: Callable[[], float] = _boot_clock()

NAP = 2.0
"""The ``nap`` of real time: so late may the news of a loss be after a suspend."""


class Signal(Protocol):
    """A flag that can be waited for. ``set`` may be called from any thread."""

    def set(self) -> None:
        """Set it, and wake those who wait."""

    def clear(self) -> None:
        """Take it back."""

    def is_set(self) -> bool:
        """Whether it is set."""

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or so many seconds have passed; whether it is."""


class Driver(Protocol):
    """What differs between blocking, asyncio and simulated time."""

    @property
    def blocking(self) -> bool:
        """Whether a call blocks its thread until it is done; otherwise it suspends, and others run."""

    @property
    def nap(self) -> float:
        """The longest wait for a deadline in one piece: waits do not count the time that the machine is suspended."""

    def now(self) -> float:
        """Seconds on the clock that deadlines are counted on."""

    def signal(self) -> Signal:
        """A signal to wait for, of this kind."""

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Run a job in the background: on a thread, or as a task."""

    def later(self, call: Callable[[], None]) -> None:
        """Make a call soon, although what runs now was cancelled; never, if its event loop ends."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""

    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Make a call that blocks; what it returns."""

    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        """Run a clean-up that the caller's cancellation cannot reach; stay for ``grace`` seconds at most."""

    async def within(self, seconds: float, request: Coroutine[Any, Any, T]) -> T:
        """What a request returns; TimeoutError after so many seconds.

        Blocking code cannot be stopped from outside: there, a backend asks ``scope.patience`` how long to wait.
        """

    def close(self) -> None:
        """End what runs in the background."""


def abandoned(signal: Signal) -> bool:
    """Whether nobody can wait for a signal any more, because its event loop is closed."""
    return bool(getattr(signal, "abandoned", False))


def inert(signal: Signal) -> bool:
    """Whether who waits for a signal cannot act at this moment, and the caller has to: its event loop is closed, or it
    does not run while the caller's does. It may run again: nothing may be taken from it."""
    return bool(getattr(signal, "inert", False))


def stood_still(signal: Signal, seconds: float) -> bool:
    """Whether the event loop of a signal is closed, or has not run for so long since this was first asked."""
    asked: Callable[[float], bool] | None = getattr(signal, "stood_still", None)
    return asked is not None and asked(seconds)


def run(job: Coroutine[Any, Any, T]) -> T:
    """Finish a coroutine that never suspends; RuntimeError if it does, for that is a bug."""
    try:
        job.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic
    job.close()
    raise RuntimeError(f"{job!r} suspended in blocking code")


def call(work: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **options: P.kwargs) -> T:
    """Finish a coroutine function as ``run`` does; Ctrl-C interrupts it where it waits, or else comes after it."""
    return protected(lambda: run(work(*args, **options)))


def call_or_undo(
    undo: Callable[[Any], Coroutine[Any, Any, object]],
    work: Callable[P, Coroutine[Any, Any, T]],
    /,
    *args: P.args,
    **options: P.kwargs,
) -> T:
    """The same; if Ctrl-C comes after it, ``undo`` takes back what it returned, unless that was None."""
    return protected(lambda: run(work(*args, **options)), lambda done: call(undo, done))


async def wait_until(driver: Driver, signal: Signal, instant: float) -> bool:
    """Wait for a signal, until ``instant`` by the driver's clock; say whether it was set."""
    while (left := instant - driver.now()) > 0:
        if await signal.wait(min(left, driver.nap)):
            return True
    return signal.is_set()


async def settle(value: T | Awaitable[T]) -> T:
    """Await what is awaitable: for clients whose blocking and asyncio faces share their names."""
    if inspect.isawaitable(value):
        return await value
    return value
