"""python-redis-lock, with fencing tokens: ``from fencepost.compat import redis_lock``, not ``import redis_lock``."""

from typing import Any

from fencepost.compat.observed import Blocks, Hold, Lease, asked, gave_up
from fencepost.driver import boottime
from fencepost.errors import ConfigError

try:
    import redis_lock
    from redis_lock import (
        AlreadyAcquired,
        AlreadyStarted,
        InvalidTimeout,
        NotAcquired,
        NotExpirable,
        TimeoutNotUsable,
        TimeoutTooLarge,
        reset_all,
    )

    from fencepost.compat.minting import Minting
except ModuleNotFoundError as error:
    raise ConfigError(
        f"fencepost.compat.redis_lock needs {error.name!r}: pip install 'fencepost[python-redis-lock]'"
    ) from error

__all__ = [
    "AlreadyAcquired",
    "AlreadyStarted",
    "InvalidTimeout",
    "Lock",
    "NotAcquired",
    "NotExpirable",
    "TimeoutNotUsable",
    "TimeoutTooLarge",
    "reset_all",
]

SOURCE = "compat.redis_lock"
PREFIX = "lock:"


class Lock(redis_lock.Lock):  # type: ignore[misc]
    """python-redis-lock's Lock: its signature, its keys, its errors; its waiters are woken as before.

    Taking it mints a fencing token: ``lease`` carries it to a guard, which in a ``with`` block finds it by the name of
    the lock's key, ``lock:NAME``. What went wrong is told to the hooks of `fencepost.compat.observe`.

        with Lock(client, "report", expire=30, auto_renewal=True): ...
    """

    def __init__(
        self,
        redis_client: Any,
        name: str,
        expire: int | None = None,
        id: str | bytes | None = None,
        auto_renewal: bool = False,
        strict: bool = True,
        signal_expire: int = 1000,
        blocking: bool = True,
    ) -> None:
        super().__init__(redis_client, name, expire, id, auto_renewal, strict, signal_expire, blocking)
        self._client: Any = Minting(redis_client, PREFIX)
        self._hold: Hold | None = None
        self._blocks = Blocks()

    @classmethod
    def register_scripts(cls, redis_client: Any) -> None:
        """As python-redis-lock's, but on the original class: scripts are registered once, for all classes."""
        redis_lock.Lock.register_scripts(redis_client)

    @property
    def lease(self) -> Lease | None:
        """The hold, for a guard; None while the lock is not held, or if no token could be minted."""
        return None if self._hold is None else self._hold.lease

    def acquire(self, blocking: bool = True, timeout: int | None = None) -> bool:
        """As python-redis-lock's: True once the lock is held, False if it was not free in time."""
        began = asked(SOURCE, self._name)
        held = bool(super().acquire(blocking=blocking, timeout=timeout))
        if not held:
            gave_up(SOURCE, self._name, began)
            return False
        taken = self._client.taken(self._id)
        if taken is not None:
            # A renewal may have extended it meanwhile: the deadline is early then, not late.
            self._hold = Hold(SOURCE, self._name, self._id, taken.token, self._expire, taken.since)
            self._hold.acquired(began)
        return True

    def extend(self, expire: int | None = None) -> None:
        """As python-redis-lock's; the renewal thread calls it too."""
        sent, hold = boottime(), self._hold
        try:
            super().extend(expire)
        except NotAcquired:
            if hold is not None:
                hold.gone()
            raise
        if hold is not None:
            hold.extended(sent + int(expire or self._expire))

    def release(self) -> None:
        """As python-redis-lock's; NotAcquired if it is held no longer."""
        hold = self._hold
        try:
            super().release()
        except NotAcquired:
            self._hold = None
            if hold is not None:
                hold.gone(releasing=True)
            raise
        self._hold = None
        if hold is not None:
            hold.released()

    def __enter__(self) -> "Lock":
        super().__enter__()
        self._blocks.enter(self.lease)
        return self

    def __exit__(self, *error: Any) -> None:
        self._blocks.leave()
        super().__exit__(*error)
