"""redis-py's Lock, with a fencing token: ``from fencepost.compat.redis import Lock`` instead of ``from redis.lock``.

A client whose ``lock()`` makes such locks is `Redis` (or `RedisCluster`) from here; with any other client, say
``client.lock(name, lock_class=Lock)``. The asyncio twin is `fencepost.compat.redis.aio`.
"""

import contextlib
from typing import Any, ClassVar, Literal

from fencepost.compat.observed import Blocks, Hold, Lease, asked, gave_up, text
from fencepost.errors import ConfigError

__all__ = ["Lock", "Redis", "RedisCluster", "StrictRedis", "from_url"]

try:
    import redis
    import redis.lock
    from redis.exceptions import LockNotOwnedError

    from fencepost.compat import minting
except ModuleNotFoundError as error:
    raise ConfigError(f"fencepost.compat.redis needs {error.name!r}: pip install 'fencepost[redis-py]'") from error

from fencepost.driver import boottime, run

SOURCE = "compat.redis"


class Lock(redis.lock.Lock):
    """redis-py's Lock: its signature, its keys, its errors, its polling.

    Taking it mints a fencing token: ``lease`` carries it to a guard, which in a ``with`` block finds it by the lock's
    name. What went wrong is told to the hooks of `fencepost.compat.observe`.

        with Lock(client, "report", timeout=30, blocking_timeout=5) as lock:
            print(lock.lease.token)
    """

    prefix: ClassVar[str] = ""
    """What the keys of these locks begin with: the ``?prefix=`` of fencepost's own locks, if those use the same keys.
    The counter of tokens begins with it too, for users of Redis that may only use such keys."""

    # redis-py stores its registered scripts here, for locks of this class.
    lua_release: Any = None
    lua_extend: Any = None
    lua_reacquire: Any = None

    @property
    def lease(self) -> Lease | None:
        """The hold of this thread, for a guard; None while the lock is not held, or if no token could be minted."""
        hold = self._hold
        return None if hold is None else hold.lease

    @property
    def _hold(self) -> Hold | None:
        return getattr(self.local, "hold", None)

    @property
    def _blocks(self) -> Blocks:
        if (blocks := getattr(self.local, "blocks", None)) is None:
            blocks = self.local.blocks = Blocks()
        return blocks

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """As redis-py's: True once the lock is held, False if it was not free in time."""
        name = text(self.name)
        began = asked(SOURCE, name)
        held = bool(super().acquire(sleep, blocking, blocking_timeout, token))  # type: ignore[arg-type]
        if held and (hold := self._hold) is not None:
            hold.acquired(began)
        elif not held:
            gave_up(SOURCE, name, began)
        return held

    def do_acquire(self, token: str | bytes) -> bool:
        """Try once to take the key, as redis-py does; a grant mints a token."""
        ms = milliseconds(self.timeout)
        try:
            taken = run(minting.take(self.redis, self.name, token, ms, self.prefix))
        except Exception:
            raise
        except BaseException:  # interrupted: it may have been taken
            with contextlib.suppress(Exception):
                self.lua_release(keys=[self.name], args=[token], client=self.redis)
            raise
        if taken.held:
            self.local.hold = Hold(SOURCE, text(self.name), token, taken.token, seconds(ms), taken.since)
        return taken.held

    def do_release(self, expected_token: str | bytes) -> None:
        """Release the key if it is still this lock's, as redis-py does."""
        hold = self._hold
        self.local.hold = None
        try:
            super().do_release(expected_token)  # type: ignore[arg-type]
        except LockNotOwnedError:
            if hold is not None:
                hold.gone(releasing=True)
            raise
        except BaseException:
            if hold is not None:
                hold.unconfirmed()
            raise
        if hold is not None:
            hold.released()

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """Let the key expire later, as redis-py does."""
        sent = boottime()
        try:
            super().do_extend(additional_time, replace_ttl)
        except LockNotOwnedError:
            self._lost()
            raise
        if (hold := self._hold) is not None:
            hold.extended((sent if replace_ttl else hold.deadline) + int(additional_time * 1000) / 1000)
        return True

    def do_reacquire(self) -> Literal[True]:
        """Begin the key's ttl again, as redis-py does."""
        sent = boottime()
        try:
            super().do_reacquire()
        except LockNotOwnedError:
            self._lost()
            raise
        if (hold := self._hold) is not None:
            hold.extended(sent + (seconds(milliseconds(self.timeout)) or 0.0))
        return True

    def _lost(self) -> None:
        # redis-py also refuses to extend a key that never expires: that does not mean that the lock is lost.
        if self.timeout and (hold := self._hold) is not None:
            hold.gone()

    def __enter__(self) -> "Lock":
        super().__enter__()
        self._blocks.enter(self.lease)
        return self

    def __exit__(self, *error: Any) -> None:
        self._blocks.leave()
        super().__exit__(*error)


def milliseconds(timeout: float | None) -> int | None:
    """redis-py's timeout as it sends it; 0 means no expiry, as None does."""
    return int(timeout * 1000) if timeout else None


def seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


class Redis(redis.Redis):
    """redis-py's client, whose ``lock()`` makes locks with fencing tokens.

    For example::

        client = Redis(host="localhost")
        with client.lock("report", timeout=30): ...
    """

    def lock(
        self,
        name: str,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        lock_class: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """As redis-py's; ``lock_class`` is `Lock` unless given."""
        return super().lock(name, timeout, sleep, blocking, blocking_timeout, lock_class or Lock, *args, **options)


StrictRedis = Redis


class RedisCluster(redis.RedisCluster):
    """redis-py's client of a cluster, whose ``lock()`` makes locks with fencing tokens.

    For example::

        client = RedisCluster(host="localhost", port=7000)
        with client.lock("report", timeout=30): ...
    """

    def lock(
        self,
        name: str,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        lock_class: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """As redis-py's; ``lock_class`` is `Lock` unless given."""
        return super().lock(name, timeout, sleep, blocking, blocking_timeout, lock_class or Lock, *args, **options)


def from_url(url: str, **options: Any) -> Redis:
    """redis-py's ``from_url``, for a client whose ``lock()`` makes locks with fencing tokens.

    For example::

        client = from_url("redis://localhost:6379/0")
    """
    client: Any = Redis.from_url(url, **options)
    return client  # type: ignore[no-any-return]  # redis-py says that it returns its own
