"""The guard for Postgres, for asyncio connections of psycopg and SQLAlchemy; see `fencepost.guards.postgres`.

For example::

    async with conn.transaction():
        await postgres.admit(conn, "account/42", lease)
        await conn.execute("UPDATE account SET balance = %s WHERE id = 42", (balance,))
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

from fencepost.events import Hook
from fencepost.guards import postgres as jobs
from fencepost.guards.policy import Ceiling, Policy
from fencepost.guards.postgres import ddl
from fencepost.lease import AMBIENT, Fence, FenceOrAmbient
from fencepost.rule import Stamp
from fencepost.sql import AsyncioConnection
from fencepost.sql.connections import AsyncFenced, require_asyncio
from fencepost.sql.postgres import awaited

__all__ = ["admit", "admit_all", "ddl", "enter", "fenced", "install", "locked", "lower_mark", "mark", "raise_mark"]

C = TypeVar("C", bound=AsyncioConnection)

_THERE = "guards.postgres"


async def admit(
    conn: AsyncioConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> bool:
    """Return once the write that follows in this transaction may be made; see `fencepost.guards.postgres.admit`."""
    require_asyncio(conn, _THERE)
    return await awaited(conn, jobs.admitting(resource, lease, payload, hooks, policy))


async def admit_all(
    conn: AsyncioConnection,
    leases: Mapping[str, Fence],
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Admit one write to each of several resources, always in the same order, so that callers do not deadlock."""
    require_asyncio(conn, _THERE)
    await awaited(conn, jobs.admitting_all(leases, hooks, policy))


async def enter(
    conn: AsyncioConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does."""
    require_asyncio(conn, _THERE)
    await awaited(conn, jobs.entering(resource, lease, hooks, policy))


def fenced(
    conn: C, resource: str, lease: FenceOrAmbient = AMBIENT, *, hooks: Iterable[Hook] = (), policy: Policy | None = None
) -> AsyncFenced[C]:
    """A whole transaction for reading, changing and writing: admitted before it can read, committed at the end.

    For example::

        async with postgres.fenced(conn, "account/42", lease):
            ...
    """
    require_asyncio(conn, _THERE)
    return AsyncFenced(conn, lambda conn: admit(conn, resource, lease, hooks=hooks, policy=policy))


async def locked(conn: AsyncioConnection, name: str, *, timeout: float | timedelta | None = None) -> None:
    """Return once this transaction alone holds the lock called ``name``; see `fencepost.guards.postgres.locked`."""
    require_asyncio(conn, _THERE)
    await awaited(conn, jobs.locking(name, timeout))


async def mark(conn: AsyncioConnection, resource: str) -> Stamp | None:
    """The largest stamp admitted so far, as this connection sees it; None if there is none."""
    require_asyncio(conn, _THERE)
    return await awaited(conn, jobs.looking(resource))


async def raise_mark(conn: AsyncioConnection, resource: str, *, to: int, hooks: Iterable[Hook] = ()) -> Stamp:
    """Refuse every token up to ``to`` from the commit on, and return the mark. A higher mark stays."""
    require_asyncio(conn, _THERE)
    return await awaited(conn, jobs.raising(resource, to, hooks))


async def lower_mark(
    conn: AsyncioConnection, resource: str, *, to: int, seen: int, hooks: Iterable[Hook] = ()
) -> Stamp:
    """Lower the mark to ``to`` if its token is still ``seen``; see `fencepost.guards.postgres.lower_mark`."""
    require_asyncio(conn, _THERE)
    return await awaited(conn, jobs.lowering_to(resource, to, seen, hooks))


async def install(
    conn: AsyncioConnection,
    table: str | None = None,
    *,
    resource: str | None = None,
    column: str | None = None,
    ceiling: Ceiling = "on",
) -> None:
    """Prepare the database in this transaction, and set a trigger on ``table`` if one is named; see ``ddl``."""
    require_asyncio(conn, _THERE)
    await awaited(conn, jobs.installing(ddl(table, resource=resource, column=column, ceiling=ceiling)))
