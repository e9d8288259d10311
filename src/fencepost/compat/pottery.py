"""pottery's locks, with fencing tokens: ``from fencepost.compat.pottery import Redlock``, not ``from pottery``."""

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from fencepost.compat.observed import Blocks, Hold, Lease, asked, gave_up
from fencepost.driver import boottime, run
from fencepost.errors import ConfigError

try:
    import pottery
    from pottery import (
        ExtendUnlockedLock,
        QuorumIsImpossible,
        QuorumNotAchieved,
        ReleaseUnlockedLock,
        TooManyExtensions,
    )

    from fencepost.compat.minting import Minting, Taken, agree
except ModuleNotFoundError as error:
    raise ConfigError(f"fencepost.compat.pottery needs {error.name!r}: pip install 'fencepost[pottery]'") from error

__all__ = [
    "AIORedlock",
    "ExtendUnlockedLock",
    "QuorumIsImpossible",
    "QuorumNotAchieved",
    "Redlock",
    "ReleaseUnlockedLock",
    "TooManyExtensions",
    "synchronize",
]

SOURCE = "compat.pottery"
PREFIX = "redlock:"
P = ParamSpec("P")
R = TypeVar("R")


class _Fenced:
    """What the blocking and the asyncio lock share: a token from the majority that granted the lock."""

    if TYPE_CHECKING:
        key: str
        masters: Iterable[Any]
        auto_release_time: float
        _uuid: str

    _hold: Hold | None = None

    def _begin(self) -> None:
        self.masters = frozenset(Minting(master, PREFIX) for master in self.masters)
        self._blocks = Blocks()

    @property
    def lease(self) -> Lease | None:
        """The hold, for a guard; None while the lock is not held, or if no token could be minted."""
        return None if self._hold is None else self._hold.lease

    async def _granted(self, began: float) -> None:
        taken: list[tuple[Any, Taken]] = []
        for master in self.masters:
            if (found := master.taken(self._uuid)) is not None:
                taken.append((master.client, found))
        token = await agree(taken, len(list(self.masters)), self.key, PREFIX)
        since = min((each.since for _, each in taken), default=boottime())
        self._hold = Hold(SOURCE, self.key, self._uuid, token, self._valid, since)
        self._hold.acquired(began)

    @property
    def _valid(self) -> float:
        """For how long a majority keeps the lock at least, with Redlock's allowance for clock drift."""
        return self.auto_release_time * 0.99 - 0.002

    def _extended(self, sent: float) -> None:
        if self._hold is not None:
            self._hold.extended(sent + self._valid)

    def _gone(self, *, releasing: bool = False) -> None:
        hold = self._hold
        if releasing:
            self._hold = None
        if hold is not None:
            hold.gone(releasing=releasing)

    def _released(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.released()


class Redlock(_Fenced, pottery.Redlock):  # type: ignore[misc]
    """pottery's Redlock: its signature, its keys, its errors.

    Taking it mints a fencing token: ``lease`` carries it to a guard, which in a ``with`` block finds it by the name of
    the lock's key, ``redlock:KEY``. What went wrong is told to the hooks of `fencepost.compat.observe`.

        with Redlock(key="report", masters={redis_a, redis_b, redis_c}, auto_release_time=10): ...
    """

    def __init__(self, *, key: str, masters: Iterable[Any] = frozenset(), **options: Any) -> None:
        super().__init__(key=key, masters=masters, **options)
        self._begin()

    def acquire(self, *, blocking: bool = True, timeout: float = -1, raise_on_redis_errors: bool | None = None) -> bool:
        """As pottery's: True once a majority granted the lock, False if it did not in time."""
        began = asked(SOURCE, self.key)
        held = bool(super().acquire(blocking=blocking, timeout=timeout, raise_on_redis_errors=raise_on_redis_errors))
        if held:
            run(self._granted(began))
        else:
            gave_up(SOURCE, self.key, began)
        return held

    def extend(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """As pottery's; ExtendUnlockedLock if it is held no longer."""
        sent = boottime()
        try:
            super().extend(raise_on_redis_errors=raise_on_redis_errors)
        except ExtendUnlockedLock:
            self._gone()
            raise
        self._extended(sent)

    def release(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """As pottery's; ReleaseUnlockedLock if it is held no longer."""
        try:
            super().release(raise_on_redis_errors=raise_on_redis_errors)
        except ReleaseUnlockedLock:
            self._gone(releasing=True)
            raise
        self._released()

    def __enter__(self) -> "Redlock":
        if not self.acquire(blocking=self.context_manager_blocking, timeout=self.context_manager_timeout):
            raise QuorumNotAchieved(self.key, self.masters)
        self._blocks.enter(self.lease)
        return self

    def __exit__(self, *error: Any) -> Literal[False]:
        self._blocks.leave()
        self.release()
        return False


class AIORedlock(_Fenced, pottery.AIORedlock):  # type: ignore[misc]
    """pottery's AIORedlock: its signature, its keys, its errors; otherwise as `Redlock`.

    For example::

        async with AIORedlock(key="report", masters={redis_a, redis_b, redis_c}): ...
    """

    def __init__(self, *, key: str, masters: Iterable[Any], **options: Any) -> None:
        super().__init__(key=key, masters=masters, **options)
        self._begin()

    async def acquire(
        self, *, blocking: bool = True, timeout: float = -1, raise_on_redis_errors: bool | None = None
    ) -> bool:
        """As pottery's: True once a majority granted the lock, False if it did not in time."""
        began = asked(SOURCE, self.key)
        asking = super().acquire(blocking=blocking, timeout=timeout, raise_on_redis_errors=raise_on_redis_errors)
        held = bool(await asking)
        if held:
            await self._granted(began)
        else:
            gave_up(SOURCE, self.key, began)
        return held

    async def extend(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """As pottery's; ExtendUnlockedLock if it is held no longer."""
        sent = boottime()
        try:
            await super().extend(raise_on_redis_errors=raise_on_redis_errors)
        except ExtendUnlockedLock:
            self._gone()
            raise
        self._extended(sent)

    async def release(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """As pottery's; ReleaseUnlockedLock if it is held no longer."""
        try:
            await super().release(raise_on_redis_errors=raise_on_redis_errors)
        except ReleaseUnlockedLock:
            self._gone(releasing=True)
            raise
        self._released()

    async def __aenter__(self) -> "AIORedlock":
        if not await self.acquire(blocking=self.context_manager_blocking, timeout=self.context_manager_timeout):
            raise QuorumNotAchieved(self.key, self.masters)
        self._blocks.enter(self.lease)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._blocks.leave()
        await self.release()


def synchronize(
    *,
    key: str,
    masters: Iterable[Any] = frozenset(),
    raise_on_redis_errors: bool = False,
    auto_release_time: float = 10,
    blocking: bool = True,
    timeout: float = -1,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As pottery's: one call of the function at a time, under a Redlock.

    For example::

        @synchronize(key="report", masters={redis_a, redis_b, redis_c})
        def report(): ...
    """

    def decorator(work: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(work)
        def held(*args: P.args, **kwargs: P.kwargs) -> R:
            with Redlock(
                key=key,
                masters=masters,
                raise_on_redis_errors=raise_on_redis_errors,
                auto_release_time=auto_release_time,
                context_manager_blocking=blocking,
                context_manager_timeout=timeout,
            ):
                return work(*args, **kwargs)

        return held

    return decorator
