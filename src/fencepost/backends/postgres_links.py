"""Connections to Postgres: where they lead, a small pool of them, and what their errors mean."""

import select
import threading
from collections import deque
from collections.abc import Generator, Sequence
from importlib import resources
from typing import Any, TypeAlias

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from fencepost.drive import Blocking, Driver, Signal, boottime, settle
from fencepost.errors import BackendError, ConfigError
from fencepost.url import Address

_VERSION = 1
_TRIES = 5
# A statement that failed so changed nothing, and may well succeed when it is tried again.
_TRANSIENT = (errors.SerializationFailure, errors.DeadlockDetected)
_NO_SCHEMA = (errors.InvalidSchemaName, errors.UndefinedFunction)
# Ends only sessions of ours: a pid may be somebody else's by now.
_END = """SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity
    WHERE pid = ANY(%s) AND application_name = %s AND usename = current_user"""

LIBPQ = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "host",
        "krbsrvname",
        "passfile",
        "port",
        "require_auth",
        "service",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslpassword",
        "sslrootcert",
        "target_session_attrs",
        "user",
    }
)
"""Options that a URL may carry for libpq."""


def conninfo(address: Address, patience: float) -> dict[str, Any]:
    """What libpq needs to connect to ``address``."""
    given: dict[str, Any] = {
        # An idle connection that was cut is noticed within half a minute, an unanswered one within ``patience``.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": int(patience * 1000),
        "connect_timeout": max(2, int(patience)),
        "application_name": "fencepost",
    }
    if address.hosts:
        given["host"] = ",".join(host for host, _ in address.hosts)
        given["port"] = ",".join(str(port or 5432) for _, port in address.hosts)
    if len(address.hosts) > 1:
        given["target_session_attrs"] = "read-write"
    if address.user:
        given["user"] = address.user
    if address.password is not None:
        given["password"] = address.password
    if database := address.path.strip("/"):
        given["dbname"] = database
    return given | {key: value for key, value in address.params.items() if key in LIBPQ}


def failure(error: psycopg.Error, *, ambiguous: bool) -> BackendError:
    """What a driver's error means to a user of locks."""
    said = str(error).strip().splitlines()
    text = said[0] if said else type(error).__name__
    if isinstance(error, errors.ReadOnlySqlTransaction):
        text += "; this is a standby: name the primary, or several hosts, of which the writable one is taken"
    elif isinstance(error, errors.InsufficientPrivilege):
        text += "; let the database's owner run fencepost/backends/sql/postgres.sql, and grant what its top names"
    return BackendError(f"Postgres: {text}", backend="postgresql", ambiguous=ambiguous)


def _bounded(work: Generator[Any, Any, Any], patience: float) -> Generator[Any, Any, Any]:
    """psycopg's protocol generator, given up once the server has been silent for too long."""
    until = boottime() + patience
    try:
        state = next(work)
        while True:
            ready = yield state
            if not ready and boottime() > until:  # psycopg sends 0 every now and then while nothing comes
                raise psycopg.OperationalError(f"no answer within {patience:g} s")
            state = work.send(ready)
    except StopIteration as end:
        return end.value


class BlockingLink(psycopg.Connection[Any]):
    """A connection whose statements are given up after ``patience`` seconds of silence."""

    patience = 10.0

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(_bounded(gen, self.patience), *args, **options)


class AsyncioLink(psycopg.AsyncConnection[Any]):
    """The same, for asyncio."""

    patience = 10.0

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return await super().wait(_bounded(gen, self.patience), *args, **options)


Link: TypeAlias = BlockingLink | AsyncioLink
_parents: list[Link] = []  # never closed: a connection inherited through a fork is the parent's


async def connect(kind: type[Link], info: dict[str, Any], patience: float) -> Link:
    """A new connection; BackendError if there is none to be had."""
    try:
        link: Link = await settle(kind.connect(**info, autocommit=True, prepare_threshold=None))
    except psycopg.Error as error:
        raise failure(error, ambiguous=False) from error
    link.patience = patience
    return link


async def ask(link: Any, sql: str, args: Sequence[Any] | None = None, *, prepare: bool = False) -> list[Any]:
    """All rows that one statement answers."""
    cursor = await settle(link.execute(sql, args, prepare=prepare))
    return await settle(cursor.fetchall()) if cursor.description else []


async def pooled(link: Link) -> bool:
    """Whether a pooler stands in between: it cannot know the pid of the session that a statement will meet."""
    return await ask(link, "SELECT pg_backend_pid()") != [(link.info.backend_pid,)]


def _silent(link: Link) -> bool:
    """Whether nothing came in on an idle connection: what comes unasked is the server's farewell."""
    poll = select.poll()
    poll.register(link.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


class Links:
    """Up to ``limit`` connections, opened when needed, each used by one thread or task at a time."""

    def __init__(self, info: dict[str, Any], driver: Driver, *, schema: str, limit: int, patience: float) -> None:
        self._info = info
        self._driver = driver
        self._kind: type[Link] = BlockingLink if isinstance(driver, Blocking) else AsyncioLink
        self._schema = schema
        self._limit = limit
        self._patience = patience
        self._gate = threading.Lock()
        self._idle: list[Link] = []
        self._open = 0
        self._queue: deque[Signal] = deque()
        self._stranded: list[int] = []  # server processes that may still be at work for connections that broke
        self._known = False
        self.pooled = False

    async def row(self, sql: str, args: tuple[Any, ...]) -> Any:
        """The first row that one statement answers."""
        rows = await self.rows(sql, args)
        return rows[0]

    async def rows(self, sql: str, args: tuple[Any, ...]) -> list[Any]:
        """What one statement answers; BackendError, ambiguous if it may have been carried out all the same."""
        for left in reversed(range(_TRIES)):
            link = await self._take()
            try:
                return await ask(link, sql, args, prepare=not self.pooled)
            except _TRANSIENT as error:
                if not left:
                    raise failure(error, ambiguous=False) from error
            except psycopg.Error as error:
                # Only the server's own word that it failed says for sure that nothing was done.
                unsure = error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
                raise failure(error, ambiguous=unsure) from error
            finally:
                self._give_back(link)
        raise AssertionError("unreachable")

    async def _take(self) -> Link:
        while True:
            signal = None
            with self._gate:
                if self._idle:
                    link = self._idle.pop()
                elif self._open < self._limit:
                    self._open += 1
                    break
                else:
                    signal = self._driver.signal()
                    self._queue.append(signal)
            if signal is not None:
                await self._turn(signal)
            elif _silent(link):
                return link
            else:
                self._drop(link)
        try:
            return await self._connect()
        except BaseException:
            self._closed_one()
            raise

    async def _turn(self, signal: Signal) -> None:
        try:
            await signal.wait()
        except BaseException:
            with self._gate:
                if signal in self._queue:
                    self._queue.remove(signal)
            self._call_next()  # this one's turn may have come just now
            raise

    def _give_back(self, link: Link) -> None:
        if link.closed or link.pgconn.transaction_status != TransactionStatus.IDLE:
            if not self.pooled and not link.closed:
                self._stranded.append(link.info.backend_pid)
            self._drop(link)
        else:
            with self._gate:
                self._idle.append(link)
            self._call_next()

    def _call_next(self) -> None:
        if self._queue:
            with self._gate:
                if self._queue and (self._idle or self._open < self._limit):
                    self._queue.popleft().set()

    def _drop(self, link: Link) -> None:
        link.pgconn.finish()  # without goodbyes, which might wait
        self._closed_one()

    def _closed_one(self) -> None:
        with self._gate:
            self._open -= 1
        self._call_next()

    async def _connect(self) -> Link:
        link = await connect(self._kind, self._info, self._patience)
        try:
            if not self._known:
                self.pooled = await pooled(link)
                await create(link, self._schema)
                self._known = True
            stranded, self._stranded = self._stranded, []
            if stranded:
                # A statement cut off on its way must not be carried out after its clean-up.
                await ask(link, _END, [stranded, self._info["application_name"]])
        except BaseException as error:
            link.pgconn.finish()
            if isinstance(error, psycopg.Error):
                raise failure(error, ambiguous=False) from error
            raise
        return link

    async def close(self) -> None:
        with self._gate:
            links, self._idle = self._idle, []
            self._open -= len(links)
        for link in links:
            await settle(link.close())

    def forked(self) -> None:
        """Open anew, in a forked child, on next use."""
        _parents.extend(self._idle)
        self._gate = threading.Lock()
        self._idle, self._open, self._queue, self._stranded = [], 0, deque(), []


async def create(link: Link, schema: str) -> None:
    """Create the schema unless it is there; ConfigError if it is of another version."""
    try:
        found = await ask(link, f"SELECT {schema}.version()")
    except _NO_SCHEMA:
        sql = resources.files("fencepost.backends").joinpath("sql", "postgres.sql").read_text("utf-8")
        sql = sql.replace("fencepost.", f"{schema}.").replace("EXISTS fencepost", f"EXISTS {schema}")
        await ask(link, "BEGIN")
        try:
            # One creates it; the others wait, and then find it there.
            await ask(link, f"SELECT pg_advisory_xact_lock(hashtextextended('create {schema}', 0))")
            if await ask(link, f"SELECT to_regprocedure('{schema}.version()')") == [(None,)]:
                await ask(link, sql)
            await ask(link, "COMMIT")
        except psycopg.Error:
            if not link.closed:
                await ask(link, "ROLLBACK")
            raise
        found = await ask(link, f"SELECT {schema}.version()")
    if found != [(_VERSION,)]:
        raise ConfigError(
            f"schema {schema!r} is of version {found[0][0]}, this fencepost knows {_VERSION}: upgrade the older one"
        )
