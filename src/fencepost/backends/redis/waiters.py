"""Those of this process who wait: who they are, and the one look-out for all of them.

A waiter is woken by a message that carries its grant. What messages cannot tell (the holder died, or is
a client that tells nobody, the message or the queue itself was lost) is found by looking, on the
server's time: once per process and lock when the holder's lease expires, and every now and then.
"""

import threading
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, NamedTuple

from fencepost.backends.redis.nodes import Node
from fencepost.backends.redis.pool import Pool
from fencepost.backends.redis.scripts import Keys
from fencepost.backends.redis.stream import Stream
from fencepost.driver import Driver, Signal
from fencepost.errors import BackendError
from fencepost.lease import Grant

POLL = 2.0  # seconds between two looks, at most
FOREIGN = 0.1  # the same, while a client holds the lock that will not tell us of its release
_LATE = 0.002  # Redis expires on whole milliseconds
_STEP, _STEPS = 0.01, 50  # each place in the queue looks a little later, so that not all look at once
_PATIENCE = 10.0  # seconds of failing looks after which the waiters are told
_LINGER = 10.0


class Message(NamedTuple):
    """What a waiter is told: that it was granted the lock, by the server's time in us."""

    token: int
    ms: int
    time: int

    def grant(self, node: Node, now: float) -> Grant:
        # Not later than the instant of the grant, unless the server's clock was set forward since it last told
        # its time; then still not later than now.
        return Grant(self.token, self.ms / 1000, min(self.time / 1e6 + node.offset, now))


class Waiter:
    """One who waits for a lock."""

    __slots__ = ("entry", "error", "grant", "holder", "limit", "line", "signal", "stood", "ttl")

    def __init__(
        self, line: "Line", holder: str, ttl: float, entry: str, signal: Signal, limit: int | None = None
    ) -> None:
        self.line = line
        self.holder = holder
        self.ttl = ttl
        self.entry = entry
        self.signal = signal
        self.limit = limit
        """How many may share the lock, if that is what it waits for."""
        self.grant: Grant | None = None
        self.error: BackendError | None = None
        self.stood = 0
        """When the server last said that it stands in the queue, by its time in us: older grants are over."""


class Line:
    """This process's waiters for one lock, in the order they came."""

    __slots__ = ("audit", "due", "failing", "keys", "name", "node", "waiters")

    def __init__(self, name: str, keys: Keys, node: Node) -> None:
        self.name = name
        self.keys = keys
        self.node = node
        self.waiters: dict[str, Waiter] = {}
        self.due = inf
        self.audit = False
        """Messages may have been missed: look for every waiter, not for the first only."""
        self.failing: float | None = None

    def moved(self, node: Node) -> None:
        """It lives at ``node`` now, perhaps by another clock, and messages may have been missed."""
        self.node = node
        self.audit = True
        for waiter in tuple(self.waiters.values()):
            waiter.stood = 0


class Lines:
    """All waiters of one backend."""

    def __init__(self, driver: Driver, look: Callable[[Line, Waiter], Awaitable[None]]) -> None:
        self._driver = driver
        self._look = look
        self._gate = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._early: dict[str, Message] = {}
        self._nudge = driver.signal()
        self._wake = inf
        self._minding = False
        self._closed = False
        self.waiters: dict[str, Waiter] = {}
        self.asking: dict[str, tuple[Pool | Stream, str]] = {}
        """Holders whose request is under way: the connection it went over, and its entry for the queue."""

    def join(
        self, name: str, keys: Keys, node: Node, holder: str, ttl: float, entry: str, limit: int | None = None
    ) -> Waiter:
        """Register one whom the server has queued. Its grant may have come already."""
        with self._gate:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = Line(name, keys, node)
            waiter = Waiter(line, holder, ttl, entry, self._driver.signal(), limit)
            line.waiters[holder] = self.waiters[holder] = waiter
            early = self._early.pop(holder, None)
            self.asking.pop(holder, None)
        if early is not None:
            self._tell(waiter, node, early)
        return waiter

    def part(self, holder: str) -> Waiter | None:
        """Forget a waiter: it was granted the lock, or leaves."""
        if holder not in self.waiters and holder not in self._early:
            return None
        with self._gate:
            self._early.pop(holder, None)
            waiter = self.waiters.pop(holder, None)
            if waiter is not None:
                line = waiter.line
                line.waiters.pop(holder, None)
                if not line.waiters and self._lines.get(line.name) is line:
                    del self._lines[line.name]
            return waiter

    def hear(self, node: Node, push: list[Any]) -> None:
        """A message: somebody handed the lock to one of ours."""
        if push[0] != b"message":
            return
        text: str = push[2].decode()
        token, ms, time, holder = text.split(" ", 3)
        message = Message(int(token), int(ms), int(time))
        waiter = self.waiters.get(holder)
        if waiter is None:
            with self._gate:
                waiter = self.waiters.get(holder)
                if waiter is None:
                    if holder in self.asking:
                        self._early[holder] = message
                    return
        self._tell(waiter, node, message)

    def _tell(self, waiter: Waiter, node: Node, message: Message) -> None:
        if node.offset == -inf:
            # This process may have stood still since: how old the grant is, only the server can say.
            waiter.line.audit = True
            self._plan(waiter.line, self._driver.now())
        else:
            self.give(waiter, message.grant(node, self._driver.now()), message.time)

    def give(self, waiter: Waiter, grant: Grant, time: float = inf) -> bool:
        """Wake a waiter with its grant; False if it is not to be had any more, so that the grant is nobody's."""
        with self._gate:
            if time < waiter.stood:
                return False  # heard late: it has expired, and the waiter has queued up anew
            if waiter.grant is not None:
                return waiter.grant.token == grant.token
            if self.waiters.get(waiter.holder) is not waiter:
                return False
            waiter.grant = grant
        waiter.signal.set()
        return True

    def stands(self, waiter: Waiter, sent: float, reply: list[int]) -> bool:
        """The server's answer: the holder's time left, the place in the queue, its time, whether it is foreign.

        False if the waiter does not wait any more, so that its place is nobody's.
        """
        left, place, time, foreign = reply
        line = waiter.line
        line.node.timed(sent, time)
        with self._gate:
            if waiter.grant is not None or self.waiters.get(waiter.holder) is not waiter:
                return False
            waiter.stood = time
        rest = FOREIGN if foreign else min(POLL, max(waiter.ttl / 2, 0.05))
        if left >= 0:
            rest = min(rest, left / 1000 + _LATE + min(place, _STEPS) * _STEP)
        due = self._driver.now() + rest
        self._plan(line, min(line.due, due) if line.audit else due)
        return True

    def _plan(self, line: Line, due: float) -> None:
        line.due = due
        if due < self._wake:
            self._wake = due
            self._nudge.set()
        if not self._minding and not self._closed:
            with self._gate:
                if self._minding:
                    return
                self._minding = True
            self._driver.spawn(self._mind(), "fencepost-redis-lookout")

    def lost(self, node: Node) -> None:
        """Messages from a server may have been missed, and grants with them; the next may be another server's."""
        node.offset = -inf
        with self._gate:
            lines = [line for line in self._lines.values() if line.node is node]
        for line in lines:
            line.moved(node)
            self._plan(line, self._driver.now())

    async def _mind(self) -> None:
        try:
            await self._mind_all()
        finally:
            self._nudge = self._driver.signal()  # the next one may run in another event loop
            self._wake = inf
            self._minding = False
        with self._gate:
            lines = list(self._lines.values())
        for line in lines:  # one that came just now took this for its look-out
            self._plan(line, line.due)

    async def _mind_all(self) -> None:
        now = self._driver.now
        idle = now()
        while not self._closed:
            self._nudge.clear()
            self._wake = wake = inf  # from here on, whoever plans a look nudges too
            with self._gate:
                lines = list(self._lines.values())
            for line in lines:
                if line.due <= now():
                    await self._look_for(line)
                if line.waiters:
                    wake = min(wake, line.due)
            if lines:
                idle = now()
            elif now() - idle > _LINGER:
                return
            self._wake = wake = min(wake, now() + _LINGER)
            await self._nudge.wait(max(wake - now(), 0.0))

    async def _look_for(self, line: Line) -> None:
        now = self._driver.now
        line.due = inf
        audit, line.audit = line.audit, False
        with self._gate:
            waiters = list(line.waiters.values())
        try:
            for waiter in waiters if audit else waiters[:1]:
                if waiter.grant is None and waiter.holder in line.waiters:
                    await self._look(line, waiter)
            line.failing = None
        except BackendError as error:
            line.audit = True
            line.failing = line.failing or now()
            if now() - line.failing > _PATIENCE:
                for waiter in waiters:
                    waiter.error = error
                    waiter.signal.set()
            line.due = now() + min(1.0, 0.05 + (now() - line.failing) / 4)
        if line.due == inf:
            line.due = now() + FOREIGN  # the first was granted the lock meanwhile: the next one looks

    def close(self) -> None:
        self._closed = True
        self._nudge.set()

    def forked(self) -> None:
        self.__init__(self._driver, self._look)  # type: ignore[misc]
