"""Locks in an SQLite file: the embedded default, shared by the processes of one host that may open it."""

import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from pathlib import Path
from typing import TypeVar

from fencepost import check
from fencepost.address import Address, state_file
from fencepost.backend import LOOK, Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.backends.sqlite import mailbox
from fencepost.backends.sqlite.doctor import examine
from fencepost.backends.sqlite.file import File
from fencepost.backends.sqlite.mailbox import Wakes
from fencepost.backends.sqlite.queue import SHARED, Minders, Queue
from fencepost.driver import Driver, Signal, scope, wait_until
from fencepost.errors import BackendError, ConfigError, FencepostError
from fencepost.lease import Grant

T = TypeVar("T")

_log = logging.getLogger("fencepost")

_WANTED = 1000  # the most locks that are remembered as wanted
_LOOK = """SELECT token, expires, holder, EXISTS (SELECT 1 FROM waiter WHERE waiter.holder = ?)
    FROM lock WHERE name = ?"""
_FREE = """DELETE FROM lock WHERE name = ? AND token = ? AND holder = ? AND expires > ?
    AND NOT EXISTS (SELECT 1 FROM waiter WHERE waiter.name = lock.name)"""


class SQLite(Backend):
    """``sqlite:``, ``sqlite:locks.db`` or ``sqlite:///var/lib/app/locks.db``.

    A lock that is held has a row. The transaction that releases it also grants the row to the first live
    waiter, so no other client can overtake the waiter. A name without a row is free.
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
        shared=True,
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        if not hasattr(socket, "AF_UNIX"):
            raise ConfigError(
                "sqlite:// wakes waiters through Unix sockets, which this system lacks; use memory:// within one "
                "process, or a server, such as redis://"
            )
        options = address.options(busy=check.duration)
        if address.hosts not in ((), ((".", None),)) or address.user:
            raise ConfigError("an SQLite URL names a file, not a host: sqlite:///abs/path.db or sqlite:rel.db")
        path = "." + address.path if address.hosts else address.path
        if "\0" in path:
            raise ConfigError("the path of an SQLite URL contains %00, which no file's name can")
        # Absolute: a process that changes its folder, as a daemon does, goes on with the same file.
        self._file = File((Path(path) if path else state_file("locks.db")).absolute(), options.get("busy", 10.0))
        # The real path: processes that open the file through a link find the same mailboxes.
        self._folder = Path(os.path.realpath(self._file.path) + ".wake")
        self._mailbox = mailbox.Mailbox(self._file.path, self._folder, self._drop)
        self._sender = mailbox.Sender(self._folder)
        self._minders = Minders()
        self._wanted: set[str] = set()
        """Locks that had waiters at their last release."""
        self._queue = Queue(self._file.path, self._folder, self._mailbox)

    # The contract

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        try:
            if limit is None:
                return await self._offload(self._take, name, holder, ttl, queue, self._alive())
            found = await self._offload(self._take_share, name, holder, ttl, queue, limit, self._alive())
            return found if isinstance(found, Grant) else None
        except GeneratorExit:
            self._mailbox.forsake(name, holder)
            raise

    def _alive(self) -> Signal | None:
        """A signal that shows whether the event loop was closed, also before the wait begins; None in blocking code."""
        return None if self.driver.blocking else self.driver.signal()

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        now = self.driver.now
        until = None if timeout is None else now() + timeout
        signal = self.driver.signal()
        self._mailbox.expect(name, holder, signal)
        self._minders.await_turn(name, holder, signal)
        try:
            while True:
                signal.clear()
                found = await self._offload(self._look, name, holder, ttl, limit)
                if isinstance(found, Grant):
                    return found
                if until is not None and now() >= until:
                    return None
                if self._minders.minds(name, holder, found):
                    overdue = max(found, now() + 0.001)
                    await wait_until(self.driver, signal, overdue if until is None else min(overdue, until))
                else:
                    # The first waiter of this process wakes at the deadline. This one wakes a little later, in case the
                    # event loop of the first was stopped.
                    late = max(found - now(), 0.0) + LOOK
                    await signal.wait(late if until is None else min(late, until - now()))
        except GeneratorExit:
            self._mailbox.forsake(name, holder)
            raise
        finally:
            self._mailbox.forget(holder)
            self._minders.leave(name, holder)

    async def leave(self, name: str, holder: str) -> str | None:
        self._mailbox.forget(holder)
        return await self._offload(self._leave, name, holder)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        return await self._offload(self._renew, holds)

    async def release(self, name: str, holder: str, token: int) -> bool:
        return await self._offload(self._release, name, holder, token)

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        return await self._offload(self._status, name, prefix)

    async def break_lock(self, name: str) -> Status | None:
        return await self._offload(self._break_lock, name)

    async def bump(self, name: str, above: int) -> None:
        await self._offload(self._bump, above)

    async def doctor(self) -> list[Finding]:
        return await self._offload(examine, self._file)

    async def close(self) -> None:
        self._mailbox.close()
        self._sender.close()
        await self._offload(self._file.close)  # it may have to wait for the disk

    def idle(self) -> AbstractContextManager[object]:
        """While this is held, this process has no open transaction: it can be stopped without blocking others."""
        return self._file.idle()

    def still(self) -> AbstractContextManager[object]:
        """The same, but it waits for that at most a second, and then goes on without it."""
        return self._file.still()

    def forked(self) -> None:
        self._mailbox.forked()
        self._sender.forked()
        self._minders = Minders()

    async def _offload(self, call: Callable[..., T], *args: object) -> T:
        try:
            if scope.deadline.get() is not None:  # the other thread needs the deadline, too
                return await self.driver.offload(copy_context().run, call, *args)
            return await self.driver.offload(call, *args)
        except FencepostError:
            raise  # QueueFull is a TimeoutError, and so an OSError too
        except (sqlite3.Error, OSError) as error:
            raise BackendError(
                f"SQLite file {str(self._file.path)!r}: {error}", backend=self.scheme, ambiguous=True
            ) from error

    # The work, on whatever thread the driver gives

    def _take(self, name: str, holder: str, ttl: float, queue: int | None, alive: Signal | None = None) -> Grant | None:
        self._sender.open()  # before the grant, so that this process can later wake the next waiter
        wakes: Wakes = []
        with self._file.writing() as db:
            since = self.driver.now()
            token = self._queue.grant(db, name, holder, since + ttl)
            if not token and self._queue.sweep(db, name, since, wakes):
                token = self._queue.grant(db, name, holder, since + ttl)
            if not token:
                # A waiter that joins the queue again may find that it was just granted the lock.
                row = db.execute(
                    "SELECT token, expires FROM lock WHERE name = ? AND holder = ?", (name, holder)
                ).fetchone()
                if row:
                    token, since = row[0], row[1] - ttl
                elif queue is not None:
                    self._queue.join(db, name, holder, ttl, queue)
                    self._joined(name, holder, alive)
        self._wake(wakes)
        if not token:
            return None
        if self._file.cover(token):
            self._tidy()
        return Grant(token, ttl, since)

    def _tidy(self) -> None:
        """Remove expired locks, whose names may never be used again; called once for each block of tokens."""
        wakes: Wakes = []
        try:
            with self._file.writing() as db:
                self._queue.tidy(db, self.driver.now(), wakes)
        except (BackendError, sqlite3.Error) as error:
            _log.info("expired locks stay in %r for now: %s", str(self._file.path), error)
        else:
            self._wake(wakes)

    def _look(self, name: str, holder: str, ttl: float, limit: int | None) -> Grant | float:
        """This waiter's grant, or the instant at which the present holder's lease expires."""
        if limit is not None:
            return self._look_share(name, holder, ttl, limit)
        for token, expires, owner, queued in self._file.read(_LOOK, holder, name):
            if owner == holder:
                self._file.cover(token)
                return Grant(token, ttl, expires - ttl)
            if queued and self.driver.now() < expires:
                return float(expires)
        # The holder's lease has expired, or this waiter's queue entry is gone: take or join again, then look again.
        return self._take(name, holder, ttl, 2**62) or self._look(name, holder, ttl, limit)

    def _joined(self, name: str, holder: str, alive: Signal | None) -> None:
        if alive is not None:
            self._mailbox.expect(name, holder, alive)

    def _take_share(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int, alive: Signal | None = None
    ) -> Grant | float:
        """A share; or join the queue, and return the instant at which the first of the present holders expires."""
        self._sender.open()  # before the grant, so that this process can later wake the next waiter
        wakes: Wakes = []
        with self._file.writing() as db:
            now = self.driver.now()
            self._queue.sweep(db, name, now, wakes)
            row = db.execute("SELECT holder FROM lock WHERE name = ?", (name,)).fetchone()
            if row and row[0] == SHARED:
                self._queue.admit(db, name, now, wakes)  # the head of the queue may have died
            grant = self._queue.share(db, name, holder, ttl, limit, now)
            if grant is None:
                if queue is not None:
                    self._queue.join(db, name, holder, ttl, queue, limit)
                    self._joined(name, holder, alive)
                (expires,) = db.execute("SELECT expires FROM lock WHERE name = ?", (name,)).fetchone()
        self._wake(wakes)
        if grant is None:
            return float(expires)
        if self._file.cover(grant.token):
            self._tidy()
        return grant

    def _look_share(self, name: str, holder: str, ttl: float, limit: int) -> Grant | float:
        for token, expires in self._file.read(
            "SELECT token, expires FROM share WHERE name = ? AND holder = ?", name, holder
        ):
            self._file.cover(token)
            return Grant(token, ttl, expires - ttl)
        for _, expires, owner, queued in self._file.read(_LOOK, holder, name):
            if queued and owner != SHARED and self.driver.now() < expires:
                return float(expires)
        return self._take_share(name, holder, ttl, 2**62, limit)

    def _release(self, name: str, holder: str, token: int) -> bool:
        if name not in self._wanted and self._file.write(_FREE, name, token, holder, self.driver.now()):
            return True
        wakes: Wakes = []
        with self._file.writing() as db:
            now = self.driver.now()
            row = db.execute(
                "SELECT expires FROM lock WHERE name = ? AND token = ? AND holder = ?", (name, token, holder)
            ).fetchone()
            if row is not None:
                self._queue.hand_over(db, name, now, wakes)
            else:
                row = db.execute(
                    "DELETE FROM share WHERE name = ? AND token = ? AND holder = ? RETURNING expires",
                    (name, token, holder),
                ).fetchone()
                if row is None:
                    return False
                self._queue.part(db, name, now, wakes)
        self._note_wanted(name, bool(wakes))
        self._wake(wakes)
        return bool(now < row[0])

    def _note_wanted(self, name: str, wanted: bool) -> None:
        """Remember whether a lock had waiters: then the next release does not first try the way without waiters."""
        if not wanted:
            self._wanted.discard(name)
            return
        if len(self._wanted) >= _WANTED:
            self._wanted.clear()
        self._wanted.add(name)

    def _leave(self, name: str, holder: str) -> str | None:
        wakes: Wakes = []
        with self._file.writing() as db:
            db.execute("DELETE FROM waiter WHERE holder = ?", (holder,))
            db.execute("DELETE FROM share WHERE name = ? AND holder = ?", (name, holder))
            row = db.execute("SELECT holder FROM lock WHERE name = ?", (name,)).fetchone()
            if row and row[0] == holder:
                self._queue.hand_over(db, name, self.driver.now(), wakes)
            elif row and row[0] == SHARED:
                self._queue.part(db, name, self.driver.now(), wakes)
        self._wake(wakes)
        return str(row[0]) if row and row[0] not in (holder, SHARED) else None

    def _drop(self, name: str, holder: str) -> None:
        """Leave the queue for a waiter that can no longer be woken; the next of this process waits for the deadline."""
        self._leave(name, holder)
        self._minders.leave(name, holder)

    def _renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        with self._file.writing() as db:
            now, shared = self.driver.now(), set[str]()
            answers = [Renewal.RENEWED if self._extend(db, hold, now, shared) else Renewal.LOST for hold in holds]
            for name in shared:  # once, however many sharers were renewed
                self._queue.settle(db, name)
            return answers

    def _extend(self, db: sqlite3.Connection, hold: Hold, now: float, shared: set[str]) -> bool:
        name, holder, token, ttl = hold
        only = "SET expires = ? WHERE name = ? AND token = ? AND holder = ? AND expires > ?"
        args = (now + ttl, name, token, holder, now)
        if db.execute(f"UPDATE lock {only}", args).rowcount:
            return True
        if not db.execute(f"UPDATE share {only}", args).rowcount:
            return False
        shared.add(name)
        return True

    def _status(self, name: str | None, prefix: str) -> list[Status]:
        # Not ?1: Python 3.12 treats it as a named parameter.
        only, what = ("name = ?", [name]) if name is not None else ("substr(name, 1, length(?)) = ?", [prefix] * 2)
        now = self.driver.now()
        rows = self._file.read(
            f"SELECT name, holder, token, expires - ? FROM lock WHERE {only} AND (expires > ? OR holder = '') "
            "AND name != '' ORDER BY name",
            now,
            *what,
            now,
        )
        queued = "SELECT holder FROM waiter WHERE name = ? ORDER BY ticket"
        found = []
        for lock, holder, token, left in rows:
            waiters = tuple(waiter for (waiter,) in self._file.read(queued, lock))
            if holder != SHARED:
                found.append(Status(lock, holder, token, left, waiters))
            elif shares := self._file.read(
                "SELECT holder, expires - ? FROM share WHERE name = ? AND expires > ? ORDER BY token", now, lock, now
            ):
                sharers = tuple(sharer for sharer, _ in shares)
                found.append(Status(lock, sharers[0], token, max(rest for _, rest in shares), waiters, sharers))
        return found

    def _break_lock(self, name: str) -> Status | None:
        wakes: Wakes = []
        for status in self._status(name, ""):
            with self._file.writing() as db:
                if not db.execute("SELECT 1 FROM lock WHERE name = ? AND token = ?", (name, status.token)).fetchone():
                    return None
                self._queue.hand_over(db, name, self.driver.now(), wakes)
            self._wake(wakes)
            return status
        return None

    def _bump(self, above: int) -> None:
        with self._file.writing(durable=True) as db:
            db.execute("UPDATE lock SET token = max(token, ?) WHERE name = ''", (above,))

    def _wake(self, wakes: Wakes) -> None:
        if wakes:
            self._sender.wake(wakes)
