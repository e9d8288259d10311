"""A clock that a test can advance."""

import threading
from datetime import timedelta

from fencepost import check
from fencepost.driver import boottime

NAP = 0.02
"""Seconds after which code that waits for an instant looks at the clock again: it may have been advanced."""


class Clock:
    """The time of a connection, and of a store in memory. It goes on as usual; ``advance`` makes it jump.

    For example::

        locks.clock.advance(60)
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._gate = threading.RLock()

    def now(self) -> float:
        """Seconds since the host booted, and all that the clock was advanced by."""
        return boottime() + self._ahead

    def advance(self, seconds: float | timedelta) -> None:
        """Have so much time pass at once, as if the machine had been suspended: nothing is renewed meanwhile.

        Leases whose deadline has passed are lost then. Code that waits notices within a few hundredths of a second.
        """
        passed = check.seconds(seconds, "what a clock is advanced by")
        with self._gate:
            self._ahead += passed
