"""Ending waits: closing a connection ends everything that waits in it, and a request is not awaited without end."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fencepost.driver import Driver, Signal


class Closed(BaseException):
    """Raised in a wait that was ended from elsewhere. Do not catch it, as you would not catch a cancellation."""


class Scope:
    """The waits of those who are ``inside``, in any thread or task: all of them can be ended at once, for good."""

    def __init__(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
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
        """Wait in here; Closed once it is over."""
        before = current.set(self)
        try:
            self.check()
            yield
            self.check()
        finally:
            try:
                current.reset(before)
            except ValueError:
                pass  # a coroutine that nobody finished was collected, in the context of somebody else

    def check(self) -> None:
        if self.over:
            raise Closed

    @contextmanager
    def woken(self, wake: Callable[[], None]) -> Iterator[None]:
        """What waits in here is woken by ``wake`` when it is over, and then finds Closed raised."""
        mark = object()
        with self._gate:
            self.check()
            self._wakes[mark] = wake
        try:
            yield
        finally:
            del self._wakes[mark]
        self.check()

    def forked(self) -> None:
        """In a forked child: nobody is inside, and no lock of the parent's is taken."""
        self._gate = threading.RLock()
        self._wakes = {}
        self._inside = 0

    async def end(self, driver: Driver, patience: float) -> None:
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


deadline: ContextVar[float | None] = ContextVar("fencepost_deadline", default=None)
"""When the caller stops waiting for the request under way, by ``time.monotonic()``; None if it does not."""


def patience(most: float) -> float:
    """How many seconds a request may wait for its store: ``most``, or less where its caller does not wait so long."""
    until = deadline.get()
    return most if until is None else max(0.0, min(most, until - time.monotonic()))


current: ContextVar[Scope | None] = ContextVar("fencepost_scope", default=None)


@contextmanager
def woken(wake: Callable[[], None]) -> Iterator[None]:
    """Wait in here for something other than a signal: ``wake`` must end it, should the waits around be ended."""
    waits = current.get()
    if waits is None:
        yield
    else:
        with waits.woken(wake):
            yield
