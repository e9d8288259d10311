"""The session on which a waiting process listens for its grants, and which shows the server that it is alive."""

import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

import psycopg

from fencepost.backends.fork import sever
from fencepost.backends.postgres.connection import BlockingLink, Call, Target, connect, failure, pooled, tell
from fencepost.driver import Driver, Signal, abandoned, boottime
from fencepost.driver.backoff import Backoff
from fencepost.driver.fork import at_fork
from fencepost.driver.scope import patience as within
from fencepost.driver.service import Run, Service
from fencepost.driver.sockets import READABLE, poller
from fencepost.driver.threads import Blocking, Flag
from fencepost.errors import BackendError

_log = logging.getLogger("fencepost")

LINGER = 30.0  # for how many seconds it goes on listening after the last waiter has left
_LISTENING = (5.0, 15.0)  # seconds between two beats, and from the last beat until the process counts as dead
_POLLING = (1.0, 4.0)
_RETRY = (0.05, 2.0)


class _Forks:
    """Tells whether this process was forked during a time."""

    under_way: ClassVar[list[int]] = []
    """The threads that are forking."""
    last: ClassVar[object] = object()
    """Another object for each fork."""

    @classmethod
    def before(cls) -> None:
        cls.under_way.append(threading.get_ident())
        cls.last = object()

    @classmethod
    def in_parent(cls) -> None:
        with contextlib.suppress(ValueError):
            cls.under_way.remove(threading.get_ident())


at_fork(before=_Forks.before, after_in_parent=_Forks.in_parent, after_in_child=_Forks.under_way.clear)


@dataclass(slots=True, eq=False)
class Waiter:
    """A waiter of this process, and what it knows."""

    name: str
    holder: str
    signal: Signal
    limit: int | None = None
    """How many sharers may hold the lock, this one included; None: it wants the lock for itself."""
    grant: tuple[int, float, float] | None = None
    """Once granted: the token, when the server was asked about it, and how many seconds were left then."""
    doubtful: bool = False
    """Whether its queue entry may be gone, or it may have missed its grant."""
    forsaken: bool = False
    """Whether its coroutine was closed, so that it cannot leave the queue itself."""
    overdue: float = 0.0
    """When the present holder's lease expires unless it is renewed, on the local clock."""

    def mind(self, overdue: float) -> None:
        """Wake the waiter if it would wake later than at ``overdue``."""
        if overdue < self.overdue:
            self.overdue = overdue
            self.signal.set()


class Listener:
    """Listens for all waiters of a process, on one connection and one thread, while there are any.

    If it cannot listen, behind a transaction pooler or when told not to, it asks every ``poll``
    seconds instead, in one statement for all waiters.
    """

    def __init__(
        self,
        target: Target,
        *,
        schema: str,
        patience: float,
        poll: float,
        listen: bool | None,
        now: Callable[[], float],
        dropped: Callable[[Waiter], None],
    ) -> None:
        self._target = target
        self._now = now
        self._dropped = dropped
        self._told: set[str] = set()  # the waiters that were granted the lock, according to unconfirmed messages
        self._schema = schema
        self._times = f"{schema}.us(expires), {schema}.us(clock_timestamp())"
        grant = f"SELECT concat_ws(' ', token, {self._times}) FROM {schema}.%s WHERE name = $1 AND holder = $2"
        self._granted = Call("granted", f"SELECT coalesce(({grant % 'lock'}), ({grant % 'share'}))", r"(\d+ \d+ \d+)?")
        self._patience = patience
        self._poll = poll
        self._listen = listen
        self._service = Service(Blocking(), self._live, "fencepost-postgres-listener")
        self._waiters: dict[str, Waiter] = {}
        self._opening: list[Signal] = []
        self._waker: Waker | None = None
        self._link: BlockingLink | None = None
        self._trouble = ""
        self._last: int | None = None  # the id of the session that broke
        self.clocks: tuple[float, int] = (0.0, 0)
        """A local instant, and the server's clock read after it: the last such pair."""
        self.id: int | None = None
        """The id of this process at the server; None while it does not listen."""

    async def open(self, driver: Driver) -> None:
        """Return once it listens; BackendError if that takes too long."""
        signal = driver.signal()
        with self._service.gate:
            if self.id is not None:
                return
            self._start()
            self._opening.append(signal)
        limit = within(2 * self._patience)
        if not await signal.wait(limit):
            raise BackendError(
                f"no session to listen on in {limit:g} s, see ?listen=: {self._trouble or 'no answer'}",
                backend="postgresql",
                ambiguous=False,
            )

    def _start(self) -> None:
        """Start the thread unless it runs; BackendError if this is closed, or no descriptor is left."""
        if self._service.closed:
            raise BackendError("these locks are closed", backend="postgresql", ambiguous=False)
        if self._service.running:
            return
        self._waker = waker = Waker()
        try:
            self._service.start()
        except (RuntimeError, MemoryError):  # no thread can be started just now
            self._waker = None
            waker.close()
            raise

    def expect(self, waiter: Waiter) -> int | None:
        """Listen for ``waiter`` from now on; return the id of this process, None if it does not listen now."""
        with self._service.gate:
            if self.id is not None:
                self._waiters[waiter.holder] = waiter
            return self.id

    def find(self, holder: str) -> Waiter | None:
        return self._waiters.get(holder)

    def forget(self, holder: str) -> None:
        self._waiters.pop(holder, None)

    def deliver(self, asked: float, name: str, holder: str, token: int, expires: int, clock: int) -> None:
        """Pass on who holds a lock: a grant to our waiter if it is the holder, else the deadline to all our waiters.

        The server's clock may have been set since a waiter joined, so it is read with each answer.
        """
        self.clocks = asked, clock
        left = (expires - clock) / 1e6
        if waiter := self._waiters.get(holder):
            waiter.grant = token, asked, left
            waiter.signal.set()
        else:
            self._mind(name, asked + left)

    def _mind(self, name: str, overdue: float) -> None:
        for waiter in self._waiters.copy().values():
            if waiter.name == name:
                waiter.mind(overdue)

    def doubt(self, name: str) -> None:
        """Let all waiters for this lock check their queue entries."""
        self._doubt([holder for holder, waiter in self._waiters.copy().items() if waiter.name != name])

    def close(self) -> None:
        """Stop listening, and wait until the thread has ended."""
        with self._service.gate:
            waker = self._waker if self._service.running else None
            self._service.close()
        if waker is not None:
            waker.over.wait(self._patience)

    def forked(self) -> None:
        """In a forked child: drop the session. While it is open, the server takes the parent's waiters for alive."""
        if self._link is not None:
            with contextlib.suppress(psycopg.Error):  # it is closed
                sever(self._link)

    # On the thread

    async def _live(self, run: Run) -> None:
        with self._service.gate:
            if self._waker is None or self._waker.over.is_set():  # this run replaces one that was killed
                self._waker = Waker()
            waker = self._waker
        run.interrupt = waker.wake
        pauses = Backoff(*_RETRY)
        try:
            while run.current:
                try:
                    quiet, last = not _Forks.under_way, _Forks.last
                    link = await connect(BlockingLink, self._target)
                    with closing(link):
                        assert isinstance(link, BlockingLink)
                        self._link = link  # from now on a forked child drops it
                        if quiet and _Forks.last is last:
                            await self._hear(link, waker, run)
                            return
                    self._trouble = "this process was forked meanwhile"  # the child has a copy, and does not know
                except Exception as error:
                    if not isinstance(error, (BackendError, psycopg.Error)):
                        _log.exception("listening for grants failed")
                    if self.id is not None and run.current:
                        _log.info("the session that listens for grants broke, opening another: %s", error)
                        pauses.reset()
                        self.id = None
                    self._trouble = str(error)
                await run.nudge.wait(pauses.next())
        finally:
            if run.current:
                self.id = None  # it failed, and may start again
            waker.close()
            waker.over.set()

    async def _hear(self, link: BlockingLink, waker: "Waker", run: Run) -> None:
        listens = self._listen if self._listen is not None else not await pooled(link)
        if not listens:
            _log.info("behind a transaction pooler, so waiters ask every %g s; see ?listen=", self._poll)
        process = secrets.randbits(62)
        link.add_notify_handler(lambda notify: self._heard(notify.payload))
        if listens:
            # The server releases this lock when the session ends, for any reason: so others notice that we are gone.
            link.execute("SELECT pg_advisory_lock(%s)", [process])
            await tell(link, f'LISTEN "fencepost_{process}"')
            await self._granted.prepare(link)  # not behind a pooler, so the session keeps the prepared statement
        every, window = _LISTENING if listens else _POLLING
        beat = f"SELECT {self._schema}.beat(%s, %s, %s)", (process, listens, window)
        link.execute(f"SELECT {self._schema}.tidy()")
        link.execute(*beat)
        if self._last is not None:
            link.execute(f"SELECT {self._schema}.rename(%s, %s)", [self._last, process])
        self._last = process
        self._begin(process, run)
        try:
            due, busy = boottime() + every, boottime()
            while True:
                await self._confirm(link)
                waker.wait(due - boottime() if listens else self._poll, link.pgconn.socket)
                if not run.current:
                    return
                self._read(link)
                now = boottime()
                if self._waiters:
                    busy = now
                if now >= due or not listens:
                    self._ask(link)
                if now >= due:
                    due = now + every
                    self._drop_abandoned(link)
                    self._doubt({holder for (holder,) in link.execute(*beat)})
                    if now > busy + LINGER and self._falls_silent(run):
                        return
        finally:
            if not link.broken:
                link.execute(f"DELETE FROM {self._schema}.process WHERE id = %s", [process])

    def _begin(self, process: int, run: Run) -> None:
        with self._service.gate:
            if not run.current:
                return
            self.id = process
            opening, self._opening = self._opening, []
        for signal in opening:
            signal.set()
        self._doubt()

    def _falls_silent(self, run: Run) -> bool:
        with self._service.gate:
            ends = run.ends(lambda: not self._waiters)
            if ends:
                self.id = self._last = None
            return ends

    def _read(self, link: BlockingLink) -> None:
        link.pgconn.consume_input()
        while notify := link.pgconn.notifies():
            self._heard(notify.extra.decode(errors="replace"))

    def _heard(self, news: str) -> None:
        """Note what a message says. Every user of the database can send one, so a grant has to be confirmed."""
        try:
            holder, _, expires, name = news.split(" ", 3)
            if holder in self._waiters:
                self._told.add(holder)
            else:
                asked, clock = self.clocks
                self._mind(name, asked + (int(expires) - clock) / 1e6)
        except ValueError:
            _log.warning("not from the locks of %r: NOTIFY %.80r", self._schema, news)

    async def _confirm(self, link: BlockingLink) -> None:
        """Look up the grants that messages announced, in as few statements as possible."""
        while self._told:  # more messages may arrive with the answers
            told, self._told = self._told, set()
            waiters = [waiter for holder in told if (waiter := self._waiters.get(holder))]
            if len(waiters) == 1:  # as after each hand-over of an exclusive lock
                (waiter,) = waiters
                asked = self._now()
                grant = await self._granted.make(link, (waiter.name, waiter.holder), prepared=True)
                if grant is not None:
                    self.deliver(asked, waiter.name, waiter.holder, *map(int, grant.split()))
                continue
            alone = [waiter for waiter in waiters if waiter.limit is None]
            for table, some in (("lock", alone), ("share", [each for each in waiters if each.limit is not None])):
                if some:
                    which = [each.name for each in some], [each.holder for each in some]
                    what = f"SELECT name, holder, token, {self._times} FROM {self._schema}.{table}"
                    asked = self._now()
                    rows = link.execute(f"{what} WHERE name = ANY(%s) AND holder = ANY(%s)", which)
                    for row in rows.fetchall():
                        self.deliver(asked, *row)

    def _drop_abandoned(self, link: BlockingLink) -> None:
        """Leave the queues for waiters that are gone: they cannot be woken, so they would block others."""
        for holder, waiter in self._waiters.copy().items():
            if waiter.forsaken or abandoned(waiter.signal):
                link.execute(f"SELECT {self._schema}.leave(%s, %s)", [waiter.name, holder])
                self.forget(holder)
                self._dropped(waiter)

    def _ask(self, link: BlockingLink) -> None:
        """Ask the server for the holders of the locks that our waiters wait for."""
        waiters = self._waiters.copy()
        if names := list({each.name for each in waiters.values()}):
            what = f"SELECT name, holder, token, {self._times} FROM {self._schema}"
            asked = self._now()
            rows = link.execute(
                f"{what}.lock WHERE name = ANY(%s) AND holder IS NOT NULL "
                f"UNION ALL {what}.share WHERE name = ANY(%s) AND holder = ANY(%s)",
                [names, names, list(waiters)],
            )
            for row in rows.fetchall():
                self.deliver(asked, *row)

    def _doubt(self, queued: Collection[str] = ()) -> None:
        """Let the waiters that are not in ``queued`` check their queue entries."""
        for holder, waiter in self._waiters.copy().items():
            if holder not in queued:
                waiter.doubtful = True
                waiter.signal.set()


class Waker:
    """Ends a thread's wait for libpq's socket, from another thread."""

    def __init__(self) -> None:
        """BackendError if no descriptors are left."""
        self.over = Flag()
        """Whether the listener that waits here has ended."""
        try:
            self._here, self._there = socket.socketpair()
        except OSError as error:
            raise failure(error, ambiguous=False) from error

    def wake(self) -> None:
        """End the present wait, and each later one."""
        with contextlib.suppress(OSError):  # it was closed
            self._there.shutdown(socket.SHUT_RDWR)  # closing would have no effect while a forked child has a copy

    def wait(self, timeout: float, descriptor: int) -> None:
        """Return once ``descriptor`` is readable or closed, or ``wake`` was called, or after ``timeout`` seconds."""
        poll = poller()
        for each in (self._here.fileno(), descriptor):
            poll.register(each, READABLE)
        poll.poll(max(timeout, 0.0) * 1000)

    def close(self) -> None:
        self._here.close()
        self._there.close()
