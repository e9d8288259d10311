"""What a store must still be told because it did not answer: that a waiter has left, or was granted a lock too late."""

import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from fencepost.driver import Driver
from fencepost.driver.backoff import Backoff
from fencepost.driver.timer import Timer
from fencepost.errors import BackendError

_log = logging.getLogger("fencepost")

K = TypeVar("K", bound=Hashable)


class Cleanups(Generic[K]):
    """Tries each clean-up again until the store has answered it, or ``lasting`` seconds have passed.

    All of them together have one thread or task, however many requests have failed. Once a server has failed, the
    other clean-ups that are due there wait for their next try: ``home`` tells which server that is.
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
        self._timer: Timer[K] = Timer(driver, self._see_to, name)

    def __contains__(self, key: object) -> bool:
        return key in self._owed

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, key: K, *, at_once: bool = False) -> None:
        """Clean up soon, or at once; what is owed already stays as it is. Never fails: the next one starts a thread."""
        if key not in self._owed:
            now, pauses = self._driver.now(), Backoff(*self._pauses)
            self._owed[key] = now + self._lasting, pauses
            self._timer.offer(key, now if at_once else now + pauses.next())

    def close(self) -> None:
        """Give up: the ttls end what is left."""
        self._timer.close()
        self._owed.clear()

    async def _see_to(self, keys: list[K]) -> None:
        failed: set[Hashable] = set()
        left = dict.fromkeys(keys)
        try:
            for key in keys:
                home = self._home(key)
                if home not in failed:
                    try:
                        await self._clean(key)
                    except BackendError as error:
                        failed.add(home)
                        _log.info("a clean-up is tried again: %s", error)
                    else:
                        del left[key]
                        self._owed.pop(key, None)
        finally:  # also when somebody has cancelled all tasks
            for key in left:
                self._again(key)

    def _again(self, key: K) -> None:
        found = self._owed.get(key)
        if found is not None:
            until, pauses = found
            at = self._driver.now() + pauses.next()
            if at < until:
                self._timer.offer(key, at)
            else:
                del self._owed[key]
