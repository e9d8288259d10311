"""Runs remembered in the caller's SQLite or Postgres, in the transaction of their effect."""

import time
from contextlib import AsyncExitStack
from typing import Any

from fencepost.errors import BackendError, ConfigError
from fencepost.once import rows
from fencepost.once.run import Attempt, Run
from fencepost.sql.connections import is_async
from fencepost.sql.postgres import state
from fencepost.sql.sqlite import Table

_RUNS = Table(
    "fencepost_run",
    """
CREATE TABLE IF NOT EXISTS fencepost_run (
    id     TEXT NOT NULL PRIMARY KEY,
    result TEXT,
    at     REAL NOT NULL
) STRICT, WITHOUT ROWID
""",
)
_FIND = "SELECT result FROM fencepost_run WHERE id = %s"
# In Postgres a second attempt waits here until the first one's transaction has ended.
_CLAIM = "INSERT INTO fencepost_run (id, at) VALUES (%s, %s) ON CONFLICT (id) DO NOTHING RETURNING id"
_KEEP = "UPDATE fencepost_run SET result = %s WHERE id = %s"
_COUNT = "SELECT count(*) FROM fencepost_run WHERE at < %s"
_PURGE = "DELETE FROM fencepost_run WHERE at < %s"


class Rows(Attempt[Run]):
    """A transaction, or a savepoint in the caller's, in which a run and its effect are committed together."""

    def __init__(self, conn: Any, id: str) -> None:
        self._conn = conn
        self.run = Run(id)
        self.is_async = is_async(conn)
        self._around = AsyncExitStack()

    async def begin(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(rows.transaction(self._conn, _RUNS))
                await self._claim()
                self._around = stack.pop_all()
        except Exception as error:
            if state(error) == "55P03":  # lock not available
                raise BackendError(
                    f"another attempt at run {self.run.id!r} was at work for longer than lock_timeout; try again",
                    backend="postgres",
                    ambiguous=False,
                ) from error
            raise

    async def _claim(self) -> None:
        while await rows.ask(self._conn, _RUNS, _CLAIM, (self.run.id, time.time())) is None:
            # No row is found if the run was purged in between: then claim it again.
            if found := await rows.ask(self._conn, _RUNS, _FIND, (self.run.id,)):
                if found[0] is None:
                    raise ConfigError(
                        f"run {self.run.id!r} was begun and has not ended: it is under way in this very transaction, "
                        f"or its block was cut in two by a commit; see what it did, and delete its row of fencepost_run"
                    )
                self.run._recall(found[0])
                return

    async def end(self, cause: tuple[Any, Any, Any]) -> None:
        if cause[0] is not None:
            await self._around.__aexit__(*cause)
            return
        async with self._around:
            if not self.run.done:
                await rows.ask(self._conn, _RUNS, _KEEP, (self.run._told(), self.run.id))


async def purge(conn: Any, before: float) -> int:
    """Forget the runs made before an instant, in seconds since 1970; return how many there were."""
    async with rows.transaction(conn, _RUNS):
        found = await rows.ask(conn, _RUNS, _COUNT, (before,))
        await rows.ask(conn, _RUNS, _PURGE, (before,))
    return int(found[0]) if found else 0
