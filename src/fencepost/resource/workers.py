"""The two threads of a store, each with a ledger of its own: one writes, one reads.

A thread takes everything that waits for it, serves all of it, and only then answers. The writer does that in one
transaction, with one wait for the disk (group commit).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from fencepost.errors import BackendError, Refused
from fencepost.events import Event, Hook
from fencepost.resource.census import NoRoom
from fencepost.resource.ledger import AGAIN, Ledger

T = TypeVar("T")

GROUP = 256  # bounds how long the first of a group waits for the last
QUEUE = 4096  # accesses that may wait for one thread
_READS = 16  # values that one thread holds at the same time
_PATIENCE = 10.0  # seconds for running the accesses of a failed group one by one
_log = logging.getLogger("fencepost")


def never() -> bool:
    """For an access whose client waits until it is answered."""
    return False


@dataclass(slots=True, eq=False)
class _Access:
    key: str
    run: Callable[[Ledger, Hook], Any]
    reply: "asyncio.Future[Any]"
    gone: Callable[[], bool]
    reads: bool
    told: list[Event] = field(default_factory=list)
    outcome: Any = None
    error: Exception | None = None


class _Worker:
    """A thread that serves accesses through ``ledger``, at most ``group`` at a time, while at most ``limit`` wait."""

    def __init__(self, ledger: Ledger, name: str, *, group: int, limit: int) -> None:
        self._ledger = ledger
        self._group = group
        self._limit = limit
        self.turned_away = 0
        """Accesses that found too many others waiting."""
        self._queue: SimpleQueue[_Access | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(
        self, key: str, access: Callable[[Ledger, Hook], T], gone: Callable[[], bool] = never, *, reads: bool = False
    ) -> T:
        """Run ``access``, which touches only ``key``, and return its result; that is a value if it ``reads``.

        The access is skipped if ``gone()`` is true when its turn comes.
        Raises what the access raises, and BackendError if the store failed, or too many accesses wait already.
        """
        if self._queue.qsize() >= self._limit:
            self.turned_away += 1
            raise BackendError(
                f"{self._limit} requests wait for the store already; {AGAIN}",
                backend=self._ledger.name,
                ambiguous=False,
            )
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Access(key, access, reply, gone, reads))
        return await reply

    @property
    def waiting(self) -> int:
        """How many accesses wait for the thread."""
        return self._queue.qsize()

    def close(self) -> None:
        """Finish what was asked before, then end the thread and close the ledger."""
        self._queue.put(None)
        self._thread.join()
        self._ledger.close()

    def _work(self) -> None:
        closing = False
        while not closing:
            group: list[_Access] = []
            values = 0
            while not closing and len(group) < self._group and values < _READS and not (group and self._queue.empty()):
                if (access := self._queue.get()) is None:
                    closing = True
                else:
                    group.append(access)
                    values += access.reads
            wanted = [access for access in group if not self._abandoned(access)]
            if wanted and (failed := self._serve(wanted)) is not None and self._ledger.broken:
                # The store was lost: the accesses that came meanwhile would each wait as long for the same error.
                while not self._queue.empty():
                    if (access := self._queue.get()) is None:
                        closing = True
                    else:
                        access.error = failed
                        group.append(access)
            if group:
                _answer(group)

    def _abandoned(self, access: _Access) -> bool:
        if access.reply.done() or access.gone():
            access.error = BackendError("the client did not wait", backend=self._ledger.name, ambiguous=False)
        return access.error is not None

    def _serve(self, group: list[_Access]) -> Exception | None:
        """Set the outcome or the error of each access; return the store's last failure, if there was one."""
        raise NotImplementedError

    def _failed(self, accesses: Sequence[_Access], error: Exception) -> Exception:
        """Give the accesses what an error of the driver means, and log it once."""
        failure = self._ledger.failure(error) or error
        for access in accesses:
            access.error = failure
        unexpected = None if isinstance(failure, BackendError) else failure
        _log.error("%d accesses failed: %s", len(accesses), failure, exc_info=unexpected)
        return failure


class Writer(_Worker):
    """The thread that writes.

    The result of an access is returned once it is on disk. What the access tells its hook is passed on after the
    commit and before the answer, also when it was refused. An access that raised has changed nothing, unless it is an
    ambiguous BackendError.
    """

    def __init__(self, ledger: Ledger, tell: Hook, *, group: int = GROUP, limit: int = QUEUE) -> None:
        self._tell = tell
        super().__init__(ledger, "fencepost-writer", group=group, limit=limit)

    def _serve(self, group: list[_Access]) -> Exception | None:
        # Sort by key, so that two services on one store never deadlock. Accesses to one key stay in the order in which
        # they came.
        group.sort(key=lambda access: access.key)
        failure = self._commit(group)
        if failure is None:
            return None
        error, for_all = failure
        if for_all or len(group) == 1:
            return self._failed(group, error)
        # One access failed, and the others need not: each gets a transaction of its own.
        end = time.monotonic() + _PATIENCE
        hopeless: str | None = None
        for number, access in enumerate(group):
            if access.key == hopeless:
                access.error = group[number - 1].error
            elif (failure := self._commit([access])) is not None:
                error, for_all = failure
                hopeless = access.key
                if for_all or time.monotonic() > end:
                    return self._failed(group[number:], error)
                error = self._failed([access], error)
        return error

    def _commit(self, group: Sequence[_Access]) -> tuple[Exception, bool] | None:
        """Run the group in one transaction; None if it committed, else the error, and whether it is for all of them.

        It is once COMMIT was sent: Postgres may have carried it out, and then the accesses would be refused if they
        were run again, although they were made. It is, too, if BEGIN or the connection failed.
        """
        running = False
        try:
            self._ledger.begin()
            running = True
            for access in group:
                self._attempt(access)
            running = False
            self._ledger.commit()
        except Exception as error:
            with suppress(Exception):
                self._ledger.rollback()
            return error, not running or self._ledger.broken
        for access in group:
            for event in access.told:
                self._tell(event)
        return None

    def _attempt(self, access: _Access) -> None:
        access.told.clear()
        access.outcome = access.error = None
        try:
            access.outcome = access.run(self._ledger, access.told.append)
        except (Refused, NoRoom) as error:
            # A guard that refuses has changed nothing, so the transaction goes on without this access. Any other error
            # may have aborted the transaction, and Postgres answers the COMMIT of an aborted one without an error.
            access.error = error


class Reader(_Worker):
    """The thread that reads, outside any transaction. Its accesses tell nothing."""

    def __init__(self, ledger: Ledger, *, limit: int = QUEUE) -> None:
        super().__init__(ledger, "fencepost-reader", group=_READS, limit=limit)

    def _serve(self, group: list[_Access]) -> Exception | None:
        failed = None
        for number, access in enumerate(group):
            try:
                access.outcome = access.run(self._ledger, access.told.append)
            except Exception as error:
                if self._ledger.broken:
                    return self._failed(group[number:], error)
                failed = self._failed([access], error)
        return failed


def _answer(group: Sequence[_Access]) -> None:
    loop = group[0].reply.get_loop()
    try:
        loop.call_soon_threadsafe(_settle, group)
    except RuntimeError:
        _log.warning("the service ended before it could answer %d accesses", len(group))


def _settle(group: Sequence[_Access]) -> None:
    for access in group:
        if access.reply.done():
            continue  # its request was cancelled while the disk was busy
        if access.error is None:
            access.reply.set_result(access.outcome)
        else:
            access.reply.set_exception(access.error)
