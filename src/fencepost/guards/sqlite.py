"""A guard for SQLite: the mark lives in the caller's database and moves in the caller's transaction.

    with conn:
        sqlite.admit(conn, "account/42", lease)
        conn.execute("UPDATE account SET balance = ? WHERE id = 42", (balance,))

``conn`` is a connection of sqlite3 or Django, or a Connection or Session of SQLAlchemy; `fencepost.guards.aio.sqlite`
is for asyncio ones, which are refused here. Marks are rows of the table ``fencepost_mark``, which the first
access creates.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar

from fencepost import check
from fencepost.errors import ConfigError
from fencepost.events import Event, Hook, Hooks
from fencepost.guards.judgement import Judgement, lowering, moved
from fencepost.guards.policy import Ceiling, Policy, has_ceiling
from fencepost.lease import AMBIENT, Fence, FenceOrAmbient
from fencepost.rule import MAX_TOKEN, Stamp
from fencepost.sql import BlockingConnection
from fencepost.sql.connections import Fenced, require_blocking, undone
from fencepost.sql.sqlite import Table, cursor, link, locked

__all__ = ["admit", "admit_all", "ddl", "enter", "fenced", "lower_mark", "mark", "raise_mark"]

C = TypeVar("C", bound=BlockingConnection)
T = TypeVar("T")
Job: TypeAlias = Callable[[Any], T]
"""A job for a blocking connection."""

_THERE = "guards.aio.sqlite"

_TABLE = """
CREATE TABLE IF NOT EXISTS fencepost_mark (
    resource TEXT NOT NULL PRIMARY KEY,
    token    INTEGER NOT NULL CHECK (token > 0),
    seq      INTEGER NOT NULL CHECK (seq >= 0),
    holder   TEXT NOT NULL,
    digest   BLOB
) STRICT, WITHOUT ROWID
"""
_MARKS = Table("fencepost_mark", _TABLE)
# The cast to bytes makes the holder independent of the text_factory of the caller's connection. The bytes are in the
# database's encoding, which the cast of the letter shows.
_LOOK = "SELECT token, seq, CAST(holder AS BLOB), digest, CAST('a' AS BLOB) FROM fencepost_mark WHERE resource = ?"
_ENCODINGS = {"a".encode(name): name for name in ("utf-8", "utf-16-le", "utf-16-be")}
_KEEP = "INSERT OR REPLACE INTO fencepost_mark (resource, token, seq, holder, digest) VALUES (?, ?, ?, ?, ?)"


def admit(
    conn: BlockingConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> bool:
    """Return once the write that follows in this transaction may be made; the mark commits with it.

    Without a lease, the lease of the enclosing ``with lock:`` is used. Without a payload every
    repeated stamp is refused, so code that gets past this line may write. With the write's payload, a
    retry of the same write is recognised: True means write, False means that it is in the database
    already, and must not be made again.

    Raises the Refused of the verdict, and then nothing was changed; ConfigError outside a
    transaction, or for an asyncio connection; BackendError if the database's write lock is not free in time.
    """
    require_blocking(conn, _THERE)
    return admitting(resource, lease, payload, hooks, policy)(conn)


def admit_all(
    conn: BlockingConnection,
    leases: Mapping[str, Fence],
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Admit one write to each of several resources. Raises as ``admit`` does: then roll back.

    For example::

        sqlite.admit_all(conn, {"account/1": lease, "account/2": other})
    """
    require_blocking(conn, _THERE)
    admitting_all(leases, hooks, policy)(conn)


def enter(
    conn: BlockingConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does.

    For example::

        sqlite.enter(conn, "account/42", lease)
        (balance,) = conn.execute("SELECT balance FROM account WHERE id = 42").fetchone()
    """
    require_blocking(conn, _THERE)
    entering(resource, lease, hooks, policy)(conn)


def fenced(
    conn: C, resource: str, lease: FenceOrAmbient = AMBIENT, *, hooks: Iterable[Hook] = (), policy: Policy | None = None
) -> Fenced[C]:
    """A whole transaction for reading, changing and writing: admitted before it can read, committed at the end.

    For example::

        with sqlite.fenced(conn, "account/42", lease):
            conn.execute("UPDATE account SET balance = balance - 10 WHERE id = 42")
    """
    require_blocking(conn, _THERE)
    return Fenced(conn, lambda conn: admit(conn, resource, lease, hooks=hooks, policy=policy))


def mark(conn: BlockingConnection, resource: str) -> Stamp | None:
    """The largest stamp admitted so far, as this connection sees it; None if there is none.

    For example::

        seen = sqlite.mark(conn, "account/42")
        print(seen.token if seen else "no write yet")
    """
    require_blocking(conn, _THERE)
    return looking(resource)(conn)


def raise_mark(conn: BlockingConnection, resource: str, *, to: int, hooks: Iterable[Hook] = ()) -> Stamp:
    """Refuse every token up to ``to`` from the commit on, and return the mark. A higher mark stays.

    For example::

        sqlite.raise_mark(conn, "account/42", to=4711)
    """
    require_blocking(conn, _THERE)
    return raising(resource, to, hooks)(conn)


def lower_mark(conn: BlockingConnection, resource: str, *, to: int, seen: int, hooks: Iterable[Hook] = ()) -> Stamp:
    """Lower the mark to ``to`` if its token is still ``seen``, and return it. ConfigError if the mark has changed.

    Use it when a token that no issuer gave out has raised the mark. Every token above ``to`` may write again from the
    commit on: make sure that no replaced holder is still running.

        sqlite.lower_mark(conn, "account/42", to=4711, seen=9223372036854775807)
    """
    require_blocking(conn, _THERE)
    return lowering_to(resource, to, seen, hooks)(conn)


def ddl(
    table: str | None = None, *, column: str | None = None, key: Sequence[str] = (), ceiling: Ceiling = "on"
) -> list[str]:
    """The statements that prepare a database, for a migration; the first access would create the table too.

    Triggers on ``table`` refuse, from any client, every UPDATE that does not raise ``column``, the row's epoch, or
    raises it to what no issuer can have come to, and every DELETE of a row that has one. Given ``key``, the columns of
    its primary key, they also refuse to replace a row (INSERT OR REPLACE) under an epoch that is not newer.

    ``ceiling="off"`` lets them accept every epoch that is a valid token, as in a `Policy`; the statements that ran last
    decide.

        for statement in sqlite.ddl("account", column="lock_epoch", key=["id"]):
            conn.execute(statement)
    """
    capped = has_ceiling(ceiling)
    if table is None:
        if not capped:
            raise ConfigError("ceiling='off' is for the triggers of a table, and none is named")
        return [_TABLE]
    if column is None:
        raise ConfigError("a trigger needs column=, such as 'lock_epoch'")
    name, epoch = _quoted(table), _quoted(column)
    statements = [
        _TABLE,
        _trigger(
            "epoch", table, f"BEFORE UPDATE ON {name} WHEN coalesce(NEW.{epoch}, 0) <= coalesce(OLD.{epoch}, 0)", _STALE
        ),
        # Drop it first: an existing trigger may have another ceiling.
        f"DROP TRIGGER IF EXISTS {_named('leap', table)}",
        _trigger("leap", table, f"BEFORE UPDATE ON {name} WHEN {_leaps(epoch, f'OLD.{epoch}', capped)}", _LEAPS),
        _trigger("delete", table, f"BEFORE DELETE ON {name} WHEN OLD.{epoch} > 0", _FORGETS),
    ]
    if not key:
        return statements
    same = " AND ".join(f"{_quoted(each)} = NEW.{_quoted(each)}" for each in key)
    moved = " OR ".join(f"NEW.{_quoted(each)} IS NOT OLD.{_quoted(each)}" for each in key)
    there = f"EXISTS (SELECT 1 FROM {name} WHERE {same} AND {epoch} > 0)"
    literal = "'" + table.replace("'", "''") + "'"
    noted = f"FROM fencepost_replaced WHERE name = {literal}"
    # Only an AFTER trigger knows that the INSERT was made, and only a BEFORE trigger sees the row that it replaces. So
    # the BEFORE trigger leaves a note in fencepost_replaced for the AFTER triggers.
    return [
        *statements,
        _REPLACED,
        _trigger("move", table, f"BEFORE UPDATE ON {name} WHEN ({moved}) AND {there}", _FORGETS),
        _trigger(
            "replace",
            table,
            f"BEFORE INSERT ON {name} WHEN {there} OR EXISTS (SELECT 1 {noted})",
            f"DELETE {noted}; INSERT INTO fencepost_replaced SELECT {literal}, max({epoch}) FROM {name} WHERE {same} "
            f"HAVING max({epoch}) > 0",
        ),
        _trigger(
            "replaced",
            table,
            f"AFTER INSERT ON {name} WHEN coalesce(NEW.{epoch}, 0) <= (SELECT epoch {noted})",
            _STALE,
        ),
        f"DROP TRIGGER IF EXISTS {_named('leapt', table)}",
        _trigger(
            "leapt",
            table,
            f"AFTER INSERT ON {name} WHEN EXISTS (SELECT 1 {noted}) AND "
            f"{_leaps(epoch, f'(SELECT epoch {noted})', capped)}",
            _LEAPS,
        ),
    ]


_REPLACED = """
CREATE TABLE IF NOT EXISTS fencepost_replaced (
    name  TEXT NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""
_STALE = "SELECT RAISE(ABORT, 'fencepost: this change carries no newer fencing token')"
_LEAPS = "SELECT RAISE(ABORT, 'fencepost: no issuer can have come to this fencing token: look where it comes from')"
_FORGETS = "SELECT RAISE(ABORT, 'fencepost: without this row, its fencing token would be forgotten')"


def _leaps(epoch: str, before: str, capped: bool) -> str:
    """SQL: no issuer can have come to the new epoch (see `Policy`), or it is text, which SQLite ranks above numbers."""
    if not capped:
        return f"NEW.{epoch} > {MAX_TOKEN}"
    # The time since 1970 in microseconds. Not strftime: drivers would take its percent sign for a parameter.
    highest = f"(julianday('now') - 2440587.5) * 86400000000 + {check.AHEAD}"
    number = f"typeof(NEW.{epoch}) IN ('integer', 'real')"
    return f"NEW.{epoch} > {highest} AND NOT ({number} AND NEW.{epoch} - coalesce({before}, 0) <= {check.AHEAD})"


def _trigger(what: str, table: str, when: str, then: str) -> str:
    return f"CREATE TRIGGER IF NOT EXISTS {_named(what, table)} {when} BEGIN {then}; END"


def _named(what: str, table: str) -> str:
    return _quoted(f"fencepost_{what} {table}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Jobs for a blocking connection, which the functions above and those of `guards.aio.sqlite` share.


def admitting(
    resource: str, lease: FenceOrAmbient, payload: bytes | None, hooks: Iterable[Hook], policy: Policy | None
) -> Job[bool]:
    digest = None if payload is None else sha256(payload).digest()
    judgement = Judgement("sqlite", resource, lease, "write", hooks, policy)
    return lambda conn: _pass(conn, resource, judgement, digest)


def admitting_all(leases: Mapping[str, Fence], hooks: Iterable[Hook], policy: Policy | None) -> Job[None]:
    judgements = [(each, Judgement("sqlite", each, leases[each], "write", hooks, policy)) for each in sorted(leases)]

    def all(conn: Any) -> None:
        with undone(*link(conn)):
            for resource, judgement in judgements:
                _pass(conn, resource, judgement, None)

    return all


def entering(resource: str, lease: FenceOrAmbient, hooks: Iterable[Hook], policy: Policy | None) -> Job[None]:
    judgement = Judgement("sqlite", resource, lease, "enter", hooks, policy)

    def enter(conn: Any) -> None:
        _pass(conn, resource, judgement, None)

    return enter


def looking(resource: str) -> Job[Stamp | None]:
    def look(conn: Any) -> Stamp | None:
        try:
            row = _look(cursor(link(conn)[0]), resource)
        except sqlite3.OperationalError as error:
            if not _MARKS.missing(error):
                raise
            return None
        return row and row[0]

    return look


def raising(resource: str, to: int, hooks: Iterable[Hook]) -> Job[Stamp]:
    check.token(to)
    check.name(resource, "resource")

    def lift(conn: Any) -> Stamp:
        with undone(*link(conn)):
            found = locked(conn, _MARKS)
            row = _look(found, resource)
            before = row[0] if row else None
            after = before if before and before.token > to else Stamp(to)
            if after is not before:
                found.execute(_KEEP, (resource, *after, None))
        seen = before.token if before else None
        Hooks(hooks)(Event(kind="raise_mark", name=resource, source="sqlite", token=to, seen=seen))
        return after

    return lift


def lowering_to(resource: str, to: int, seen: int, hooks: Iterable[Hook]) -> Job[Stamp]:
    after = lowering(resource, to, seen)

    def lower(conn: Any) -> Stamp:
        with undone(*link(conn)):
            found = locked(conn, _MARKS)
            row = _look(found, resource)
            if row is None or row[0].token != seen:
                raise moved(resource, seen, row[0] if row else None)
            found.execute(_KEEP, (resource, *after, None))
        Hooks(hooks)(Event(kind="lower_mark", name=resource, source="sqlite", token=to, seen=seen))
        return after

    return lower


def _pass(conn: Any, resource: str, access: Judgement, digest: bytes | None) -> bool:
    if not access.judged:
        return True
    with undone(*link(conn)):
        found = locked(conn, _MARKS)
        row = _look(found, resource)
        before, kept = row or (None, None)
        decision = access.decide(before, access.take(), same=lambda: digest is not None and digest == kept)
        if decision.mark is not before and decision.mark is not None:
            found.execute(_KEEP, (resource, *decision.mark, digest))
        return decision.fresh


def _look(found: Any, resource: str) -> tuple[Stamp, bytes | None] | None:
    found.execute(_LOOK, (resource,))
    row = found.fetchone()
    if row is None:
        return None
    token, seq, holder, digest, letter = row
    return Stamp(token, seq, holder.decode(_ENCODINGS[letter])), digest
