"""A partition in the hands of its owner."""

from math import inf
from typing import Generic, TypeVar

from fencepost.drive import Signal
from fencepost.renewals import Held

L = TypeVar("L", bound=Held)


class Owned(Generic[L]):
    """One partition while this worker owns it: under one lease, with one token."""

    __slots__ = ("_signal", "lease", "number")

    def __init__(self, number: int, lease: L, signal: Signal) -> None:
        self.number = number
        self.lease = lease
        self._signal = signal

    @property
    def name(self) -> str:
        """The name of its lock: the group's name and its number."""
        return self.lease.name

    @property
    def token(self) -> int:
        """The fencing token for everything that is written while it is owned."""
        return self.lease.token

    def _stopping(self) -> bool:
        return self._signal.is_set() or bool(self.lease.over)

    async def _until_stop(self, timeout: float | None = None) -> bool:
        """Wait until the work should end, because the partition moves or its lease is over."""
        now = self.lease._clock
        until = inf if timeout is None else now() + timeout
        while not self._stopping():
            nap = min(until, self.lease.deadline) - now()
            if nap <= 0:
                return self._stopping()
            await self._signal.wait(nap)
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.lease!r}>"
