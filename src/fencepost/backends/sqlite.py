"""Locks in an SQLite file: the embedded default, shared by all processes of one host."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from fencepost import check
from fencepost.backend import Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.backends import wake
from fencepost.backends.sqlite_doctor import examine
from fencepost.backends.sqlite_file import File
from fencepost.drive import Driver
from fencepost.errors import BackendError, ConfigError, FencepostError, QueueFull
from fencepost.lease import Grant
from fencepost.rule import MAX_TOKEN
from fencepost.url import Address

T = TypeVar("T")
Wakes: TypeAlias = list[tuple[str, str]]  # mailbox and holder of who is to be woken after the commit

_LOOK = """SELECT token, expires, holder, EXISTS (SELECT 1 FROM waiter WHERE waiter.holder = ?)
    FROM lock WHERE name = ?"""
_FREE = """DELETE FROM lock WHERE name = ? AND token = ? AND holder = ? AND expires > ?
    AND NOT EXISTS (SELECT 1 FROM waiter WHERE waiter.name = lock.name)"""


class SQLite(Backend):
    """``sqlite:``, ``sqlite:locks.db`` or ``sqlite:///var/lib/app/locks.db``.

    A lock that has waiters has a row: releasing hands the row to the first live waiter in the same
    transaction, so nobody can barge in between, and a name without a row is free for the taking.
    """

    scheme = "sqlite"
    promises = Promises(
        reach="one host",
        fair=True,
        consensus=False,
        failover="tokens survive kill -9 and power loss; a reboot frees every lock",
        clock="this host's boot-time clock",
        token="one kept counter for all locks of the file",
        wakeup="the releasing process wakes the next waiter through a Unix socket; besides, one waiter of each "
        "process reads the file whenever the holder's deadline passes",
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        options = address.options(busy=check.duration)
        if address.hosts not in ((), ((".", None),)) or address.user:
            raise ConfigError("an SQLite URL names a file, not a host: sqlite:///abs/path.db or sqlite:rel.db")
        path = "." + address.path if address.hosts else address.path
        self._file = File(Path(path) if path else _default(), options.get("busy", 10.0))
        self._folder = self._file.path.with_name(self._file.path.name + ".wake")
        self._mailbox = wake.Mailbox(self._folder)
        self._lines = wake.Lines()

    # The contract

    async def take(self, name: str, holder: str, ttl: float, queue: int | None) -> Grant | None:
        return await self._offload(self._take, name, holder, ttl, queue)

    async def wait(self, name: str, holder: str, ttl: float, timeout: float | None) -> Grant | None:
        now = self.driver.now
        until = None if timeout is None else now() + timeout
        signal = self.driver.signal()
        self._mailbox.expect(holder, signal)
        self._lines.join(name, holder, signal)
        try:
            while True:
                signal.clear()
                found = await self._offload(self._look, name, holder, ttl)
                if isinstance(found, Grant):
                    return found
                nap = None if until is None else until - now()
                if nap is not None and nap <= 0:
                    return None
                if self._lines.minds(name, holder, found):
                    overdue = max(found - now(), 0.001)
                    nap = overdue if nap is None else min(nap, overdue)
                await signal.wait(nap)
        finally:
            self._mailbox.forget(holder)
            self._lines.leave(name, holder)

    async def leave(self, name: str, holder: str) -> None:
        await self._offload(self._leave, name, holder)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        return await self._offload(self._renew, holds)

    async def release(self, name: str, holder: str, token: int) -> bool:
        return await self._offload(self._release, name, holder, token)

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        return await self._offload(self._status, name, prefix)

    async def evict(self, name: str) -> Status | None:
        return await self._offload(self._evict, name)

    async def bump(self, name: str, above: int) -> None:
        await self._offload(self._bump, above)

    async def doctor(self) -> list[Finding]:
        return await self._offload(examine, self._file)

    async def close(self) -> None:
        self._mailbox.close()
        self._file.close()

    def forked(self) -> None:
        self._mailbox.forked()
        self._lines = wake.Lines()

    async def _offload(self, call: Callable[..., T], *args: object) -> T:
        try:
            return await self.driver.offload(call, *args)
        except FencepostError:
            raise  # QueueFull is a TimeoutError, and so an OSError too
        except (sqlite3.Error, OSError) as error:
            blocked = "; a process was stopped inside a transaction?" if "locked" in str(error) else ""
            raise BackendError(
                f"SQLite file {str(self._file.path)!r}: {error}{blocked}", backend=self.scheme, ambiguous=True
            ) from error

    # The work, on whatever thread the driver gives

    def _take(self, name: str, holder: str, ttl: float, queue: int | None) -> Grant | None:
        wakes: Wakes = []
        with self._file.writing() as db:
            since = self.driver.now()
            token = self._grant(db, name, holder, since + ttl)
            if not token:
                self._sweep(db, name, since, wakes)
                token = self._grant(db, name, holder, since + ttl)
            if not token:
                # A waiter that mends its place in the line may find that it was just handed the lock.
                row = db.execute(
                    "SELECT token, expires FROM lock WHERE name = ? AND holder = ?", (name, holder)
                ).fetchone()
                if row:
                    token, since = row[0], row[1] - ttl
                elif queue is not None:
                    self._join(db, name, holder, ttl, queue)
        self._wake(wakes)
        if not token:
            return None
        self._file.cover(token)
        return Grant(token, ttl, since)

    def _look(self, name: str, holder: str, ttl: float) -> Grant | float:
        """This waiter's grant, or else the instant at which the present holder's lease expires."""
        for token, expires, owner, queued in self._file.read(_LOOK, holder, name):
            if owner == holder:
                self._file.cover(token)
                return Grant(token, ttl, expires - ttl)
            if queued and self.driver.now() < expires:
                return float(expires)
        # The holder is overdue, or this waiter's own entry is gone: mend it, then look again.
        return self._take(name, holder, ttl, 2**62) or self._look(name, holder, ttl)

    def _release(self, name: str, holder: str, token: int) -> bool:
        if self._file.write(_FREE, name, token, holder, self.driver.now()):
            return True
        wakes: Wakes = []
        with self._file.writing() as db:
            now = self.driver.now()
            row = db.execute(
                "SELECT expires FROM lock WHERE name = ? AND token = ? AND holder = ?", (name, token, holder)
            ).fetchone()
            if row is None:
                return False
            self._hand_over(db, name, now, wakes)
        self._wake(wakes)
        return bool(now < row[0])

    def _leave(self, name: str, holder: str) -> None:
        wakes: Wakes = []
        with self._file.writing() as db:
            db.execute("DELETE FROM waiter WHERE holder = ?", (holder,))
            if db.execute("SELECT 1 FROM lock WHERE name = ? AND holder = ?", (name, holder)).fetchone():
                self._hand_over(db, name, self.driver.now(), wakes)
        self._wake(wakes)

    def _renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        with self._file.writing() as db:
            now = self.driver.now()
            return [
                Renewal.RENEWED
                if db.execute(
                    "UPDATE lock SET expires = ? WHERE name = ? AND token = ? AND holder = ? AND expires > ?",
                    (now + ttl, name, token, holder, now),
                ).rowcount
                else Renewal.LOST
                for name, holder, token, ttl in holds
            ]

    def _status(self, name: str | None, prefix: str) -> list[Status]:
        only, what = ("name = ?1", name) if name is not None else ("substr(name, 1, length(?1)) = ?1", prefix)
        now = self.driver.now()
        rows = self._file.read(
            f"SELECT name, holder, token, expires - ?2 FROM lock WHERE {only} AND expires > ?2 ORDER BY name", what, now
        )
        line = "SELECT holder FROM waiter WHERE name = ? ORDER BY ticket"
        return [
            Status(lock, holder, token, left, tuple(waiter for (waiter,) in self._file.read(line, lock)))
            for lock, holder, token, left in rows
        ]

    def _evict(self, name: str) -> Status | None:
        wakes: Wakes = []
        for status in self._status(name, ""):
            with self._file.writing() as db:
                if not db.execute("SELECT 1 FROM lock WHERE name = ? AND token = ?", (name, status.token)).fetchone():
                    return None
                self._hand_over(db, name, self.driver.now(), wakes)
            self._wake(wakes)
            return status
        return None

    def _bump(self, above: int) -> None:
        with self._file.writing(durable=True) as db:
            db.execute("UPDATE lock SET token = max(token, ?) WHERE name = ''", (above,))

    def _wake(self, wakes: Wakes) -> None:
        for mailbox, holder in wakes:
            wake.wake(self._folder, mailbox, holder)

    # Pieces of a transaction

    def _grant(self, db: sqlite3.Connection, name: str, holder: str, expires: float) -> int:
        """Mint a token for a lock without a row; 0 if it has one."""
        token = db.execute("SELECT token FROM lock WHERE name = ''").fetchone()[0] + 1
        if token > MAX_TOKEN:
            raise BackendError(f"{str(self._file.path)!r} has no token left", backend=self.scheme, ambiguous=False)
        if not db.execute("INSERT OR IGNORE INTO lock VALUES (?, ?, ?, ?)", (name, token, holder, expires)).rowcount:
            return 0
        db.execute("UPDATE lock SET token = ? WHERE name = ''", (token,))
        return int(token)

    def _sweep(self, db: sqlite3.Connection, name: str, now: float, wakes: Wakes) -> None:
        """Hand an expired lock on."""
        if db.execute("SELECT 1 FROM lock WHERE name = ? AND expires <= ?", (name, now)).fetchone():
            self._hand_over(db, name, now, wakes)

    def _hand_over(self, db: sqlite3.Connection, name: str, now: float, wakes: Wakes) -> None:
        """Give the lock to its first live waiter, forgetting dead ones before it; free it if there is none."""
        (minded,) = db.execute("SELECT expires FROM lock WHERE name = ?", (name,)).fetchone()
        db.execute("DELETE FROM lock WHERE name = ?", (name,))
        dead: set[str] = set()
        while row := db.execute(
            "SELECT ticket, holder, ttl, mailbox FROM waiter WHERE name = ? ORDER BY ticket LIMIT 1", (name,)
        ).fetchone():
            ticket, holder, ttl, mailbox = row
            db.execute("DELETE FROM waiter WHERE ticket = ?", (ticket,))
            if mailbox not in dead and wake.alive(self._folder, mailbox):
                self._grant(db, name, holder, now + ttl)
                wakes.append((mailbox, holder))
                if now + ttl < minded:
                    wakes += self._minders(db, name)
                return
            dead.add(mailbox)

    def _minders(self, db: sqlite3.Connection, name: str) -> Wakes:
        """One waiter of each process, to tell of a deadline that comes earlier than the one they mind."""
        rows = db.execute("SELECT mailbox, holder, min(ticket) FROM waiter WHERE name = ? GROUP BY mailbox", (name,))
        return [(mailbox, holder) for mailbox, holder, _ in rows]

    def _join(self, db: sqlite3.Connection, name: str, holder: str, ttl: float, queue: int) -> None:
        count = "SELECT count(*) FROM waiter WHERE name = ? AND holder != ?"
        if db.execute(count, (name, holder)).fetchone()[0] >= queue:
            boxes = db.execute("SELECT DISTINCT mailbox FROM waiter WHERE name = ?", (name,)).fetchall()
            gone = [box for box in boxes if not wake.alive(self._folder, box[0])]
            db.executemany("DELETE FROM waiter WHERE mailbox = ?", gone)
            if db.execute(count, (name, holder)).fetchone()[0] >= queue:
                raise QueueFull(name, queue)
        db.execute(
            "INSERT OR IGNORE INTO waiter (name, holder, ttl, mailbox) VALUES (?, ?, ?, ?)",
            (name, holder, ttl, self._mailbox.open()),
        )


def _default() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fencepost" / "locks.db"
