"""Sagas: local transactions in order, each with its compensation, under one fenced lease.

    order = Saga("order", [
        Step("reserve", reserve, undo=release),
        Step("charge", charge, undo=refund, external=True),
        Step("ship", ship),
    ])
    order.run(locks, conn, "2026-0042", {"sku": "lamp"})

A saga that was interrupted anywhere goes on where it was, with the same call or ``resume``. If a step raises, those
before it are undone in reverse. Where it stands is a row in your database, which moves in the transaction of the
step's own effect, and only for the holder of the saga's lease.
"""

from collections.abc import Sequence
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

from fencepost.driver import run as _run
from fencepost.errors import ConfigError
from fencepost.saga import ledger
from fencepost.saga.coordinator import BaseSaga
from fencepost.saga.ledger import Record, State
from fencepost.saga.step import Compensated, Step, Stuck, Task
from fencepost.sql import BlockingConnection
from fencepost.sql.connections import require_blocking
from fencepost.sync import Locks

__all__ = ["Compensated", "Record", "Saga", "State", "Step", "Stuck", "Task"]

_THERE = "saga.aio"


class Saga(BaseSaga):
    """A sequence of steps that all happen, or are all undone. Names of sagas and steps have no slash.

    ``conn`` is a connection as ``guards.sqlite`` and ``guards.postgres`` take, in no transaction. For asyncio, and for
    steps that are ``async def``, there is `fencepost.saga.aio`.
    """

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        super().__init__(name, steps)
        for step in self.steps.values():
            if any(map(iscoroutinefunction, (step.do, step.undo))):
                raise ConfigError(f"step {step.name!r} of saga {name} is async def; use fencepost.{_THERE}")

    def run(
        self,
        locks: Locks,
        conn: BlockingConnection,
        id: str,
        args: Any = None,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
    ) -> dict[str, Any]:
        """Run the saga called ``id``, or go on with it, or recall what it came to: the results of its steps.

        Raises Compensated if a step failed and all was undone, Stuck if an undo failed; NotAcquired if another
        coordinator is at work on it for longer than ``timeout``; LeaseLost or StaleToken if this one was replaced;
        ConfigError if it was begun with other args or other steps.
        """
        require_blocking(conn, _THERE)
        return _run(self._held(locks, conn, id, args, {"ttl": ttl, "timeout": timeout}))

    def resume(
        self, locks: Locks, conn: BlockingConnection, *, ttl: float | timedelta | None = None
    ) -> dict[str, State]:
        """Go on with every saga of this name that was interrupted; how each of them now stands, by id.

        Those that somebody is at work on, and those that are stuck, are left alone. Raises ConfigError, after all
        others, if one was begun with other steps.
        """
        require_blocking(conn, _THERE)
        return _run(self._resume(locks, conn, ttl))

    def retry(self, locks: Locks, conn: BlockingConnection, id: str) -> dict[str, Any]:
        """Try a stuck saga's undo again, and go on with any other that was interrupted. Raises as ``run`` does."""
        require_blocking(conn, _THERE)
        return _run(self._retry(locks, conn, id))

    def compensate(self, locks: Locks, conn: BlockingConnection, id: str) -> None:
        """Undo a saga that is under way instead of going on with it: it ends with Compensated, or Stuck."""
        require_blocking(conn, _THERE)
        _run(self._compensate(locks, conn, id))

    def skip(self, locks: Locks, conn: BlockingConnection, id: str, step: str) -> None:
        """Take a stuck step as undone by hand, and go on undoing the others. Raises as ``run`` does."""
        require_blocking(conn, _THERE)
        _run(self._skip(locks, conn, id, step))

    def find(self, conn: BlockingConnection, id: str) -> Record | None:
        """Where a saga stands, as this connection sees it; None if it was never begun."""
        require_blocking(conn, _THERE)
        return _run(ledger.find(conn, self.name, id))
