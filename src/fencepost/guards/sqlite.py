"""A guard for SQLite: the mark lives in the caller's database and moves in the caller's transaction.

    with conn:
        sqlite.admit(conn, "account/42", lease)
        conn.execute("UPDATE account SET balance = ? WHERE id = 42", (balance,))

``conn`` is a connection of sqlite3 or Django, a Connection or Session of SQLAlchemy, or one of its asyncio
ones: then everything here is awaited. Marks are rows of the table ``fencepost_mark``, which the first
access creates.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal, TypeVar, overload

from fencepost import check
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Event, Hook, Hooks
from fencepost.guards.connections import Fenced, kind, sqlalchemy_connection, through
from fencepost.guards.decision import Access
from fencepost.guards.policy import Policy
from fencepost.lease import Offer
from fencepost.rule import Stamp

C = TypeVar("C")

_TABLE = """
CREATE TABLE IF NOT EXISTS fencepost_mark (
    resource TEXT NOT NULL PRIMARY KEY,
    token    INTEGER NOT NULL CHECK (token > 0),
    seq      INTEGER NOT NULL CHECK (seq >= 0),
    holder   TEXT NOT NULL,
    digest   BLOB
) STRICT, WITHOUT ROWID
"""
# Changes nothing, but SQLite takes the write lock for it before it looks.
_LOCK = "DELETE FROM fencepost_mark WHERE 0"
# The cast keeps the holder readable whatever text_factory the caller's connection has.
_LOOK = "SELECT token, seq, CAST(holder AS BLOB), digest FROM fencepost_mark WHERE resource = ?"
_KEEP = "INSERT OR REPLACE INTO fencepost_mark (resource, token, seq, holder, digest) VALUES (?, ?, ?, ?, ?)"
_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not name


@overload
def admit(
    conn: sqlite3.Connection,
    resource: str,
    offer: Offer | None = None,
    *,
    payload: None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> Literal[True]: ...
@overload
def admit(
    conn: sqlite3.Connection,
    resource: str,
    offer: Offer | None = None,
    *,
    payload: bytes,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> bool: ...
@overload
def admit(
    conn: Any,
    resource: str,
    offer: Offer | None = None,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> Any: ...
def admit(
    conn: Any,
    resource: str,
    offer: Offer | None = None,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> Any:
    """Return once the write that follows in this transaction may be made; the mark commits with it.

    Without an offer, the lease of the ``with lock:`` around here is taken. Without a payload every
    repeated stamp is refused, so whoever gets past this line may write. With the write's payload, a
    retry of the same write is recognised: True means write, False means that it is in the database
    already, and must not be made again.

    Raises the Refused of the verdict, and then nothing was changed; ConfigError outside a
    transaction; BackendError if the database's write lock cannot be had.
    """
    digest = None if payload is None else sha256(payload).digest()
    access = Access("sqlite", resource, offer, "write", hooks, policy)
    return through(conn, lambda conn: _pass(conn, resource, access, digest))


def admit_all(
    conn: Any, offers: Mapping[str, Offer | None], *, hooks: Iterable[Hook] = (), policy: Policy | None = None
) -> Any:
    """Admit one write to each of several resources. Raises as ``admit`` does: then roll back."""
    accesses = [(each, Access("sqlite", each, offers[each], "write", hooks, policy)) for each in sorted(offers)]

    def all(conn: Any) -> None:
        for resource, access in accesses:
            _pass(conn, resource, access, None)

    return through(conn, all)


def enter(
    conn: Any,
    resource: str,
    offer: Offer | None = None,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> Any:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does."""
    access = Access("sqlite", resource, offer, "enter", hooks, policy)

    def enter(conn: Any) -> None:
        _pass(conn, resource, access, None)

    return through(conn, enter)


def fenced(
    conn: C, resource: str, offer: Offer | None = None, *, hooks: Iterable[Hook] = (), policy: Policy | None = None
) -> Fenced[C]:
    """A whole transaction for reading, changing and writing: admitted before it can read, committed at the end.

    with sqlite.fenced(conn, "account/42", lease):
        ...
    """
    return Fenced(conn, lambda conn: admit(conn, resource, offer, hooks=hooks, policy=policy))


@overload
def mark(conn: sqlite3.Connection, resource: str) -> Stamp | None: ...
@overload
def mark(conn: Any, resource: str) -> Any: ...
def mark(conn: Any, resource: str) -> Any:
    """The largest stamp admitted so far, as this connection sees it; None if there is none."""

    def look(conn: Any) -> Stamp | None:
        try:
            row = _look(_cursor(_link(conn)[0]), resource)
        except sqlite3.OperationalError as error:
            if not _no_table(error):
                raise
            return None
        return row and row[0]

    return through(conn, look)


def reset(conn: sqlite3.Connection, resource: str, above: int, *, hooks: Iterable[Hook] = ()) -> Stamp:
    """Refuse every token up to ``above`` from the commit on. Raises a mark, never lowers one; the mark now."""
    check.token(above)
    check.name(resource, "resource")
    cursor = _locked(*_link(conn))
    row = _look(cursor, resource)
    before = row[0] if row else None
    after = before if before and before.token >= above else Stamp(above)
    if after is not before:
        cursor.execute(_KEEP, (resource, *after, None))
    Hooks(hooks)(
        Event(kind="reset", name=resource, source="sqlite", token=above, seen=before.token if before else None)
    )
    return after


def ddl(table: str | None = None, *, column: str | None = None) -> list[str]:
    """The statements that prepare a database, for a migration; the first access would create the table too.

    A trigger on ``table`` refuses every UPDATE that does not raise ``column``, the row's epoch, whoever makes it.
    """
    if table is None:
        return [_TABLE]
    if column is None:
        raise ConfigError("a trigger needs column=, such as 'lock_epoch'")
    name, epoch, trigger = ('"' + part.replace('"', '""') + '"' for part in (table, column, f"fencepost_epoch {table}"))
    return [
        _TABLE,
        f"CREATE TRIGGER IF NOT EXISTS {trigger} BEFORE UPDATE ON {name} "
        f"WHEN coalesce(NEW.{epoch}, 0) <= coalesce(OLD.{epoch}, 0) BEGIN "
        f"SELECT RAISE(ABORT, 'fencepost: this UPDATE carries no newer fencing token'); END",
    ]


def _pass(conn: Any, resource: str, access: Access, digest: bytes | None) -> bool:
    if not access.judged:
        return True
    cursor = _locked(*_link(conn))
    row = _look(cursor, resource)
    before, kept = row or (None, None)
    decision = access.decide(before, access.take(), same=lambda: digest is not None and digest == kept)
    if decision.mark is not before and decision.mark is not None:
        cursor.execute(_KEEP, (resource, *decision.mark, digest))
    return decision.fresh


def _link(conn: Any) -> tuple[Any, Any]:
    """What gives cursors, and what knows whether it is in a transaction."""
    if isinstance(conn, sqlite3.Connection):
        return conn, conn
    if kind(conn) == "django":
        conn.ensure_connection()
        return conn.connection, conn.connection
    if kind(conn) == "sqlalchemy":
        adapted = sqlalchemy_connection(conn).connection
        if hasattr(adapted.driver_connection, "in_transaction"):
            return adapted, adapted.driver_connection
    raise ConfigError(
        f"guards.sqlite takes a connection of sqlite3, SQLAlchemy or Django to an SQLite database, not {type(conn)!r}"
    )


def _look(cursor: Any, resource: str) -> tuple[Stamp, bytes | None] | None:
    cursor.execute(_LOOK, (resource,))
    row = cursor.fetchone()
    if row is None:
        return None
    token, seq, holder, digest = row
    return Stamp(token, seq, holder.decode()), digest


def _cursor(conn: Any) -> Any:
    cursor = conn.cursor()
    if isinstance(cursor, sqlite3.Cursor):
        cursor.row_factory = None
    return cursor


def _locked(conn: Any, state: Any) -> Any:
    """A cursor inside a write transaction: what it reads cannot change before the caller commits."""
    cursor = _cursor(conn)
    try:
        if not state.in_transaction:
            _begin(state, cursor)
        try:
            cursor.execute(_LOCK)
        except sqlite3.OperationalError as error:
            if not _no_table(error):
                raise
            cursor.execute(_TABLE)
    except sqlite3.OperationalError as error:
        if (error.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY:
            raise
        raise BackendError(_busy(error), backend="sqlite", ambiguous=False) from error
    return cursor


def _begin(conn: Any, cursor: Any) -> None:
    # Such a connection opens a transaction by itself before the caller's next write, and the caller
    # commits it: opening it here makes it the same transaction, only earlier.
    if getattr(conn, "autocommit", _LEGACY) != _LEGACY or conn.isolation_level is None:
        raise ConfigError(
            "a mark outside the transaction of its write guards nothing, and this connection is in no "
            "transaction; call conn.execute('BEGIN IMMEDIATE') first, and commit after the write"
        )
    cursor.execute("BEGIN IMMEDIATE")


def _no_table(error: sqlite3.OperationalError) -> bool:
    return "no such table: fencepost_mark" in str(error)


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
