"""A small pool of connections to Postgres."""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from types import UnionType
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.generators import execute
from psycopg.pq import TransactionStatus

from fencepost.backends.postgres.connection import (
    END,
    AsyncioLink,
    BlockingLink,
    Call,
    Link,
    Target,
    ask,
    connect,
    create,
    failure,
    pooled,
    tell,
)
from fencepost.driver import Driver, Signal, settle
from fencepost.driver.scope import patience as within
from fencepost.driver.sockets import silent
from fencepost.errors import BackendError

T = TypeVar("T")

# A statement that failed with one of these changed nothing, and may succeed when it is retried. Where transactions are
# serializable, one that had to wait for a row fails; behind a pooler we cannot change the isolation level.
_TRANSIENT = (errors.SerializationFailure, errors.DeadlockDetected)

_READ_ONLY = "25006"  # the SQLSTATE of a standby, also of one that was the primary when we connected

_parents: list[Link] = []  # never closed: a connection inherited through a fork is the parent's


def _crash(error: psycopg.Error | OSError) -> bool:
    """Whether the server crashed with this error, for example because it cannot write its log.

    What it had written before may take effect when it recovers.
    """
    return isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "PANIC"


class Links:
    """Up to ``limit`` connections, opened when needed, each used by one thread or task at a time."""

    def __init__(
        self,
        target: Target,
        driver: Driver,
        *,
        schema: str,
        calls: Sequence[Call],
        limit: int,
        patience: float,
    ) -> None:
        self._target = target
        self._driver = driver
        self._kind: type[Link] = BlockingLink if driver.blocking else AsyncioLink
        self._schema = schema
        self._calls = calls
        self._limit = limit
        self._patience = patience
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._idle: list[Link] = []
        self._used: dict[Link, asyncio.AbstractEventLoop] = {}
        """The connections that tasks use, each with its event loop."""
        self._open = 0
        self._queue: deque[Signal] = deque()
        self._stranded: list[int] = []  # pids of server processes that may still execute a statement that was given up
        self._unfinished = 0  # statements that were given up behind a pooler, and are still being cancelled
        self._known = False
        self.closed = False
        self.pooled = False

    async def call(self, call: Call, *args: str | None) -> str | None:
        """The answer to one of the prepared calls; raises the errors of ``rows``."""
        return await self._with(lambda link: call.make(link, args, prepared=not self.pooled))

    async def rows(self, sql: str, *args: Any, kinds: Sequence[type | UnionType] | None = None) -> list[Any]:
        """The rows that one statement returns, in columns of these ``kinds``.

        Raises BackendError, which is ambiguous if the statement may have been executed.
        """
        return await self._with(lambda link: ask(link, sql, args, kinds))

    async def route(self) -> tuple[str, str, bool]:
        """The host that a connection leads to, its sslmode, and whether it is encrypted."""

        async def look(link: Link) -> tuple[str, str, bool]:
            modes = [option.val for option in link.pgconn.info if option.keyword == b"sslmode"]
            return link.info.host, (modes[0] or b"").decode(), bool(link.pgconn.ssl_in_use)

        return await self._with(look)

    async def _with(self, work: Callable[[Link], Awaitable[T]]) -> T:
        until = self._driver.now() + self._patience
        while True:
            link, usable = await self._take(), True
            try:
                if not self._driver.blocking:
                    self._used[link] = asyncio.get_running_loop()
                return await work(link)
            except _TRANSIENT as error:
                if self._driver.now() > until or not within(inf):
                    raise failure(error, ambiguous=False) from error
            except (psycopg.Error, OSError) as error:
                state = getattr(error, "sqlstate", None)
                usable = state != _READ_ONLY
                if state is None or not usable:
                    self._suspect()
                # Nothing was changed only if the server itself reports a failure, and did not crash with it.
                unsure = state is None or state.startswith(("08", "57P")) or _crash(error)
                raise failure(error, ambiguous=unsure) from error
            finally:
                self._used.pop(link, None)
                try:
                    if usable:
                        self._give_back(link)
                    else:  # this server is no longer the primary; a new connection may reach the one that is
                        self._drop(link)
                except BaseException:  # such as MemoryError: the connection would count as open forever
                    if link not in self._idle:
                        self._drop(link)
                    raise
            await self._driver.sleep(random.uniform(0, 0.01))

    async def _take(self) -> Link:
        while True:
            signal = link = None
            with self._gate:
                if not self._unfinished:
                    with suppress(IndexError):
                        link = self._idle.pop()
                if link is None:
                    if self._open < self._limit and not self._unfinished:
                        self._open += 1
                    else:
                        signal = self._driver.signal()
                        self._queue.append(signal)
            if signal is not None:
                await self._turn(signal)
                continue
            try:
                if link is None:
                    link = await self._connect()
                elif not silent(link.pgconn.socket):
                    self._drop(link)
                    continue
                if self._stranded:
                    await self._end_stranded(link)
                return link
            except BaseException:
                if link is None:
                    self._closed_one()
                else:
                    self._give_back(link)
                raise

    async def _turn(self, signal: Signal) -> None:
        limit = within(inf)
        try:
            if not await signal.wait(None if limit == inf else limit):
                raise BackendError(
                    f"Postgres: all of {self._limit} connections were in use until the timeout, see ?pool=",
                    backend="postgresql",
                    ambiguous=False,
                )
        except BaseException:
            with self._gate:
                if signal in self._queue:
                    self._queue.remove(signal)
            self._call_next()  # the turn may have come just now: pass it on
            raise

    def _give_back(self, link: Link) -> None:
        if link.closed or link.pgconn.transaction_status != TransactionStatus.IDLE:
            if not self.pooled:
                self._stranded.append(link.pid)
            elif not (link.closed or self.closed):
                self._end_later(link)
                return
            self._drop(link)
        elif self.closed:
            self._drop(link)
        else:
            with self._gate:
                self._idle.append(link)
            self._call_next()

    def _call_next(self) -> None:
        if self._queue:
            with self._gate:
                if self._queue and not self._unfinished and (self._idle or self._open < self._limit):
                    self._queue.popleft().set()

    def _suspect(self) -> None:
        """Drop the idle connections after one broke or stayed silent: they may be dead too, without an error."""
        with self._gate:
            idle, self._idle = self._idle, []
        for link in idle:
            self._drop(link)

    async def _end_stranded(self, link: Link) -> None:
        """End the server processes of statements that were given up, so that none is executed after its clean-up."""
        stranded = self._stranded.copy()
        patience = int(min(2.0, self._patience / 2) * 1000)
        try:
            await ask(link, END, [patience, stranded])
        except (psycopg.Error, OSError) as error:
            raise failure(error, ambiguous=False) from error
        with self._gate:
            self._stranded = [pid for pid in self._stranded if pid not in stranded]

    def _end_later(self, link: Link) -> None:
        """The same behind a pooler, which hides the server process: cancel the statement, and wait until it has ended.

        Until then the pool lends no connection: otherwise a clean-up could run before the statement that it must undo.
        """
        with self._gate:
            self._unfinished += 1
        try:
            self._driver.spawn(self._end(link), "fencepost-end")
        except (RuntimeError, MemoryError):  # no thread could be started, or the event loop is gone
            self._drop(link)
            self._ended()

    async def _end(self, link: Link) -> None:
        try:
            with suppress(psycopg.Error):
                await settle(link.cancel_safe(timeout=self._patience))
            await settle(link.wait(execute(link.pgconn)))
        except psycopg.Error:
            self._drop(link)
        except BaseException:
            self._drop(link)
            raise
        else:
            if link.pgconn.transaction_status == TransactionStatus.IDLE:
                self._give_back(link)
            else:
                self._drop(link)
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._gate:
            self._unfinished -= 1
            waiting = len(self._queue)
        for _ in range(waiting):
            self._call_next()

    def _drop(self, link: Link) -> None:
        link.pgconn.finish()  # without psycopg's close, which might block
        self._closed_one()

    def _closed_one(self) -> None:
        with self._gate:
            self._open -= 1
        self._call_next()

    async def _connect(self) -> Link:
        link = await connect(self._kind, self._target)
        try:
            if not self._known:
                self.pooled = await pooled(link)
                await create(link, self._schema)
                self._known = True
            if not self.pooled:
                await tell(link, "SET default_transaction_isolation = 'read committed'")  # see _TRANSIENT
                for call in self._calls:
                    await call.prepare(link)
        except BaseException as error:
            link.pgconn.finish()
            if isinstance(error, (psycopg.Error, OSError)):
                raise failure(error, ambiguous=False) from error
            raise
        return link

    async def close(self) -> None:
        self.closed = True  # connections in use are closed when they are given back
        with self._gate:
            links, self._idle = self._idle, []
            self._open -= len(links)
        for link in links:
            await settle(link.close())
        for link, loop in self._used.copy().items():
            if loop.is_closed():  # it will never be given back
                link.pgconn.finish()

    def forked(self) -> None:
        """In a forked child: open new connections on next use."""
        _parents.extend(self._idle)
        self._used = {}
        self._gate = threading.RLock()
        self._idle, self._open, self._queue, self._stranded, self._unfinished = [], 0, deque(), [], 0
