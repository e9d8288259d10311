"""The SQLite file itself: its schema, its connection, its transactions, and what it keeps on disk."""

import functools
import logging
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fencepost.driver.gate import Gate
from fencepost.errors import BackendError, ConfigError
from fencepost.rule import MAX_TOKEN
from fencepost.sql import fork
from fencepost.sql.sqlite import is_busy, nap, patiently

T = TypeVar("T")

_log = logging.getLogger("fencepost")
_APPLICATION = 0x66656E63  # "fenc", in the file's header
_VERSION = 2
_SHARE = """CREATE TABLE share (
        name TEXT NOT NULL,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL,
        expires REAL NOT NULL,
        PRIMARY KEY (name, holder)
    ) STRICT, WITHOUT ROWID"""
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
        mailbox TEXT NOT NULL,
        share INTEGER
    ) STRICT""",
    "CREATE INDEX waiter_in_line ON waiter (name, ticket)",
    _SHARE,
    # No lock is named '': that row has the last token. It is in the same table as the locks, so that a grant writes one
    # page, not two.
    "INSERT INTO lock VALUES ('', 0, '', 0)",
    # One row: the boot since which deadlines are counted, and the last token that is reserved on disk.
    "CREATE TABLE issuer (boot TEXT NOT NULL, reserved INTEGER NOT NULL) STRICT",
    "INSERT INTO issuer VALUES ('', 0)",
)
_UPGRADES = {1: ("ALTER TABLE waiter ADD COLUMN share INTEGER", _SHARE)}
"""The statements that upgrade an earlier schema to the next version."""
# Tokens are reserved on disk in blocks of this many, so that not every grant needs an fsync.
_BLOCK = 10_000


def _inode(path: Path) -> tuple[int, int]:
    """Device and inode of the file with this name; zeros if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


class File:
    """One connection to the file, for one thread at a time; opened on first use."""

    def __init__(self, path: Path, busy: float) -> None:
        self._connection: sqlite3.Connection | None = None
        self.path = path
        self._busy = busy
        self._gate = Gate("sqlite", busy)
        self._stopped = f"SQLite file {str(path)!r}: database is locked; a process was stopped inside a transaction?"
        self._inode = (0, 0)
        self._reserved = 0
        fork.register(self)

    def idle(self) -> AbstractContextManager[object]:
        """While this is held, no thread of this process is inside a transaction."""
        return self._gate

    @contextmanager
    def still(self) -> Iterator[None]:
        """The same, but wait at most a second, and not for a thread that waits for the file; then go on anyway."""
        held = self._gate.hold(1.0)
        try:
            yield
        finally:
            if held:
                self._gate.let_go()

    def read(self, query: str, *args: object) -> list[Any]:
        """The rows of a query, in one snapshot."""
        with self._gate as waited:
            return self._patiently(lambda: self._current().execute(query, args), waited).fetchall()

    def write(self, statement: str, *args: object) -> int:
        """Execute one statement as its own transaction; return how many rows it changed."""
        with self._gate as waited:
            return self._patiently(lambda: self._current().execute(statement, args), waited).rowcount

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction that locks out other writers; if ``durable``, it is on disk when this ends."""
        with self._gate as waited:
            try:
                # Inside the try: an interrupt that arrived during the wait is raised once the transaction has begun.
                db = self._patiently(lambda: self._begin(durable), waited)
                yield db
                db.execute("COMMIT")
            except BaseException:
                if self._connection is not None and self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                if durable and self._connection is not None:
                    self._connection.execute("PRAGMA synchronous = NORMAL")

    def _begin(self, durable: bool) -> sqlite3.Connection:
        db = self._current()
        if durable:
            db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        return db

    def cover(self, token: int) -> bool:
        """Return once the token is reserved on disk, so that it is not minted again even after a power loss.

        A power loss may lose everything else: it also ends the processes that held or waited. True if this has reserved
        another block of tokens, as happens now and then.
        """
        if token <= self._reserved:
            return False
        try:
            with self.writing(durable=True) as db:
                (reserved,) = db.execute("SELECT reserved FROM issuer").fetchone()
                another = bool(token > reserved)
                if another:
                    reserved = min(token + _BLOCK, MAX_TOKEN)
                    db.execute("UPDATE issuer SET reserved = ?", (reserved,))
        except BackendError as error:  # the grant itself was made
            raise BackendError(str(error), backend=error.backend, ambiguous=True) from error
        self._reserved = reserved
        return another

    def _patiently(self, attempt: Callable[[], T], waited: float = 0.0) -> T:
        """Repeat ``attempt`` until the file is not locked; it must get the connection again each time: that may change.

        BackendError if the file stays locked for too long, counting what the caller has ``waited`` already.
        """
        try:
            return patiently(attempt, busy=self._busy - waited, sleep=self._nap)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            raise BackendError(self._stopped, backend="sqlite", ambiguous=False) from error

    def _nap(self, seconds: float) -> None:
        self._gate.step_aside(self._stopped, lambda: nap(seconds))

    def close(self) -> None:
        with self._gate.unhurried():  # without a limit: the threads before this one give up in time
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __del__(self) -> None:
        # Callers may drop locks unclosed. From Python 3.13 on, dropping an open connection gives a ResourceWarning.
        if self._connection is not None:
            self._connection.close()

    def _current(self) -> sqlite3.Connection:
        """The connection to the file that has the name now: locks in a removed or replaced file exclude no one."""
        if self._connection is not None and self._inode != _inode(self.path):
            _log.warning("%r was removed or replaced while it was in use: its locks are lost", str(self.path))
            self._connection.close()
            self._connection, self._reserved = None, 0
        return self._connection or self._open()

    def _open(self) -> sqlite3.Connection:
        """Open the file; BackendError if that fails, not ambiguous, as nothing was written yet.

        If another process has locked the file, nothing stays open: the thread steps aside and tries again.
        """
        try:
            self._connection = self._opened()
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.OperationalError) and is_busy(error):
                raise
            raise BackendError(f"SQLite file {str(self.path)!r}: {error}", backend="sqlite", ambiguous=False) from error
        self._inode = _inode(self.path)
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA trusted_schema = OFF")  # another user may have created the file
            # Refuse the database of another program before anything in it is changed. In one transaction: another
            # process may be creating the file right now.
            db.execute("BEGIN")
            self._is_new(db)
            db.execute("COMMIT")
            db.execute("PRAGMA page_size = 1024")  # rows are small, and each commit writes whole pages
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            self._prepare(db)
            db.execute("COMMIT")
            db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    def _is_new(self, db: sqlite3.Connection) -> bool:
        """Whether the file is empty; ConfigError if it is not ours, or not of this version."""
        ((ours,),) = db.execute("PRAGMA application_id")
        ((version,),) = db.execute("PRAGMA user_version")
        if ours != _APPLICATION:
            if ours or version or db.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise ConfigError(f"{str(self.path)!r} is somebody else's database; give locks a file of their own")
            return True
        if version != _VERSION and version not in _UPGRADES:
            raise ConfigError(
                f"{str(self.path)!r} has schema {version}, this fencepost knows {_VERSION}: upgrade fencepost"
            )
        return False

    def _prepare(self, db: sqlite3.Connection) -> None:
        if self._is_new(db):
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
        ((version,),) = db.execute("PRAGMA user_version")
        for older in range(version, _VERSION):
            for statement in _UPGRADES[older]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {older + 1}")
        (boot,) = db.execute("SELECT boot FROM issuer").fetchone()
        if boot != boot_id():
            # All holders and waiters ended with the earlier boot. Tokens continue after any that they may have had.
            db.execute("DELETE FROM lock WHERE name != ''")
            db.execute("DELETE FROM waiter")
            db.execute("DELETE FROM share")
            db.execute("UPDATE lock SET token = max(token, (SELECT reserved FROM issuer)) WHERE name = ''")
            db.execute("UPDATE issuer SET boot = ?", (boot_id(),))


@functools.cache
def boot_id() -> str:
    """A string that is new after every boot of this host, and the same for all its processes until then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        for known in ("kern.bootsessionuuid", "kern.boottime"):  # macOS; FreeBSD has the latter only
            called = subprocess.run(["sysctl", "-n", known], capture_output=True, text=True, check=False)
            if called.returncode == 0 and called.stdout.strip():
                return called.stdout.strip()
        raise ConfigError(
            "sqlite:// cannot find out when this host was booted; use a server, such as redis://"
        ) from None
