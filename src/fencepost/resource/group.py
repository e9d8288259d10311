"""Group commit: many accesses, one transaction, one wait for the disk.

One thread owns the writing connection. It takes everything that waits, runs each access in a savepoint
of one transaction, commits once, and only then answers all of them.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from fencepost.errors import BackendError, FencepostError

T = TypeVar("T")

_GROUP = 256  # bounds how long the first of a group waits for the last
_log = logging.getLogger("fencepost")


@dataclass(slots=True, eq=False)
class _Access:
    run: Callable[[], Any]
    told: Callable[[], None]
    reply: "asyncio.Future[Any]"
    outcome: Any = None
    error: Exception | None = None


class Writer:
    """The one thread that writes through ``conn``, which must be in autocommit mode."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self._queue: SimpleQueue[_Access | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="fencepost-writer", daemon=True)
        self._thread.start()

    async def run(self, access: Callable[[], T], told: Callable[[], None]) -> T:
        """Run ``access`` in the writer's transaction; returns what it did once that is on disk.

        ``told`` is called after the commit and before the answer, also when the access was refused.
        Raises what the access raises, which then changed nothing, and BackendError, ambiguous, if the
        group could not be committed.
        """
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Access(access, told, reply))
        return await reply

    def close(self) -> None:
        """Finish what was asked before, then end the thread and close the connection."""
        self._queue.put(None)
        self._thread.join()
        self._conn.close()

    def _work(self) -> None:
        closing = False
        while not closing:
            waiting = [self._queue.get()]
            while len(waiting) < _GROUP and not self._queue.empty():
                waiting.append(self._queue.get())
            group = [access for access in waiting if access is not None]
            closing = len(group) < len(waiting)
            if group:
                self._commit(group)
                _answer(group)

    def _commit(self, group: Sequence[_Access]) -> None:
        try:
            self._conn.execute("BEGIN IMMEDIATE")
            for access in group:
                self._attempt(access)
            self._conn.execute("COMMIT")
        except sqlite3.Error as error:
            _log.error("the store failed, and %d accesses with it: %s", len(group), error)
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            message = f"the store failed: {error}; send the same request again, with the same stamp"
            for access in group:
                access.error = BackendError(message, backend="sqlite", ambiguous=True)
            return
        for access in group:
            access.told()

    def _attempt(self, access: _Access) -> None:
        self._conn.execute("SAVEPOINT access")
        try:
            access.outcome = access.run()
        except sqlite3.Error:
            raise
        except Exception as error:
            if not isinstance(error, FencepostError):
                _log.exception("an access failed")
            access.error = error
            self._conn.execute("ROLLBACK TO access")
        self._conn.execute("RELEASE access")


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
