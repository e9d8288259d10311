"""The guard for SQLite, for asyncio connections of SQLAlchemy; see `fencepost.guards.sqlite`.

For example::

    async with conn.begin():
        await sqlite.admit(conn, "account/42", lease)
        await conn.execute(text("UPDATE account SET balance = 50 WHERE id = 42"))
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from fencepost.events import Hook
from fencepost.guards import sqlite as jobs
from fencepost.guards.policy import Policy
from fencepost.guards.sqlite import ddl
from fencepost.lease import AMBIENT, Fence, FenceOrAmbient
from fencepost.rule import Stamp
from fencepost.sql import AsyncioConnection
from fencepost.sql.connections import AsyncFenced, require_asyncio, through

__all__ = ["admit", "admit_all", "ddl", "enter", "fenced", "lower_mark", "mark", "raise_mark"]

C = TypeVar("C", bound=AsyncioConnection)
T = TypeVar("T")


async def _awaited(conn: Any, job: jobs.Job[T]) -> T:
    require_asyncio(conn, "guards.sqlite")
    return cast(T, await cast(Any, through(conn, job)))


async def admit(
    conn: AsyncioConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> bool:
    """Return once the write that follows in this transaction may be made; see `fencepost.guards.sqlite.admit`."""
    return await _awaited(conn, jobs.admitting(resource, lease, payload, hooks, policy))


async def admit_all(
    conn: AsyncioConnection,
    leases: Mapping[str, Fence],
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Admit one write to each of several resources. Raises as ``admit`` does: then roll back."""
    await _awaited(conn, jobs.admitting_all(leases, hooks, policy))


async def enter(
    conn: AsyncioConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does."""
    await _awaited(conn, jobs.entering(resource, lease, hooks, policy))


def fenced(
    conn: C, resource: str, lease: FenceOrAmbient = AMBIENT, *, hooks: Iterable[Hook] = (), policy: Policy | None = None
) -> AsyncFenced[C]:
    """A whole transaction for reading, changing and writing: admitted before it can read, committed at the end.

    For example::

        async with sqlite.fenced(conn, "account/42", lease):
            ...
    """
    require_asyncio(conn, "guards.sqlite")
    return AsyncFenced(conn, lambda conn: admit(conn, resource, lease, hooks=hooks, policy=policy))


async def mark(conn: AsyncioConnection, resource: str) -> Stamp | None:
    """The largest stamp admitted so far, as this connection sees it; None if there is none."""
    return await _awaited(conn, jobs.looking(resource))


async def raise_mark(conn: AsyncioConnection, resource: str, *, to: int, hooks: Iterable[Hook] = ()) -> Stamp:
    """Refuse every token up to ``to`` from the commit on, and return the mark. A higher mark stays."""
    return await _awaited(conn, jobs.raising(resource, to, hooks))


async def lower_mark(
    conn: AsyncioConnection, resource: str, *, to: int, seen: int, hooks: Iterable[Hook] = ()
) -> Stamp:
    """Lower the mark to ``to`` if its token is still ``seen``; see `fencepost.guards.sqlite.lower_mark`."""
    return await _awaited(conn, jobs.lowering_to(resource, to, seen, hooks))
