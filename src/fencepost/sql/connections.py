"""The connections that callers already have: how to recognize their kinds by their attributes, and how to use them.

They are of psycopg (blocking and asyncio), sqlite3, SQLAlchemy (connections and sessions, blocking and asyncio),
Django, or anything that looks like the DB-API. A library is imported only once the caller passes its connection.
"""

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from fencepost.driver.interrupts import interruptible
from fencepost.errors import ConfigError

C = TypeVar("C")
T = TypeVar("T")


Kind: TypeAlias = Literal[
    "psycopg", "psycopg-async", "sqlalchemy", "sqlalchemy-async", "django", "other", "other-async"
]
_kinds: WeakKeyDictionary[type, Kind] = WeakKeyDictionary()
_CUT = (
    "the transaction of this block was ended inside it, by commit(), rollback(), executescript() or 'with conn:', so "
    "that what was done before and after that is not one; leave its end to the block"
)


def kind(conn: Any) -> Kind:
    """What kind of connection this is."""
    what = type(conn)
    known = _kinds.get(what)
    if known is None:
        known = _look(conn)
        # Do not cache the kind of a proxy: one class of proxies may stand for connections of several kinds.
        if cast(Any, what).__getattribute__ is object.__getattribute__ and not hasattr(what, "__getattr__"):
            _kinds[what] = known
    return known


def _look(conn: Any) -> Kind:
    if hasattr(conn, "run_sync") and (hasattr(conn, "sync_connection") or hasattr(conn, "sync_session")):
        return "sqlalchemy-async"
    if hasattr(conn, "pgconn") and hasattr(conn, "transaction"):
        return "psycopg-async" if hasattr(conn, "__aenter__") else "psycopg"
    if inspect.iscoroutinefunction(getattr(conn, "commit", None)) or _is_asyncpg(conn):
        return "other-async"
    if hasattr(conn, "exec_driver_sql") or hasattr(conn, "get_bind"):
        return "sqlalchemy"
    if hasattr(conn, "in_atomic_block") and hasattr(conn, "ensure_connection"):
        return "django"
    return "other"


def _is_asyncpg(conn: Any) -> bool:
    """Whether it is asyncpg's, whose connections have no commit(), and another cursor() than others."""
    return any(each.__module__.partition(".")[0] == "asyncpg" for each in type(conn).__mro__)


def through(conn: Any, call: Callable[[Any], T]) -> T:
    """Call ``call`` with a blocking connection; for SQLAlchemy's asyncio ones, return an awaitable of the answer."""
    if kind(conn) == "sqlalchemy-async":
        return cast(T, conn.run_sync(call))
    return call(conn)


def is_async(conn: Any) -> bool:
    """Whether calls on this connection have to be awaited."""
    return kind(conn).endswith("-async")


def sqlalchemy_connection(conn: Any) -> Any:
    """The Connection under a Session, or itself; in a transaction that the caller commits."""
    from sqlalchemy.exc import InvalidRequestError

    try:
        if hasattr(conn, "get_bind"):
            return conn.connection()
        if not conn.in_transaction():
            conn.begin()  # as its first statement would
    except InvalidRequestError as error:
        if "closed transaction inside context manager" not in str(error):
            raise
        raise ConfigError(_CUT) from error
    return conn


def is_sqlite(conn: Any) -> bool:
    """Whether the database is SQLite."""
    what = kind(conn)
    if what == "django":
        return bool(conn.vendor == "sqlite")
    if what.startswith("sqlalchemy"):
        bound = conn.get_bind() if hasattr(conn, "get_bind") else conn
        return bool(bound.dialect.name == "sqlite")
    return isinstance(conn, sqlite3.Connection)


def require_blocking(conn: Any, other: str) -> None:
    """ConfigError for an asyncio connection, whose module is ``other``: a coroutine not awaited guards nothing."""
    if is_async(conn):
        _require_taken(conn)
        raise ConfigError(f"this connection is asyncio's; use fencepost.{other}")


def require_asyncio(conn: Any, other: str) -> None:
    """ConfigError for a blocking connection, whose module is ``other``."""
    if not is_async(conn):
        raise ConfigError(f"this connection blocks, and is not for asyncio; use fencepost.{other}")
    _require_taken(conn)


def _require_taken(conn: Any) -> None:
    if kind(conn) == "other-async":
        instead = "; use asyncpg through SQLAlchemy, by a postgresql+asyncpg:// URL" if _is_asyncpg(conn) else ""
        raise ConfigError(
            f"the asyncio connections that are taken here are psycopg's and SQLAlchemy's AsyncConnection and "
            f"AsyncSession, not {type(conn)!r}{instead}"
        )


def database(conn: Any) -> str | None:
    """The database of a blocking connection, as its toolkit names it, such as "postgresql"; None if unknown."""
    what = kind(conn)
    if what == "django":
        return str(conn.vendor)
    if what == "sqlalchemy":
        return str(sqlalchemy_connection(conn).dialect.name)
    return "sqlite" if isinstance(conn, sqlite3.Connection) else None


def texts(row: Iterable[Any]) -> tuple[Any, ...]:
    """A row of fencepost's tables, with bytes decoded to text: these tables have no columns of bytes.

    sqlite3 returns text as the caller's text_factory makes it, and psycopg returns bytes from a database with the
    encoding SQL_ASCII.
    """
    return tuple(each.decode() if isinstance(each, bytes) else each for each in row)


def elsewhere(found: str, wanted: str) -> ConfigError:
    """The error for a connection whose database is ``found``, given to what is for ``wanted``."""
    other = {"sqlite": "SQLite", "postgresql": "Postgres"}.get(found)
    instead = f"use the guard for {other}" if other else "fencepost keeps marks in Postgres and SQLite"
    return ConfigError(f"this connection leads to {found!r}, not to {wanted}; {instead}")


def _require_closed(conn: Any) -> None:
    if opened(conn):
        raise ConfigError(
            "this connection is in a transaction already, which may have read before it was admitted; commit or "
            "roll back first, or call admit() yourself before its first read"
        )


def _require_unused(begun: Any) -> None:
    if begun is not None:
        raise ConfigError("this fenced() has a block already, which is one transaction; call it again for another")


class Fenced(Generic[C]):
    """A transaction that was admitted before it read anything, and that ends with its block."""

    def __init__(self, conn: C, admit: Callable[[C], object]) -> None:
        self._conn = conn
        self._admit = admit
        self._begun: ExitStack | None = None

    def __enter__(self) -> C:
        _require_unused(self._begun)
        _require_closed(self._conn)
        with ExitStack() as stack:
            stack.enter_context(begin(self._conn))
            self._admit(self._conn)
            self._begun = stack.pop_all()
        return self._conn

    def __exit__(
        self, cause: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._begun is not None, "its block was entered"
        try:
            self._begun.__exit__(cause, error, trace)
        except BaseException:
            refused(self._conn)
            raise


class AsyncFenced(Generic[C]):
    """The same for an asyncio connection, with ``async with``."""

    def __init__(self, conn: C, admit: Callable[[C], Coroutine[Any, Any, object]]) -> None:
        self._conn = conn
        self._admit = admit
        self._begun: AsyncExitStack | None = None

    async def __aenter__(self) -> C:
        _require_unused(self._begun)
        _require_closed(self._conn)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(begin(self._conn))
            await self._admit(self._conn)
            self._begun = stack.pop_all()
        return self._conn

    async def __aexit__(
        self, cause: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._begun is not None, "its block was entered"
        try:
            await self._begun.__aexit__(cause, error, trace)
        except BaseException:
            if kind(self._conn) == "sqlalchemy-async":
                await through(self._conn, refused)
            raise


def opened(conn: Any) -> bool:
    """Whether the connection is in a transaction that the caller began and will commit.

    ConfigError if that cannot be determined, since the connection is always in a transaction.
    """
    if kind(conn) == "django":
        if not conn.in_atomic_block and not conn.get_autocommit():
            raise ConfigError(
                "Django's autocommit is off for this connection, so atomic() would not commit what is done here; turn "
                "it on: set_autocommit(True), or AUTOCOMMIT in settings.DATABASES"
            )
        # The transaction of Django's TestCase around a test does not count, as for atomic(durable=True).
        return bool(conn.in_atomic_block and not (conn.atomic_blocks and conn.atomic_blocks[-1]._from_testcase))
    if kind(conn).startswith("psycopg"):
        return bool(conn.info.transaction_status)
    if isinstance(conn, sqlite3.Connection) and getattr(conn, "autocommit", None) is False:
        raise ConfigError(
            "a connection with autocommit=False is in a transaction at all times, so nobody can tell whether work of "
            "yours would be committed or rolled back here; open it with sqlite3.connect(..., autocommit=True), or "
            "without autocommit="
        )
    if kind(conn) == "sqlalchemy" and not hasattr(conn, "in_transaction"):
        conn = conn()  # a scoped_session: the session of this thread
    state = getattr(conn, "in_transaction", None)
    if state is None:
        raise ConfigError(f"a connection of sqlite3, psycopg, SQLAlchemy or Django is needed here, not {type(conn)!r}")
    return bool(state() if callable(state) else state)


def refused(conn: Any) -> Any:
    """Roll back a transaction of ours whose commit failed: SQLAlchemy treats it as ended, but SQLite would commit it
    with the next one."""
    if kind(conn) == "sqlalchemy" and not hasattr(conn, "get_bind") and is_sqlite(conn) and not opened(conn):
        conn.connection.rollback()


def begin(conn: Any) -> Any:
    """A new transaction that ends with its block."""
    if kind(conn) == "django":
        from django.db import transaction

        return transaction.atomic(using=conn.alias, durable=True)
    if kind(conn).startswith("psycopg"):
        return conn.transaction()
    if isinstance(conn, sqlite3.Connection):
        return _immediate(conn)
    return conn.begin()


def atomic(conn: Any) -> Any:
    """A transaction that ends with its block; inside a transaction of the caller, a savepoint."""
    what = kind(conn)
    if what == "django":
        from django.db import transaction

        return transaction.atomic(using=conn.alias)
    if what.startswith("psycopg"):
        return conn.transaction()
    if isinstance(conn, sqlite3.Connection):
        return _savepoint(conn) if conn.in_transaction else _immediate(conn)
    return conn.begin_nested() if opened(conn) else conn.begin()


@asynccontextmanager
async def within(block: Any) -> AsyncIterator[Any]:
    """Enter and leave a blocking or an asyncio context manager in the same way."""
    if hasattr(block, "__aenter__"):
        async with block as value:
            yield value
    else:
        with block as value:
            yield value


@contextmanager
def _savepoint(conn: sqlite3.Connection) -> Iterator[None]:
    """A savepoint; ConfigError at its end if the block has ended the transaction around it."""
    conn.execute("SAVEPOINT fencepost")
    try:
        yield
    except BaseException:
        if conn.in_transaction:  # some errors end the whole transaction
            with suppress(sqlite3.OperationalError):  # the block ended the transaction, and began another
                conn.execute("ROLLBACK TO fencepost")
                conn.execute("RELEASE fencepost")
        raise
    try:
        conn.execute("RELEASE fencepost")
    except sqlite3.OperationalError as error:
        if "no such savepoint" not in str(error):
            raise
        raise ConfigError(_CUT) from None


@contextmanager
def _immediate(conn: sqlite3.Connection) -> Iterator[None]:
    with undone(conn, conn):
        interruptible(conn.execute, "BEGIN IMMEDIATE")
        with _savepoint(conn):
            yield
        conn.execute("COMMIT")


@contextmanager
def undone(source: Any, state: Any) -> Iterator[None]:
    """If this block raises, roll back the SQLite transaction that began in it: it would keep all others from writing.

    ``source`` returns cursors; ``state`` has ``in_transaction``. If a signal handler raises, it does so inside this
    block, right after the statement during which its signal arrived.
    """
    begun = state.in_transaction
    try:
        yield
    except BaseException:
        if state.in_transaction and not begun:
            source.cursor().execute("ROLLBACK")  # rollback() does nothing on a connection with autocommit=True
        raise
