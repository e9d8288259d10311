"""The waiters of this process, and a look-out for each server at which they wait.

A message names a waiter that was granted the lock. Every client that may publish can send one, so it is only a hint:
the waiter then asks the server whether it holds. No message comes if the holder died or is a client of another library,
or if the message or the queue itself was lost. So the look-out asks the server, once per process and lock when the
holder's lease expires, and from time to time.
"""

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fencepost.backends.redis.answers import texts
from fencepost.backends.redis.connection import Denied
from fencepost.backends.redis.nodes import Node, Transport
from fencepost.backends.redis.scripts import Keys
from fencepost.driver import Driver, Signal, abandoned
from fencepost.driver.timer import Timers
from fencepost.errors import BackendError
from fencepost.lease import Grant

_log = logging.getLogger("fencepost")

POLL = 2.0  # seconds between two looks, at most
FOREIGN = 0.1  # the same, while a client of another library holds the lock: its release sends no message
_LATE = 0.002  # Redis expires on whole milliseconds
_STEP, _STEPS = 0.01, 50  # a waiter looks later the more are queued before it, so that not all look at once
_PATIENCE = 10.0  # once looks have failed for so many seconds, a denied one fails the waiters; an outage never does
_SLOW = 0.5  # if a look takes more seconds than this to fail, the other locks of that server are not asked for
_PARTED = 10_000  # how many former waiters are remembered
_LOOKS = 1.0  # seconds that a release waits for the answer to a look


class Waiter:
    """A waiter for a lock."""

    __slots__ = ("doubtful", "entry", "error", "grant", "hinted", "holder", "limit", "queue", "signal", "ttl")

    def __init__(
        self, queue: "LocalQueue", holder: str, ttl: float, entry: str, signal: Signal, limit: int | None = None
    ) -> None:
        self.queue = queue
        self.holder = holder
        self.ttl = ttl
        self.entry = entry
        self.signal = signal
        self.limit = limit
        """How many may share the lock, if it waits for a share; else None."""
        self.hinted = False
        """A message said that it was granted the lock."""
        self.doubtful = False
        """One of its looks failed, and that request may still arrive at the server."""
        self.grant: Grant | None = None
        self.error: BackendError | None = None


class LocalQueue:
    """This process's waiters for one lock, in the order they came."""

    __slots__ = ("audit", "failing", "keys", "name", "node", "waiters")

    def __init__(self, name: str, keys: Keys, node: Node) -> None:
        self.name = name
        self.keys = keys
        self.node = node
        self.waiters: dict[str, Waiter] = {}
        self.audit = False
        """Messages may have been missed: look for every waiter, not only for the first."""
        self.failing: float | None = None

    def moved(self, node: Node) -> None:
        """Note that the lock is at ``node`` now, and that messages may have been missed."""
        self.node = node
        self.audit = True


class Waiters:
    """All waiters of one backend.

    ``look`` asks the server about a waiter. ``forsake`` is called for a former waiter that was granted the lock again,
    or whose queue entry is left: with the lock, the holder, the token under which it may still hold it, and that entry.
    """

    def __init__(
        self,
        driver: Driver,
        look: Callable[[LocalQueue, Waiter], Awaitable[None]],
        forsake: Callable[[str, str, str, str], None],
    ) -> None:
        self._driver = driver
        self._look = look
        self._forsake = forsake
        self._reset()

    def _reset(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._early: dict[str, tuple[int, float] | None] = {}
        self._parted: dict[str, tuple[str, str]] = {}
        self._lookouts: Timers[Node, LocalQueue] = Timers(self._driver, self._look_at, "fencepost-redis-lookout")
        """For each server, the timer that looks for the waiters there."""
        self.queues: dict[str, LocalQueue] = {}
        """By the name of the lock; only while this process has waiters for it."""
        self.waiters: dict[str, Waiter] = {}
        self.asking: dict[str, tuple[Transport, str]] = {}
        """Holders with a request in flight: the connection that it went over, and its entry for the queue."""
        self._looks: dict[str, Signal] = {}
        """By holder: set once the look-out's request for it was answered."""

    def join(
        self, name: str, keys: Keys, node: Node, holder: str, ttl: float, entry: str, limit: int | None = None
    ) -> Waiter:
        """Register a waiter that the server has queued. Its grant may have arrived already."""
        with self._gate:
            queue = self.queues.get(name)
            if queue is None:
                queue = self.queues[name] = LocalQueue(name, keys, node)
            waiter = Waiter(queue, holder, ttl, entry, self._driver.signal(), limit)
            queue.waiters[holder] = self.waiters[holder] = waiter
            waiter.hinted = holder in self._early
            early = self._early.pop(holder, None)
            self.asking.pop(holder, None)
        if early is not None:
            self.give(waiter, Grant(early[0], ttl, early[1]))
        return waiter

    def part(self, holder: str) -> Waiter | None:
        """Forget a waiter: it was granted the lock, or leaves."""
        if holder not in self.waiters and holder not in self._early:
            return None
        with self._gate:
            self._early.pop(holder, None)
            self.asking.pop(holder, None)
            waiter = self.waiters.pop(holder, None)
            if waiter is not None:
                queue = waiter.queue
                queue.waiters.pop(holder, None)
                if not queue.waiters and self.queues.get(queue.name) is queue:
                    del self.queues[queue.name]
                self._parted[holder] = queue.name, "" if waiter.grant is None else str(waiter.grant.token)
                while len(self._parted) > _PARTED:
                    del self._parted[next(iter(self._parted))]
            return waiter

    def hear(self, node: Node, push: list[Any]) -> None:
        """Process a message: perhaps one of our waiters was granted the lock."""
        if push[:1] == [b"message"] and texts(push[1:]) and len(push) == 3:
            self._told(push[2].decode("utf-8", "replace"), None)

    def served(self, answer: Iterable[bytes], since: float) -> None:
        """Pass on the grants in the server's answer to a release that was sent at ``since``: holders and tokens."""
        parts = iter(answer)
        for holder, token in zip(parts, parts, strict=True):
            self._told(holder.decode(), (int(token), since))

    def _told(self, holder: str, proven: tuple[int, float] | None) -> None:
        with self._gate:
            waiter = self.waiters.get(holder)
            if waiter is None and holder in self.asking:
                self._early[holder] = proven or self._early.get(holder)
                return
            parted = self._parted.get(holder)
        if waiter is None:
            # The queue contained a waiter that is done, as after a failover: this grant must be given back.
            if parted is not None:
                self._forsake(parted[0], holder, parted[1], "")
        elif proven is not None:
            self.give(waiter, Grant(proven[0], waiter.ttl, proven[1]))
        else:
            waiter.hinted = True
            waiter.signal.set()

    def give(self, waiter: Waiter, grant: Grant) -> bool:
        """Wake a waiter with its grant; False if it no longer waits: the caller must undo the grant."""
        with self._gate:
            if waiter.grant is not None:
                return waiter.grant.token == grant.token
            if self.waiters.get(waiter.holder) is not waiter:
                return False
            waiter.grant = grant
        waiter.signal.set()
        return True

    def stands(self, waiter: Waiter, reply: list[int]) -> bool:
        """Plan the next look, by the server's answer: the holder's ms left, waiters before this one, a foreign holder.

        False if the waiter no longer waits: the caller must remove its queue entry.
        """
        left, place, foreign = reply
        queue = waiter.queue
        with self._gate:
            if waiter.grant is not None or self.waiters.get(waiter.holder) is not waiter:
                return False
        rest = FOREIGN if foreign else min(POLL, max(waiter.ttl / 2, 0.05))
        if left >= 0:
            rest = min(rest, left / 1000 + _LATE + min(place, _STEPS) * _STEP)
        lookout = self._lookouts.at(queue.node)
        planned = lookout.left(queue) if queue.audit else None
        lookout.set(queue, self._driver.now() + (rest if planned is None else min(rest, planned)))
        return True

    def audit(self, queue: LocalQueue) -> None:
        """Look for every waiter of the queue soon."""
        queue.audit = True
        self._lookouts.at(queue.node).offer(queue, self._driver.now())

    def missed(self, name: str) -> None:
        """Look soon, because one of this lock's waiters may have been granted it without a message."""
        queue = self.queues.get(name)
        if queue is not None:
            self.audit(queue)

    def lost(self, node: Node) -> None:
        """Look soon for all waiters at a server, because messages may have been missed, or the locks may have moved."""
        with self._gate:
            queues = [queue for queue in self.queues.values() if queue.node is node]
        for queue in queues:
            self.audit(queue)

    async def _look_at(self, node: Node, queues: list[LocalQueue]) -> None:
        failure: Exception | None = None
        for queue in queues:
            if queue.node is not node:
                self.audit(queue)
            elif queue.waiters:
                failure = await self._look_for(queue, failure)

    async def _look_for(self, queue: LocalQueue, failure: Exception | None) -> Exception | None:
        """Look for a lock's waiters; return an error that took long: then the server's other locks are skipped."""
        now = self._driver.now
        begun = now()
        audit, queue.audit = queue.audit, False
        with self._gate:
            waiters = list(queue.waiters.values())
        for waiter in waiters:
            if abandoned(waiter.signal) and self.part(waiter.holder) is waiter:  # its loop is closed: leave for it
                self._forsake(queue.name, waiter.holder, "", waiter.entry)
        slow = True
        if failure is None:
            try:
                # A waiter that has its grant may be in an event loop that stands still: look for the next one.
                lacking = [each for each in waiters if each.grant is None and each.holder in queue.waiters]
                for waiter in lacking if audit else lacking[:1]:
                    if waiter.grant is None and waiter.holder in queue.waiters:
                        await self._look_once(queue, waiter)
                queue.failing = None
            except BackendError as error:
                failure = error
            except Exception as error:
                _log.exception("looking for the lock %r failed", queue.name)
                failure = error
            slow = now() - begun > _SLOW
        if failure is not None:
            queue.audit = True
            queue.failing = queue.failing or now()
            if now() - queue.failing > _PATIENCE and isinstance(failure, Denied):
                for waiter in waiters:
                    # A new error for each: raising one object several times adds to its traceback.
                    waiter.error = Denied(str(failure), backend=failure.backend, ambiguous=failure.ambiguous)
                    waiter.signal.set()
            self._lookouts.at(queue.node).offer(queue, now() + min(1.0, 0.05 + (now() - queue.failing) / 4))
        elif queue.waiters and (lookout := self._lookouts.at(queue.node)).left(queue) is None:
            lookout.offer(queue, now() + FOREIGN)  # the first waiter has its grant now: look for the next one
        return failure if slow else None

    async def _look_once(self, queue: LocalQueue, waiter: Waiter) -> None:
        answered = self._looks[waiter.holder] = self._driver.signal()
        try:
            await self._look(queue, waiter)
        finally:
            if self._looks.get(waiter.holder) is answered:  # else its lock moved, and another server was asked since
                del self._looks[waiter.holder]
            answered.set()

    async def looked(self, holder: str) -> None:
        """Return once no look for ``holder`` is in flight; or after a while, if the server does not answer.

        The look could arrive after the holder's release, and take the free lock although nothing waits for it.
        """
        if self._looks and (answered := self._looks.get(holder)) is not None:
            await answered.wait(_LOOKS)

    def close(self) -> None:
        self._lookouts.close()

    def forked(self) -> None:
        self._reset()
