"""The driver of blocking code: calls are made at once, background work is a daemon thread."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, TypeVarTuple

from fencepost.driver import NAP, boottime, run
from fencepost.driver.interrupts import interruptible, masked, on_main_thread, protected
from fencepost.driver.scope import current, deadline

_SOON = 0.1

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
            if self._set:  # check again: it may have been set before this waiter was in the queue
                return True
            if not on_main_thread():
                return interruptible(waiter.acquire, True, limit)
            # In steps: a signal that comes just before Python begins to wait does not end that wait.
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
        waits = current.get()
        if waits is None:
            return self._flag.wait(timeout)
        with waits.woken(self.set):
            return self._flag.wait(timeout)


class Blocking:
    """Drives blocking code: calls are made at once, background work is a daemon thread."""

    blocking: Final = True

    def __init__(self, clock: Callable[[], float] = boottime, nap: float = NAP) -> None:
        self.now = clock
        self.nap = nap

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        thread = threading.Thread(target=run, args=(job,), name=name, daemon=True)
        try:
            protected(thread.start)
        except (RuntimeError, MemoryError):  # no thread could be started
            job.close()
            raise
        # An interrupt is raised only here, when the thread runs and owns the job.

    def later(self, call: Callable[[], None]) -> None:
        time.sleep(_SOON)  # a hook may have ended this thread with sys.exit(), and may do so each time: do not spin
        call()

    async def sleep(self, seconds: float) -> None:
        if current.get() is not None:
            await ThreadSignal().wait(seconds)
        else:
            interruptible(time.sleep, seconds)

    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        return call(*args)

    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        done = Flag()

        def clean_up() -> None:
            try:
                run(job)
            finally:
                done.set()

        # No daemon: a program that ends meanwhile waits for it, or else its lock would stay taken for the ttl.
        thread = threading.Thread(target=clean_up, name="fencepost-cleanup", daemon=False)
        with masked():
            try:
                thread.start()
            except (RuntimeError, MemoryError):  # no thread could be started
                await job
            else:
                done.wait(grace)

    async def within(self, seconds: float, request: Coroutine[Any, Any, T]) -> T:
        before = deadline.set(time.monotonic() + seconds)
        try:
            return await request
        finally:
            deadline.reset(before)

    def close(self) -> None:
        pass
