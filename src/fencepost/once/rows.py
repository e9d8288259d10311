"""Rows of ours in the caller's database, SQLite or Postgres, written in the caller's transaction.

Statements are written once, with ``%s`` for a parameter.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fencepost.driver import settle
from fencepost.errors import ConfigError
from fencepost.sql import postgres
from fencepost.sql.connections import atomic, begin, is_sqlite, opened, refused, texts, through, undone, within
from fencepost.sql.sqlite import Table, cursor, link, locked, patient


async def ask(conn: Any, table: Table, sql: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Run a statement, and return the first row of its result; in SQLite it first takes the database's write lock.

    Raises ConfigError in a Postgres that was not prepared, and outside a transaction of SQLite's; BackendError if
    SQLite's write lock is not free in time.
    """
    if not is_sqlite(conn):
        row: tuple[Any, ...] | None = await settle(
            postgres.on(
                conn, lambda conn: postgres.ask(conn, sql, args, answers="RETURNING" in sql or sql[:6] == "SELECT")
            )
        )
        return row

    def run(conn: Any) -> tuple[Any, ...] | None:
        with undone(*link(conn)):
            return _first(locked(conn, table), sql, args)

    found: tuple[Any, ...] | None = await settle(through(conn, run))
    return found


async def look(conn: Any, table: Table, sql: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The first row of a SELECT as this connection sees it now; no lock is taken, no table is created."""
    if not is_sqlite(conn):
        return await ask(conn, table, sql, args)

    def run(conn: Any) -> tuple[Any, ...] | None:
        try:
            return _first(cursor(link(conn)[0]), sql, args)
        except sqlite3.OperationalError as error:
            if not table.missing(error):
                raise
            return None

    found: tuple[Any, ...] | None = await settle(through(conn, run))
    return found


def _first(found: Any, sql: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    found.execute(sql.replace("%s", "?"), args)
    rows = found.fetchall() if found.description else []  # fetch all: else a RETURNING would not be finished
    if not rows:
        return None
    return texts(rows[0])


@asynccontextmanager
async def transaction(conn: Any, table: Table) -> AsyncIterator[None]:
    """A transaction that ends with its block, or a savepoint inside the caller's own. Raises as ``ask`` does."""
    if opened(conn) and is_sqlite(conn):
        # sqlite3 may not have begun the transaction yet, and a savepoint outside one is a transaction of its own.
        await settle(through(conn, lambda conn: locked(conn, table)))
    async with _alone(conn, atomic(conn)):
        yield


@asynccontextmanager
async def own(conn: Any) -> AsyncIterator[None]:
    """A transaction of its own, committed with its block. Raises as ``ask`` does, and ConfigError inside another."""
    if opened(conn):  # psycopg would only open a savepoint in it
        raise ConfigError("this connection is in a transaction already, which nobody here commits; end it first")
    async with _alone(conn, begin(conn)):
        yield


@asynccontextmanager
async def _alone(conn: Any, block: Any) -> AsyncIterator[None]:
    try:
        async with AsyncExitStack() as stack:
            with patient():
                await stack.enter_async_context(within(block))
            if not is_sqlite(conn) and await settle(through(conn, postgres.alone)):
                raise ConfigError(
                    "each statement of this connection is a transaction by itself (AUTOCOMMIT), so that nothing can "
                    "be made in one step with another; take one without that isolation level"
                )
            yield
    except BaseException:
        await settle(through(conn, refused))
        raise
