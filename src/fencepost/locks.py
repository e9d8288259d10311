"""The core: acquiring, waiting, renewing, losing and releasing leases, over any backend.

Written once, as ``async def``; sync.py and aio.py are its two faces.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from math import inf
from typing import Any, Generic, TypeVar

from fencepost import check
from fencepost.backend import Backend, Hold, Renewal, Status
from fencepost.drive import Driver, Signal
from fencepost.errors import BackendError, ConfigError, LeaseLost, QueueFull
from fencepost.events import Event, Hook, Hooks, Kind
from fencepost.lease import Grant, Lease
from fencepost.rule import MAX_TOKEN

_log = logging.getLogger("fencepost")

RELEASED = "it was released"
# A cancelled acquire stays this long for its own clean-up, which then goes on by itself.
_GRACE = 0.5


class Held(Lease):
    """A lease and what the core keeps about it."""

    __slots__ = ("_core", "_signal", "due", "on_loss", "renew_until")

    def __init__(
        self, core: "Core[Any]", name: str, holder: str, grant: Grant, renew: bool, max_hold: float | None
    ) -> None:
        super().__init__(name, holder, grant, core.driver.now)
        self._core = core
        self._signal: Signal | None = None
        self.on_loss: Callable[[], None] | None = None
        self.renew_until = (inf if max_hold is None else grant.since + max_hold) if renew else -inf
        self.schedule(grant.since)

    def schedule(self, renewed: float) -> None:
        """Plan the next renewal a third of the ttl after the last one, or the end."""
        third = renewed + self.ttl / 3
        self.due = third if third < self.renew_until else self.deadline

    def end(self, why: str) -> bool:
        """End the lease, once; say whether this call did."""
        if self.ended:
            return False
        self.ended = why
        if self._signal is not None:
            self._signal.set()
        return True

    async def until_over(self, timeout: float | None) -> bool:
        """Wait until the lease is over, whoever notices; False if ``timeout`` passed first."""
        now = self._clock
        until = inf if timeout is None else now() + timeout
        if self._signal is None:
            with self._core.gate:
                if self._signal is None:
                    self._signal = self._core.driver.signal()
        # Nobody needs to be awake for this: the deadline itself ends the wait.
        while not self.over:
            nap = min(until, self.deadline) - now()
            if nap <= 0:
                return bool(self.over)
            await self._signal.wait(nap)
        return True


L = TypeVar("L", bound=Held)


class Core(Generic[L]):
    """All leases of one connection to one backend, with the one service that renews them."""

    def __init__(
        self,
        backend: Backend,
        driver: Driver,
        lease: Callable[["Core[L]", str, str, Grant, bool, float | None], L],
        *,
        ttl: float | timedelta,
        queue_limit: int,
        hooks: Iterable[Hook],
    ) -> None:
        self.backend = backend
        self.driver = driver
        self.hooks = Hooks(hooks)
        self.ttl = self._ttl(ttl)
        if queue_limit < 0:
            raise ConfigError(f"queue_limit must not be negative, not {queue_limit}")
        self.queue_limit = queue_limit
        self._lease = lease
        self._closed = False
        self._reset()
        _cores.add(self)

    def _reset(self) -> None:
        self.gate = threading.Lock()
        self._leases: dict[str, weakref.ref[L]] = {}  # by holder
        self._tending = False
        self._wake = inf
        self._nudge = self.driver.signal()

    def _ttl(self, ttl: float | timedelta) -> float:
        seconds = check.ttl(ttl)
        promises = self.backend.promises
        if not promises.min_ttl <= seconds <= promises.max_ttl:
            raise ConfigError(
                f"{self.backend.scheme}:// takes a ttl from {promises.min_ttl:g} to {promises.max_ttl:g} s, "
                f"not {seconds:g} s"
            )
        return seconds

    def emit(self, kind: Kind, name: str, **facts: Any) -> None:
        if self.hooks:
            self.hooks(Event(kind=kind, name=name, source=self.backend.scheme, **facts))

    # Acquiring

    async def acquire(
        self,
        name: str,
        *,
        ttl: float | timedelta | None,
        timeout: float | timedelta | None,
        renew: bool,
        max_hold: float | timedelta | None,
    ) -> L | None:
        """A lease on ``name``, or None once ``timeout`` has passed; 0 asks once and never queues."""
        check.name(name)
        seconds = self.ttl if ttl is None else self._ttl(ttl)
        patience = inf if timeout is None else check.seconds(timeout, "timeout")
        hold = None if max_hold is None else check.seconds(max_hold, "max_hold")
        if self._closed:
            raise ConfigError("these locks are closed; connect again")
        start = self.driver.now()
        self.emit("attempt", name)
        while True:
            holder = os.urandom(16).hex()
            grant = await self._obtain(name, holder, seconds, start + patience, patience > 0)
            if grant is None:
                self.emit("timeout", name, seconds=self.driver.now() - start)
                return None
            lease = self._lease(self, name, holder, grant, renew, hold)
            if not lease.over:
                break
            # This process slept through the whole lease on its way here; it is worth nothing.
            await self._leave(name, holder)
        self._watch(lease)
        self.emit("acquired", name, token=lease.token, holder=holder, seconds=self.driver.now() - start)
        return lease

    async def _obtain(self, name: str, holder: str, ttl: float, until: float, queue: bool) -> Grant | None:
        backend = self.backend
        queued = False
        try:
            grant = await backend.take(name, holder, ttl, self.queue_limit if queue else None)
            while grant is None and queue:
                queued = True
                left = until - self.driver.now()
                if left <= 0:
                    await backend.leave(name, holder)
                    return None
                grant = await backend.wait(name, holder, ttl, None if left == inf else left)
            return grant
        except (ConfigError, QueueFull, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, BackendError) and not error.ambiguous and not queued:
                raise
            # Cancelled, interrupted or failed: it may have been granted or queued all the same.
            await self.driver.apart(self._leave(name, holder), _GRACE)
            self.emit("abandoned", name, holder=holder)
            raise

    async def _leave(self, name: str, holder: str) -> None:
        try:
            await self.backend.leave(name, holder)
        except BackendError as error:
            _log.warning("could not clean up after an acquire of %r; its ttl will: %s", name, error)

    # Releasing

    async def release(self, lease: L) -> bool:
        """Give the lease back; False, and nothing changed, if it was no longer this holder's."""
        ended = lease.ended
        if ended in (RELEASED, _FORKED):
            return False
        lease.end(RELEASED)
        lease.ended = RELEASED
        self._leases.pop(lease.holder, None)
        if await self.backend.release(lease.name, lease.holder, lease.token):
            held = self.driver.now() - lease.since
            self.emit("released", lease.name, token=lease.token, holder=lease.holder, seconds=held)
            return True
        self.emit("not_owner", lease.name, token=lease.token, holder=lease.holder)
        if not ended:
            self._lost(lease, "it was replaced before it was released")
        return False

    async def finish(self, lease: L) -> LeaseLost | None:
        """Release at the end of a block; what the block must raise if it raised nothing itself."""
        if lease.ended == RELEASED:
            return None
        why = lease.over
        try:
            released = await self.release(lease)
        except BackendError as error:
            _log.warning("release of %r failed; its ttl will free it: %s", lease.name, error)
            released = True
        if why:
            return LeaseLost(lease.name, lease.token, why)
        if not released:
            return LeaseLost(lease.name, lease.token, "it was replaced before it was released")
        return None

    async def abandon(self, lease: L) -> None:
        """Release whatever is left of a lease whose release was cut off; errors are logged."""
        await self._leave(lease.name, lease.holder)

    # Looking and acting from outside

    async def status(self, name: str) -> Status | None:
        """The lock as its store sees it; None if nobody holds it."""
        found = await self.backend.status(check.name(name))
        return found[0] if found else None

    async def evict(self, name: str) -> Status | None:
        """Take the lock from its holder; the hold that was ended."""
        return await self.backend.evict(check.name(name))

    async def bump(self, name: str, above: int) -> None:
        """Make every later token of ``name`` larger than ``above``."""
        if check.token(above) == MAX_TOKEN:
            raise ConfigError(f"no token is larger than {MAX_TOKEN}")
        await self.backend.bump(check.name(name), above)

    # Renewing

    async def renew(self, lease: L) -> None:
        """Renew now; LeaseLost if it is lost, BackendError if the store did not say."""
        lease.check()
        await self._renew([lease], strict=True)
        lease.check()

    async def _renew(self, leases: list[L], strict: bool = False) -> None:
        holds = [Hold(lease.name, lease.holder, lease.token, lease.ttl) for lease in leases]
        sent = self.driver.now()
        try:
            answers = await self.backend.renew(holds)
        except Exception as error:
            if strict:
                raise
            if not isinstance(error, BackendError):
                _log.exception("renewing failed")
            answers = [Renewal.UNKNOWN] * len(leases)
        for lease, answer in zip(leases, answers, strict=True):
            if lease.ended:
                continue
            if answer is Renewal.LOST:
                self._lose(lease, "the store gave it away or lost it")
                continue
            if self.driver.now() >= lease.deadline:
                # Even if the store has extended it since: its holder may have seen it as lost.
                self._lose(lease, "its deadline has passed")
                continue
            if answer is Renewal.RENEWED:
                slack = (lease.deadline - self.driver.now()) / lease.ttl
                lease.deadline = max(lease.deadline, sent + lease.ttl)
                lease.schedule(sent)
                self.emit("renewed", lease.name, token=lease.token, holder=lease.holder, ratio=slack)
            else:
                # The old deadline stands; try again soon, not at once, until it passes.
                lease.due = min(lease.deadline, self.driver.now() + lease.ttl / 10)
                self.emit("unrenewed", lease.name, token=lease.token, holder=lease.holder)
            self._arm(lease)

    def _watch(self, lease: L) -> None:
        self._leases[lease.holder] = weakref.ref(lease)
        self._arm(lease)

    def _arm(self, lease: L) -> None:
        """See to it that the service looks at the lease when it is due."""
        if lease.due < self._wake:
            self._wake = lease.due
            self._nudge.set()
        if not self._tending:
            with self.gate:
                if self._tending:
                    return
                self._tending = True
            self.driver.spawn(self._tend(), "fencepost-renew")

    async def _tend(self) -> None:
        """Renew what is due and end what is past its deadline, for as long as there are leases."""
        rest = 0.0
        while not self._closed:
            self._nudge.clear()
            batch = self._due()
            if batch:
                # Apart, so that a store that hangs does not delay the news of a passed deadline.
                self.driver.spawn(self._renew(batch), "fencepost-renewal")
            if self._leases:
                rest = min(self._wake - self.driver.now(), 60.0)
            elif rest:
                # Linger for one more period: leases that come and go need not start this again each time.
                self._wake, rest = self.driver.now() + rest, 0.0
            else:
                self._tending = False
                if not self._leases:
                    return
                with self.gate:
                    if self._tending:
                        return
                    self._tending = True
            await self._nudge.wait(max(self._wake - self.driver.now(), 0.001))

    def _due(self) -> list[L]:
        now = self.driver.now()
        self._wake = wake = inf  # from here on, whoever arms a lease also nudges
        batch = []
        for key, ref in self._leases.copy().items():
            lease = ref()
            if lease is None or lease.ended:
                if lease is None:
                    _log.warning("a lease was dropped without release; it is not renewed, its ttl frees it")
                self._leases.pop(key, None)
                continue
            if now >= lease.deadline:
                self._lose(lease, "its deadline has passed")
                continue
            if lease.due - now <= lease.ttl / 30 and lease.due < lease.deadline:
                batch.append(lease)
                lease.due = lease.deadline
            wake = min(wake, lease.due)
        self._wake = wake
        return batch

    def _lose(self, lease: L, why: str) -> None:
        if lease.end(why):
            self._leases.pop(lease.holder, None)
            self._lost(lease, why)

    def _lost(self, lease: L, why: str) -> None:
        self.emit("lost", lease.name, token=lease.token, holder=lease.holder, detail=why)
        if lease.on_loss is not None:
            lease.on_loss()

    # Ending

    async def close(self) -> None:
        """Release what is still held and disconnect; the leases' holders learn that they are over."""
        if self._closed:
            return
        self._closed = True
        for ref in self._leases.copy().values():
            lease = ref()
            if lease is not None and not lease.ended:
                try:
                    await self.release(lease)
                except BackendError as error:
                    _log.warning("release of %r failed; its ttl will free it: %s", lease.name, error)
        self._nudge.set()
        await self.backend.close()
        self.driver.close()

    def forked(self) -> None:
        """In a forked child: the leases are the parent's, to renew and to release."""
        for ref in self._leases.values():
            lease = ref()
            if lease is not None:
                lease.ended, lease._signal = _FORKED, None
        self._reset()
        self.backend.forked()


_FORKED = "it belongs to the parent process"
_cores: "weakref.WeakSet[Core[Any]]" = weakref.WeakSet()


def _after_fork() -> None:
    for core in list(_cores):
        core.forked()


os.register_at_fork(after_in_child=_after_fork)
