"""Fleets for asyncio: the same names, awaited."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType

from fencepost import aio, ambient
from fencepost.driver import settle
from fencepost.errors import ConfigError
from fencepost.fleet.group import BaseStop, Group, Owned

__all__ = ["Partition", "Partitions", "Stop"]


class Stop(BaseStop):
    """Set once the work on a partition should end: it moves to another worker, is lost, or this worker leaves."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the work should end, or ``timeout`` seconds have passed; say whether it should."""
        return await self._owned._until_stop(timeout)


class Partition(Owned[aio.Lease]):
    """One partition while this worker owns it: ``number``, ``name``, ``lease``, ``token``."""

    __slots__ = ()

    @property
    def stop(self) -> Stop:
        """Set once the work should end; it can be waited for. The partition stays this worker's until the work ends."""
        return Stop(self)

    @property
    def ended(self) -> aio.Ended:
        """Set once the lease is over; it can be waited for."""
        return self.lease.ended


class Partitions:
    """One worker's partitions, of ``count`` of ``group``; see ``fencepost.fleet.Partitions``.

    ``assign``, ``revoke`` and ``work`` run in a task of the partition's own. ``work`` is a coroutine function; losing
    the lease cancels it, as it cancels the body of ``async with``. The other two may be coroutine functions.

        await Partitions(locks, "orders", 12).run(consume)
    """

    def __init__(
        self,
        locks: aio.Locks,
        group: str,
        count: int,
        *,
        assign: Callable[[Partition], object] | None = None,
        revoke: Callable[[Partition], object] | None = None,
        member: str | None = None,
        ttl: float | timedelta | None = None,
    ) -> None:
        if not isinstance(locks, aio.Locks):
            raise ConfigError(
                f"Partitions takes the locks of fencepost.aio.connect() here, not {type(locks)!r}; in blocking code "
                f"use fencepost.fleet.Partitions"
            )
        for call in (assign, revoke):
            if call is not None and not callable(call):
                raise ConfigError(f"a function that takes a partition is needed, not {call!r}")
        self._assign, self._revoke = assign, revoke
        self._work: Callable[[Partition], Awaitable[object]] | None = None
        self._group: Group[aio.Lease, Partition] = Group(
            locks._core,
            group,
            count,
            member=member,
            ttl=ttl,
            owned=Partition,
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

    async def __aenter__(self) -> "Partitions":
        """Join; raises BackendError, ConfigError if others of the group have another ``count``, or NotAcquired if
        another worker of the same name is there for twice the ttl."""
        await self._group.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.leave(failing=error is not None)

    async def run(self, work: Callable[[Partition], Awaitable[object]]) -> None:
        """Join, and await ``work(partition)``, in a task of its own, for each partition while it is owned.

        ``work`` goes on until ``partition.stop`` and then returns. If it returns sooner, the partition stays
        owned; if it raises, the worker gives the partition up and asks for it again later. Returns once ``stop()`` was
        called and everything is handed over. Raises what joining raises, and what ``close`` does.
        """
        self._work = work
        async with self:
            await self._group.leaving.wait()

    def stop(self) -> None:
        """Ask this worker to leave, and return at once."""
        self._group.stop()

    async def close(self) -> None:
        """Leave: finish, revoke and release what is owned. Waits for that.

        Raises ConfigError if this worker has left already, because others joined with another ``count`` while it was no
        member, as when it was frozen past its ttl. The end of the block raises it too, unless that fails.
        """
        await self._group.leave()

    async def _begin(self, partition: Partition) -> None:
        ambient.push(partition.lease)
        if self._assign is not None:
            with _failing():
                await settle(self._assign(partition))

    async def _perform(self, partition: Partition) -> None:
        if self._work is None or partition.ended:
            return
        work: object = self._work(partition)
        if not inspect.isawaitable(work):
            raise ConfigError(
                "the work of an asyncio worker is awaited: make it async def; fencepost.fleet.Partitions takes "
                "work that blocks"
            )
        body = asyncio.ensure_future(work)
        partition.lease._when_lost(partial(body.cancel, "the lease is lost"))
        with _failing():
            try:
                await body
            except asyncio.CancelledError:
                if not partition.ended or _cancelled():
                    raise

    async def _end(self, partition: Partition) -> None:
        if self._revoke is not None:
            with _failing():
                await settle(self._revoke(partition))


@contextmanager
def _failing() -> Iterator[None]:
    """Turn a cancellation of what was awaited into a failure; a cancellation of this task itself goes through."""
    try:
        yield
    except asyncio.CancelledError as error:
        if _cancelled():
            raise
        raise RuntimeError("it awaited something that other code has cancelled") from error


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
