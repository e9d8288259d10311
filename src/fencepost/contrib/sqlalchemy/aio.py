"""SQLAlchemy's asyncio: the same names, awaited; see `fencepost.contrib.sqlalchemy`.

For example::

    async with locks.lock("account/42") as lease, fenced(session, "account/42", lease):
        (await session.get(Account, 42)).balance -= 10
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from fencepost.contrib.sqlalchemy import Epoch, ddl, dialect_of, epoch_column, guard, guard_of, prepare, removal
from fencepost.events import Hook
from fencepost.guards import aio
from fencepost.guards import postgres as _postgres
from fencepost.guards.policy import Policy
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Stamp
from fencepost.sql import AsyncioConnection
from fencepost.sql.connections import AsyncFenced, require_asyncio

__all__ = ["Epoch", "admit", "ddl", "enter", "epoch_column", "fenced", "guard", "mark", "prepare", "removal"]

C = TypeVar("C", bound=AsyncioConnection)


async def admit(
    session: AsyncioConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    payload: bytes | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> bool:
    """Return once the write that follows in this transaction may be made; see `fencepost.contrib.sqlalchemy.admit`.

    For example::

        async with AsyncSession(engine) as session, session.begin():
            await admit(session, "account/42", lease)
            await session.execute(update(Account).where(Account.id == 42).values(balance=90))
    """
    found: bool = await _guard(session).admit(session, resource, lease, payload=payload, hooks=hooks, policy=policy)
    return found


async def enter(
    session: AsyncioConnection,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Raise the mark without writing, before this transaction's first read. Raises as ``admit`` does.

    For example::

        async with AsyncSession(engine) as session, session.begin():
            await enter(session, "account/42", lease)
            account = await session.get(Account, 42)
    """
    await _guard(session).enter(session, resource, lease, hooks=hooks, policy=policy)


def fenced(
    session: C,
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> AsyncFenced[C]:
    """A whole transaction of a session: admitted before it can read, committed at the end, rolled back if it raises.

    For example::

        async with AsyncSession(engine) as session, fenced(session, "account/42", lease):
            (await session.get(Account, 42)).balance -= 10
    """
    return _guard(session).fenced(session, resource, lease, hooks=hooks, policy=policy)  # type: ignore[no-any-return]


async def mark(session: AsyncioConnection, resource: str) -> Stamp | None:
    """The largest stamp admitted so far, as this session sees it; None if there is none.

    For example::

        seen = await mark(session, "account/42")
    """
    found: Stamp | None = await _guard(session).mark(session, resource)
    return found


def _guard(session: Any) -> Any:
    require_asyncio(session, "contrib.sqlalchemy")
    return aio.postgres if guard_of(dialect_of(session)) is _postgres else aio.sqlite
