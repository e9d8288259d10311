"""redlock-py, with fencing tokens: ``from fencepost.compat.redlock import Redlock`` instead of ``from redlock``.

The Redlock of pottery, which has another signature, is `fencepost.compat.pottery`.
"""

import logging
import threading
from typing import Any

from fencepost.compat.observed import Hold, Lease, asked, gave_up, text
from fencepost.driver import boottime, run
from fencepost.errors import ConfigError

try:
    import redlock
    from redlock import CannotObtainLock, MultipleRedlockException

    from fencepost.compat import minting
except ModuleNotFoundError as error:
    raise ConfigError(f"fencepost.compat.redlock needs {error.name!r}: pip install 'fencepost[redlock-py]'") from error

__all__ = ["CannotObtainLock", "Lock", "MultipleRedlockException", "Redlock"]

SOURCE = "compat.redlock"


class Lock(redlock.Lock):  # type: ignore[misc]
    """redlock-py's Lock, a tuple of validity, resource and key, that carries a lease.

    For example::

        held = manager.lock("report", 10_000)
        if held:
            print(held.lease.token)
            manager.unlock(held)
    """

    _hold: Hold | None = None

    @property
    def lease(self) -> Lease | None:
        """The hold, for a guard; None if no token could be minted."""
        return None if self._hold is None else self._hold.lease

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy can be passed to ``unlock()``, but has no lease: that would number its accesses as this one does."""
        return Lock, tuple(self)


class _Call(threading.local):
    """What the servers answered to one call of this thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.taken: dict[int, tuple[Any, minting.Taken]] = {}
        self.freed = self.failed = 0


class Redlock(redlock.Redlock):  # type: ignore[misc]
    """redlock-py's Redlock: its signature, its keys, its errors.

    The lock that ``lock()`` returns has a ``lease`` for guards. What went wrong is told to the hooks of
    `fencepost.compat.observe`.

        manager = Redlock([{"host": "a"}, {"host": "b"}, {"host": "c"}])
        held = manager.lock("report", 10_000)
    """

    def __init__(self, connection_list: Any, retry_count: int | None = None, retry_delay: float | None = None) -> None:
        super().__init__(connection_list, retry_count, retry_delay)
        self._call = _Call()

    def lock_instance(self, server: Any, resource: str, val: bytes, ttl: int) -> bool:
        """Take the lock on one server."""
        if not isinstance(ttl, int):
            raise ValueError(f"ttl {ttl} is not an integer")
        taken = run(minting.take(server, resource, val, ttl))
        if taken.held:
            self._call.taken[id(server)] = server, taken
        return taken.held

    def unlock_instance(self, server: Any, resource: str, val: bytes) -> None:
        """Free the lock on one server, if it is held there under this value."""
        self._call.taken.pop(id(server), None)
        try:
            self._call.freed += bool(server.eval(self.unlock_script, 1, resource, val))
        except Exception:
            self._call.failed += 1
            logging.getLogger("fencepost").exception("unlocking %r on server %s failed", resource, server)

    def lock(self, resource: str, ttl: int) -> "Lock | bool":
        """As redlock-py's: a Lock, or False if it was not free in so many attempts, or has expired meanwhile."""
        self._call.begin()
        name = text(resource)
        began = asked(SOURCE, name)
        found = super().lock(resource, ttl)
        if not found:
            gave_up(SOURCE, name, began)
            return False
        taken = list(self._call.taken.values())
        token = run(minting.agree(taken, len(self.servers), resource, ""))
        since = min((each.since for _, each in taken), default=began)
        valid = (ttl - int(ttl * self.clock_drift_factor) - 2) / 1000
        # redlock-py computed its validity before the servers were told the token, which takes time too.
        left = min(found.validity, int((since + valid - boottime()) * 1000))
        if left <= 0:
            super().unlock(found)
            gave_up(SOURCE, name, began)
            return False
        held = Lock(left, found.resource, found.key)
        held._hold = Hold(SOURCE, name, held.key, token, valid, since)
        held._hold.acquired(began)
        return held

    def unlock(self, lock: Any) -> None:
        """As redlock-py's, which does not say whether the lock was still held: the hooks are told."""
        self._call.begin()
        super().unlock(lock)
        hold = getattr(lock, "_hold", None)
        if hold is None:
            return
        if self._call.freed >= self.quorum:
            hold.released()
        elif self._call.freed + self._call.failed >= self.quorum:
            hold.unconfirmed()
        else:
            hold.gone(releasing=True)
