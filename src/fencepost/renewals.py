"""The one service that renews the leases of a connection, and tells their holders when they are over."""

import sys
import weakref
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from fencepost.backend import Backend, Hold, Renewal
from fencepost.driver import Driver, Signal, inert
from fencepost.driver.timer import Timer
from fencepost.errors import BackendError
from fencepost.events import Kind
from fencepost.lease import BaseLease, Reason
from fencepost.logs import logger

_SLICE = 100  # leases that an event loop handles in one step
_FEW = 10  # an event loop handles the answers of fewer leases than this at once, without a turn of their own
_TURN = 1.0  # seconds that a batch of answers waits for its turn, at most
_UNKNOWN = 1000  # how many reports about unknown holders are kept
_TOGETHER = 30  # a lease may be renewed up to ttl / _TOGETHER early, in one batch with others


class Emit(Protocol):
    def __call__(self, kind: Kind, name: str, **facts: Any) -> None: ...


L = TypeVar("L", bound=BaseLease)


class _Watched(weakref.ref[L]):
    """A reference that does not keep its lease alive, and knows the lock's name when the lease is gone."""

    __slots__ = ("name",)

    def __init__(self, lease: L) -> None:
        self.name = lease.name


class Flight(Generic[L]):
    """Leases whose renewal was sent at ``asked``. It is one key of the timer, due when the first is late or over."""

    def __init__(self, leases: list[L], asked: float) -> None:
        self.leases = leases
        self.asked = asked
        self.over = False
        """Whether its answers have come, or nobody waits for them any more."""

    def next(self, lease: L, now: float) -> float:
        """When to look at this lease next if no answer comes: when the answer is late, then at the deadline."""
        late = lease._late(self.asked)
        return late if now < late < lease.deadline else lease.deadline


class _Request:
    """A renewal that is under way."""

    __slots__ = ("answered", "over")

    def __init__(self) -> None:
        self.over = False
        self.answered: Signal | None = None
        """Set once it is over, if somebody waits for that."""


class Renewals(Generic[L]):
    """Watches leases: renews each at a third of its ttl, in batches, and ends those past their deadline.

    It has one thread or task, which runs only while there are leases. It keeps no lease alive: one
    that its holder dropped is no longer renewed.
    """

    def __init__(self, backend: Backend, driver: Driver, emit: Emit) -> None:
        self._backend = backend
        self._driver = driver
        self._emit = emit
        self._leases: dict[str, _Watched[L]] = {}  # by holder
        self._reports: deque[tuple[str, str]] = deque()
        self._unknown: dict[str, str] = {}
        """Reports about holders that are not watched yet, because their acquire has not returned."""
        self._requests: dict[_Request, list[L]] = {}
        """The renewals in flight, each with its leases."""
        self._turns: dict[Signal, float] = {}
        """Batches of answers that wait for a step of the event loop of their own, each with its earliest deadline."""
        self._turn: Signal | None = None  # whose turn it is
        most = sys.maxsize if driver.blocking else _SLICE
        self._timer: Timer[str | Flight[L]] = Timer(driver, self._see_to, "fencepost-renewals", most=most)
        backend.report = self._report

    def __iter__(self) -> Iterator[L]:
        for ref in self._leases.copy().values():
            lease = ref()
            if lease is not None:
                yield lease

    def watch(self, lease: L) -> None:
        """Watch a lease from now on; RuntimeError or MemoryError if that needs a thread and none can be started."""
        self._leases[lease._stored] = _Watched(lease)
        self._timer.set(lease._stored, lease._due, lease.ttl / _TOGETHER)
        if self._unknown and (why := self._unknown.pop(lease._stored, None)) is not None:
            self._reports.append((lease._stored, why))
        if self._reports:  # one may be about this lease, from before its key was set
            self._timer.post(lease._stored)

    def forget(self, lease: L) -> None:
        self._leases.pop(lease._stored, None)
        self._timer.drop(lease._stored)

    def close(self) -> None:
        self._timer.close()

    async def renew(self, leases: list[L], strict: bool = False) -> None:
        """Renew in one batch. A lease without an answer keeps its old deadline; if ``strict``, that raises."""
        now = self._driver.now
        request = _Request()
        self._requests[request] = leases
        try:
            # Filter after registering: a release that comes meanwhile either sees this request in settled(), or its
            # lease is left out here.
            leases = [lease for lease in leases if lease._reason is None]
            if leases:
                await self._ask(leases, now(), strict)
        finally:
            del self._requests[request]
            request.over = True
            if request.answered is not None:
                request.answered.set()

    async def settled(self, lease: L) -> None:
        """Wait until no renewal of a released lease is in flight: it could reach the store after the next request.

        This waits until the lease's deadline at most.
        """
        for request, leases in self._requests.copy().items():
            if any(each is lease for each in leases):
                answered = request.answered = request.answered or self._driver.signal()
                if not request.over:
                    await answered.wait(max(0.0, lease.deadline - self._driver.now()))

    async def _ask(self, leases: list[L], sent: float, strict: bool) -> None:
        try:
            holds = [Hold(each.name, each._stored, each.token, each.ttl) for each in leases]
            answers = await self._backend.renew(holds)
            if len(answers) != len(holds):
                raise ValueError(f"the backend has {len(answers)} answers for {len(holds)} holds")
        except Exception as error:
            if strict:
                for lease in leases:
                    self._put_at_risk(lease)
                raise
            if not isinstance(error, BackendError):
                logger().exception("renewing failed")
            answers = [Renewal.UNKNOWN] * len(leases)
        await self._take_in(leases, answers, sent)
        if strict and Renewal.UNKNOWN in answers and not any(lease._reason for lease in leases):
            raise BackendError(
                "the store did not say whether the lease is renewed; its deadline stands",
                backend=self._backend.scheme,
                ambiguous=True,
            )

    async def _take_in(self, leases: list[L], answers: Sequence[Renewal], sent: float) -> None:
        """Note the store's answers. An event loop does so for one batch in each step, even if many come at once."""
        slacks = self._extend(leases, answers, sent)
        if self._driver.blocking or len(leases) < _FEW:
            self._note(leases, answers, slacks, sent)
            return
        mine = self._driver.signal()
        self._turns[mine] = min(lease.deadline for lease in leases)
        try:
            if self._turn is None or inert(self._turn):
                self._turn = mine
            else:
                await mine.wait(_TURN)
            self._note(leases, answers, slacks, sent)
            await self._driver.sleep(0.0)  # the next batch has the next step
        finally:
            del self._turns[mine]
            if self._turn is mine or self._turn is None:
                # Next is the batch that has the least time left.
                self._turn, _ = min(self._turns.copy().items(), key=lambda item: item[1], default=(None, 0.0))
                if self._turn is not None:
                    self._turn.set()

    def _extend(self, leases: list[L], answers: Sequence[Renewal], sent: float) -> list[float]:
        """Move the deadlines as soon as the store has answered; return which part of its ttl each lease had left."""
        now = self._driver.now()
        slacks = []
        for lease, answer in zip(leases, answers, strict=True):
            deadline, ttl = lease.deadline, lease.ttl
            slacks.append((deadline - now) / ttl)
            # A lease that is over stays over, even if the store has extended it: its holder may have seen it as lost.
            if answer is Renewal.RENEWED and now < deadline < sent + ttl and not lease._reason:
                lease.deadline = sent + ttl
                lease._expect(sent)
        return slacks

    def _note(self, leases: list[L], answers: Sequence[Renewal], slacks: list[float], sent: float) -> None:
        now = self._driver.now()
        due: list[tuple[str | Flight[L], float, float]] = []
        for lease, answer, slack in zip(leases, answers, slacks, strict=True):
            if lease._reason:
                continue
            if answer is Renewal.LOST:
                self._lose(lease, Reason.GONE)
                continue
            ttl = lease.ttl
            if slack <= 0 or now >= lease.deadline:
                self._lose(lease, Reason.EXPIRED)
                continue
            if answer is Renewal.RENEWED:
                lease._schedule(sent)
                self._emit("renewed", lease.name, token=lease.token, holder=lease.holder, ratio=slack)
                if lease._turn(False):
                    self._emit("recovered", lease.name, token=lease.token, holder=lease.holder)
            else:
                # Try again soon, though not at once, until the deadline passes.
                lease._due = min(lease.deadline, now + ttl / 10)
                self._emit("unrenewed", lease.name, token=lease.token, holder=lease.holder)
                self._put_at_risk(lease)
            due.append((lease._stored, lease._due, ttl / _TOGETHER))
        self._timer.offer_all(due)
        for holder, _ in self._reports.copy():  # it may be about one of these, from before its key was set
            self._timer.post(holder)

    def _put_at_risk(self, lease: L) -> None:
        """A renewal failed or is overdue: emit that the lease is at risk, once until it is renewed."""
        if lease._turn(True):
            left = lease.remaining
            self._emit("at_risk", lease.name, token=lease.token, holder=lease.holder, seconds=left)

    def lost(self, lease: L) -> None:
        """Tell the hooks, and the block that runs under the lease, that it was lost."""
        self._emit("lost", lease.name, token=lease.token, holder=lease.holder, detail=lease._why)
        lease._tell_loss()

    def _lose(self, lease: L, reason: Reason, detail: str = "") -> None:
        if lease._end(reason, detail):
            self.forget(lease)
            self.lost(lease)

    def _report(self, holder: str, why: str) -> None:
        """The backend learned, on any thread, that a hold is gone."""
        self._reports.append((holder, why))
        self._timer.post(holder)

    async def _see_to(self, keys: list[str | Flight[L]]) -> None:
        """End the leases that are over, and renew those that are due, in one batch for each server."""
        for batch in self._look(keys):
            now = self._driver.now()
            flight = Flight(batch, now)
            self._timer.park([(lease._stored, lease.deadline) for lease in batch])
            for lease in batch:
                if lease._reason:  # released meanwhile: its key was dropped before park() set it
                    self._timer.drop(lease._stored)
            self._timer.offer(flight, min(flight.next(lease, now) for lease in batch))
            # In the background, so that holders learn of a passed deadline in time even if the store hangs.
            job = self._renew_apart(flight)
            try:
                self._driver.spawn(job, "fencepost-renewal")
            except (RuntimeError, MemoryError):  # no other thread can be started just now
                job.close()
                await self._renew_apart(flight)
        self._hear()

    def _hear(self) -> None:
        """End the leases that the backend has reported as gone."""
        while self._reports:
            holder, why = self._reports.popleft()
            ref = self._leases.get(holder)
            if ref is None:
                self._unknown[holder] = why
                if len(self._unknown) > _UNKNOWN:
                    del self._unknown[next(iter(self._unknown))]
            elif (lease := ref()) is not None:
                self._lose(lease, Reason.GONE, why)

    def _look(self, keys: list[str | Flight[L]]) -> Iterable[list[L]]:
        """End the leases that are over; return those to renew now, by server.

        This is a function of its own so that no frame that waits keeps a lease alive.
        """
        self._hear()
        now = self._driver.now()
        homes: dict[Hashable, list[L]] = {}
        later: list[tuple[str | Flight[L], float, float]] = []
        home = self._backend.home
        for key in keys:
            if isinstance(key, Flight):
                self._watch_flight(key, now)
                continue
            ref = self._leases.get(key)
            if ref is None:
                continue
            lease = ref()
            if lease is None or lease._reason:
                if lease is None:
                    logger().warning(
                        "the lease of %r was dropped without release; it is not renewed, its ttl frees it", ref.name
                    )
                self._leases.pop(key, None)
            elif now >= lease.deadline:
                self._lose(lease, Reason.EXPIRED)
            elif now >= lease._renew_until:  # also if the last renewal failed
                lease._due = lease.deadline
                later.append((key, lease._due, 0.0))
            elif lease._due - now <= lease.ttl / _TOGETHER and lease._due < lease.deadline:
                homes.setdefault(home(lease.name), []).append(lease)
            else:
                later.append((key, lease._due, 0.0))
        if later:
            self._timer.offer_all(later)
        return homes.values()

    def _watch_flight(self, flight: Flight[L], now: float) -> None:
        """End its leases that are past their deadline, put those with a late answer at risk, and plan the next look."""
        if flight.over:  # answered meanwhile: if its key were set again and again, it would keep its leases alive
            return
        later = []
        for lease in flight.leases:
            if lease._reason:
                continue
            if now >= lease.deadline:
                self._lose(lease, Reason.EXPIRED)
                continue
            if now >= lease._late(flight.asked):
                self._put_at_risk(lease)
            later.append(flight.next(lease, now))
        if later:
            self._timer.offer(flight, min(later))

    async def _renew_apart(self, flight: Flight[L]) -> None:
        try:
            await self.renew(flight.leases)
        except BaseException as error:
            # All tasks were cancelled, or the event loop has ended. These leases are still held: renew them at once.
            for lease in flight.leases:
                lease._due = min(lease._due, self._driver.now())
                self._timer.post(lease._stored)
            if not isinstance(error, GeneratorExit):
                self._driver.later(self._start_again)
            raise
        finally:
            flight.over = True
            self._timer.drop(flight)

    def _start_again(self) -> None:
        self._timer.ensure()
