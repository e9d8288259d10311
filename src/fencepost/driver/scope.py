"""Ending waits: closing a connection ends everything that waits in it, and a request is not awaited without end."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TypeVar

from fencepost.driver import Driver, Signal

T = TypeVar("T")


class Closed(BaseException):
    """Raised in a wait that was ended from elsewhere. Do not catch it, as you would not catch a cancellation."""


class Visit:
    """A thread or task inside a scope, which ``end`` waits for. Dropping it is enough if it could not leave."""

    __slots__ = ("__weakref__",)


class Scope:
    """The waits of those who are ``inside``, in any thread or task: all of them can be ended at once, for good."""

    def __init__(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._wakes: dict[object, Callable[[], None]] = {}
        self._inside: weakref.WeakSet[Visit] = weakref.WeakSet()
        self._left: Signal | None = None
        self.over = False

    def join(self) -> Visit:
        """One comes who may wait, and leaves once it has cleaned up behind itself."""
        visit = Visit()
        with self._gate:
            self._inside.add(visit)
        return visit

    def leave(self, visit: Visit) -> None:
        with self._gate:
            self._inside.discard(visit)
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
            put_back(current, before)

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
        self._inside = weakref.WeakSet()

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


def put_back(variable: ContextVar[T], before: Token[T]) -> None:
    """Reset a variable, where that can be done."""
    try:
        variable.reset(before)
    except ValueError:
        pass  # a coroutine that nobody finished was collected, in the context of somebody else


deadline: ContextVar[float | None] = ContextVar("fencepost_deadline", default=None)
"""When the caller stops waiting for the request under way, by ``time.monotonic()``; None if it does not."""


def patience(most: float) -> float:
    """How many seconds a request may wait for its store: ``most``, or less where its caller does not wait so long.

    For example::

        answer = connection.ask(request, timeout=patience(5.0))
    """
    until = deadline.get()
    return most if until is None else max(0.0, min(most, until - time.monotonic()))


current: ContextVar[Scope | None] = ContextVar("fencepost_scope", default=None)


@contextmanager
def woken(wake: Callable[[], None]) -> Iterator[None]:
    """Wait in here for something other than a signal: ``wake`` must end it, should the waits around be ended.

    For example::

        with woken(connection.shutdown):
            connection.read()
    """
    waits = current.get()
    if waits is None:
        yield
    else:
        with waits.woken(wake):
            yield
