"""Clean-ups that a store did not answer and that must be sent again: a waiter left, or was granted a lock too late."""

import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from fencepost.driver import Driver
from fencepost.driver.backoff import Backoff
from fencepost.driver.timer import Timers
from fencepost.errors import BackendError

_log = logging.getLogger("fencepost")

K = TypeVar("K", bound=Hashable)


class Cleanups(Generic[K]):
    """Tries each clean-up again until the store has answered it, or ``lasting`` seconds have passed.

    ``home`` returns the server of a clean-up. Each server has one thread or task for all its clean-ups, so a server
    that hangs does not delay the clean-ups of other servers. Once a clean-up has failed, the others that are due at the
    same server wait a little.
    """

    def __init__(
        self,
        driver: Driver,
        clean: Callable[[K], Awaitable[None]],
        name: str,
        *,
        pauses: tuple[float, float],
        lasting: float,
        home: Callable[[K], Hashable] = lambda key: None,
    ) -> None:
        self._driver = driver
        self._clean = clean
        self._pauses = pauses
        self._lasting = lasting
        self._home = home
        self._owed: dict[K, tuple[float, Backoff]] = {}
        self._timers: Timers[Hashable, K] = Timers(driver, self._see_to, name)

    def __contains__(self, key: object) -> bool:
        return key in self._owed

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, key: K, *, at_once: bool = False) -> None:
        """Schedule a clean-up for soon, or for now; one that is scheduled already keeps its time.

        Never fails: if no thread can be started now, the next call starts it.
        """
        if key not in self._owed:
            now, pauses = self._driver.now(), Backoff(*self._pauses)
            self._owed[key] = now + self._lasting, pauses
            self._set(key, now if at_once else now + pauses.next())
            self._timers.ensure()

    def close(self) -> None:
        """Give up: what is left in the store ends with its ttl."""
        self._timers.close()
        self._owed.clear()

    async def _see_to(self, home: Hashable, keys: list[K]) -> None:
        failed = False
        for key in keys:
            if key not in self._owed:  # closed meanwhile
                continue
            if self._home(key) != home:  # the lock moved to another server, or its server was not known before
                self._set(key, self._driver.now())
                continue
            if failed:
                self._again(key, self._pauses[0])  # soon: the failure may concern only the clean-up before this one
                continue
            try:
                await self._clean(key)
            except Exception as error:
                failed = True
                if isinstance(error, BackendError):
                    _log.info("a clean-up is tried again: %s", error)
                else:
                    _log.exception("a clean-up failed; it is tried again")
                if key in self._owed:
                    self._again(key, self._owed[key][1].next())
            else:
                self._owed.pop(key, None)

    def _set(self, key: K, at: float) -> None:
        self._timers.at(self._home(key)).offer(key, at)

    def _again(self, key: K, pause: float) -> None:
        at = self._driver.now() + pause
        if at < self._owed[key][0]:
            self._set(key, at)
        else:
            del self._owed[key]
