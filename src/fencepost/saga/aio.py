"""Sagas for asyncio: the same names, awaited; see `fencepost.saga`.

    order = Saga("order", [Step("reserve", reserve, undo=release), Step("ship", ship)])
    await order.run(locks, conn, "2026-0042", {"sku": "lamp"})

Steps may be ``async def``. ``locks`` are those of `fencepost.aio`, and ``conn`` is a connection as `guards.aio` takes.
"""

from datetime import timedelta
from typing import Any

from fencepost.aio import Locks
from fencepost.saga import ledger
from fencepost.saga.coordinator import BaseSaga
from fencepost.saga.ledger import Record, State
from fencepost.saga.step import Compensated, Step, Stuck, Task
from fencepost.sql import AsyncioConnection
from fencepost.sql.connections import require_asyncio

__all__ = ["Compensated", "Record", "Saga", "State", "Step", "Stuck", "Task"]

_THERE = "saga"


class Saga(BaseSaga):
    """A sequence of steps that all happen, or are all undone. Names of sagas and steps have no slash."""

    async def run(
        self,
        locks: Locks,
        conn: AsyncioConnection,
        id: str,
        args: Any = None,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
    ) -> dict[str, Any]:
        """Run the saga called ``id``, or go on with it; see `fencepost.saga.Saga.run`."""
        require_asyncio(conn, _THERE)
        return await self._held(locks, conn, id, args, {"ttl": ttl, "timeout": timeout})

    async def resume(
        self, locks: Locks, conn: AsyncioConnection, *, ttl: float | timedelta | None = None
    ) -> dict[str, State]:
        """Go on with every saga of this name that was interrupted; see `fencepost.saga.Saga.resume`."""
        require_asyncio(conn, _THERE)
        return await self._resume(locks, conn, ttl)

    async def retry(self, locks: Locks, conn: AsyncioConnection, id: str) -> dict[str, Any]:
        """Try a stuck saga's undo again; a saga that was only interrupted goes on. Raises as ``run`` does."""
        require_asyncio(conn, _THERE)
        return await self._retry(locks, conn, id)

    async def compensate(self, locks: Locks, conn: AsyncioConnection, id: str) -> None:
        """Undo a saga that is under way instead of going on with it. Raises Compensated, or Stuck."""
        require_asyncio(conn, _THERE)
        await self._compensate(locks, conn, id)

    async def skip(self, locks: Locks, conn: AsyncioConnection, id: str, step: str) -> None:
        """Record that a stuck step was undone by hand, and go on undoing the others. Raises as ``run`` does."""
        require_asyncio(conn, _THERE)
        await self._skip(locks, conn, id, step)

    async def find(self, conn: AsyncioConnection, id: str) -> Record | None:
        """The record of a saga, as this connection sees it; None if it was never begun."""
        require_asyncio(conn, _THERE)
        return await ledger.find(conn, self.name, id)
