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

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

from fencepost import check
from fencepost.driver import run as _run
from fencepost.driver import settle
from fencepost.errors import ConfigError, LeaseLost, NotAcquired, Refused, StaleToken
from fencepost.lease import BaseLease
from fencepost.saga import ledger, moves
from fencepost.saga.ledger import Record, State
from fencepost.saga.step import Compensated, Step, Stuck, Task, plain, word
from fencepost.sql.connections import is_async, opened, within

_log = logging.getLogger("fencepost")

__all__ = ["Compensated", "Record", "Saga", "State", "Step", "Stuck", "Task"]


class Saga:
    """A sequence of steps that all happen, or are all undone. Names of sagas and steps have no slash.

    ``conn`` is a connection as ``guards.sqlite`` and ``guards.postgres`` take, in no transaction. With an asyncio one
    ``locks`` is that of ``fencepost.aio``, everything here is awaited, and steps may be ``async def``.
    """

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name = word(name, "saga's name")
        given = list(steps)
        for step in given:
            if not isinstance(step, Step):
                raise ConfigError(f"saga {name!r} is made of Step(name, do, undo=...), not {step!r}")
        self.steps = {word(step.name, "step's name"): step for step in given}
        if not given or len(self.steps) < len(given):
            raise ConfigError(f"saga {name!r} needs at least one step, and each a name of its own")

    def run(
        self,
        locks: Any,
        conn: Any,
        id: str,
        args: Any = None,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Run the saga called ``id``, or go on with it, or recall what it came to: the results of its steps.

        Raises Compensated if a step failed and all was undone, Stuck if an undo failed; NotAcquired if another
        coordinator is at work on it for longer than ``timeout``; LeaseLost or StaleToken if this one was replaced;
        ConfigError if it was begun with other args or other steps.
        """
        return self._face(conn, self._held(locks, conn, id, args, {"ttl": ttl, "timeout": timeout}))

    def resume(self, locks: Any, conn: Any, *, ttl: float | timedelta | None = None) -> Any:
        """Go on with every saga of this name that was interrupted; how each of them now stands, by id.

        Those that somebody is at work on, and those that are stuck, are left alone. Raises ConfigError, after all
        others, if one was begun with other steps.
        """
        return self._face(conn, self._resume(locks, conn, ttl))

    def retry(self, locks: Any, conn: Any, id: str) -> Any:
        """Try a stuck saga's undo again, and go on with any other that was interrupted. Raises as ``run`` does."""
        return self._face(conn, self._held(locks, conn, id, ..., {}, moves.unstick))

    def compensate(self, locks: Any, conn: Any, id: str) -> Any:
        """Undo a saga that is under way instead of going on with it: it ends with Compensated, or Stuck."""
        return self._face(conn, self._held(locks, conn, id, ..., {}, moves.turn_back))

    def skip(self, locks: Any, conn: Any, id: str, step: str) -> Any:
        """Take a stuck step as undone by hand, and go on undoing the others. Raises as ``run`` does."""

        def skip(record: Record) -> None:
            if record.state != "stuck" or record.step != step:
                raise ConfigError(f"saga {self.name} {id} is not stuck at {step!r}; see 'fencepost saga show'")
            record.undone.append(step)
            moves.unstick(record)

        return self._face(conn, self._held(locks, conn, id, ..., {}, skip))

    def find(self, conn: Any, id: str) -> Any:
        """Where a saga stands, as this connection sees it; None if it was never begun."""
        return self._face(conn, ledger.find(conn, self.name, id))

    def _face(self, conn: Any, job: Any) -> Any:
        return job if is_async(conn) else _run(job)

    async def _resume(self, locks: Any, conn: Any, ttl: float | timedelta | None) -> dict[str, State]:
        stands: dict[str, State] = {}
        alien: ConfigError | None = None
        async for id in ledger.unfinished(conn, self.name):
            try:
                await self._held(locks, conn, id, ..., {"ttl": ttl, "timeout": 0})
                stands[id] = "done"
            except Compensated:
                stands[id] = "compensated"
            except Stuck:
                stands[id] = "stuck"
            except (NotAcquired, LeaseLost):
                pass  # somebody else is at work on it
            except Refused as error:  # somebody else is, or the lock store has lost or repeated its tokens
                _log.warning("saga %s %s was left alone: %s", self.name, id, error)
            except ConfigError as error:
                alien = alien or error
        if alien is not None:
            raise alien
        return stands

    async def _held(
        self,
        locks: Any,
        conn: Any,
        id: str,
        args: Any,
        options: dict[str, Any],
        change: Callable[[Record], None] | None = None,
    ) -> dict[str, Any]:
        name = check.name(ledger.resource(self.name, check.name(id, "saga's id")))
        if opened(conn):
            raise ConfigError(
                f"saga {self.name} {id} commits each of its steps, and this connection is in a transaction already"
            )
        lock = locks.lock(name, **options)
        if hasattr(lock, "__aenter__") is not is_async(conn):
            raise ConfigError("an asyncio connection takes the locks of fencepost.aio, and a blocking one the others")
        for step in self.steps.values():
            if not is_async(conn) and any(map(iscoroutinefunction, (step.do, step.undo))):
                raise ConfigError(
                    f"step {step.name!r} of saga {self.name} is async def, which takes an asyncio connection, and the "
                    f"locks of fencepost.aio"
                )
        start = Record(self.name, id, list(self.steps), None if args is ... else plain(args, "args"))
        async with within(lock) as lease:
            async with ledger.moving(conn, start, lease) as record:
                self._same(record, start, args, new=change is None and args is not ...)
                if change is not None:
                    change(record)
                    moves.settle(record)
            return await self._drive(conn, record, lease)

    def _same(self, record: Record, start: Record, args: Any, *, new: bool) -> None:
        if record is start and not new:
            raise ConfigError(f"there is no saga {self.name} {record.id}; see 'fencepost saga ls'")
        if record.steps != start.steps:
            raise ConfigError(
                f"saga {self.name} {record.id} was begun with the steps {record.steps}, and this program has "
                f"{start.steps}; finish it with the program that began it"
            )
        # Inside lists, for NaN equals nothing, not even itself; but JSON always gives the same one.
        if args not in (..., None) and [record.args] != [plain(args, "args")]:
            raise ConfigError(f"saga {self.name} {record.id} was begun with other args: {record.args!r}")

    async def _drive(self, conn: Any, record: Record, lease: BaseLease) -> dict[str, Any]:
        cause: Exception | None = None
        while record.state in ("running", "compensating") and record.step is not None:
            step = self.steps[record.step]
            try:
                if step.external:
                    record = await self._outside(conn, record, lease, step)
                else:
                    record = await self._inside(conn, record, lease, step)
            except _Failed as failed:
                cause = failed.cause
                async with ledger.moving(conn, record, lease) as record:
                    moves.failed(record, step.name, cause)
        if record.state == "done":
            return record.results
        if record.state == "stuck":
            raise Stuck(self.name, record.id, record.trouble or "") from cause
        raise Compensated(self.name, record.id, record.error or "") from cause

    async def _outside(self, conn: Any, record: Record, lease: BaseLease, step: Step) -> Record:
        """A step whose effect is elsewhere: noted before it may happen, called in no transaction, and noted after."""
        if record.state == "running" and record.begun != step.name:
            async with ledger.moving(conn, record, lease) as record:
                record.begun = step.name
        lease.check()
        result = await self._call(record, lease, step, None)
        async with ledger.moving(conn, record, lease) as record:
            moves.performed(record, step.name, result)
        return record

    async def _inside(self, conn: Any, record: Record, lease: BaseLease, step: Step) -> Record:
        """A step in this database, which may refuse it as late as when it is committed: then it failed, too."""
        try:
            async with ledger.moving(conn, record, lease) as record:
                moves.performed(record, step.name, await self._call(record, lease, step, conn))
        except _Failed:
            raise
        except Exception as error:
            if ledger.refused(error):
                raise _Failed(error) from error
            raise
        return record

    async def _call(self, record: Record, lease: BaseLease, step: Step, conn: Any) -> Any:
        forward = record.state == "running"
        call = step.do if forward else step.undo
        if call is None:
            return None
        key = f"{'do' if forward else 'undo'}/{self.name}/{step.name}/{record.id}"
        # Copies: what a step does to them must not change what the saga was begun with, nor what it came to.
        args, results = plain(record.args, "args"), plain(record.results, "results")
        task = Task(id=record.id, args=args, results=results, key=key, conn=conn, lease=lease)
        try:
            return plain(await settle(call(task)), f"result of {step.name!r}")
        except Exception as error:
            if _replaced(error, lease):
                raise  # the step did not fail, and another goes on with it
            raise _Failed(error) from error


def _replaced(error: Exception, lease: BaseLease) -> bool:
    """Whether an error says that this coordinator was replaced, and not who holds another lock under the same token."""
    if isinstance(error, LeaseLost):
        return (error.name, error.token) == (lease.name, lease.token)
    offer = error.offer if isinstance(error, StaleToken) else None
    return offer is not None and offer.token == lease.token and offer.holder in ("", lease.holder)


class _Failed(Exception):
    """Tells what a step raised from what the coordinator itself met."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
