"""Backends whose store has no queue: in each process the first waiter asks, and the others wait behind it."""

from abc import abstractmethod
from math import inf

from fencepost.backend import LOOK, Backend
from fencepost.backends.local_queue import LocalQueues
from fencepost.errors import QueueFull
from fencepost.lease import Grant


class Polling(Backend):
    """Queues the waiters of this process. A subclass says how to try once, and how its first waiter asks again."""

    def _start(self) -> None:
        """Begin without waiters; a subclass calls this when it is made and after a fork."""
        self._queues = LocalQueues()

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        if not self._queues.busy(name) and (grant := await self._attempt(name, holder, ttl)):
            return grant
        if queue is not None and not self._queues.join(name, holder, queue, self.driver.signal()):
            raise QueueFull(name, queue)
        return None

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        now = self.driver.now
        until = inf if timeout is None else now() + timeout
        signal = self._queues.await_turn(name, holder, self.driver.signal())
        try:
            while (left := until - now()) > 0:
                if not self._queues.first(name, holder):
                    # Look again now and then: a waiter whose event loop was closed does not wake the next one.
                    await signal.wait(min(left, LOOK))
                elif grant := await self._stand(name, holder, ttl, until):
                    self._queues.leave(name, holder)
                    return grant
        except GeneratorExit:
            self._queues.leave(name, holder)
            raise
        return None

    @abstractmethod
    async def _attempt(self, name: str, holder: str, ttl: float) -> Grant | None:
        """Take the lock if it is free; None leaves nothing behind."""

    @abstractmethod
    async def _stand(self, name: str, holder: str, ttl: float, until: float) -> Grant | None:
        """Ask, as the first waiter of this process, until the lock is granted; None once ``until`` has passed."""
