"""A lock for what a store does in one piece, which its own thread cannot enter twice."""

import threading
from typing import Any

from fencepost.driver.scope import patience
from fencepost.errors import BackendError


class Gate:
    """A lock that its own thread is refused inside, instead of waiting for itself.

    A signal handler, and ``__del__`` of what the garbage collector finds, run between two steps of whatever their
    thread does. If that is a request to the store, theirs can neither wait for it nor go on in the middle of it.
    """

    __slots__ = ("_backend", "_lock")

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._lock: Any = threading.RLock()  # it knows its owner; typeshed does not tell

    def __enter__(self) -> None:
        if self._lock._is_owned():
            raise BackendError(
                "this thread is inside a request to the store already, which a signal handler or __del__ interrupted; "
                "use locks on another thread, or once the handler has returned",
                backend=self._backend,
                ambiguous=False,
            )
        if not self._lock.acquire(False) and not self._lock.acquire(timeout=patience(threading.TIMEOUT_MAX)):
            raise BackendError(
                "another thread of this process was inside a request to the store for too long",
                backend=self._backend,
                ambiguous=False,
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def inside(self) -> bool:
        """Whether the calling thread is inside."""
        return bool(self._lock._is_owned())

    def forked(self) -> None:
        """Nobody is inside in a forked child, although somebody may have been in its parent."""
        self._lock = threading.RLock()

    def enter_within(self, seconds: float) -> bool:
        """Enter; False if that was not possible in time, or the calling thread is inside."""
        return not self.inside() and bool(self._lock.acquire(timeout=seconds))
