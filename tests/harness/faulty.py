"""A store that misbehaves as a test wants it to, and locks over it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from fencepost import sync
from fencepost.address import Address
from fencepost.backend import Hold, Renewal
from fencepost.backends.memory import Memory
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError
from fencepost.events import Event
from fencepost.lease import Grant
from fencepost.locks import Core
from fencepost.testing.clock import NAP, Clock


def fault(*, ambiguous: bool = True) -> BackendError:
    return BackendError("cut off on purpose", backend="faulty", ambiguous=ambiguous)


class Faulty(Memory):
    """A store in memory with faults.

    ``before`` and ``after`` have, by method, the error that its next call raises before or after it did its work.
    ``renewing`` scripts the renewals: each batch calls the next step first, and the last step stays.
    """

    def __init__(self, driver: Blocking | Asyncio) -> None:
        super().__init__(Address("memory", ((f"faulty-{secrets.token_hex(4)}", None),)), driver)
        self.before: dict[str, BackendError] = {}
        self.after: dict[str, BackendError] = {}
        self.renewing: Sequence[Callable[[], object]] = ()
        self.granted: Callable[[Grant], Grant] = lambda grant: grant
        self.left: list[str] = []
        self.batches: list[int] = []

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        self._fail(self.before, "take")
        grant = await super().take(name, holder, ttl, queue, limit)
        self._fail(self.after, "take")
        return grant and self.granted(grant)

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        self._fail(self.before, "wait")
        return await super().wait(name, holder, ttl, timeout, limit)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        step = min(len(self.batches), len(self.renewing) - 1)
        self.batches.append(len(holds))
        if self.renewing:
            self.renewing[step]()
        return await super().renew(holds)

    async def release(self, name: str, holder: str, token: int) -> bool:
        self._fail(self.before, "release")
        done = await super().release(name, holder, token)
        self._fail(self.after, "release")
        return done

    async def leave(self, name: str, holder: str) -> None:
        self.left.append(holder)
        self._fail(self.before, "leave")
        await super().leave(name, holder)

    def _fail(self, faults: dict[str, BackendError], method: str) -> None:
        if error := faults.pop(method, None):
            raise error


class Bench:
    """Locks over a faulty store, and what they told their hooks; with a clock, the test lets time pass."""

    def __init__(self, *, ttl: float = 60.0, clock: Clock | None = None) -> None:
        driver = Blocking() if clock is None else Blocking(clock.now, nap=NAP)
        self.events: list[Event] = []
        self.backend = Faulty(driver)
        self.core: Core[sync.Lease] = Core(
            self.backend, driver, sync.Lease, ttl=ttl, queue_limit=10, hooks=[self.events.append]
        )
        self.locks = sync.Locks(self.core)

    def kinds(self, name: str | None = None) -> list[str]:
        """The kinds of events so far, of one lock or of all."""
        return [event.kind for event in self.events if name in (None, event.name)]
