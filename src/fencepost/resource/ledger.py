"""Where values and their marks are kept: the contract, and its implementation for SQLite.

A ledger is one connection, used by one thread at a time. What is admitted and kept between ``begin`` and ``commit``
is there together or not at all, also after a power loss.
"""

import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards import sqlite
from fencepost.guards.policy import Policy
from fencepost.lease import Access
from fencepost.rule import Stamp
from fencepost.sql.sqlite import patiently


class Found(NamedTuple):
    """A resource as of one moment."""

    data: bytes | None
    mark: Stamp | None


class Ledger(Protocol):
    """One connection to a store."""

    name: str

    @property
    def broken(self) -> bool:
        """Whether the connection failed or was given up, so that the last error is not about one access alone."""

    def begin(self) -> None:
        """Start a transaction, on a new connection if the old one broke."""

    def commit(self) -> None:
        """Return once everything since ``begin`` is on disk."""

    def rollback(self) -> None:
        """Undo everything since ``begin``."""

    def admit(self, key: str, offer: Stamp | Access, data: bytes, hook: Hook, policy: Policy | None) -> bool:
        """Whether to keep ``data``, or False if it is kept already. Raises the Refused of the verdict."""

    def enter(self, key: str, offer: Stamp | Access, hook: Hook, policy: Policy | None) -> None:
        """Raise the mark without writing. Raises the Refused of the verdict."""

    def keep(self, key: str, data: bytes | None) -> None:
        """Replace the value; None removes it."""

    def find(self, key: str) -> Found:
        """The value and its mark, inside the transaction, or as of one moment outside one."""

    def knows(self, key: str) -> bool:
        """Whether the key has a value or a mark."""

    def count(self, most: int) -> int:
        """How many values or marks there are, whichever are more; it need not count further than ``most``."""

    def check(self) -> None:
        """Return if this transaction can write."""

    def failure(self, error: Exception) -> BackendError | None:
        """What an error of the driver means; None if it is not one."""

    def close(self) -> None:
        """Disconnect."""


Opener = Callable[[], Ledger]

AGAIN = "send the same request again, with the same stamp"
_BUSY = 30.0
# FULL makes every commit wait for the disk; fullfsync does so where fsync alone does not (macOS).
_SETUP = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "CREATE TABLE IF NOT EXISTS value (resource TEXT NOT NULL PRIMARY KEY, data BLOB NOT NULL) STRICT",
)
_READ = "SELECT data FROM value WHERE resource = ?"
_DELETE = "DELETE FROM value WHERE resource = ?"
_KNOWS = "SELECT 1 FROM value WHERE resource = ?"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM {} LIMIT ?)"
_MARKED = "SELECT 1 FROM sqlite_master WHERE name = 'fencepost_mark'"  # the first access with a token makes the table
_WRITE = "INSERT OR REPLACE INTO value (resource, data) VALUES (?, ?)"


class SqliteLedger:
    """A ledger in one SQLite file, which several processes may share. ConfigError if the file cannot be used."""

    name = "sqlite"
    broken = False

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
            self.conn = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                for statement in _SETUP:
                    patiently(partial(self.conn.execute, statement), busy=_BUSY)
                self.conn.execute(f"PRAGMA busy_timeout = {_BUSY * 1000:.0f}")
            except BaseException:
                self.conn.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the store {str(path)!r} cannot be used: {error}; name another") from error

    def begin(self) -> None:
        patiently(partial(self.conn.execute, "BEGIN IMMEDIATE"), busy=_BUSY)

    def commit(self) -> None:
        self.conn.execute("COMMIT")

    def rollback(self) -> None:
        if self.conn.in_transaction:
            self.conn.execute("ROLLBACK")

    def admit(self, key: str, offer: Stamp | Access, data: bytes, hook: Hook, policy: Policy | None) -> bool:
        return sqlite.admit(self.conn, key, offer, payload=data, hooks=(hook,), policy=policy)

    def enter(self, key: str, offer: Stamp | Access, hook: Hook, policy: Policy | None) -> None:
        sqlite.enter(self.conn, key, offer, hooks=(hook,), policy=policy)

    def keep(self, key: str, data: bytes | None) -> None:
        if data is None:
            self.conn.execute(_DELETE, (key,))
        else:
            self.conn.execute(_WRITE, (key, data))

    def find(self, key: str) -> Found:
        alone = not self.conn.in_transaction
        if alone:  # one transaction, so that the mark is not newer than the value it is shown with
            self.conn.execute("BEGIN")
        try:
            row = self.conn.execute(_READ, (key,)).fetchone()
            return Found(row[0] if row else None, sqlite.mark(self.conn, key))
        finally:
            if alone:
                self.conn.execute("COMMIT")

    def knows(self, key: str) -> bool:
        found = self.conn.execute(_KNOWS, (key,)).fetchone()
        return found is not None or sqlite.mark(self.conn, key) is not None

    def count(self, most: int) -> int:
        tables = ["value"] if self.conn.execute(_MARKED).fetchone() is None else ["value", "fencepost_mark"]
        return max(int(self.conn.execute(_COUNT.format(table), (most,)).fetchone()[0]) for table in tables)

    def check(self) -> None:
        """Nothing: ``begin`` has taken the write lock."""

    def failure(self, error: Exception) -> BackendError | None:
        if not isinstance(error, sqlite3.Error):
            return None
        return BackendError(f"the store failed: {error}; {AGAIN}", backend="sqlite", ambiguous=True)

    def close(self) -> None:
        self.conn.close()
