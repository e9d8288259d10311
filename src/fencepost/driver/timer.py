"""A timer for many keys: leases to renew, holds to end, queues to look at."""

import contextlib
import functools
import itertools
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

from fencepost.driver import Driver, wait_until
from fencepost.driver.backoff import Backoff
from fencepost.driver.fork import in_child
from fencepost.driver.service import Run, Service
from fencepost.logs import logger

H = TypeVar("H", bound=Hashable)
K = TypeVar("K")

_AGAIN = (0.1, 5.0)  # seconds, first and longest, after which keys are fired again if that failed
_SPARE = 64  # buckets are swept once they have more than two keys for each that is set, and this many more
# The new keys that one turn moves to buckets. That takes a third of a millisecond, or one if each needs its own bucket.
# Also the keys that a turn sweeps, in whole buckets, and the stale keys that it skips: both take about as long.
_SLICE = 500


_GRAIN = 8  # keys that may be fired early share a bucket with those that are due within early / _GRAIN


def _bucket(at: float, early: float) -> float:
    """The instant of a key's bucket: a little before ``at``, if the key may be fired early."""
    grain = early / _GRAIN
    return int(at / grain) * grain if grain else at


class Timer(Generic[K]):
    """Calls ``fire(keys)`` with the keys that are due, on one thread or task, which runs only while there are any.

    A key is removed before it is fired, so from then on it can neither be extended nor cancelled. ``fire`` is awaited
    before the next call: no key is fired twice at a time. If it raises, all keys of the call are fired again, unless
    they were set again: after a pause, or by the next run if this one was cancelled or lost its event loop. At most
    ``most`` keys are fired in one call. The thread or task lingers for a while, so that short-lived keys need not start
    it each time.

    However many keys are set at once, other tasks get to run after some hundreds of them. Keys that were set before,
    and keys that are posted, do not wait for the rest.
    """

    def __init__(
        self,
        driver: Driver,
        fire: Callable[[list[K]], Awaitable[None]],
        name: str,
        *,
        linger: float = 10.0,
        most: int = 500,
    ) -> None:
        self._driver = driver
        self._fire = fire
        self._linger = linger
        self._most = most
        self._service = Service(driver, self._run, name)
        self._due: dict[K, float] = {}
        # Keys set since the last turn. Only those still set at the next one go to a bucket: short-lived keys are cheap.
        self._new: dict[K, tuple[float, float]] = {}
        # Keys that were new at an earlier turn and are in no bucket yet. Those cancelled since are stale.
        self._moving: Iterator[tuple[K, tuple[float, float]]] = iter(())
        self._posted: deque[tuple[K, float]] = deque()  # posted keys, which must not wait for those
        self._behind = False  # whether the last turn has left some work to the next
        # The keys by instant and ``early``. Those that were cancelled, or set to another instant, are stale there.
        self._buckets: dict[tuple[float, float], deque[K]] = {}
        self._inside = 0  # keys in all buckets, also stale ones
        self._room = 0  # how many stale keys this turn may still skip
        self._heap: list[tuple[float, int, float, deque[K]]] = []
        self._unswept: list[tuple[float, int, float, deque[K]]] = []  # a heap, too: what is left to sweep
        # The buckets that are due. Those with the smallest ``early`` come first: their keys have the least time left.
        self._ripe: list[tuple[float, float, int, deque[K]]] = []
        self._order = itertools.count()  # of buckets; within one, keys are fired in the order they were set
        self._next = -inf  # when the run looks again; a key that is due earlier must nudge it
        self._nudged = -inf  # the instant for which it was last nudged
        self._astray: Sequence[K] = ()  # keys that could not be fired, and must be set again
        self._scattered = False  # whether the next turn has to put all keys into buckets again
        in_child(self, Timer._forked)

    def __len__(self) -> int:
        return len(self._due)

    @property
    def busy(self) -> bool:
        """Whether there are keys, or a run that may be firing some."""
        return bool(self._due) or self._service.running

    def set(self, key: K, at: float, early: float = 0.0) -> None:
        """Fire ``key`` at that instant, and not at one set before; or up to ``early`` seconds sooner, with others.

        RuntimeError or MemoryError, and the key is as it was before, if no thread runs and none can be started.
        """
        service = self._service
        at = _bucket(at, early)
        with service.gate:
            before = self._due.get(key)
            self._due[key] = at
            self._new[key] = at, early
            nudge = at < self._next
            if nudge:
                self._nudged = at
            try:
                service.start()
            except (RuntimeError, MemoryError):  # undo inside the gate: a run that another thread starts would fire it
                if before is None:
                    self._due.pop(key, None)
                    self._new.pop(key, None)
                else:
                    self._due[key] = before
                    self._new[key] = before, 0.0
                raise
        if nudge:
            service.wake()

    def offer(self, key: K, at: float, early: float = 0.0) -> bool:
        """As ``set``, from any thread, without an error. False: it is set, but nothing runs until a later call."""
        return self.offer_all([(key, at, early)])

    def offer_all(self, items: Iterable[tuple[K, float, float]]) -> bool:
        """As ``offer``, for many keys."""
        with self._service.gate:
            due, new, first = self._due, self._new, inf
            for key, at, early in items:
                at = _bucket(at, early)
                due[key] = at
                new[key] = at, early
                if at < first:
                    first = at
            nudge = first < self._next
            if nudge:
                self._nudged = first
        if nudge:
            self._service.wake()
        return self._service.ensure()

    def park(self, items: Iterable[tuple[K, float]]) -> None:
        """Set keys that only ``post`` fires: at their instant, the caller has another key fired for them."""
        with self._service.gate:
            for key, at in items:
                self._due[key] = at
                self._new.pop(key, None)

    def post(self, key: K) -> None:
        """Fire a key now, if it is set; from any thread. This starts no run."""
        with self._service.gate:
            if key in self._due:
                self._due[key] = now = self._driver.now()
                if self._behind or len(self._new) >= _SLICE:
                    self._posted.append((key, now))
                else:
                    self._new[key] = now, 0.0
        self._service.wake()

    def extend(self, key: K, at: float) -> bool:
        """Fire a key later; False, and nothing changed, if it is not set or is due already."""
        with self._service.gate:
            if self._driver.now() >= self._due.get(key, -inf):
                return False
            self._due[key] = at
            self._new[key] = at, 0.0
            return True

    def cancel(self, key: K) -> bool:
        """Do not fire a key; return whether it was set and not due yet."""
        with self._service.gate:
            self._new.pop(key, None)
            return self._driver.now() < self._due.pop(key, -inf)

    def drop(self, key: K) -> None:
        """As ``cancel``, for callers that need no answer. This is called often, so it does without the gate."""
        self._new.pop(key, None)  # first: if it is set again in between, it is dropped all the same
        self._due.pop(key, None)

    def left(self, key: K) -> float | None:
        """Seconds until a key is due; None if it is not set."""
        at = self._due.get(key)
        return None if at is None else at - self._driver.now()

    def ensure(self) -> bool:
        """Start the thread or task again, if there are keys and it could not be started before."""
        return not self._due or self._service.ensure()

    def close(self) -> None:
        """Fire nothing any more."""
        with self._service.gate:
            self._due.clear()
            self._new.clear()
            self._empty()
            self._astray = ()
        self._service.close()

    def _forked(self) -> None:
        """In a forked child: the keys were the parent's."""
        self._due, self._new, self._next, self._nudged = {}, {}, -inf, -inf
        self._moving, self._posted, self._behind = iter(()), deque(), False
        self._astray, self._scattered = (), False
        self._heap, self._unswept, self._ripe, self._buckets, self._inside = [], [], [], {}, 0

    def _empty(self) -> None:
        self._moving = iter(())
        self._posted.clear()
        self._heap.clear()
        self._unswept.clear()
        self._ripe.clear()
        self._buckets.clear()
        self._inside = 0

    async def _run(self, run: Run) -> None:
        now = self._driver.now
        until = now() + self._linger
        pauses = Backoff(*_AGAIN)
        while run.current:
            run.nudge.clear()
            keys: list[K] = []
            try:
                self._turn(run, keys)
                if keys:
                    await self._fire(keys)
            except BaseException as error:
                self._put_back(keys)
                if not isinstance(error, Exception):
                    raise
                logger().exception("what was due could not be seen to; it is tried again")
                await self._driver.sleep(pauses.next())
                until = now() + self._linger
                continue
            pauses.reset()
            if keys or self._behind:
                until = now() + self._linger
                if self._behind or len(keys) == self._most:
                    await self._driver.sleep(0.0)  # let other tasks run
                continue
            if self._due:
                until = now() + self._linger
            elif now() >= until and run.ends(lambda: not self._due):
                return
            await wait_until(self._driver, run.nudge, min(self._next, until if not self._due else inf))

    def _put_back(self, keys: list[K]) -> None:
        """Set keys again that could not be fired. The next turn rebuilds the buckets, where keys may be missing now."""
        with self._service.gate:
            # First what needs no memory: there may be none left. If the rest fails here, the next turn does it.
            self._scattered = True
            self._next = -inf
            if keys:
                self._astray = [*self._astray, *keys] if self._astray else keys
            with contextlib.suppress(MemoryError):
                self._restore()
        self._service.wake()  # another run may have taken the place of the one that failed

    def _restore(self) -> None:
        now = self._driver.now()
        for key in self._astray:
            self._due.setdefault(key, now)
        self._astray = ()

    def _gather(self) -> None:
        """Have all keys put into buckets again, also those that were in none yet."""
        self._restore()
        self._empty()
        for key, at in self._due.copy().items():
            entry = at, 0.0
            if self._due.get(key) == at:  # else a finalizer has set or dropped it in between
                self._new[key] = entry
        self._scattered = False

    def _turn(self, run: Run, keys: list[K]) -> None:
        """Move new keys to buckets, take the keys that are due, and note when the next one is."""
        with self._service.gate:
            if not run.current:
                return
            if self._scattered:
                self._gather()
            due = self._due
            moved, swept = self._move(), self._sweep()
            now, self._room = self._driver.now(), _SLICE
            heap, ripe = self._heap, self._ripe
            for each in (heap, self._unswept):
                while each and each[0][0] <= now:
                    at, order, early, bucket = heappop(each)
                    heappush(ripe, (early, at, order, bucket))
            while ripe and len(keys) < self._most and self._room > 0:
                early, at, _, bucket = ripe[0]
                if self._take(bucket, at, keys):
                    heappop(ripe)
                    del self._buckets[at, early]
            while heap and not ripe and len(keys) < self._most and self._room > 0:
                at, _, early, bucket = heap[0]
                if keys and at - early * (1 - 1 / _GRAIN) <= now:
                    if not self._take(bucket, at, keys):
                        break
                else:
                    while bucket and due.get(bucket[0]) != at and self._room > 0:  # it was cancelled, or set again
                        bucket.popleft()
                        self._inside -= 1
                        self._room -= 1
                    if bucket:
                        break
                heappop(heap)
                del self._buckets[at, early]
            self._behind = not (moved and swept and self._room > 0)
            if self._behind:
                self._next = -inf  # the run looks again at once: nobody needs to nudge it
                return
            self._next = ripe[0][1] if ripe else heap[0][0] if heap else inf
            if now < self._nudged < self._next:
                # The key that the run was nudged for is gone. Keep that instant all the same: else a lock that is held
                # for a moment, again and again, would nudge the run each time.
                self._next = self._nudged

    def _move(self) -> bool:
        """Put new keys into buckets, as many as one turn may; return whether none is left.

        Posted keys come first, then the others in the order in which they were set.
        """
        due, posted, room = self._due, self._posted, _SLICE
        while posted:
            key, at = posted.popleft()
            if due.get(key) == at:
                self._put(key, at, 0.0)
            room -= 1
            if not room:
                return False
        while True:
            for key, (at, early) in self._moving:
                if due.get(key) == at:  # else it was cancelled, or set to another instant, while it waited here
                    self._put(key, at, early)
                room -= 1
                if not room:
                    return False
            if not self._new:
                return True
            new, self._new = self._new, {}  # a finalizer may set or cancel a key in between
            self._moving = iter(new.items())

    def _take(self, bucket: deque[K], at: float, keys: list[K]) -> bool:
        """Take keys out of a bucket, as many as may be fired; return whether it is empty now."""
        due = self._due
        while bucket and len(keys) < self._most and self._room > 0:
            key = bucket.popleft()
            self._inside -= 1
            if due.get(key) == at:
                keys.append(key)  # first: what comes in between must not lose it
                due.pop(key, None)
            else:
                self._room -= 1
        return not bucket

    def _put(self, key: K, at: float, early: float) -> None:
        bucket = self._buckets.get((at, early))
        if bucket is None:
            bucket = self._buckets[at, early] = deque()
            heappush(self._heap, (at, next(self._order), early, bucket))
        bucket.append(key)
        self._inside += 1

    def _sweep(self) -> bool:
        """If many keys are stale, remove them from as many buckets as one turn may; return whether all are swept."""
        unswept, due, room = self._unswept, self._due, _SLICE
        if not unswept:
            if self._inside <= 2 * len(due) + _SPARE:
                return True
            unswept, self._unswept, self._heap = self._heap, self._heap, []
        while unswept and room > 0:
            item = at, _, early, bucket = heappop(unswept)
            live = [key for key in dict.fromkeys(bucket) if due.get(key) == at]
            room -= len(bucket)
            self._inside -= len(bucket) - len(live)
            bucket.clear()
            bucket.extend(live)
            if live:
                heappush(self._heap, item)
            else:
                del self._buckets[at, early]
        return not unswept


class Timers(Generic[H, K]):
    """A Timer for each home, such as a server: a server that hangs does not delay the keys of the others.

    Calls ``fire(home, keys)``. There are no more threads or tasks than homes that have something to do.
    """

    def __init__(self, driver: Driver, fire: Callable[[H, list[K]], Awaitable[None]], name: str) -> None:
        self._driver = driver
        self._fire = fire
        self._name = name
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._timers: dict[H, Timer[K]] = {}
        self._closed = False
        in_child(self, Timers._forked)

    def at(self, home: H) -> Timer[K]:
        """The timer of one home."""
        with self._gate:
            found = self._timers.get(home)
            if found is None:
                # Drop the timers of servers that are gone, as after a failover: they have nothing to do any more.
                self._timers = {other: timer for other, timer in self._timers.items() if timer.busy}
                found = Timer(self._driver, functools.partial(self._fire, home), self._name)
                if self._closed:
                    found.close()
                self._timers[home] = found
            return found

    def ensure(self) -> None:
        """Start the threads or tasks again that are needed, and could not be started before."""
        for timer in list(self._timers.values()):
            timer.ensure()

    def close(self) -> None:
        """Fire nothing any more."""
        with self._gate:
            self._closed = True
            timers = list(self._timers.values())
        for timer in timers:
            timer.close()

    def _forked(self) -> None:
        """In a forked child: forget a gate that one of the parent's threads may have held."""
        self._gate = threading.RLock()
