"""The column form: for tables whose rows carry their own epoch, in any SQL database.

    UPDATE account SET balance = ?, lock_epoch = ? WHERE id = ? AND lock_epoch < ?

The row is its own mark, so no other table is needed, and programs in other languages can use the same statement. A
number says less than a stamp: each token allows one write, a retry of that write is refused as stale, and two holders
with the same token cannot be told apart. To read, change and write, use one transaction, and call ``read`` first: it
locks the row.

``conn`` is a blocking connection of psycopg, Django or sqlite3, or one of SQLAlchemy.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fencepost.errors import ConfigError
from fencepost.events import Hook
from fencepost.guards.judgement import Judgement
from fencepost.guards.policy import Policy
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Stamp, Verdict
from fencepost.sql.connections import is_async, is_sqlite, kind, sqlalchemy_connection, undone
from fencepost.sql.postgres import alone, tuples
from fencepost.sql.sqlite import cursor, link

__all__ = ["read", "write"]

EPOCH = "lock_epoch"


def write(
    conn: Any,
    table: str,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    lease: FenceOrAmbient = AMBIENT,
    *,
    epoch: str = EPOCH,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Update the row that ``key`` finds, and its epoch, unless this token or a newer one has written the row before.

    Raises StaleToken if one has, and LookupError if there is no such row; then nothing was changed. LookupError, too,
    if there are several: then roll back. Without a lease, the lease of the enclosing ``with lock:`` is used, if its
    name is ``table/key`` or a path above it.

        column.write(conn, "account", {"id": 42}, {"balance": 90}, lease)
    """
    access = Judgement("column", _resource(table, key), lease, "write", hooks, policy)
    with _undone(conn):
        _write(conn, table, key, values, access, epoch)


def _write(
    conn: Any, table: str, key: Mapping[str, Any], values: Mapping[str, Any], access: Judgement, epoch: str
) -> None:
    plain = _update(table, values, key), [*values.values(), *key.values()]
    if not access.judged:
        return _changed(_run(conn, *plain), table, key)
    stamp = Stamp(access.take().token)
    fenced = _update(table, {**values, epoch: None}, key) + f" AND coalesce({_name(epoch)}, 0) < %s"
    args = [*values.values(), stamp.token, *key.values(), stamp.token]
    if access.limits(stamp) == (None, None) and (count := _run(conn, fenced, args)):
        _changed(count, table, key)
        access.conclude(None, stamp, Verdict.ADMIT)
        return None
    before = _epoch(conn, table, key, epoch)
    while True:
        mark = Stamp(before) if before else None
        verdict = access.weigh(mark, stamp)
        if verdict is not Verdict.ADMIT:
            access.conclude(mark, stamp, verdict)
            return _changed(_run(conn, *plain), table, key)
        count = _run(conn, fenced, args)
        # Outside a transaction the row is not locked: another client may have raised its epoch since it was read.
        if count or before == (before := _epoch(conn, table, key, epoch)):
            _changed(count, table, key)
            access.conclude(mark, stamp, verdict)
            return None


def read(
    conn: Any,
    table: str,
    key: Mapping[str, Any],
    columns: Iterable[str],
    lease: FenceOrAmbient = AMBIENT,
    *,
    epoch: str = EPOCH,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> dict[str, Any]:
    """The row that ``key`` finds, locked until the transaction ends; refused if a newer token has written it.

    Raises as ``write`` does. Write in the same transaction: when it ends, any writer may change the row. ConfigError
    outside a transaction.

        balance = column.read(conn, "account", {"id": 42}, ["balance"], lease)["balance"]
    """
    access = Judgement("column", _resource(table, key), lease, "enter", hooks, policy)
    names = list(columns)
    look = f"SELECT {_list(names)} FROM {_name(table)} WHERE {_where(key)}"
    with _undone(conn):
        before = _epoch(conn, table, key, epoch)
        if access.judged:
            _require_transaction(conn)
            access.decide(Stamp(before) if before else None, Stamp(access.take().token, 0))
        found = _run(conn, look, list(key.values()), rows=True)
    return dict(zip(names, found, strict=True))


def _undone(conn: Any) -> AbstractContextManager[None]:
    """Roll back a transaction of SQLite that began in the block if the block raises; any other is the caller's."""
    if is_async(conn):
        raise ConfigError("the column form takes blocking connections; with SQLAlchemy's asyncio ones use run_sync()")
    return undone(*link(conn)) if is_sqlite(conn) else nullcontext()


def _resource(table: str, key: Mapping[str, Any]) -> str:
    if not key:
        raise ConfigError("a key names at least one column, or every row would be meant")
    return "/".join([table, *map(str, key.values())])


def _changed(count: int, table: str, key: Mapping[str, Any]) -> None:
    if count != 1:
        raise LookupError(f"{dict(key)!r} finds {count} rows of {table}, not one; roll back")


def _epoch(conn: Any, table: str, key: Mapping[str, Any], epoch: str) -> int:
    """Lock the row, and return its epoch; 0 if it has none."""
    look = f"SELECT {_name(epoch)} FROM {_name(table)} WHERE {_where(key)}"
    if is_sqlite(conn):
        # Changes nothing and fires no trigger, but makes SQLite take the write lock.
        _run(conn, f"DELETE FROM {_name(table)} WHERE 0", [])
    else:
        look += " FOR UPDATE"
    found = _run(conn, look, list(key.values()), rows=True)
    return int(found[0] or 0)


def _require_transaction(conn: Any) -> None:
    if not link(conn)[1].in_transaction if is_sqlite(conn) else alone(conn):
        raise ConfigError(
            "a row that is locked in no transaction is open again at once, and a replaced holder could write it before "
            "you do; open a transaction around read() and write()"
        )


def _run(conn: Any, sql: str, args: list[Any], *, rows: bool = False) -> Any:
    """The number of rows changed, or the one row found."""
    if kind(conn) == "sqlalchemy":
        link = sqlalchemy_connection(conn)
        mark = "?" if link.dialect.name == "sqlite" else "%s"
        found = link.exec_driver_sql(sql.replace("%s", mark), tuple(args))
        return _one(found.fetchone()) if rows else found.rowcount
    made = tuples(conn) if kind(conn) == "psycopg" else cursor(conn)
    made.execute(sql.replace("%s", "?") if isinstance(conn, sqlite3.Connection) else sql, tuple(args))
    return _one(made.fetchone()) if rows else made.rowcount


def _one(row: Any) -> Any:
    if row is None:
        raise LookupError("there is no such row; insert it first")
    return row


def _update(table: str, values: Mapping[str, Any], where: Mapping[str, Any]) -> str:
    changes = ", ".join(f"{_name(column)} = %s" for column in values)
    return f"UPDATE {_name(table)} SET {changes} WHERE {_where(where)}"


def _where(key: Mapping[str, Any]) -> str:
    return " AND ".join(f"{_name(column)} = %s" for column in key)


def _list(columns: Iterable[str]) -> str:
    return ", ".join(map(_name, columns))


def _name(name: str) -> str:
    if "%" in name or "?" in name:
        raise ConfigError(f"{name!r} cannot name a table or column here")
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))
