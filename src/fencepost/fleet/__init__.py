"""A fleet of workers that share partitions: each is owned by one of them at a time, under its own lease and token."""

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType

from fencepost import ambient, sync
from fencepost.driver import Signal, call
from fencepost.errors import ConfigError
from fencepost.fleet import aio
from fencepost.fleet.group import BaseStop, Group, Owned
from fencepost.fleet.plan import Member, View, view

__all__ = ["Member", "Partition", "Partitions", "Stop", "View", "aio", "view"]


class Stop(BaseStop):
    """Set once the work on a partition should end: it moves to another worker, is lost, or this worker leaves."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the work should end, or ``timeout`` seconds have passed; say whether it should."""
        return call(self._owned._until_stop, timeout)


class Partition(Owned[sync.Lease]):
    """One partition while this worker owns it: ``number``, ``name``, ``lease``, ``token``."""

    __slots__ = ()

    @property
    def stop(self) -> Stop:
        """Set once the work should end; it can be waited for. The partition stays this worker's until the work ends."""
        return Stop(self)

    @property
    def ended(self) -> sync.Ended:
        """Set once the lease is over; it can be waited for."""
        return self.lease.ended


class Partitions:
    """The partitions that one worker owns, of ``count``, numbered from 0, among all workers of ``group``.

        with Partitions(locks, "orders", 64, assign=opened, revoke=closed) as mine:
            for partition in mine: ...

    All workers own the same number of partitions, or one more; few move when a worker comes or goes.
    ``assign(partition)`` is called when this worker has acquired a partition, and ``revoke(partition)`` once for each
    that was assigned, before its lease is released: the next owner waits until it returns. If ``partition.ended`` is
    set by then, the lease is over, and the next owner may be at work already. Both are called on a thread of the
    partition's own. An error in them is logged; after one in ``assign`` the worker gives the partition up, and asks for
    it again later. All workers of a group must have the same ``count``.

    ``member`` names this worker for people; no two may share a name. ``ttl`` is how long a dead worker's
    partitions stay with it; default: that of ``locks``.
    """

    def __init__(
        self,
        locks: sync.Locks,
        group: str,
        count: int,
        *,
        assign: Callable[[Partition], object] | None = None,
        revoke: Callable[[Partition], object] | None = None,
        member: str | None = None,
        ttl: float | timedelta | None = None,
    ) -> None:
        if not isinstance(locks, sync.Locks):
            raise ConfigError(
                f"Partitions takes the locks of fencepost.connect(), not {type(locks)!r}; with asyncio use "
                f"fencepost.fleet.aio.Partitions"
            )
        for each in (assign, revoke):
            if each is not None:
                _blocking(each)
        self._assign, self._revoke = assign, revoke
        self._work: Callable[[Partition], object] | None = None
        self._group: Group[sync.Lease, Partition] = Group(
            locks._core,
            group,
            count,
            member=member,
            ttl=ttl,
            owned=_partition,
            begin=self._begin,
            work=self._perform,
            end=self._end,
        )

    @property
    def member(self) -> str:
        """The name of this worker."""
        return self._group.member

    def __iter__(self) -> Iterator[Partition]:
        """The partitions that this worker owns at this moment, by number."""
        return iter(self._group)

    def __enter__(self) -> "Partitions":
        """Join; raises BackendError, ConfigError if others of the group have another ``count``, or NotAcquired if
        another worker of the same name is there for twice the ttl."""
        try:
            call(self._group.join)
        except BaseException:
            if self._group.joined:  # interrupted after it had joined
                self._group.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call(self._group.leave, failing=error is not None)

    def run(self, work: Callable[[Partition], object]) -> None:
        """Join, and call ``work(partition)``, on a thread of its own, for each partition while it is owned.

        ``work`` goes on until ``partition.stop`` and then returns. If it returns sooner, the partition stays
        owned; if it raises, the worker gives the partition up and asks for it again later. Returns once ``stop()`` was
        called elsewhere and everything is handed over. Raises what joining raises, and what ``close`` does.
        """
        _blocking(work)
        self._work = work
        with self:
            call(self._group.leaving.wait)

    def stop(self) -> None:
        """Ask this worker to leave, and return at once: for signal handlers, and for ``work`` itself."""
        self._group.stop()

    def close(self) -> None:
        """Leave: finish, revoke and release what is owned. Waits for that.

        Raises ConfigError if this worker has left already, because others joined with another ``count`` while it was no
        member, as when it was frozen past its ttl. The end of a ``with`` block raises it too, unless the block fails.
        """
        call(self._group.leave)

    async def _begin(self, partition: Partition) -> None:
        ambient.push(partition.lease)
        if self._assign is not None:
            _call(self._assign, partition)

    async def _perform(self, partition: Partition) -> None:
        if self._work is not None:
            _call(self._work, partition)

    async def _end(self, partition: Partition) -> None:
        if self._revoke is not None:
            _call(self._revoke, partition)


def _partition(number: int, lease: sync.Lease, signal: Signal) -> Partition:
    return Partition(number, lease, signal)


def _blocking(call: Callable[..., object]) -> None:
    if not callable(call):
        raise ConfigError(f"a function that takes a partition is needed, not {call!r}")
    if inspect.iscoroutinefunction(call):
        raise ConfigError(f"{_name(call)} is a coroutine function; use fencepost.fleet.aio.Partitions")


def _call(call: Callable[[Partition], object], partition: Partition) -> None:
    answer = call(partition)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ConfigError(f"{_name(call)} wants to be awaited, so nothing was done; use fencepost.fleet.aio.Partitions")


def _name(call: Callable[..., object]) -> object:
    return getattr(call, "__qualname__", call)
