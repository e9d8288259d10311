"""The SQLite file itself: its schema, its connection, its transactions, and what it keeps on disk."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fencepost.backends.boot import boot_id
from fencepost.errors import ConfigError

_VERSION = 1
_SCHEMA = (
    """CREATE TABLE lock (
        name TEXT PRIMARY KEY,
        token INTEGER NOT NULL,
        holder TEXT NOT NULL,
        expires REAL NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE waiter (
        ticket INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        holder TEXT NOT NULL UNIQUE,
        ttl REAL NOT NULL,
        mailbox TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX waiter_in_line ON waiter (name, ticket)",
    # No lock is called '': that row holds the last token. In the page of the locks, a grant writes one page, not two.
    "INSERT INTO lock VALUES ('', 0, '', 0)",
    # One row: the boot that deadlines count from, and the tokens that are reserved on disk.
    "CREATE TABLE issuer (boot TEXT NOT NULL, reserved INTEGER NOT NULL) STRICT",
    "INSERT INTO issuer VALUES ('', 0)",
)
# Tokens are reserved on disk in blocks of this many, so that handing one out needs no fsync of its own.
_BLOCK = 10_000

_parents: list[sqlite3.Connection] = []  # never closed: closing a parent's connection in a child breaks its locks


class File:
    """One connection to the file, for one thread at a time; opened on first use."""

    def __init__(self, path: Path, busy: float) -> None:
        self.path = path
        self._busy = busy
        self._gate = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._reserved = 0

    def read(self, query: str, *args: object) -> list[Any]:
        """The rows of a query, as of one moment."""
        with self._gate:
            return self._patiently(self._connection or self._open(), query, *args).fetchall()

    def write(self, statement: str, *args: object) -> int:
        """Execute one statement as a transaction of its own; how many rows it changed."""
        with self._gate:
            return self._patiently(self._connection or self._open(), statement, *args).rowcount

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that has the file to itself."""
        with self._gate:
            db = self._connection or self._open()
            self._patiently(db, "BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def cover(self, token: int) -> None:
        """Return once the token is reserved on disk, so that not even a power loss can bring it back.

        Everything else may be lost with the power: those who held or waited are lost too.
        """
        if token <= self._reserved:
            return
        with self._gate:
            db = self._connection or self._open()
            (self._reserved,) = db.execute("SELECT reserved FROM issuer").fetchone()
            if token > self._reserved:
                db.execute("PRAGMA synchronous = FULL")
                try:
                    self._patiently(db, "BEGIN IMMEDIATE")
                    db.execute("UPDATE issuer SET reserved = max(reserved, ?)", (token + _BLOCK,))
                    db.execute("COMMIT")
                finally:
                    db.execute("PRAGMA synchronous = NORMAL")
                self._reserved = token + _BLOCK

    def _patiently(self, db: sqlite3.Connection, statement: str, *args: object) -> sqlite3.Cursor:
        """Execute once the file is free: transactions take microseconds, where SQLite itself sleeps milliseconds."""
        nap = 0.00005
        until = 0.0
        while True:
            try:
                return db.execute(statement, args)
            except sqlite3.OperationalError as error:
                until = until or time.monotonic() + self._busy
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(nap)
            nap = min(nap * 1.5, 0.002)

    def close(self) -> None:
        with self._gate:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def forked(self) -> None:
        """Open anew, in a forked child, on next use."""
        if self._connection is not None:
            _parents.append(self._connection)
        self._connection = None
        self._gate = threading.Lock()

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        db = sqlite3.connect(self.path.absolute(), 0, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA page_size = 1024")  # rows are small, and each commit writes whole pages
            self._patiently(db, "PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            self._patiently(db, "BEGIN IMMEDIATE")
            self._prepare(db)
            db.execute("COMMIT")
            db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
        self._connection = db
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            if db.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise ConfigError(f"{str(self.path)!r} is somebody else's database; give locks a file of their own")
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise ConfigError(
                f"{str(self.path)!r} has schema {version}, this fencepost knows {_VERSION}: upgrade fencepost"
            )
        (boot,) = db.execute("SELECT boot FROM issuer").fetchone()
        if boot != boot_id():
            # All who held or waited ended with the earlier boot. Tokens go on past any they may have had.
            db.execute("DELETE FROM lock WHERE name != ''")
            db.execute("DELETE FROM waiter")
            db.execute("UPDATE lock SET token = max(token, (SELECT reserved FROM issuer)) WHERE name = ''")
            db.execute("UPDATE issuer SET boot = ?", (boot_id(),))
