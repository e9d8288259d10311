"""Run once, for asyncio connections and clients: the same names, awaited; see `fencepost.once`.

For example::

    async with once(conn, "billing/2026-11") as run:
        if not run.done:
            await conn.execute("UPDATE account SET balance = balance - 10")
            run.result = {"billed": 10}
"""

from datetime import datetime, timedelta
from typing import Any, overload

from fencepost.errors import ConfigError
from fencepost.guards.redis import BaseRedisGuard
from fencepost.once import Commands, Run, attempt, instant
from fencepost.once.run import AsyncBlock
from fencepost.once.sql import purge as _purge
from fencepost.sql.connections import is_async

__all__ = ["AsyncBlock", "Commands", "Run", "once", "purge"]


@overload
def once(guard: BaseRedisGuard, id: str, *, keep: float | timedelta | None = None) -> AsyncBlock[Commands]: ...
@overload
def once(guard: Any, id: str) -> AsyncBlock[Run]: ...
def once(guard: Any, id: str, *, keep: float | timedelta | None = None) -> AsyncBlock[Any]:
    """A block whose effect is made by the first attempt at the run called ``id``; see `fencepost.once.once`.

    For example::

        async with once(conn, "billing/42/2026-11") as run:
            if not run.done:
                await conn.execute("UPDATE account SET balance = balance - 10 WHERE id = 42")
    """
    return AsyncBlock(attempt(guard, id, keep))


async def purge(conn: Any, before: datetime | timedelta) -> int:
    """Forget the runs made before an instant, or longer ago than a timedelta; see `fencepost.once.purge`.

    For example::

        await purge(conn, timedelta(days=90))
    """
    since = instant(before)
    if not is_async(conn):
        raise ConfigError("this connection blocks, and is not for asyncio; use fencepost.once")
    return await _purge(conn, since)
