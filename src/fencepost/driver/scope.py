"""Ending waits: closing a connection ends all waits in it, and the caller's deadline limits a request's wait."""

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
    """A thread or task inside a scope, which ``end`` waits for. A visit that was dropped does not count."""

    __slots__ = ("__weakref__",)


class Scope:
    """The waits of all threads and tasks that are ``inside``: ``end`` ends them at once, and all later ones."""

    def __init__(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._wakes: dict[object, Callable[[], None]] = {}
        self._inside: weakref.WeakSet[Visit] = weakref.WeakSet()
        self._left: Signal | None = None
        self.over = False

    def join(self) -> Visit:
        """Register a thread or task that may wait; it must ``leave`` once it has cleaned up."""
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
        """Waits in this block belong to the scope; Closed once the scope is over."""
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
        """For a block that waits: ending the scope calls ``wake``, and the block then raises Closed."""
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
        """In a forked child: no thread is inside, and a gate that a thread of the parent held is free."""
        self._gate = threading.RLock()
        self._wakes = {}
        self._inside = weakref.WeakSet()

    async def end(self, driver: Driver, patience: float) -> None:
        """End all waits; return once all have left, or ``patience`` seconds have passed."""
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
        pass  # an unfinished coroutine was garbage-collected, in the context of another task


deadline: ContextVar[float | None] = ContextVar("fencepost_deadline", default=None)
"""When the caller stops waiting for the current request, by ``time.monotonic()``; None if it waits without end."""


def patience(most: float) -> float:
    """How many seconds a request may wait for its store: ``most``, or less if its caller does not wait that long.

    For example::

        answer = connection.ask(request, timeout=patience(5.0))
    """
    until = deadline.get()
    return most if until is None else max(0.0, min(most, until - time.monotonic()))


current: ContextVar[Scope | None] = ContextVar("fencepost_scope", default=None)


@contextmanager
def woken(wake: Callable[[], None]) -> Iterator[None]:
    """For a block that waits for something other than a signal: ``wake`` must end its wait if the scope is ended.

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
