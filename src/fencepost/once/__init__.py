"""Run once: a run, its effect and its result become true in one step, and a second attempt gets the stored result.

    with once(conn, "billing/2026-11") as run:
        if not run.done:
            conn.execute("UPDATE account SET balance = balance - 10")
            run.result = {"billed": 10}
    print(run.result)

Often it is all the coordination a job needs: no lock, no lease, nothing to expire.
"""

from datetime import datetime, timedelta
from typing import Any, overload

from fencepost.driver import run as _run
from fencepost.errors import ConfigError
from fencepost.guards.redis import BaseRedisGuard
from fencepost.once.redis import Commands, Script
from fencepost.once.run import Attempt, Block, Run
from fencepost.once.sql import Rows
from fencepost.once.sql import purge as _purge
from fencepost.sql.connections import is_async

__all__ = ["Block", "Commands", "Run", "once", "purge"]


@overload
def once(guard: BaseRedisGuard, id: str, *, keep: float | timedelta | None = None) -> Block[Commands]: ...
@overload
def once(guard: Any, id: str) -> Block[Run]: ...
def once(guard: Any, id: str, *, keep: float | timedelta | None = None) -> Block[Any]:
    """A block whose effect is made by the first attempt at the run called ``id``, and by no other.

    ``guard`` is a connection to SQLite or Postgres, as ``guards.sqlite`` and ``guards.postgres`` take, or a
    ``guards.RedisGuard``; `fencepost.once.aio` is for asyncio ones. A connection outside a transaction gets one, which
    commits at the end of the block. Inside a transaction of yours, run and effect commit with that. If the block
    raises, nothing is changed, and the run can be tried again. A second attempt waits while the first one's transaction
    is open. In Redis ``run.execute`` collects commands, which are carried out as the block ends unless another attempt
    was faster; ``keep`` is how long Redis remembers the run.

    Raises ConfigError for an invalid id, for a result that JSON cannot carry, and in a Postgres that was not prepared
    (``fencepost guard install URL``); BackendError if an earlier attempt was at work for longer than SQLite's timeout
    or Postgres's lock_timeout.
    """
    return Block(attempt(guard, id, keep))


def purge(conn: Any, before: datetime | timedelta) -> int:
    """Forget the runs made before an instant, or longer ago than a timedelta; return how many there were.

    Purge only what nobody will try again: a forgotten run that is tried again happens again. Raises as ``once`` does.

        purge(conn, timedelta(days=90))
    """
    since = instant(before)
    if is_async(conn):
        raise ConfigError("this connection is asyncio's; use fencepost.once.aio")
    return _run(_purge(conn, since))


# Shared by the blocking functions above and those of `once.aio`.


def attempt(guard: Any, id: str, keep: float | timedelta | None) -> Attempt[Any]:
    if isinstance(guard, BaseRedisGuard):
        return Script(guard, id, keep)
    if keep is not None:
        raise ConfigError("keep= is for Redis; a database remembers until purge()")
    if hasattr(guard, "register_script"):
        raise ConfigError("once() takes a client of Redis inside a guard: once(guards.RedisGuard(client), ...)")
    return Rows(guard, id)


def instant(before: datetime | timedelta) -> float:
    if not isinstance(before, (datetime, timedelta)):
        raise ConfigError(f"purge() takes a datetime or a timedelta, not {before!r}")
    return (datetime.now().astimezone() - before if isinstance(before, timedelta) else before).timestamp()
