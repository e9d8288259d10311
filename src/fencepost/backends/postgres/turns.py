"""The turns of this process's requests about one lock."""

import threading
from itertools import takewhile
from math import inf

from fencepost.driver import Driver, Signal, inert
from fencepost.driver.scope import patience as within
from fencepost.errors import BackendError

PATIENCE = 0.5  # for how many seconds a request waits for its turn, at most


class Turns:
    """Requests about one lock are sent one after another; a release goes before the requests that still wait.

    All of them lock the same row. Sent at once they would wait for each other in the server: each would keep a
    connection that other locks could use, and a release would come after all who want to join the queue.

    Turns only save time. A request whose turn does not come within ``PATIENCE`` is sent without it.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._sent: dict[str, Signal] = {}
        """By lock: the request whose turn it is."""
        self._waiting: dict[str, list[Signal]] = {}

    async def enter(self, name: str, mine: Signal, *, ahead: bool = False) -> None:
        """Wait for the turn of the request that ``mine`` stands for; the caller calls ``leave`` afterwards, always.

        BackendError if the caller's time is up first.
        """
        with self._gate:
            if self._begin(name, mine, ahead):
                return
            self._waiting.setdefault(name, []).insert(0 if ahead else len(self._waiting[name]), mine)
        until = self._driver.now() + PATIENCE
        while (left := until - self._driver.now()) > 0:
            limit = within(inf)
            if not await mine.wait(min(left, limit)) and limit <= left:
                raise BackendError(
                    f"Postgres: earlier requests about the lock {name!r} were not answered until the timeout",
                    backend="postgresql",
                    ambiguous=False,
                )
            mine.clear()
            with self._gate:
                if self._begin(name, mine, ahead):
                    return

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

    def _begin(self, name: str, mine: Signal, ahead: bool) -> bool:
        """Begin the turn, if no other request is under way and, unless it goes ``ahead``, none waits before it."""
        if (sent := self._sent.get(name)) is not None and not inert(sent):
            return False
        before = takewhile(lambda each: each is not mine, self._waiting.get(name, ()))
        if not ahead and not all(map(inert, before)):
            return False
        self._drop(name, mine)
        self._sent[name] = mine
        return True

    def _drop(self, name: str, mine: Signal) -> None:
        waiting = self._waiting.get(name)
        if waiting is not None and mine in waiting:
            waiting.remove(mine)
            if not waiting:
                del self._waiting[name]
