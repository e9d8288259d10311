"""Locks entered again by who holds them already: which thread or task holds which lease."""

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from fencepost.renewals import Held

L = TypeVar("L", bound=Held)


class Entered(Generic[L]):
    """The leases of re-entrant locks of one connection, each by its lock and the thread or task that took it.

    Only that thread or task holds it: those that it starts do not, for they may outlive its block.
    """

    def __init__(self) -> None:
        self._leases: WeakValueDictionary[tuple[str, Hashable], L] = WeakValueDictionary()

    def first(self, who: Hashable, lease: L) -> None:
        """``who`` has taken ``lease``."""
        self._leases[lease.name, who] = lease

    def again(self, who: Hashable, name: str) -> L | None:
        """The lease under which ``who`` holds the lock, now held once more; None if it does not hold it.

        LeaseLost if it has lost it: what is inside would run unprotected, and waiting would be for itself.
        """
        lease = self._leases.get((name, who))
        if lease is None or not lease._holds:
            return None
        lease.check()
        lease._holds += 1
        return lease
