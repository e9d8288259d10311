"""A guard for SQLite: the mark lives in the caller's database and moves in the caller's transaction.

    with conn:
        sqlite.admit(conn, "account/42", lease)
        conn.execute("UPDATE account SET balance = ? WHERE id = 42", (balance,))

Marks are rows of the table ``fencepost_mark``, which the first access creates.
"""

import sqlite3
from collections.abc import Iterable
from hashlib import sha256
from typing import Literal, overload

from fencepost import check
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards.decision import decide
from fencepost.lease import Offer, entry, stamp
from fencepost.rule import Stamp, raised

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
    conn: sqlite3.Connection, resource: str, offer: Offer, *, payload: None = None, hooks: Iterable[Hook] = ()
) -> Literal[True]: ...
@overload
def admit(
    conn: sqlite3.Connection, resource: str, offer: Offer, *, payload: bytes, hooks: Iterable[Hook] = ()
) -> bool: ...
def admit(
    conn: sqlite3.Connection,
    resource: str,
    offer: Offer,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
) -> bool:
    """Return once the write that follows in this transaction may be made; the mark commits with it.

    Without a payload every repeated stamp is refused, so whoever gets past this line may write. With
    the write's payload, a retry of the same write is recognised: True means write, False means that
    it is in the database already, and must not be made again.

    Raises the Refused of the verdict, and then nothing was changed; ConfigError outside a
    transaction; BackendError if the database's write lock cannot be had.
    """
    digest = None if payload is None else sha256(payload).digest()
    check.name(resource, "resource")
    cursor = _locked(conn)
    return _pass(cursor, resource, stamp(offer), digest, hooks)


def enter(conn: sqlite3.Connection, resource: str, offer: Offer, *, hooks: Iterable[Hook] = ()) -> None:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does."""
    check.name(resource, "resource")
    cursor = _locked(conn)
    _pass(cursor, resource, entry(offer), None, hooks)


def mark(conn: sqlite3.Connection, resource: str) -> Stamp | None:
    """The largest stamp admitted so far, as this connection sees it."""
    try:
        row = _look(_cursor(conn), resource)
    except sqlite3.OperationalError as error:
        if not _no_table(error):
            raise
        return None
    return row and row[0]


def _pass(cursor: sqlite3.Cursor, resource: str, offer: Stamp, digest: bytes | None, hooks: Iterable[Hook]) -> bool:
    row = _look(cursor, resource)
    before, kept = row or (None, None)
    applied = decide(
        resource,
        before,
        offer,
        source="sqlite",
        action="write" if offer.seq else "enter",
        same=lambda: digest is not None and digest == kept,
        hooks=hooks,
    )
    if applied and (after := raised(before, offer)) is not before:
        cursor.execute(_KEEP, (resource, *after, digest))
    return applied


def _look(cursor: sqlite3.Cursor, resource: str) -> tuple[Stamp, bytes | None] | None:
    row = cursor.execute(_LOOK, (resource,)).fetchone()
    if row is None:
        return None
    token, seq, holder, digest = row
    return Stamp(token, seq, holder.decode()), digest


def _cursor(conn: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = conn.cursor()
    cursor.row_factory = None
    return cursor


def _locked(conn: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor inside a write transaction: what it reads cannot change before the caller commits."""
    cursor = _cursor(conn)
    try:
        if not conn.in_transaction:
            _begin(conn, cursor)
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


def _begin(conn: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
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
