"""A lock for what a store does in one piece, which its own thread cannot enter twice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from fencepost.driver import interrupts
from fencepost.driver.scope import patience
from fencepost.errors import BackendError

_STEP = 0.1  # seconds after which one that waits looks around: the longest that an interrupt goes unheard


class Gate:
    """A lock that its own thread is refused inside, instead of waiting for itself.

    A signal handler, and ``__del__`` of what the garbage collector finds, run between two steps of whatever their
    thread does. If that is a request to the store, theirs can neither wait for it nor go on in the middle of it.
    """

    __slots__ = ("_backend", "_limit", "_lock", "held_up")

    def __init__(self, backend: str, limit: float = inf) -> None:
        self._backend = backend
        self._limit = limit
        self._lock: Any = threading.RLock()  # it knows its owner; typeshed does not tell
        self.held_up = ""
        """Why the thread inside gets no further, while it does not: others then wait for ``limit`` seconds at most."""

    def __enter__(self) -> float:
        """Enter; for how many seconds that had to wait, in whole steps."""
        if self._lock._is_owned():
            raise self._again()
        return 0.0 if self._lock.acquire(False) else self._wait(self._limit)

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Enter, however long that takes."""
        if self._lock._is_owned():
            raise self._again()
        if not self._lock.acquire(False):
            self._wait(inf)
        try:
            yield
        finally:
            self._lock.release()

    def _wait(self, limit: float) -> float:
        waited = 0.0
        while not self._lock.acquire(timeout=min(_STEP, patience(inf))):
            interrupts.check()
            waited += _STEP  # not by a clock: a process that was stopped has not waited meanwhile
            if not patience(inf):
                raise self._failure("another thread of this process was inside a request to the store for too long")
            if self.held_up and waited >= limit:
                raise self._failure(self.held_up)
        return waited

    def _again(self) -> BackendError:
        return self._failure(
            "this thread is inside a request to the store already, which a signal handler or __del__ interrupted; "
            "use locks on another thread, or once the handler has returned"
        )

    def _failure(self, text: str) -> BackendError:
        return BackendError(text, backend=self._backend, ambiguous=False)

    def inside(self) -> bool:
        """Whether the calling thread is inside."""
        return bool(self._lock._is_owned())

    def forked(self) -> None:
        """Nobody is inside in a forked child, although somebody may have been in its parent."""
        self._lock = threading.RLock()

    def enter_within(self, seconds: float) -> bool:
        """Enter; False if that was not possible in time, or the calling thread is inside."""
        return not self.inside() and bool(self._lock.acquire(timeout=seconds))
