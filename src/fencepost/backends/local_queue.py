"""The waiters of one process, first come, first served; only the first of each queue asks the store."""

import threading
from collections.abc import Iterable
from typing import TypeVar

from fencepost.driver import Signal, abandoned, inert

T = TypeVar("T")


def head(queue: Iterable[T]) -> T | None:
    """The first of a queue, None if it is empty.

    A handler or __del__ may change the queue wherever Python code runs, or objects are made. ``next(iter(queue))`` has
    such a place inside, and fails then; this has none.
    """
    for first in queue:
        return first
    return None


class LocalQueues:
    """One queue for each name that has a waiter. A handler or __del__ may call ``leave`` inside of any method."""

    def __init__(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._queues: dict[str, dict[str, Signal]] = {}

    def busy(self, name: str) -> bool:
        """Whether the queue has a waiter that is able to ask the store."""
        if name not in self._queues:
            return False
        with self._gate:
            return self._able(name) is not None

    def join(self, name: str, holder: str, limit: int, signal: Signal) -> bool:
        """Take the last place; False if ``limit`` wait already."""
        with self._gate:
            self._skip_abandoned(name)
            queue = self._queues.get(name, {})
            if len(queue) >= limit and sum(not inert(each) for each in queue.copy().values()) >= limit:
                return False
            queue.setdefault(holder, signal)
            self._queues[name] = queue
            return True

    def await_turn(self, name: str, holder: str, signal: Signal) -> Signal:
        """Have ``signal`` set when this holder's turn comes; it joins if it is not queued."""
        with self._gate:
            queue = self._queues.get(name, {})
            queue[holder] = signal
            self._queues[name] = queue
        return signal

    def first(self, name: str, holder: str) -> bool:
        """Whether it is this holder's turn to ask: no waiter before it is able to."""
        with self._gate:
            return self._able(name, holder) == holder

    def _able(self, name: str, holder: str | None = None) -> str | None:
        """The first waiter that is able to ask the store; ``holder`` asks, so it is able to."""
        self._skip_abandoned(name)
        if (queue := self._queues.get(name)) is None:
            return holder
        first = head(queue)  # it is able to, most of the time: then nothing is copied
        if first is not None and (alive := queue.get(first)) is not None and (first == holder or not inert(alive)):
            return first
        for each, signal in queue.copy().items():
            if each == holder or not inert(signal):
                return each
        return holder

    def leave(self, name: str, holder: str) -> None:
        """Leave the queue, and wake the waiter that is now first."""
        with self._gate:
            queue = self._queues.get(name)
            if queue is None or holder not in queue:
                return
            del queue[holder]
            self._wake_first(name, queue)

    def _skip_abandoned(self, name: str) -> None:
        """Remove the first waiters if their event loop was closed: they cannot be woken, and will not leave by
        themselves. Such waiters further back are inert: they are passed over, and removed once they are first."""
        queue = self._queues.get(name)
        if queue and (first := head(queue.values())) is not None and abandoned(first):
            self._wake_first(name, queue)

    def _wake_first(self, name: str, queue: dict[str, Signal]) -> None:
        while (holder := head(queue)) is not None:
            signal = queue.get(holder)
            if signal is not None and not abandoned(signal):
                signal.set()
                return
            queue.pop(holder, None)  # not "the first": that may be another by now
        if self._queues.get(name) is queue:
            self._queues.pop(name, None)
