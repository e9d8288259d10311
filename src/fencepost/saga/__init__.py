"""Sagas: local transactions in order, each with its compensation, under one fenced lease.

    order = Saga("order", [
        Step("reserve", reserve, undo=release),
        Step("charge", charge, undo=refund, external=True),
        Step("ship", ship),
    ])
    order.run(locks, conn, "2026-0042", {"sku": "lamp"})

A saga that was interrupted anywhere goes on where it was, with the same call or ``resume``. If a step raises, the steps
before it are undone in reverse order. The saga's state is a row in your database. It changes in the same transaction as
the step's own effect, and only the holder of the saga's lease can change it.
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
        """Run the saga called ``id``, go on with it, or recall its outcome; return the results of its steps.

        Raises Compensated if a step failed and all was undone, Stuck if an undo failed; NotAcquired if another
        coordinator is at work on it for longer than ``timeout``; LeaseLost or StaleToken if this one was replaced;
        ConfigError if it was begun with other args or other steps.
        """
        require_blocking(conn, _THERE)
        return _run(self._held(locks, conn, id, args, {"ttl": ttl, "timeout": timeout}))

    def resume(
        self, locks: Locks, conn: BlockingConnection, *, ttl: float | timedelta | None = None
    ) -> dict[str, State]:
        """Go on with every saga of this name that was interrupted; return the state of each, by id.

        Sagas that another coordinator is working on, and stuck ones, are left alone. If one was begun with other steps,
        it raises ConfigError after it has driven all others.
        """
        require_blocking(conn, _THERE)
        return _run(self._resume(locks, conn, ttl))

    def retry(self, locks: Locks, conn: BlockingConnection, id: str) -> dict[str, Any]:
        """Try a stuck saga's undo again; a saga that was only interrupted goes on. Raises as ``run`` does."""
        require_blocking(conn, _THERE)
        return _run(self._retry(locks, conn, id))

    def compensate(self, locks: Locks, conn: BlockingConnection, id: str) -> None:
        """Undo a saga that is under way instead of going on with it. Raises Compensated, or Stuck."""
        require_blocking(conn, _THERE)
        _run(self._compensate(locks, conn, id))

    def skip(self, locks: Locks, conn: BlockingConnection, id: str, step: str) -> None:
        """Record that a stuck step was undone by hand, and go on undoing the others. Raises as ``run`` does."""
        require_blocking(conn, _THERE)
        _run(self._skip(locks, conn, id, step))

    def find(self, conn: BlockingConnection, id: str) -> Record | None:
        """The record of a saga, as this connection sees it; None if it was never begun."""
        require_blocking(conn, _THERE)
        return _run(ledger.find(conn, self.name, id))
