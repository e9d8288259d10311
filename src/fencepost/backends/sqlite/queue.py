"""Parts of a transaction on an SQLite file: minting, handing over, sharing, and the queue of a lock.

The row of an exclusive lock names its holder. The row of a shared lock names none: its sharers have rows of their own,
and it expires with the first of them.
"""

import sqlite3
from math import inf
from pathlib import Path

from fencepost.backends.local_queue import LocalQueues
from fencepost.backends.sqlite.mailbox import Mailbox, Wakes, alive
from fencepost.errors import BackendError, QueueFull
from fencepost.lease import Grant
from fencepost.rule import MAX_TOKEN

SHARED = ""
_SPAN = "SELECT (SELECT max(ticket) FROM waiter WHERE name = ?) - (SELECT min(ticket) FROM waiter WHERE name = ?)"
_HEAD = "SELECT ticket, holder, ttl, mailbox, share FROM waiter WHERE name = ? ORDER BY ticket LIMIT 1"


class Queue:
    """The parts that transactions have in common. Each method gets the connection with the open transaction."""

    def __init__(self, path: Path, folder: Path, mailbox: Mailbox) -> None:
        self._path = path
        self._folder = folder
        self._mailbox = mailbox

    def grant(self, db: sqlite3.Connection, name: str, holder: str, expires: float) -> int:
        """Mint a token for a lock without a row; 0 if it has one."""
        token = db.execute("SELECT token FROM lock WHERE name = ''").fetchone()[0] + 1
        if token > MAX_TOKEN:
            raise BackendError(f"{str(self._path)!r} has no token left", backend="sqlite", ambiguous=False)
        if not db.execute("INSERT OR IGNORE INTO lock VALUES (?, ?, ?, ?)", (name, token, holder, expires)).rowcount:
            return 0
        db.execute("UPDATE lock SET token = ? WHERE name = ''", (token,))
        return int(token)

    def share(self, db: sqlite3.Connection, name: str, holder: str, ttl: float, limit: int, now: float) -> Grant | None:
        """Grant a share, unless the lock is held exclusively, has waiters, or has ``limit`` sharers already."""
        mine = db.execute("SELECT token, expires FROM share WHERE name = ? AND holder = ?", (name, holder)).fetchone()
        if mine:
            return Grant(mine[0], ttl, mine[1] - ttl)
        if row := db.execute("SELECT holder FROM lock WHERE name = ?", (name,)).fetchone():
            in_the_way = row[0] != SHARED or db.execute("SELECT 1 FROM waiter WHERE name = ?", (name,)).fetchone()
            if in_the_way or self._sharers(db, name) >= limit:
                return None
        return Grant(self._seat(db, name, holder, now + ttl), ttl, now)

    def _sharers(self, db: sqlite3.Connection, name: str) -> int:
        return int(db.execute("SELECT count(*) FROM share WHERE name = ?", (name,)).fetchone()[0])

    def _seat(self, db: sqlite3.Connection, name: str, holder: str, expires: float) -> int:
        """Add a sharer to a lock that is free or shared; return its token."""
        shared = db.execute("DELETE FROM lock WHERE name = ? RETURNING expires", (name,)).fetchone()
        token = self.grant(db, name, SHARED, min(expires, *shared) if shared else expires)
        db.execute("INSERT INTO share VALUES (?, ?, ?, ?)", (name, holder, token, expires))
        return token

    def settle(self, db: sqlite3.Connection, name: str) -> None:
        """Let a shared lock expire with the first of its sharers."""
        db.execute(
            "UPDATE lock SET expires = (SELECT min(expires) FROM share WHERE share.name = lock.name) "
            "WHERE name = ? AND holder = ''",
            (name,),
        )

    def sweep(self, db: sqlite3.Connection, name: str, now: float, wakes: Wakes) -> bool:
        """Hand over the lock if it, or a share of it, has expired; return whether that was so."""
        row = db.execute("SELECT holder FROM lock WHERE name = ? AND expires <= ?", (name, now)).fetchone()
        if row and row[0] == SHARED:
            db.execute("DELETE FROM share WHERE name = ? AND expires <= ?", (name, now))
            self.part(db, name, now, wakes)
        elif row:
            self.hand_over(db, name, now, wakes)
        return row is not None

    def tidy(self, db: sqlite3.Connection, now: float, wakes: Wakes) -> None:
        """The same for all locks: most have neither sharers nor waiters, and one statement deletes those."""
        db.execute(
            "DELETE FROM lock WHERE expires <= ? AND holder != '' "
            "AND NOT EXISTS (SELECT 1 FROM waiter WHERE waiter.name = lock.name)",
            (now,),
        )
        for (name,) in db.execute("SELECT name FROM lock WHERE expires <= ? AND name != ''", (now,)).fetchall():
            self.sweep(db, name, now, wakes)

    def part(self, db: sqlite3.Connection, name: str, now: float, wakes: Wakes) -> None:
        """Let in the next waiters after a sharer, or a waiter that blocked others, has left."""
        if not self._sharers(db, name):
            self.hand_over(db, name, now, wakes)
            return
        self.settle(db, name)
        self.admit(db, name, now, wakes)

    def admit(self, db: sqlite3.Connection, name: str, now: float, wakes: Wakes) -> None:
        """Grant shares to waiters from the head of a shared lock's queue, while there is room; drop dead ones."""
        (minded,) = db.execute("SELECT expires FROM lock WHERE name = ?", (name,)).fetchone()
        dead: set[str] = set()
        count = self._sharers(db, name)
        while row := db.execute(_HEAD, (name,)).fetchone():
            ticket, holder, ttl, mailbox, limit = row
            lives = mailbox not in dead and alive(self._folder, mailbox)
            if lives and (limit is None or count >= limit):
                break
            db.execute("DELETE FROM waiter WHERE ticket = ?", (ticket,))
            if not lives:
                dead.add(mailbox)
                continue
            self._seat(db, name, holder, now + ttl)
            wakes.append((mailbox, holder))
            count += 1
        if db.execute("SELECT 1 FROM lock WHERE name = ? AND expires < ?", (name, minded)).fetchone():
            wakes += self._minders(db, name)

    def hand_over(self, db: sqlite3.Connection, name: str, now: float, wakes: Wakes) -> None:
        """Grant the lock to its first live waiter, and drop the dead ones before it; free the lock if there is none.

        If that waiter shares the lock, those behind it that may share it are granted it, too.
        """
        (minded,) = db.execute("SELECT expires FROM lock WHERE name = ?", (name,)).fetchone()
        db.execute("DELETE FROM lock WHERE name = ?", (name,))
        db.execute("DELETE FROM share WHERE name = ?", (name,))
        dead: set[str] = set()
        while row := db.execute(_HEAD, (name,)).fetchone():
            ticket, holder, ttl, mailbox, limit = row
            db.execute("DELETE FROM waiter WHERE ticket = ?", (ticket,))
            if mailbox not in dead and alive(self._folder, mailbox):
                if limit is None:
                    self.grant(db, name, holder, now + ttl)
                else:
                    self._seat(db, name, holder, now + ttl)
                wakes.append((mailbox, holder))
                if now + ttl < minded:
                    wakes += self._minders(db, name)
                if limit is not None:
                    self.admit(db, name, now, wakes)
                return
            dead.add(mailbox)

    def _minders(self, db: sqlite3.Connection, name: str) -> Wakes:
        """One waiter of each process, to wake because the holder's deadline is earlier than the one they wait for."""
        rows = db.execute("SELECT mailbox, holder, min(ticket) FROM waiter WHERE name = ? GROUP BY mailbox", (name,))
        return [(mailbox, holder) for mailbox, holder, _ in rows]

    def join(
        self, db: sqlite3.Connection, name: str, holder: str, ttl: float, queue: int, limit: int | None = None
    ) -> None:
        """Join the queue at its end, unless this holder is in it; QueueFull if it has ``queue`` other live waiters."""
        if self._full(db, name, holder, queue):
            boxes = db.execute("SELECT DISTINCT mailbox FROM waiter WHERE name = ?", (name,)).fetchall()
            gone = [box for box in boxes if not alive(self._folder, box[0])]
            db.executemany("DELETE FROM waiter WHERE mailbox = ?", gone)
            if self._full(db, name, holder, queue):
                raise QueueFull(name, queue)
        db.execute(
            "INSERT OR IGNORE INTO waiter (name, holder, ttl, mailbox, share) VALUES (?, ?, ?, ?, ?)",
            (name, holder, ttl, self._mailbox.open(), limit),
        )

    def _full(self, db: sqlite3.Connection, name: str, holder: str, queue: int) -> bool:
        """Whether ``queue`` others wait. Tickets are unique, so count only if the span of tickets is long enough."""
        (span,) = db.execute(_SPAN, (name, name)).fetchone()
        if (0 if span is None else span + 1) < queue:
            return False
        count = "SELECT count(*) FROM waiter WHERE name = ? AND holder != ?"
        return bool(db.execute(count, (name, holder)).fetchone()[0] >= queue)


class Minders(LocalQueues):
    """For each lock, the first waiter of this process waits for the present holder's deadline, for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._minded: dict[str, float] = {}

    def minds(self, name: str, holder: str, deadline: float) -> bool:
        """Whether this waiter is the first, which waits for the deadline; wake the first if the deadline is earlier."""
        with self._gate:
            first, signal = next(iter(self._queues[name].items()))
            if first == holder:
                self._minded[name] = deadline
                return True
            if deadline < self._minded.get(name, inf):
                signal.set()
            return False

    def leave(self, name: str, holder: str) -> None:
        with self._gate:
            super().leave(name, holder)
            if name not in self._queues:
                self._minded.pop(name, None)
