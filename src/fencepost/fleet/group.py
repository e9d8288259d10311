"""Membership in a group and the partitions that come with it, over any backend and any driver.

Every worker holds a lease that makes it a member, lists the other members, computes the same plan, gives up the
partitions that are no longer its own, and takes those that are. Workers may see different members for a while; then
the locks decide.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from math import inf
from typing import Any, Generic, TypeVar

from fencepost import check
from fencepost.driver import Signal, wait_until
from fencepost.driver.service import Run, Service
from fencepost.errors import BackendError, ConfigError, FencepostError, LeaseLost, NotAcquired, QueueFull, Refused
from fencepost.fleet import plan
from fencepost.lease import BaseLease
from fencepost.locks import GRACE, Core

L = TypeVar("L", bound=BaseLease)


class Owned(Generic[L]):
    """One partition while this worker owns it: under one lease, with one token."""

    __slots__ = ("_signal", "lease", "number")

    def __init__(self, number: int, lease: L, signal: Signal) -> None:
        self.number = number
        self.lease = lease
        self._signal = signal

    @property
    def name(self) -> str:
        """The name of its lock: the group's name and its number."""
        return self.lease.name

    @property
    def token(self) -> int:
        """The fencing token for everything that is written while it is owned."""
        return self.lease.token

    @property
    def lost(self) -> bool:
        """Whether the lease was lost, so that another worker may own the partition already."""
        return self.lease.lost

    def _stopping(self) -> bool:
        return self._signal.is_set() or bool(self.lease.reason)

    async def _until_stop(self, timeout: float | None = None) -> bool:
        """Wait until the work should end, because the partition moves or its lease is over."""
        now, driver = self.lease._clock, self.lease._core.driver
        until = inf if timeout is None else now() + timeout
        while not self._stopping():
            end = min(until, self.lease.deadline)  # which a renewal moves
            if not await wait_until(driver, self._signal, end) and now() >= until:
                return self._stopping()
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.lease!r}>"


class BaseStop:
    """Set once the work on a partition should end: it moves to another worker, is lost, or this worker leaves."""

    __slots__ = ("_owned",)

    def __init__(self, owned: Owned[Any]) -> None:
        self._owned = owned

    def is_set(self) -> bool:
        """Whether the work should end."""
        return self._owned._stopping()

    __bool__ = is_set


_log = logging.getLogger("fencepost")
# sys.exit() in a thread ends only that thread: count it as a failure, so that the partition does not hang.
_FAILURES = (Exception, SystemExit)

P = TypeVar("P", bound=Owned[Any])


class _Slot(Generic[P]):
    """A partition that this worker owns, or is about to."""

    __slots__ = ("owned", "signal")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.owned: P | None = None


class Group(Generic[L, P]):
    """One worker's membership.

    ``begin``, ``work`` and ``end`` are awaited in this order for each partition, one after the other; work
    should return when it is told to stop. Whatever they raise is logged and never ends the membership.
    """

    def __init__(
        self,
        core: Core[L],
        group: str,
        count: int,
        *,
        member: str | None,
        ttl: float | timedelta | None,
        owned: Callable[[int, L, Signal], P],
        begin: Callable[[P], Awaitable[None]],
        work: Callable[[P], Awaitable[None]],
        end: Callable[[P], Awaitable[None]],
    ) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"a group has at least one partition, not {count!r}")
        self.group = check.name(group, "group")
        if "members" in group.split("/"):
            raise ConfigError(
                f"no part of a group's name may be 'members', as in {group!r}: locks of groups are called so"
            )
        self.count = count
        self.member = member or f"{socket.gethostname()}-{os.getpid()}-{core._holders()[:4]}"
        self._member_lock = check.name(plan.member(group, count, self.member))
        check.name(plan.partition(group, count))
        self.ttl = core.ttl if ttl is None else core._ttl(ttl)
        self.leaving = core.driver.signal()
        """Set once this worker has been asked to leave, or must."""
        self._core = core
        self._owned, self._begin, self._work, self._end = owned, begin, work, end
        self._mark = core._holders()[: plan.MARK]
        # Often enough to take over from a dead worker within twice the ttl. Not more often: a look lists the group.
        self._period = self.ttl / 3
        self._patience = min(1.0, self._period)
        self._membership: L | None = None
        self._agreed = True  # join makes sure of it; after a time without membership it must be checked again
        self._disagreement: ConfigError | None = None
        self._slots: dict[int, _Slot[P]] = {}
        self._free: dict[int, float] = {}
        self._over = core.driver.signal()
        self._process = 0
        self._service = Service(core.driver, self._tend, f"fencepost-fleet-{self.group}")

    def __iter__(self) -> Iterator[P]:
        """The partitions that are owned right now, by number."""
        held = [slot.owned for _, slot in sorted(self._slots.copy().items())]
        return iter([owned for owned in held if owned is not None and not owned.lease.reason])

    async def join(self) -> None:
        """Become a member, and begin to own partitions; if this raises, the worker is not a member."""
        if self.leaving.is_set() or self._process:
            raise ConfigError(f"this worker of {self.group!r} was started before; make another")
        await self._agree()
        patience = 2 * self.ttl
        if not await self._enroll(patience):
            raise NotAcquired(
                self._member_lock,
                patience,
                f"there is a worker {self.member!r} in {self.group!r} already, still after {patience:g} s; give each a "
                f"member= of its own",
            )
        try:
            await self._agree()  # again: two workers that join at once may not have seen each other before
            self._process = os.getpid()
            self._service.start()
        except GeneratorExit:
            raise
        except BaseException:
            self._process = 0
            await self._core.driver.apart(self._resign(), GRACE)
            raise

    @property
    def joined(self) -> bool:
        """Whether this process has joined the group, even if it has left since."""
        return self._process == os.getpid()

    async def _agree(self) -> None:
        """Raise ConfigError if a member has another number of partitions."""
        if (error := self._differs(await self._view())) is not None:
            raise error

    def _differs(self, found: plan.View) -> ConfigError | None:
        for other in found.members.values():
            if other.partitions != self.count:
                what = f"{other.name} works on {self.group!r} with {other.partitions} partitions, not {self.count}"
                return ConfigError(f"{what}; stop it first, or use another group")
        return None

    async def _view(self) -> plan.View:
        return plan.view(self.group, await self._core.list(plan.prefix(self.group)))

    def stop(self) -> None:
        """Ask this worker to leave; returns at once."""
        self.leaving.set()
        self._service.wake()

    async def leave(self, failing: bool = False) -> None:
        """Finish and hand over what is owned, and end the membership.

        Raises ConfigError if the worker had to leave because others have another count, unless the caller is
        ``failing`` with an error of its own.
        """
        self.stop()
        if self.joined:  # else it never joined, or its parent process did, which owns the membership
            if not self._over.is_set():
                self._service.ensure()  # the service may have ended with its event loop
            await self._over.wait()
            if self._disagreement is not None and not failing:
                raise self._disagreement

    def _holder(self) -> str:
        return self._mark + self._core._holders()[plan.MARK :]

    async def _acquire(self, name: str, timeout: float, more: Callable[[], float] | None = None) -> L | None:
        return await self._core.acquire(
            name, ttl=self.ttl, timeout=timeout, renew=True, max_hold=None, holders=self._holder, more=more
        )

    async def _enroll(self, timeout: float) -> bool:
        """Acquire the membership; False if the name is still taken, by another worker or this one's own old lease."""
        self._membership = lease = await self._acquire(self._member_lock, timeout)
        if lease is None:
            return False
        lease._when_lost(self._service.wake)
        return True

    async def _resign(self) -> None:
        if self._membership is not None:
            await self._core._release_quietly(self._membership)

    async def _tend(self, run: Run) -> None:
        """Follow the plan until this worker leaves."""
        while not self.leaving.is_set() and not self._core._closed:
            run.nudge.clear()
            nap = self._period
            try:
                nap = await self._look()
            except FencepostError as error:
                _log.warning("worker %r of %r could not look around: %s", self.member, self.group, error)
            except Exception:
                _log.exception("worker %r of %r could not look around", self.member, self.group)
            await run.nudge.wait(nap)
            await self.leaving.wait(self._period / 20)  # so that wake-ups in quick succession cause only one look
        try:
            await self._part(run)
        except Exception:
            _log.exception("worker %r of %r could not leave in order", self.member, self.group)
        self._over.set()

    async def _part(self, run: Run) -> None:
        """Give up the membership first, so that others queue for the partitions while the work here is finished."""
        self.leaving.set()
        await self._resign()
        for slot in self._slots.copy().values():
            slot.signal.set()
        while self._slots:
            run.nudge.clear()
            await run.nudge.wait(self._patience)

    async def _look(self) -> float:
        """List the members, and follow the plan; return the seconds until the next look."""
        if self._membership is None or self._membership.reason:
            self._agreed = False
            if not await self._enroll(self._patience):
                return self._patience
        found = await self._view()
        if not self._agreed:
            # While this worker was no member, others could join with another count: they could not see this one.
            self._disagreement = self._differs(found)
            if self._disagreement is not None:
                _log.error("worker %r of %r leaves: %s", self.member, self.group, self._disagreement)
                self.stop()
                return 0.0
            self._agreed = True
        if self._mark not in found.members and self._membership is not None:
            # A store that has lost this membership has lost others too: a plan without them would take everything. The
            # renewal raises LeaseLost then, and this look ends here.
            await self._core.renew(self._membership)
        for number in self._plan(found):
            if number not in self._slots and not self.leaving.is_set():
                slot: _Slot[P] = _Slot(self._core.driver.signal())
                self._slots[number] = slot
                try:
                    self._core.driver.spawn(self._serve(number, slot), f"fencepost-fleet-{self.group}-{number}")
                except (RuntimeError, MemoryError) as error:  # no thread could be started: try again at the next look
                    del self._slots[number]
                    _log.warning("worker %r of %r cannot serve %d: %s", self.member, self.group, number, error)
        # A member that is late to renew may be dead: look again when its lease expires.
        others = [member.status.remaining for mark, member in found.members.items() if mark != self._mark]
        return max(min([self._period, *others]), self._period / 10)

    def _plan(self, found: plan.View) -> list[int]:
        """The partitions to take or keep; tells the work on all others to stop."""
        slots = self._slots.copy()
        # The listing may be out of date about this worker's own partitions: use what the worker itself knows.
        mine = {number for number, slot in slots.items() if slot.owned is not None and not slot.owned.lease.reason}
        owned = {
            mark: held
            if mine.isdisjoint(held) and not (held and held[-1] >= self.count)
            else [n for n in held if n < self.count and n not in mine]
            for mark, held in found.owned.items()
        }
        owned[self._mark] = sorted(mine)
        wanted = plan.assignments(self.count, owned)[self._mark] + self._orphans(found, mine)
        for number, slot in slots.items():
            # If the store can show waiters, keep a partition until another worker waits for it.
            status = found.held.get(number)
            awaited = status is not None and bool(status.waiters)
            if number not in wanted and (awaited or slot.owned is None or not self._core.backend.promises.fair):
                slot.signal.set()
        return wanted

    def _orphans(self, found: plan.View, mine: set[int]) -> list[int]:
        """The partitions that were free for a whole period: any member may take them, as the planned owner does not."""
        now = self._core.driver.now()
        free = [number for number in range(self.count) if number not in found.held and number not in mine]
        self._free = {number: self._free.get(number, now) for number in free}
        return [number for number, since in self._free.items() if now - since >= 0.9 * self._period]

    async def _serve(self, number: int, slot: _Slot[P]) -> None:
        """One partition, from waiting for it to its release."""
        try:
            lease = await self._claim(number, slot)
            if lease is not None:
                lease._when_lost(slot.signal.set)
                slot.owned = owned = self._owned(number, lease, slot.signal)
                try:
                    fine = await self._hold(owned)
                except GeneratorExit:
                    raise
                except BaseException:  # somebody cancelled all tasks
                    await self._core.driver.apart(self._core._release_quietly(lease), GRACE)
                    raise
                await self._core._release_quietly(lease)
                if not fine:
                    await self.leaving.wait(self._period)
        finally:
            self._slots.pop(number, None)
            self._service.wake()

    async def _claim(self, number: int, slot: _Slot[P]) -> L | None:
        """Wait until the partition is this worker's, or no longer wanted."""
        name = plan.partition(self.group, number)

        def more() -> float:
            # Stay in the queue: if this member left it between attempts, each look of the owner might miss it.
            return 0.0 if slot.signal.is_set() else self._patience

        while not slot.signal.is_set() and not self._core._closed:
            try:
                lease = await self._acquire(name, self._patience, more)
            except (BackendError, QueueFull, RuntimeError, MemoryError) as error:  # or no thread could be started
                _log.warning("worker %r of %r could not ask for %s: %s", self.member, self.group, name, error)
                await slot.signal.wait(self._patience)
                continue
            except ConfigError:
                if self._core._closed:
                    return None
                raise
            if lease is not None:
                return lease
        return None

    async def _hold(self, owned: P) -> bool:
        """Assign the partition, work on it, and revoke it; False if assigning it or the work failed."""
        try:
            await self._begin(owned)
        except _FAILURES:
            _log.exception("%s could not be assigned; it is given up, and asked for again later", owned.name)
            return False
        fine = True
        try:
            await self._work(owned)
            await owned._until_stop()
        except _FAILURES as error:
            # Work that finds itself replaced is expected to end with one of these errors: that is no failure.
            if not (owned.lease.reason and isinstance(error, (LeaseLost, Refused))):
                _log.exception("the work on %s failed; it is given up, and asked for again later", owned.name)
                fine = False
        try:
            await self._end(owned)
        except _FAILURES:
            _log.exception("%s was not revoked cleanly; it is given up all the same", owned.name)
        return fine
