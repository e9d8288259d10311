"""A lock around one request to a store, which raises if a thread that is inside enters it again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from fencepost.driver import interrupts
from fencepost.driver.scope import patience
from fencepost.errors import BackendError

_STEP = 0.1  # seconds between two checks of a waiting thread: an interrupt waits at most this long


class Gate:
    """A lock that raises if the thread inside enters it again, where a plain lock would deadlock.

    A signal handler, or a ``__del__`` that the garbage collector calls, interrupts its thread anywhere. If that thread
    is inside a request to the store, the handler can neither wait for this request nor send its own in the middle of
    it.

    A thread that is inside may ``step_aside`` while it waits: no other thread enters, but the process may fork.
    """

    __slots__ = ("_backend", "_limit", "_lock", "_work", "held_up")

    def __init__(self, backend: str, limit: float = inf) -> None:
        self._backend = backend
        self._limit = limit
        self._lock: Any = threading.RLock()  # held by the thread inside. Any: typeshed does not know _is_owned()
        self._work = threading.Lock()  # held by that thread too, except while it steps aside
        self.held_up = ""
        """Why the thread inside has stepped aside, while it has: others then wait for ``limit`` seconds at most."""

    def __enter__(self) -> float:
        """Enter; return how many seconds that had to wait, in whole steps."""
        return self._enter(self._limit)

    def _enter(self, limit: float) -> float:
        if self._lock._is_owned():
            raise self._again()
        waited = 0.0 if self._lock.acquire(False) else self._wait(limit)
        try:
            # No function of ours may be called in between: if it ran out of memory, _lock would stay taken.
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
        """Call ``wait`` from inside, between two steps: the process may fork meanwhile, but no other thread enters."""
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
            waited += _STEP  # not by a clock: the time that the process was stopped does not count
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
        """Keep the thread inside from its next step; False if its present step takes longer than so many seconds.

        False at once if the calling thread itself is in such a step.
        """
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
