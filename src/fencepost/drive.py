"""One implementation, two drivers: what truly differs between blocking and asyncio code.

The core and the backends are ``async def``, written once. ``run`` drives such a coroutine in blocking
code: under the Blocking driver nothing in it ever suspends, so a single ``send(None)`` finishes it.
"""

import asyncio
import functools
import inspect
import math
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Final, ParamSpec, Protocol, TypeVar, TypeVarTuple

from fencepost.interrupts import interruptible, masked, on_main_thread, protected

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Seconds since boot, which wall-clock jumps do not move. It counts suspend, as CLOCK_MONOTONIC does not on
# Linux: a lease must not survive a closed lid.
boottime: Callable[[], float] = functools.partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)


class Signal(Protocol):
    """A flag that can be waited for. ``set`` may be called from any thread."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self, timeout: float | None = None) -> bool: ...


class Driver(Protocol):
    """What differs between blocking, asyncio and simulated time."""

    @property
    def blocking(self) -> bool:
        """Whether a call blocks its thread until it is done; otherwise it suspends, and others run."""

    def now(self) -> float: ...
    def signal(self) -> Signal: ...
    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None: ...
    async def sleep(self, seconds: float) -> None: ...
    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T: ...
    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        """Run a clean-up that the caller's cancellation cannot reach; stay for ``grace`` seconds at most."""

    def close(self) -> None: ...


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


async def settle(value: T | Awaitable[T]) -> T:
    """Await what is awaitable: for clients whose blocking and asyncio faces share their names."""
    if inspect.isawaitable(value):
        return await value
    return value


class Ended(BaseException):
    """Raised where a wait stands that was ended from elsewhere; like a cancellation, it is nobody's to catch."""


class Waits:
    """The waits of those who are ``inside``, in any thread or task: all of them can be ended at once, for good."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._wakes: dict[object, Callable[[], None]] = {}
        self._inside = 0
        self._left: Signal | None = None
        self.over = False

    def enter(self) -> None:
        """One comes who may wait, and leaves once it has cleaned up behind itself."""
        with self._gate:
            self._inside += 1

    def leave(self) -> None:
        with self._gate:
            self._inside -= 1
            if self._left is not None and not self._inside:
                self._left.set()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Wait in here; Ended once it is over."""
        before = _waits.set(self)
        try:
            self.check()
            yield
            self.check()
        finally:
            try:
                _waits.reset(before)
            except ValueError:
                pass  # a coroutine that nobody finished was collected, in the context of somebody else

    def check(self) -> None:
        if self.over:
            raise Ended

    @contextmanager
    def woken(self, wake: Callable[[], None]) -> Iterator[None]:
        """What waits in here is woken by ``wake`` when it is over, and then finds Ended raised."""
        mark = object()
        with self._gate:
            self.check()
            self._wakes[mark] = wake
        try:
            yield
        finally:
            del self._wakes[mark]
        self.check()

    async def end(self, driver: "Driver", patience: float) -> None:
        """End all waits; return once everybody has left, or ``patience`` seconds have passed."""
        with self._gate:
            self.over = True
            if not self._inside:
                return
            self._left = left = driver.signal()
            wakes = list(self._wakes.values())
        for wake in wakes:
            wake()
        await left.wait(patience)


_waits: ContextVar[Waits | None] = ContextVar("fencepost_waits", default=None)


@contextmanager
def woken(wake: Callable[[], None]) -> Iterator[None]:
    """Wait in here for something other than a signal: ``wake`` must end it, should the waits around be ended."""
    waits = _waits.get()
    if waits is None:
        yield
    else:
        with waits.woken(wake):
            yield


class Flag:
    """A threading.Event that an interrupt cannot break.

    An Event waits under a lock of its own; a KeyboardInterrupt at the wrong bytecode leaves that lock taken, and
    the thread that sets the event hangs. Here each waiter has a lock, and only taking it can be interrupted.
    """

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: deque[threading.Lock] = deque()

    def set(self) -> None:
        self._set = True
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:
                return  # another thread sets it too
            waiter.release()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it was set within ``timeout`` seconds."""
        if self._set:
            return True
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        # threading refuses waits beyond its own limit of some centuries.
        limit = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        try:
            if self._set:  # asked again: it may have been set before this waiter could be seen
                return True
            if not on_main_thread():
                return interruptible(waiter.acquire, True, limit)
            # In steps: Python misses a signal that comes just before it begins to wait, and would sleep on.
            end = math.inf if timeout is None else time.monotonic() + limit
            while not interruptible(waiter.acquire, True, max(0.0, min(end - time.monotonic(), 1.0))):
                if time.monotonic() >= end:
                    return False
            return True
        finally:
            try:
                self._waiters.remove(waiter)
            except ValueError:
                pass  # it was set


class ThreadSignal:
    """A Signal for blocking code."""

    __slots__ = ("_flag", "clear", "is_set", "set")

    def __init__(self) -> None:
        self._flag = flag = Flag()
        self.set = flag.set
        self.clear = flag.clear
        self.is_set = flag.is_set

    async def wait(self, timeout: float | None = None) -> bool:
        waits = _waits.get()
        if waits is None:
            return self._flag.wait(timeout)
        with waits.woken(self.set):
            return self._flag.wait(timeout)


class TaskSignal:
    """A Signal for asyncio code, which other threads may set as well."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        # Known from the start if it can be, or a thread could set this just as somebody begins to wait.
        self._loop: asyncio.AbstractEventLoop | None = asyncio._get_running_loop()

    def set(self) -> None:
        loop = self._loop
        if loop is None or loop is asyncio._get_running_loop():
            self._event.set()
            return
        try:
            loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            self._event.set()  # the loop is closed: nobody waits any more

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        self._loop = asyncio.get_running_loop()
        if self._event.is_set():
            return True
        waits = _waits.get()
        if waits is not None:
            with waits.woken(self.set):
                return await self._wait(timeout)
        return await self._wait(timeout)

    async def _wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return await self._event.wait()
        if timeout <= 0:
            return False
        try:
            async with asyncio.timeout(timeout):
                return await self._event.wait()
        except TimeoutError:
            return self._event.is_set()


class Blocking:
    """Drives blocking code: calls are made at once, background work is a daemon thread."""

    blocking: Final = True

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self.now = clock

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        thread = threading.Thread(target=run, args=(job,), name=name, daemon=True)
        try:
            protected(thread.start)
        except (RuntimeError, MemoryError):  # no thread could be started
            job.close()
            raise
        # An interrupt is raised when the thread runs already, and the job is the thread's.

    async def sleep(self, seconds: float) -> None:
        if _waits.get() is not None:
            await ThreadSignal().wait(seconds)
        else:
            interruptible(time.sleep, seconds)

    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        return call(*args)

    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        with masked():
            await job

    def close(self) -> None:
        pass


class Asyncio:
    """Drives asyncio code: blocking calls go to one thread of its own, in the order they were made."""

    blocking: Final = False

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self.now = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: ThreadPoolExecutor | None = None
        self._process = 0

    def signal(self) -> TaskSignal:
        return TaskSignal()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        self._task(job, name)

    def _task(self, job: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        context = None
        if _waits.get() is not None:
            # It works for everybody: the end of the wait that it was started in is not its own.
            context = copy_context()
            context.run(_waits.set, None)
        task = asyncio.get_running_loop().create_task(job, name=name, context=context)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    async def sleep(self, seconds: float) -> None:
        if _waits.get() is not None:
            await TaskSignal().wait(seconds)
        else:
            await asyncio.sleep(seconds)

    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        if self._thread is None or self._process != os.getpid():  # a forked child has none of the parent's threads
            self._thread = ThreadPoolExecutor(1, "fencepost-offload")
            self._process = os.getpid()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        await asyncio.wait([self._task(job, "fencepost-cleanup")], timeout=grace)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
