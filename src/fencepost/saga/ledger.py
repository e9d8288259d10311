"""The state of a saga: one row in the caller's SQLite or Postgres, which only the holder of its lease changes."""

import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from fencepost.guards import aio, postgres, sqlite
from fencepost.guards.policy import Policy
from fencepost.lease import BaseLease
from fencepost.once import rows
from fencepost.sql.connections import is_async, is_sqlite, opened
from fencepost.sql.postgres import state
from fencepost.sql.sqlite import Table

State: TypeAlias = Literal["running", "compensating", "stuck", "done", "compensated"]

SAGAS = Table(
    "fencepost_saga",
    """
CREATE TABLE IF NOT EXISTS fencepost_saga (
    saga  TEXT NOT NULL,
    id    TEXT NOT NULL,
    state TEXT NOT NULL,
    body  TEXT NOT NULL,
    error TEXT,
    at    REAL NOT NULL,
    PRIMARY KEY (saga, id)
) STRICT, WITHOUT ROWID
""",
)
_FIND = "SELECT state, body, error, at FROM fencepost_saga WHERE saga = %s AND id = %s"
_INSERT = "INSERT INTO fencepost_saga (state, body, error, at, saga, id) VALUES (%s, %s, %s, %s, %s, %s)"
_UPDATE = "UPDATE fencepost_saga SET state = %s, body = %s, error = %s, at = %s WHERE saga = %s AND id = %s"
_NEXT = """SELECT id FROM fencepost_saga WHERE saga = %s AND id > %s AND state IN ('running', 'compensating')
    ORDER BY id LIMIT 1"""
LIST = "SELECT saga, id, state, body, error, at FROM fencepost_saga ORDER BY saga, id"

# Not the process's policy: a saga must make each move once, however far a rollout of guards is. Without keys and
# limits: those are against tokens that others send, and this token comes from the coordinator's own lock store.
_STRICT = Policy(ceiling="off")


@dataclass
class Record:
    """How far a saga is: its steps in order, the result of each, and which are undone."""

    saga: str
    id: str
    steps: list[str]
    args: Any = None
    state: State = "running"
    results: dict[str, Any] = field(default_factory=dict)
    undone: list[str] = field(default_factory=list)
    begun: str | None = None
    """An external step that was begun, and may or may not have happened."""
    trouble: str | None = None
    """Why the undo of a step failed, while the saga is stuck."""
    error: str | None = None
    """Why the saga is undone."""
    at: float = 0.0

    @property
    def step(self) -> str | None:
        """The step that comes next, forward or back; None once there is none."""
        if self.state in ("running", "done"):
            return next((step for step in self.steps if step not in self.results), None)
        happened = [step for step in self.steps if step in self.results or step == self.begun]
        return next((step for step in reversed(happened) if step not in self.undone), None)

    @classmethod
    def read(cls, saga: str, id: str, row: tuple[Any, ...]) -> "Record":
        """A record from its row's state, body, error and instant."""
        state, body, error, at = row
        return cls(saga, id, state=state, error=error, at=at, **json.loads(body))

    def _row(self) -> tuple[Any, ...]:
        keys = ("steps", "args", "results", "undone", "begun", "trouble")
        body = json.dumps({key: getattr(self, key) for key in keys})
        return self.state, body, self.error, time.time(), self.saga, self.id


def resource(saga: str, id: str) -> str:
    """What a saga's lock and its mark are called."""
    return f"saga/{saga}/{id}"


@asynccontextmanager
async def moving(conn: Any, start: Record, lease: BaseLease) -> AsyncIterator[Record]:
    """A transaction in which only the holder of the saga's lease moves it; yields ``start`` if the saga is new.

    Raises Refused for a holder that was replaced: then nothing was changed.
    """
    async with rows.own(conn):
        await _admit(conn, resource(start.saga, start.id), lease)
        row = await rows.ask(conn, SAGAS, _FIND, (start.saga, start.id))
        record = Record.read(start.saga, start.id, row) if row else start
        yield record
        await rows.ask(conn, SAGAS, _UPDATE if row else _INSERT, record._row())


def refused(error: Exception) -> bool:
    """Whether the database refused what a transaction wrote, by a constraint, a trigger or for an earlier error in it.

    Unlike a lost connection or a full disk, it will refuse the same the next time, too.
    """
    code = state(error) or ""
    refusals = (error, getattr(error, "orig", None), error.__cause__)
    return code[:2] in ("23", "P0") or code == "25P02" or any(isinstance(e, sqlite3.IntegrityError) for e in refusals)


async def find(conn: Any, saga: str, id: str) -> Record | None:
    """A saga as this connection sees it; None if it was never begun."""
    async with nullcontext() if opened(conn) else rows.own(conn):
        row = await rows.look(conn, SAGAS, _FIND, (saga, id))
    return Record.read(saga, id, row) if row else None


async def unfinished(conn: Any, saga: str) -> AsyncIterator[str]:
    """The ids of the sagas that are running or compensating, whether or not a coordinator is at work on them."""
    last = ""
    while True:
        async with rows.own(conn):
            row = await rows.look(conn, SAGAS, _NEXT, (saga, last))
        if row is None:
            return
        last = row[0]
        yield last


async def _admit(conn: Any, name: str, lease: BaseLease) -> None:
    """Admit a move through either kind of connection; a stale one is refused whatever policy the process has."""
    if is_async(conn):
        await (aio.sqlite if is_sqlite(conn) else aio.postgres).admit(conn, name, lease, policy=_STRICT)
    else:
        (sqlite if is_sqlite(conn) else postgres).admit(conn, name, lease, policy=_STRICT)
