"""A cursor inside a write transaction of SQLite, on the caller's own connection, of any supported library."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fencepost.driver.backoff import Backoff
from fencepost.driver.interrupts import interruptible
from fencepost.driver.scope import patience
from fencepost.errors import BackendError, ConfigError
from fencepost.sql.connections import database, elsewhere, kind, sqlalchemy_connection

T = TypeVar("T")

_AT_ONCE = 4  # attempts without a sleep: most transactions of others are shorter than the shortest sleep
_yield: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))
_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not name


class Table(NamedTuple):
    """A table of fencepost in the caller's database, and the statement that creates it."""

    name: str
    ddl: str

    def missing(self, error: sqlite3.OperationalError) -> bool:
        """Whether the error says that this table is missing."""
        return f"no such table: {self.name}" in str(error)


def link(conn: Any) -> tuple[Any, Any]:
    """The object that returns cursors, and the one that has ``in_transaction``."""
    if isinstance(conn, sqlite3.Connection):
        return conn, conn
    if (found := database(conn)) and found != "sqlite":
        raise elsewhere(found, "SQLite")
    if kind(conn) == "django":
        conn.ensure_connection()
        return conn.connection, conn.connection
    if kind(conn) == "sqlalchemy":
        adapted = sqlalchemy_connection(conn).connection
        if hasattr(adapted.driver_connection, "in_transaction"):
            return adapted, adapted.driver_connection
    raise ConfigError(f"SQLite is used through a connection of sqlite3, SQLAlchemy or Django, not {type(conn)!r}")


def cursor(conn: Any) -> Any:
    """A cursor that returns tuples, even if the caller's connection has a row factory."""
    made = conn.cursor()
    if isinstance(made, sqlite3.Cursor):
        made.row_factory = None
    return made


def locked(conn: Any, table: Table) -> Any:
    """A cursor inside a write transaction: what it reads cannot change before the caller commits.

    Raises BackendError if the database's write lock is not free in time; ConfigError if the connection is in no
    transaction, and would not begin one by itself.
    """
    source, state = link(conn)
    made = cursor(source)
    with patient():
        if not state.in_transaction:
            _begin(state, made)
        try:
            # This changes nothing, but makes SQLite take the write lock.
            made.execute(f"DELETE FROM {table.name} WHERE 0")
        except sqlite3.OperationalError as error:
            if not table.missing(error):
                raise
            made.execute(table.ddl)
    return made


@contextmanager
def patient() -> Iterator[None]:
    """Turn a timeout while waiting for the database's write lock into BackendError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        raise BackendError(_busy(error), backend="sqlite", ambiguous=False) from error


def _begin(conn: Any, made: Any) -> None:
    # A connection in the legacy mode opens a transaction by itself before the caller's next write, and the
    # caller commits it. If it is opened here, it is the same transaction, only earlier.
    if getattr(conn, "autocommit", _LEGACY) != _LEGACY or conn.isolation_level is None:
        raise ConfigError(
            "a mark outside the transaction of its write guards nothing, and this connection is in no "
            "transaction; call conn.execute('BEGIN IMMEDIATE') first, and commit after the write"
        )
    made.execute("BEGIN IMMEDIATE")


def _busy(error: sqlite3.OperationalError) -> str:
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return (
            "this transaction has read, and others have written since, so it can no longer write; roll it "
            "back and run it again, with BEGIN IMMEDIATE or the guard before its first read"
        )
    return (
        "another connection holds the database's write lock; roll back and try again, or give "
        "sqlite3.connect() a longer timeout="
    )


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether another connection's transaction has locked the database."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def nap(seconds: float) -> None:
    """Sleep outside a transaction; an interrupt may end the sleep."""
    interruptible(time.sleep, seconds)


def patiently(attempt: Callable[[], T], *, busy: float, sleep: Callable[[float], None] = nap) -> T:
    """Repeat ``attempt`` until the file is not locked, for at most ``busy`` seconds, and return its result.

    SQLite's own busy handler sleeps for milliseconds, while transactions take microseconds: the first attempts follow
    each other at once. And for some statements
    SQLite does not wait at all, such as the change to WAL of a file that others open, too.
    """
    pauses: Backoff | None = None
    until = 0.0
    at_once = _AT_ONCE
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            until = until or time.monotonic() + patience(busy)
            if not is_busy(error) or time.monotonic() > until:
                raise
        if at_once:
            at_once -= 1
            _yield()
            continue
        pauses = pauses or Backoff(0.00005, 0.002, factor=1.5)
        sleep(pauses.next())
