"""Runs one statement of the Postgres guard on the caller's own connection, of any supported library."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import Any, TypeVar, cast

from fencepost.driver import run, settle
from fencepost.errors import ConfigError
from fencepost.sql.connections import database, elsewhere, kind, sqlalchemy_connection, texts, through

T = TypeVar("T")

_OTHERS = {"sqlite", "mysql", "mariadb", "oracle", "mssql", "microsoft"}  # as SQLAlchemy and Django call them
_MISSING = {"42P01", "42883", "42704"}  # undefined table, function, object


def on(conn: Any, job: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """The answer of a coroutine function that uses ``conn``; an awaitable if the connection is asyncio's.

    Raises ConfigError if the connection's database is not Postgres.
    """
    if kind(conn) == "psycopg-async":
        return job(conn)
    return through(conn, lambda conn: run(job(_required(conn))))


def _required(conn: Any) -> Any:
    """The connection; ConfigError if its database is known not to be Postgres."""
    found = database(conn)
    if found and found in _OTHERS:
        raise elsewhere(found, "Postgres")
    return conn


async def awaited(conn: Any, job: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """The same for an asyncio connection."""
    return cast(T, await on(conn, job))


async def ask(conn: Any, sql: str, args: tuple[Any, ...] | None, *, answers: bool = True) -> tuple[Any, ...] | None:
    """The first row that a statement returns, with bytes decoded to text. Errors of the driver pass through, except
    that it raises ConfigError if the database was not prepared."""
    try:
        row = await _ask(conn, sql, args, answers)
    except Exception as error:
        if lacking := unprepared(error):
            raise lacking from error
        raise
    return None if row is None else texts(row)


async def _ask(conn: Any, sql: str, args: tuple[Any, ...] | None, answers: bool) -> Any:
    what = kind(conn)
    if what == "psycopg":
        cursor = tuples(conn)
        cursor.execute(sql, args)
        return cursor.fetchone() if answers else None
    if what == "sqlalchemy":
        return _ask_sqlalchemy(sqlalchemy_connection(conn), sql, args, answers)
    if what == "django":
        with conn.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchone() if answers else None
    if what == "psycopg-async":
        cursor = tuples(conn)
    elif hasattr(conn, "cursor"):
        cursor = conn.cursor()
    else:
        raise ConfigError(f"this guard takes a connection of psycopg, SQLAlchemy or Django, not {type(conn)!r}")
    await settle(cast(Awaitable[Any], cursor.execute(sql, args)))
    return await settle(cursor.fetchone()) if answers else None


def unprepared(error: Exception) -> ConfigError | None:
    """The ConfigError for a database that was not prepared; None if the driver's error has another cause."""
    if state(error) not in _MISSING or "fencepost" not in str(error):
        return None
    return ConfigError(
        "this database lacks tables of fencepost in its search_path; run 'fencepost guard install URL' once, or the "
        "statements of guards.postgres.ddl() in a migration"
    )


def tuples(conn: Any) -> Any:
    """A plain cursor of psycopg that returns tuples, even if the caller's connection has other factories."""
    cursor, async_cursor, rows = _psycopg()
    return (async_cursor if kind(conn) == "psycopg-async" else cursor)(conn, row_factory=rows)


@cache
def _psycopg() -> tuple[Any, Any, Any]:
    from psycopg import AsyncCursor, Cursor
    from psycopg.rows import tuple_row

    return Cursor, AsyncCursor, tuple_row


def _ask_sqlalchemy(conn: Any, sql: str, args: tuple[Any, ...] | None, answers: bool) -> Any:
    if args is None:
        conn.exec_driver_sql(sql)
        return None
    from sqlalchemy import text

    parts = sql.split("%s")
    named = "".join(f"{part}:p{number}" for number, part in enumerate(parts[:-1])) + parts[-1]
    found = conn.execute(text(named), {f"p{number}": value for number, value in enumerate(args)})
    return found.fetchone() if answers else None


def alone(conn: Any) -> bool:
    """Whether each statement is its own transaction."""
    what = kind(conn)
    if what == "django":
        return bool(conn.get_autocommit() and not conn.in_atomic_block)
    if what == "sqlalchemy":
        return bool(getattr(sqlalchemy_connection(conn).connection.dbapi_connection, "autocommit", False))
    if what.startswith("psycopg"):
        return bool(conn.autocommit and not conn.pgconn.transaction_status)
    return bool(getattr(conn, "autocommit", False))


def state(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also if a toolkit has wrapped it."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        for name in ("sqlstate", "pgcode"):
            if found := getattr(each, name, None):
                return cast(str, found)
    return None
