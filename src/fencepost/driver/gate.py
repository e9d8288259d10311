"""A lock for what a store does in one piece, which its own thread cannot enter twice."""

import threading
from collections.abc import Callable, Iterator
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

    A thread that is inside may ``step_aside`` to wait for others: its turn is kept, but the process may fork meanwhile.
    """

    __slots__ = ("_backend", "_limit", "_lock", "_work", "held_up")

    def __init__(self, backend: str, limit: float = inf) -> None:
        self._backend = backend
        self._limit = limit
        self._lock: Any = threading.RLock()  # whose turn it is. It knows its owner; typeshed does not tell
        self._work = threading.Lock()  # held by that thread too, unless it has stepped aside
        self.held_up = ""
        """Why the thread inside gets no further, while it does not: others then wait for ``limit`` seconds at most."""

    def __enter__(self) -> float:
        """Enter; for how many seconds that had to wait, in whole steps."""
        return self._enter(self._limit)

    def _enter(self, limit: float) -> float:
        if self._lock._is_owned():
            raise self._again()
        waited = 0.0 if self._lock.acquire(False) else self._wait(limit)
        try:
            # No call of ours in between: without memory for it, nobody would release the other lock.
            self._work.acquire()
        except BaseException:  # a signal handler raised, while another thread forks
            self._lock.release()
            raise
        return waited

    def __exit__(self, *_: object) -> None:
        self._work.release()
        self._lock.release()

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Enter, however long that takes."""
        self._enter(inf)
        try:
            yield
        finally:
            self.__exit__()

    def step_aside(self, why: str, wait: Callable[[], object]) -> None:
        """Call ``wait`` from inside, in the middle of nothing: a fork may come meanwhile, another thread may not."""
        self.held_up = why
        self._work.release()
        raised = None
        try:
            wait()
        except BaseException as error:
            raised = error
        while True:
            try:
                self._work.acquire()
                break
            except BaseException as error:  # a signal handler raised, while another thread forks
                raised = error
        self.held_up = ""
        if raised is not None:
            raise raised

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

    def hold(self, seconds: float) -> bool:
        """Stop what is done inside before its next step; False if it is in the middle of one for longer than that."""
        return self._work.acquire(False) or (not self.inside() and self._work.acquire(timeout=seconds))

    def let_go(self) -> None:
        """End a ``hold``."""
        self._work.release()

    def forked(self) -> None:
        """In a forked child: no other thread is inside, although one of the parent's may have been."""
        if not self.inside():
            self._lock = threading.RLock()
            self._work = threading.Lock()
            self.held_up = ""
