"""The turns of this process's requests to join the queue of a lock."""

import threading
from math import inf

from fencepost.driver import Driver, Signal, inert
from fencepost.driver.scope import patience as within

PATIENCE = 0.5  # for how many seconds a request waits for its turn, at most


class Turns:
    """Requests that take a lock or join its queue are sent one after another.

    All of them, and each release, lock the same row. Sent at once they would wait for each other in the server: each
    would keep a connection that other locks could use, and a release would come after all of them. A release needs no
    turn, so it comes after one of them at most.

    Turns only save time. A request whose turn does not come within ``PATIENCE``, or a quarter of its caller's time, is
    sent without it, and the next one waits for that request: so a request that gets no answer delays one other.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._sent: dict[str, Signal] = {}
        """By lock: the request whose turn it is."""
        self._waiting: dict[str, list[Signal]] = {}

    async def enter(self, name: str, mine: Signal) -> None:
        """Wait for the turn of the request that ``mine`` stands for; the caller calls ``leave`` afterwards, always."""
        with self._gate:
            if self._begin(name, mine):
                return
            waiting = self._waiting.setdefault(name, [])
            waiting.append(mine)
        until = self._driver.now() + min(PATIENCE, within(inf) / 4)
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
            if self._sent.get(name) is mine:
                del self._sent[name]
            if name not in self._sent or inert(self._sent[name]):
                for each in self._waiting.get(name, ()):
                    if not inert(each):
                        each.set()
                        break

    def _begin(self, name: str, mine: Signal) -> bool:
        """Begin the turn, if no other request is under way, and none waits before it."""
        if (sent := self._sent.get(name)) is not None and not inert(sent):
            return False
        for each in self._waiting.get(name, ()):
            if each is mine:
                break
            if not inert(each):
                return False
        self._drop(name, mine)
        self._sent[name] = mine
        return True

    def _drop(self, name: str, mine: Signal) -> None:
        waiting = self._waiting.get(name)
        if waiting is not None and mine in waiting:
            waiting.remove(mine)
            if not waiting and self._waiting.get(name) is waiting:
                del self._waiting[name]

    def forked(self) -> None:
        """In a forked child: no other thread is inside, and the requests under way are the parent's."""
        self._gate = threading.RLock()
        self._sent, self._waiting = {}, {}
