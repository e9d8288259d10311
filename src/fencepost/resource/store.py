"""Values and their marks in one SQLite file: an answered write and its mark survive a power loss."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fencepost.errors import BackendError, ConfigError, Refused
from fencepost.events import Event, Hook, Hooks
from fencepost.guards import sqlite
from fencepost.guards.decision import Access
from fencepost.resource.group import Writer
from fencepost.rule import Stamp

# FULL makes every commit wait for the disk; fullfsync does so where fsync alone does not (macOS).
_SETUP = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
CREATE TABLE IF NOT EXISTS value (resource TEXT NOT NULL PRIMARY KEY, data BLOB NOT NULL) STRICT;
"""
_READ = "SELECT data FROM value WHERE resource = ?"
_WRITE = "INSERT OR REPLACE INTO value (resource, data) VALUES (?, ?)"


class Found(NamedTuple):
    """A resource as one transaction saw it."""

    data: bytes | None
    mark: Stamp | None


class Written(NamedTuple):
    """A write that is on disk; ``replay`` if an earlier request had put it there."""

    replay: bool
    mark: Stamp | None


class Store:
    """The values of one service, each behind its mark.

    With ``fence`` off every access passes, and what the rule says about it is only told to the hooks;
    the mark remains the largest stamp the rule admits. Raises ConfigError if the file cannot be used.
    The coroutines raise the Refused of the verdict, and BackendError if the disk failed.
    """

    def __init__(self, path: Path, *, fence: bool = True, hooks: Iterable[Hook] = ()) -> None:
        self._fence = fence
        self._hooks = Hooks(hooks)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._conn = _open(path)
            self._conn.executescript(_SETUP)
            self._view = _open(path)
            self._view.execute("PRAGMA query_only = ON")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the store {str(path)!r} cannot be used: {error}; name another") from error
        self._writer = Writer(self._conn)
        self._reader = ThreadPoolExecutor(1, "fencepost-reader")

    def require(self, key: str, offer: Stamp | None) -> None:
        """Return if a write with this offer is worth looking at; MissingToken if it carries none."""
        if self._fence and offer is None:
            Access("sqlite", key, None, "write", (self._hooks,), inherit=False)

    async def write(self, key: str, data: bytes, offer: Stamp | None) -> Written:
        """Keep ``data`` under ``key``; returns once it and its mark are on disk."""
        told: list[Event] = []

        def judged() -> bool:
            if offer is None:
                Access("sqlite", key, None, "write", (told.append,), inherit=False)
                return True
            return sqlite.admit(self._conn, key, offer, payload=data, hooks=(told.append,))

        def access() -> Written:
            if fresh := self._passes(judged, told):
                self._conn.execute(_WRITE, (key, data))
            return Written(not fresh, sqlite.mark(self._conn, key))

        return await self._writer.run(access, lambda: self._tell(told))

    async def enter(self, key: str, offer: Stamp) -> Found:
        """Enter ``key``, and read it in the same transaction."""
        told: list[Event] = []

        def judged() -> bool:
            sqlite.enter(self._conn, key, offer, hooks=(told.append,))
            return True

        def access() -> Found:
            self._passes(judged, told)
            return _find(self._conn, key)

        return await self._writer.run(access, lambda: self._tell(told))

    async def read(self, key: str) -> Found:
        """Read ``key`` as it is, without entering."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._snapshot, key)

    def close(self) -> None:
        """Finish what was asked before, then close the file."""
        self._reader.shutdown()
        self._view.close()
        self._writer.close()

    def _passes(self, judged: Callable[[], bool], told: list[Event]) -> bool:
        try:
            return judged()
        except Refused:
            if self._fence:
                raise
            told[-1] = replace(told[-1], enforced=False)
            return True

    def _tell(self, told: Iterable[Event]) -> None:
        for event in told:
            self._hooks(event)

    def _snapshot(self, key: str) -> Found:
        try:
            # One transaction, so that the mark is not newer than the value it is shown with.
            self._view.execute("BEGIN")
            try:
                return _find(self._view, key)
            finally:
                self._view.execute("COMMIT")
        except sqlite3.Error as error:
            raise BackendError(f"the store failed: {error}", backend="sqlite", ambiguous=False) from error


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)


def _find(conn: sqlite3.Connection, key: str) -> Found:
    row = conn.execute(_READ, (key,)).fetchone()
    return Found(row[0] if row else None, sqlite.mark(conn, key))
