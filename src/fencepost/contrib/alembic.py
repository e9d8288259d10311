"""Alembic: migrations under a lock, one process at a time, and the guard's tables and triggers in migrations.

In ``env.py``, two lines more:

    with connectable.connect() as connection, migrations_lock(connection) as fence:
        context.configure(connection=connection, target_metadata=target_metadata, on_version_apply=fence)
        with context.begin_transaction():
            context.run_migrations()

In a migration:

    from alembic import op
    from fencepost.contrib import alembic as fencepost

    def upgrade():
        fencepost.prepare(op)
        fencepost.guard(op, "account", resource="account/{id}")
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, text

from fencepost.contrib.sqlalchemy import ddl, guard_of, removal
from fencepost.errors import ConfigError
from fencepost.guards.policy import Ceiling
from fencepost.sync import Lease, Locks, connect

__all__ = ["Migrations", "guard", "include_name", "migrations_lock", "prepare", "unguard"]

_GUARDED = ("postgresql", "sqlite")
_COLON = re.compile(r"(?<![:\w\\]):(?=\w)")  # what text() would take for a parameter


class Migrations:
    """The lock of a run of migrations; given as ``on_version_apply``, it admits each step in the step's transaction.

    For example::

        with migrations_lock(connection) as migrations:
            context.configure(connection=connection, on_version_apply=migrations)
    """

    def __init__(self, name: str, lease: Lease) -> None:
        self.name = name
        self.lease = lease

    def __call__(self, *, ctx: Any, **_: object) -> None:
        """Refuse the step, which Alembic then rolls back, if another process has taken the lock over.

        Where there is no guard for the database, LeaseLost if the lease is over.
        """
        if ctx.dialect.name in _GUARDED:
            guard_of(ctx.dialect.name).admit(ctx.connection, self.name, self.lease)
        else:
            self.lease.check()

    def _enter(self, connection: Connection) -> None:
        """Keep older processes out before the database's version is read."""
        if connection.dialect.name not in _GUARDED:
            return
        with nullcontext() if connection.in_transaction() else connection.begin():
            if not sqlalchemy.inspect(connection).has_table("fencepost_mark"):
                for statement in ddl(connection.dialect.name):
                    connection.exec_driver_sql(statement)
            guard_of(connection.dialect.name).enter(connection, self.name, self.lease)


@contextmanager
def migrations_lock(
    connection: Connection,
    locks: Locks | str | None = None,
    *,
    name: str | None = None,
    ttl: float | timedelta = 30.0,
    timeout: float | timedelta | None = 600.0,
) -> Iterator[Migrations]:
    """Hold the lock of this database's migrations; give what it yields to ``context.configure(on_version_apply=...)``.

    All processes of a deployment may run ``alembic upgrade head`` at once: one migrates, the others wait for up to
    ``timeout`` seconds and then find nothing to do. A process that was frozen for longer than its ttl, and replaced, is
    refused at its next step, which is rolled back with what it did.

    ``locks`` is a URL, or locks that are open; without it the locks are behind $FENCEPOST_URL, else in the migrated
    database itself if that is Postgres. ``name`` is ``alembic/`` and the name of the database unless given.

    Raises NotAcquired, BackendError, StaleToken, and LeaseLost at the end if the lease was lost: then each step that
    was made is complete, so run it again.
    """
    if not isinstance(connection, Connection):
        raise ConfigError(
            f"migrations_lock() takes the Connection that is migrated, not {type(connection)!r}; in an env.py for "
            f"asyncio call it in do_run_migrations(), which run_sync() gives one"
        )
    name = f"alembic/{connection.engine.url.database or 'database'}" if name is None else name
    held: Any = nullcontext(locks) if isinstance(locks, Locks) else _connected(connection, locks)
    with held as store, store.lock(name, ttl=ttl, timeout=timeout) as lease:
        migrations = Migrations(name, lease)
        migrations._enter(connection)
        yield migrations


def _connected(connection: Connection, url: str | None) -> Locks:
    if url is not None or "FENCEPOST_URL" in os.environ or connection.dialect.name != "postgresql":
        return connect(url)
    try:
        return connect(connection.engine)
    except ConfigError as error:
        raise ConfigError(
            f"the locks cannot be in the migrated database: {error}; name them: migrations_lock(connection, "
            f"'postgresql://...'), or set $FENCEPOST_URL"
        ) from None


def prepare(op: Any) -> None:
    """Make what the guard needs, in a migration; ``op`` is Alembic's. A downgrade leaves it: others may use it."""
    _execute(op, ddl(_dialect(op)))


def guard(
    op: Any,
    table: str,
    *,
    resource: str | None = None,
    column: str | None = None,
    key: Iterable[str] = (),
    ceiling: Ceiling = "on",
) -> None:
    """Set the triggers that refuse unfenced changes of a table; see `fencepost.contrib.sqlalchemy.guard`."""
    _execute(op, ddl(_dialect(op), table, resource=resource, column=column, key=key, ceiling=ceiling))


def unguard(op: Any, table: str) -> None:
    """Take the triggers off a table, in a downgrade; its marks and its epochs stay.

    For example::

        def downgrade():
            unguard(op, "account")
    """
    _execute(op, removal(_dialect(op), table))


def include_name(name: str | None, type_: str, parent_names: object) -> bool:
    """For ``context.configure(include_name=...)``: autogenerate neither drops nor compares what is fencepost's.

    For example::

        context.configure(connection=connection, include_name=include_name)
    """
    return not (type_ == "table" and (name or "").startswith("fencepost_")) and (type_, name) != ("schema", "fencepost")


def _dialect(op: Any) -> str:
    return str(op.get_context().dialect.name)


def _execute(op: Any, statements: Iterable[str]) -> None:
    for statement in statements:
        op.execute(text(_COLON.sub(r"\\:", statement)))
