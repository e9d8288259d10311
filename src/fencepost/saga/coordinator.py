"""What both kinds of sagas share: a coordinator that drives one, step by step, under its lease."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from fencepost import check
from fencepost.driver import settle
from fencepost.errors import ConfigError, LeaseLost, NotAcquired, Refused, StaleToken
from fencepost.lease import BaseLease
from fencepost.saga import ledger, moves
from fencepost.saga.ledger import Record, State
from fencepost.saga.step import Compensated, Step, Stuck, Task, plain, word
from fencepost.sql.connections import is_async, opened, within

_log = logging.getLogger("fencepost")


class BaseSaga:
    """A sequence of steps, and what drives it through a connection of either kind."""

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name = word(name, "saga's name")
        given = list(steps)
        for step in given:
            if not isinstance(step, Step):
                raise ConfigError(f"saga {name!r} is made of Step(name, do, undo=...), not {step!r}")
        self.steps = {word(step.name, "step's name"): step for step in given}
        if not given or len(self.steps) < len(given):
            raise ConfigError(f"saga {name!r} needs at least one step, and each a name of its own")

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
                pass  # another coordinator is at work on it
            except Refused as error:  # another coordinator is, or the lock store has lost or repeated its tokens
                _log.warning("saga %s %s was left alone: %s", self.name, id, error)
            except ConfigError as error:
                alien = alien or error
        if alien is not None:
            raise alien
        return stands

    async def _retry(self, locks: Any, conn: Any, id: str) -> dict[str, Any]:
        return await self._held(locks, conn, id, ..., {}, moves.unstick)

    async def _compensate(self, locks: Any, conn: Any, id: str) -> None:
        await self._held(locks, conn, id, ..., {}, moves.turn_back)

    async def _skip(self, locks: Any, conn: Any, id: str, step: str) -> None:
        def skip(record: Record) -> None:
            if record.state != "stuck" or record.step != step:
                raise ConfigError(f"saga {self.name} {id} is not stuck at {step!r}; see 'fencepost saga show'")
            record.undone.append(step)
            moves.unstick(record)

        await self._held(locks, conn, id, ..., {}, skip)

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
        # Compare lists, which check identity first: NaN does not equal itself, but json always returns the same NaN.
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
                async with _moving(conn, record, lease) as record:
                    moves.failed(record, step.name, cause)
        if record.state == "done":
            return record.results
        if record.state == "stuck":
            raise Stuck(self.name, record.id, record.trouble or "") from cause
        raise Compensated(self.name, record.id, record.error or "") from cause

    async def _outside(self, conn: Any, record: Record, lease: BaseLease, step: Step) -> Record:
        """Run a step whose effect is elsewhere: record that it begins, call it in no transaction, record the result."""
        if record.state == "running" and record.begun != step.name:
            async with _moving(conn, record, lease) as record:
                record.begun = step.name
        lease.check()
        result = await self._call(record, lease, step, None)
        async with _moving(conn, record, lease) as record:
            moves.performed(record, step.name, result)
        return record

    async def _inside(self, conn: Any, record: Record, lease: BaseLease, step: Step) -> Record:
        """Run a step in this database. If the database refuses it only at COMMIT, the step has failed, too."""
        try:
            async with _moving(conn, record, lease) as record:
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
        # Pass copies: a step must not be able to change the saga's args or its recorded results.
        args, results = plain(record.args, "args"), plain(record.results, "results")
        task = Task(id=record.id, args=args, results=results, key=key, conn=conn, lease=lease)
        try:
            return plain(await settle(call(task)), f"result of {step.name!r}")
        except Exception as error:
            if _replaced(error, lease):
                raise  # the step did not fail: this coordinator was replaced, and another goes on with the step
            raise _Failed(error) from error


@asynccontextmanager
async def _moving(conn: Any, seen: Record, lease: BaseLease) -> AsyncIterator[Record]:
    """Move a saga if it is still where it was when the step was chosen; LeaseLost if it is not."""
    async with ledger.moving(conn, seen, lease) as record:
        if (record.state, record.step) != (seen.state, seen.step):
            why = f"saga {seen.saga} {seen.id} was {_where(seen)}, and is now {_where(record)}: something else moved it"
            raise LeaseLost(lease.name, lease.token, why)
        yield record


def _where(record: Record) -> str:
    return f"{record.state} at {record.step}" if record.step else record.state


def _replaced(error: Exception, lease: BaseLease) -> bool:
    """Whether an error says that this coordinator was replaced; one about another lock with the same token does not."""
    if isinstance(error, LeaseLost):
        return (error.name, error.token) == (lease.name, lease.token)
    offer = error.offer if isinstance(error, StaleToken) else None
    return offer is not None and offer.token == lease.token and offer.holder in ("", lease.holder)


class _Failed(Exception):
    """Separates what a step raised from errors of the coordinator itself."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
