"""Holds that end at their own ttl although the session they hang on lives on: they are ended from here."""

import logging
import threading
from collections.abc import Awaitable, Callable
from math import inf

from fencepost.driver import Driver
from fencepost.errors import BackendError

_log = logging.getLogger("fencepost")


class Overdue:
    """Calls ``end(holder)`` for each hold that was not extended in time.

    Its thread or task runs only while there are holds. A process that is frozen ends nothing, but
    neither does it keep its session alive.
    """

    def __init__(self, driver: Driver, end: Callable[[str], Awaitable[None]]) -> None:
        self._driver = driver
        self._now = driver.now
        self._end = end
        self._due: dict[str, float] = {}
        self._gate = threading.Lock()
        self._nudge = driver.signal()
        self._next = inf
        self._running = False

    def put(self, holder: str, at: float) -> None:
        """From now on, ``holder`` holds until ``at``."""
        with self._gate:
            self._due[holder] = at
            start = not self._running
            if start:
                self._running, self._nudge = True, self._driver.signal()  # a signal belongs to one event loop
        if start:
            try:
                self._driver.spawn(self._run(), "fencepost-overdue")
            except BaseException:
                self._running = False  # or no hold would ever be ended again
                raise
        elif at < self._next:
            self._nudge.set()

    def extend(self, holder: str, at: float) -> bool:
        """Move the end of a hold; False if it has ended already."""
        with self._gate:
            if self._now() >= self._due.get(holder, -inf):
                return False
            self._due[holder] = at
            return True

    def left(self, holder: str) -> float | None:
        """Seconds until the hold ends; None if there is no such hold."""
        at = self._due.get(holder)
        return None if at is None else at - self._now()

    def forget(self, holder: str) -> bool:
        """The hold is over; say whether it lasted until now."""
        with self._gate:
            return self._now() < self._due.pop(holder, -inf)

    def close(self) -> None:
        with self._gate:
            self._due.clear()
        self._next = -inf
        self._nudge.set()

    async def _run(self) -> None:
        try:
            await self._mind()
        except BaseException as error:
            self._running = False
            if not isinstance(error, GeneratorExit):
                self._driver.later(self._go_on)
            raise

    def _go_on(self) -> None:
        """Mind the holds that are left, after somebody has cancelled this."""
        with self._gate:
            left = next(iter(self._due.items()), None)
        if left is not None:
            self.put(*left)

    async def _mind(self) -> None:
        rest = 0.0
        while True:
            self._nudge.clear()
            with self._gate:
                now = self._now()
                over = [holder for holder, at in self._due.items() if at <= now]
                for holder in over:
                    del self._due[holder]
                if self._due:
                    self._next = min(self._due.values())
                    rest = self._next - now
                elif over:
                    self._next = now
                elif rest and self._next > 0:
                    # Linger for one more period: holds that come and go need not start this each time.
                    self._next, rest = now + rest, 0.0
                else:
                    self._running, self._next = False, inf
                    return
            for holder in over:
                try:
                    await self._end(holder)
                except Exception as error:
                    unexpected = None if isinstance(error, BackendError) else error
                    _log.warning("a hold that was not renewed is left to its session: %s", error, exc_info=unexpected)
            await self._nudge.wait(min(max(self._next - self._now(), 0.0), 60.0))
