"""Holds that end at their own ttl although the session they hang on lives on: they are ended from here."""

import threading
from collections.abc import Callable
from math import inf


class Overdue:
    """Calls ``end(holder)`` for each hold that was not extended in time.

    Its thread runs only while there are holds. A process that is frozen ends nothing, but neither
    does it keep its session alive.
    """

    def __init__(self, now: Callable[[], float], end: Callable[[str], None]) -> None:
        self._now = now
        self._end = end
        self._due: dict[str, float] = {}
        self._change = threading.Condition()
        self._next = inf
        self._running = False

    def put(self, holder: str, at: float) -> None:
        """From now on, ``holder`` holds until ``at``."""
        with self._change:
            self._due[holder] = at
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="fencepost-overdue", daemon=True).start()
            elif at < self._next:
                self._change.notify()

    def extend(self, holder: str, at: float) -> bool:
        """Move the end of a hold; False if it has ended already."""
        with self._change:
            if self._now() >= self._due.get(holder, -inf):
                return False
            self._due[holder] = at
            return True

    def holds(self, holder: str) -> bool:
        return self._now() < self._due.get(holder, -inf)

    def left(self, holder: str) -> float | None:
        """Seconds until the hold ends; None if there is no such hold."""
        at = self._due.get(holder)
        return None if at is None else at - self._now()

    def forget(self, holder: str) -> bool:
        """The hold is over; say whether it lasted until now."""
        with self._change:
            return self._now() < self._due.pop(holder, -inf)

    def close(self) -> None:
        with self._change:
            self._due.clear()
            self._next = -inf
            self._change.notify()

    def _run(self) -> None:
        rest = 0.0
        while True:
            with self._change:
                now = self._now()
                over = [holder for holder, at in self._due.items() if at <= now]
                for holder in over:
                    del self._due[holder]
                if not over:
                    if self._due:
                        self._next = min(self._due.values())
                        rest = self._next - now
                    elif rest and self._next > 0:
                        # Linger for one more period: holds that come and go need not start this each time.
                        self._next, rest = now + rest, 0.0
                    else:
                        self._running, self._next = False, inf
                        return
                    self._change.wait(min(max(self._next - now, 0.0), 3600.0))
            for holder in over:
                self._end(holder)
