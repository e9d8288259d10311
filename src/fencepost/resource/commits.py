"""Group commit: many accesses, one transaction, one wait for the disk.

One thread owns the writing ledger. It takes everything that waits, runs all of it in one transaction,
commits once, and only then answers.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from fencepost.errors import Refused
from fencepost.events import Event, Hook
from fencepost.resource.ledger import Ledger

T = TypeVar("T")

GROUP = 256  # bounds how long the first of a group waits for the last
_log = logging.getLogger("fencepost")


@dataclass(slots=True, eq=False)
class _Access:
    key: str
    run: Callable[[Ledger, Hook], Any]
    reply: "asyncio.Future[Any]"
    told: list[Event] = field(default_factory=list)
    outcome: Any = None
    error: Exception | None = None


class Writer:
    """The one thread that writes through ``ledger``, at most ``group`` accesses at a time."""

    def __init__(self, ledger: Ledger, tell: Hook, *, group: int = GROUP) -> None:
        self._ledger = ledger
        self._tell = tell
        self._group = group
        self._queue: SimpleQueue[_Access | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="fencepost-writer", daemon=True)
        self._thread.start()

    async def run(self, key: str, access: Callable[[Ledger, Hook], T]) -> T:
        """Run ``access``, which touches only ``key``, in the writer's transaction; its result, once that is on disk.

        What the access tells its hook is passed on after the commit and before the answer, also when it was
        refused. Raises what the access raises, which then changed nothing, and BackendError if the store failed.
        """
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Access(key, access, reply))
        return await reply

    def close(self) -> None:
        """Finish what was asked before, then end the thread and close the ledger."""
        self._queue.put(None)
        self._thread.join()
        self._ledger.close()

    def _work(self) -> None:
        closing = False
        while not closing:
            waiting = [self._queue.get()]
            while len(waiting) < self._group and not self._queue.empty():
                waiting.append(self._queue.get())
            group = [access for access in waiting if access is not None]
            closing = len(group) < len(waiting)
            if group:
                # In the order of the keys, so that two services on one store never wait for each other in a circle.
                # Accesses to one key stay in the order they came in.
                group.sort(key=lambda access: access.key)
                self._commit(group)
                _answer(group)

    def _commit(self, group: Sequence[_Access]) -> None:
        try:
            self._ledger.begin()
            for access in group:
                self._attempt(access)
            self._ledger.commit()
        except Exception as error:
            with suppress(Exception):
                self._ledger.rollback()
            if len(group) > 1:
                # Whatever it was, it need not be everybody's: each gets a transaction of its own.
                for access in group:
                    self._commit([access])
                return
            failure = self._ledger.failure(error)
            if failure is None:
                _log.exception("an access failed")
            else:
                _log.error("an access failed: %s", failure)
            group[0].error = failure or error
            return
        for access in group:
            for event in access.told:
                self._tell(event)

    def _attempt(self, access: _Access) -> None:
        access.told.clear()
        access.outcome = access.error = None
        try:
            access.outcome = access.run(self._ledger, access.told.append)
        except Refused as error:
            # A guard that refuses has changed nothing, so the transaction goes on without this one. After any other
            # error it may be over, and Postgres would answer the commit of such a one as if nothing were wrong.
            access.error = error


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
