"""A stand-in for cache locks: what ``cache.lock(...)`` of django-redis returns, on the locks of this process."""

import functools
import threading
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from fencepost.contrib.django.conf import locks
from fencepost.driver.interrupts import protected, see_through
from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from fencepost.sync import Lease, Lock


class CacheLock:
    """One lock with the methods of redis-py's Lock; ``cache_lock`` makes it.

    As a block it raises NotAcquired where redis-py raises LockError, and LeaseLost where it raises LockNotOwnedError.
    There is no ``extend`` and no ``reacquire``: the lease is renewed in the background.

        with cache_lock("report", timeout=10) as lock:
            print(lock.owned())
    """

    def __init__(
        self,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        max_hold: float | timedelta | None = None,
        thread_local: bool = True,
    ) -> None:
        self.name = name
        self._options = {"ttl": ttl, "timeout": timeout, "max_hold": max_hold}
        # With thread_local each thread that uses this object holds, and releases, a lease of its own.
        self._here: Any = threading.local() if thread_local else SimpleNamespace()

    @property
    def lease(self) -> Lease:
        """The lease, for a guard; ConfigError while it is not held here."""
        return self._held("there is no lease")[1]

    def acquire(
        self,
        *,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | timedelta | None = None,
    ) -> bool:
        """Wait for the lock; False if it was not acquired in time."""
        options = self._options
        if blocking is False:
            options = options | {"timeout": 0}
        elif blocking_timeout is not None:
            options = options | {"timeout": blocking_timeout}
        # If Ctrl-C comes after the lock was acquired, and before the caller knows of it, release the lock.
        return protected(functools.partial(self._try, options), lambda held: self.release() if held else None)

    def release(self) -> None:
        """Give the lock back; LeaseLost if it was lost meanwhile, ConfigError if it is not held here."""
        see_through(functools.partial(self._leave, None, None, None))

    def locked(self) -> bool:
        """Whether anybody holds it."""
        return locks.status(self.name) is not None

    def owned(self) -> bool:
        """Whether it is held here, as far as the holder knows; only a guard can be sure."""
        held = self._maybe_held()
        return held is not None and held[1].reason is None

    def __enter__(self) -> Self:
        return protected(functools.partial(self._enter, self._options), lambda _: self.release())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        see_through(functools.partial(self._leave, kind, error, trace))

    def _maybe_held(self) -> tuple[Lock, Lease] | None:
        return getattr(self._here, "held", None)

    def _held(self, lacking: str) -> tuple[Lock, Lease]:
        held = self._maybe_held()
        if held is None:
            raise ConfigError(f"cache lock {self.name!r} is not held here, so {lacking}; acquire() it first")
        return held

    def _try(self, options: dict[str, float | timedelta | None]) -> bool:
        try:
            self._enter(options)
        except NotAcquired:
            return False
        return True

    def _enter(self, options: dict[str, float | timedelta | None]) -> Self:
        if self.owned():
            raise ConfigError(
                f"cache lock {self.name!r} is held here already, and would wait for itself; locks.lock(name, "
                f"reentrant=True) makes one that its holder may enter again"
            )
        if self._maybe_held() is not None:  # it was lost, and never released
            with suppress(LeaseLost):
                self.release()
        lock = locks.lock(self.name, ttl=options["ttl"], timeout=options["timeout"], max_hold=options["max_hold"])
        lease = lock.__enter__()
        try:
            self._here.held = lock, lease
        except BaseException:  # for example, out of memory: later nobody could release it
            lock.__exit__(None, None, None)
            raise
        return self

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        begun: list[bool],
    ) -> None:
        lock, _ = self._held("there is nothing to release")
        self._here.held = None
        begun.append(True)
        lock.__exit__(kind, error, trace)


def cache_lock(
    key: str,
    *,
    version: int | None = None,
    timeout: float | timedelta | None = None,
    sleep: float | None = None,
    blocking: bool = True,
    blocking_timeout: float | timedelta | None = None,
    thread_local: bool = True,
    max_hold: float | timedelta | None = None,
) -> CacheLock:
    """A lock with the options and methods of django-redis' ``cache.lock(...)``.

        with cache_lock("report", timeout=30):
            ...

    ``timeout`` is the ttl, and renewed for as long as the lock is held, or ``max_hold`` seconds at most;
    ``blocking_timeout`` is how long to wait, None without end. ``sleep`` changes nothing: waiters are woken. ``key`` is
    the lock's name; another ``version`` of it is another lock.
    """
    name = key if version is None else f"{key}:{version}"
    wait = blocking_timeout if blocking else 0
    return CacheLock(name, ttl=timeout, timeout=wait, max_hold=max_hold, thread_local=thread_local)
