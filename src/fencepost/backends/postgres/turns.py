"""The turns of this process's requests to join the queue of a lock."""

import threading
from math import inf

from fencepost.backends.local_queue import head
from fencepost.driver import Driver, Signal, abandoned, inert
from fencepost.driver.scope import patience as within

PATIENCE = 0.5  # for how many seconds a request waits for its turn, at most


class Turns:
    """Requests that take a lock or join its queue are sent one after another.

    All of them, and each release, lock the same row. Sent at once they would wait for each other in the server: each
    would keep a connection that other locks could use, and a release would come after all of them. A release needs no
    turn, so it comes after one of them at most.

    Turns only save time. A request whose turn does not come within ``PATIENCE``, or a quarter of the time in which its
    caller wants the answer, is sent without it, and the next one waits for that request: so a request that gets no
    answer delays one other. After that time it delays nobody either, although it may not have been sent, such as one in
    an event loop that is blocked: who comes next sees to that.

    They cost time where the network takes longer than the server: a process whose many waiters come at once has them
    all queued later than if it sent them at once, by ``PATIENCE`` at most. A hand-over takes a round trip as well, so
    the lock itself does not wait for them.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._sent: dict[str, Signal] = {}
        """By lock: the request whose turn it is."""
        self._waiting: dict[str, dict[Signal, float]] = {}
        """By lock: the requests that wait for their turn, in the order they came, and until when each does."""

    async def enter(self, name: str, mine: Signal) -> None:
        """Wait for the turn of the request that ``mine`` stands for; the caller calls ``leave`` afterwards, always."""
        until = self._driver.now() + min(PATIENCE, within(inf) / 4)
        with self._gate:
            if self._begin(name, mine):
                return
            waiting = self._waiting.setdefault(name, {})
            waiting[mine] = until
            self._waiting[name] = waiting  # a handler or __del__ that came in between may have found it empty
        while (left := until - self._driver.now()) > 0:
            await mine.wait(left)
            mine.clear()
            with self._gate:
                if self._begin(name, mine):
                    return
        with self._gate:
            self._drop(name, mine)
            self._sent[name] = mine

    def leave(self, name: str, mine: Signal) -> None:
        """End a turn, or the wait for it."""
        with self._gate:
            self._drop(name, mine)
            sent = self._sent.get(name)
            if sent is mine:
                self._sent.pop(name, None)
            if (sent is None or sent is mine or inert(sent)) and (first := self._first(name)) is not None:
                first.set()

    def _begin(self, name: str, mine: Signal) -> bool:
        """Begin the turn, if no other request is under way, and none waits before it."""
        if (sent := self._sent.get(name)) is not None and not inert(sent):
            return False
        if (first := self._first(name)) is not None and first is not mine:
            first.set()  # the one before it may not have told it: it may be stuck, or its event loop may have stopped
            return False
        self._drop(name, mine)
        self._sent[name] = mine
        return True

    def _first(self, name: str) -> Signal | None:
        """The first request that waits and can act. Those that have waited long enough, or cannot run any more, are
        dropped on the way."""
        if not (waiting := self._waiting.get(name)):
            return None
        now = self._driver.now()
        first = head(waiting)  # it can act, most of the time: then nothing is copied
        if first is not None and waiting.get(first, 0.0) > now and not inert(first):
            return first
        for each, until in waiting.copy().items():
            if until <= now or abandoned(each):
                self._drop(name, each)
            elif not inert(each):
                return each
        return None

    def _drop(self, name: str, mine: Signal) -> None:
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.pop(mine, None)
            if not waiting and self._waiting.get(name) is waiting:
                self._waiting.pop(name, None)

    def forked(self) -> None:
        """In a forked child: no other thread is inside, and the requests under way are the parent's."""
        self._gate = threading.RLock()
        self._sent, self._waiting = {}, {}
