"""How many keys a store has, so that clients cannot fill it."""

import time
from math import inf

from fencepost.resource.ledger import Ledger

_EVERY = 60.0  # seconds after which new keys of other services are counted too
_PAUSE = 1.0  # seconds between two counts of a store that is full, at least
_COST = 20  # and at least so many times as long as the last count took


class NoRoom(Exception):
    """There are as many keys as there may be. The access has changed nothing."""


class Census:
    """The number of keys, for one thread: counted now and then, and kept up to date in between."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count: int | None = None
        """As of the last look; None before the first."""
        self.turned_away = 0
        """Accesses to a new key that found too many others."""
        self._at = -inf
        self._took = 0.0

    def require(self, ledger: Ledger, key: str) -> None:
        """Return if ``key`` exists, or may be added; NoRoom if not."""
        if self.count is None:
            self._look(ledger)
        if self._has_room or ledger.knows(key):
            return
        if time.monotonic() - self._at > max(_PAUSE, _COST * self._took):
            self._look(ledger)  # a transaction that was undone, or an operator, may have removed some
        if not self._has_room:
            self.turned_away += 1
            raise NoRoom

    def added(self, ledger: Ledger) -> None:
        """Count one more key, which this service has added."""
        if self.count is not None:
            self.count += 1
        if time.monotonic() - self._at > _EVERY:
            self._look(ledger)

    @property
    def _has_room(self) -> bool:
        return self.count is not None and self.count < self.limit

    def _look(self, ledger: Ledger) -> None:
        begun = time.monotonic()
        self.count = ledger.count(self.limit)
        self._at = time.monotonic()
        self._took = self._at - begun
