"""The waiters of one process, first come, first served; only the first of each queue asks the store."""

import threading

from fencepost.driver import Signal, abandoned, inert


class LocalQueues:
    """One queue for each name that has a waiter."""

    def __init__(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._queues: dict[str, dict[str, Signal]] = {}

    def busy(self, name: str) -> bool:
        """Whether the queue has a waiter that is able to ask the store."""
        if name not in self._queues:
            return False
        with self._gate:
            self._skip_abandoned(name)
            return not all(map(inert, self._queues.get(name, {}).values()))

    def join(self, name: str, holder: str, limit: int, signal: Signal) -> bool:
        """Take the last place; False if ``limit`` wait already."""
        with self._gate:
            self._skip_abandoned(name)
            queue = self._queues.get(name, {})
            if len(queue) >= limit and sum(not inert(each) for each in queue.values()) >= limit:
                return False
            self._queues.setdefault(name, queue).setdefault(holder, signal)
            return True

    def await_turn(self, name: str, holder: str, signal: Signal) -> Signal:
        """Have ``signal`` set when this holder's turn comes; it joins if it is not queued."""
        with self._gate:
            self._queues.setdefault(name, {})[holder] = signal
        return signal

    def first(self, name: str, holder: str) -> bool:
        """Whether it is this holder's turn to ask: no waiter before it is able to."""
        with self._gate:
            self._skip_abandoned(name)
            return (
                next(each for each, signal in self._queues[name].items() if each == holder or not inert(signal))
                == holder
            )

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
        if queue and (first := next(iter(queue.values()), None)) is not None and abandoned(first):
            self._wake_first(name, queue)

    def _wake_first(self, name: str, queue: dict[str, Signal]) -> None:
        # __del__ may call leave() at any bytecode here: so the entry that was looked at is removed, not "the first".
        while (first := next(iter(queue.items()), None)) is not None:
            holder, signal = first
            if not abandoned(signal):
                signal.set()
                return
            queue.pop(holder, None)
        if self._queues.get(name) is queue:
            self._queues.pop(name, None)
