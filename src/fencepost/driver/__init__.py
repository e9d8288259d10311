"""What truly differs between blocking and asyncio code; everything else is written once.

The core and the backends are ``async def``. ``run`` drives such a coroutine in blocking code: under the driver of
`threads` nothing in it ever suspends, so a single ``send(None)`` finishes it. The driver of `tasks` is for asyncio.
`scope` lets other threads and tasks end a wait; `interrupts` holds Ctrl-C back where it would leave work half done.
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
    """Seconds since the host booted; jumps of the wall clock do not change it.

    The clock must count the time that the host is suspended: a lease must not survive a closed lid. CLOCK_MONOTONIC
    does so on macOS but not on Linux; ``time.monotonic`` does so on Windows but not on macOS. A Linux time namespace
    shifts the clock. Processes in different namespaces may share the embedded store, so the shift is subtracted.
    """
    if not hasattr(time, "clock_gettime"):
        return time.monotonic
    clock = functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    offset = _clock_offset()
    return (lambda: clock() - offset) if offset else clock


def _clock_offset() -> float:
    try:
        if os.readlink("/proc/self/ns/time") != os.readlink("/proc/self/ns/time_for_children"):
            return 0.0  # the file describes the namespace of children yet to come; this process is in its parent's
        with open("/proc/self/timens_offsets", encoding="utf-8") as offsets:
            found = {clock: int(seconds) + int(rest) / 1e9 for clock, seconds, rest in map(str.split, offsets)}
    except (OSError, ValueError):
        return 0.0
    return found.get("boottime", 0.0)


boottime: Callable[[], float] = _boot_clock()

NAP = 2.0
"""The default ``nap``, in seconds: after a suspend, a holder may learn so late that it lost its lease."""


class Signal(Protocol):
    """A flag that can be waited for. ``set`` may be called from any thread."""

    def set(self) -> None:
        """Set it, and wake those who wait."""

    def clear(self) -> None:
        """Take it back."""

    def is_set(self) -> bool:
        """Whether it is set."""

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or so many seconds have passed; return whether it is set."""


class Driver(Protocol):
    """What differs between blocking, asyncio and simulated time."""

    @property
    def blocking(self) -> bool:
        """Whether a call blocks its thread until it is done; otherwise it suspends, and others run."""

    @property
    def nap(self) -> float:
        """The longest single wait for a deadline, in seconds: waits do not count time while the host is suspended."""

    def now(self) -> float:
        """Seconds on the clock that deadlines are counted on."""

    def signal(self) -> Signal:
        """A new signal, to be waited for by code of this kind."""

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Run a job in the background: on a thread, or as a task."""

    def later(self, call: Callable[[], None]) -> None:
        """Make a call soon, even though the caller was cancelled; never, if its event loop ends before."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""

    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Make a call that blocks; return its result."""

    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        """Run a clean-up that the caller's cancellation cannot reach; wait for it for ``grace`` seconds at most."""

    async def within(self, seconds: float, request: Coroutine[Any, Any, T]) -> T:
        """Await a request; the driver of asyncio code raises TimeoutError after so many seconds.

        Blocking code cannot be stopped from outside: there, a backend asks ``scope.patience`` how long to wait.
        """

    def close(self) -> None:
        """End what runs in the background."""


def abandoned(signal: Signal) -> bool:
    """Whether nobody can wait for a signal any more, because its event loop is closed."""
    return bool(getattr(signal, "abandoned", False))


def inert(signal: Signal) -> bool:
    """Whether the task that waits for a signal cannot act now, so that the caller has to: its event loop is closed, or
    is stopped while the caller's loop runs. The loop may run again, so take nothing away from the task."""
    return bool(getattr(signal, "inert", False))


def stood_still(signal: Signal, seconds: float) -> bool:
    """Whether the event loop of a signal is closed, or has not run for so many seconds since the first such call."""
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
    """As ``call``; if Ctrl-C comes after the work has returned something other than None, call ``undo`` with that."""
    return protected(lambda: run(work(*args, **options)), lambda done: call(undo, done))


async def wait_until(driver: Driver, signal: Signal, instant: float) -> bool:
    """Wait for a signal, until ``instant`` by the driver's clock; return whether it was set."""
    while (left := instant - driver.now()) > 0:
        if await signal.wait(min(left, driver.nap)):
            return True
    return signal.is_set()


_PLAIN = frozenset({list, tuple, dict, bytes, str, int, float, bool, type(None)})
"""The types of most answers. None of them is awaitable; asking ``inspect`` each time would be slow."""


async def settle(value: T | Awaitable[T]) -> T:
    """Await what is awaitable: for clients whose blocking and asyncio faces share their names."""
    if value.__class__ not in _PLAIN and inspect.isawaitable(value):
        return await value
    return value  # type: ignore[return-value]  # it is no Awaitable
