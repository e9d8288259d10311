"""The one service that renews the leases of a connection, and tells their holders when they are over."""

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from fencepost.backend import Backend, Hold, Renewal
from fencepost.driver import Driver, wait_until
from fencepost.errors import BackendError
from fencepost.events import Kind
from fencepost.lease import BaseLease, Reason

_log = logging.getLogger("fencepost")
_gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside


def _forked() -> None:
    global _gate
    _gate = threading.RLock()  # another thread of the parent's may have been inside


os.register_at_fork(after_in_child=_forked)


class Emit(Protocol):
    def __call__(self, kind: Kind, name: str, **facts: Any) -> None: ...


L = TypeVar("L", bound=BaseLease)


class Renewals(Generic[L]):
    """Watches leases: renews each at a third of its ttl, in batches, and ends those past their deadline.

    It has one thread or task, which runs only while there are leases. It keeps no lease alive: one
    that its holder dropped is no longer renewed.
    """

    def __init__(self, backend: Backend, driver: Driver, emit: Emit) -> None:
        self._backend = backend
        self._driver = driver
        self._emit = emit
        self._leases: dict[str, weakref.ref[L]] = {}  # by holder
        self._reports: deque[tuple[str, str]] = deque()
        self._nudge = driver.signal()
        self._wake = inf
        self._tending = False
        self._closed = False
        backend.report = self._report

    def __iter__(self) -> Iterator[L]:
        for ref in self._leases.copy().values():
            lease = ref()
            if lease is not None:
                yield lease

    def watch(self, lease: L) -> None:
        self._leases[lease.holder] = weakref.ref(lease)
        self._arm(lease)

    def forget(self, lease: L) -> None:
        self._leases.pop(lease.holder, None)

    def close(self) -> None:
        self._closed = True
        self._nudge.set()

    async def renew(self, leases: list[L], strict: bool = False) -> None:
        """Renew in one batch; an answer that did not come keeps the old deadline, or raises if ``strict``."""
        now = self._driver.now
        sent = now()
        try:
            answers = await self._backend.renew([Hold(each.name, each.holder, each.token, each.ttl) for each in leases])
        except Exception as error:
            if strict:
                raise
            if not isinstance(error, BackendError):
                _log.exception("renewing failed")
            answers = [Renewal.UNKNOWN] * len(leases)
        for lease, answer in zip(leases, answers, strict=True):
            if lease._reason:
                continue
            if answer is Renewal.LOST:
                self._lose(lease, Reason.GONE)
                continue
            slack = (lease.deadline - now()) / lease.ttl
            if slack <= 0:
                # Even if the store has extended it since: its holder may have seen it as lost.
                self._lose(lease, Reason.EXPIRED)
                continue
            if answer is Renewal.RENEWED:
                lease.deadline = max(lease.deadline, sent + lease.ttl)
                lease._schedule(sent)
                self._emit("renewed", lease.name, token=lease.token, holder=lease.holder, ratio=slack)
            else:
                # Try again soon, though not at once, until the deadline passes.
                lease._due = min(lease.deadline, now() + lease.ttl / 10)
                self._emit("unrenewed", lease.name, token=lease.token, holder=lease.holder)
            self._arm(lease)
        if strict and Renewal.UNKNOWN in answers and not any(lease._reason for lease in leases):
            raise BackendError(
                "the store did not say whether the lease is renewed; its deadline stands",
                backend=self._backend.scheme,
                ambiguous=True,
            )

    def lost(self, lease: L) -> None:
        """Tell the world, and the body that runs under the lease, that it was lost."""
        self._emit("lost", lease.name, token=lease.token, holder=lease.holder, detail=lease._why)
        lease._tell_loss()

    def _lose(self, lease: L, reason: Reason, detail: str = "") -> None:
        if lease._end(reason, detail):
            self.forget(lease)
            self.lost(lease)

    def _report(self, holder: str, why: str) -> None:
        """The backend learned, on whatever thread, that a hold is gone."""
        self._reports.append((holder, why))
        self._nudge.set()

    def _arm(self, lease: L) -> None:
        """See to it that the service looks at the lease when it is due."""
        if lease._due < self._wake:
            self._wake = lease._due
            self._nudge.set()
        if not self._tending:
            with _gate:
                if self._tending:
                    return
                self._tending = True
            try:
                self._driver.spawn(self._tend(), "fencepost-renewals")
            except BaseException:
                self._tending = False  # or no lease would ever be renewed again
                raise

    async def _tend(self) -> None:
        try:
            with self._going_on():
                await self._tend_all()
        finally:
            self._nudge = self._driver.signal()  # the next one may run in another event loop
            self._wake = inf
            self._tending = False
        self._arm_all()  # one that came just now took this for its service

    def _arm_all(self) -> None:
        if not self._closed:
            for lease in self:
                self._arm(lease)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Go on with the leases that are left, should somebody cancel this; such as one who cancels all tasks."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            self._driver.later(self._arm_all)
            raise

    async def _tend_all(self) -> None:
        """Renew what is due and end what is over, until there is nothing to watch any more."""
        rest = 1.0  # a task may find that the lease it was started for is over already
        while not self._closed:
            self._nudge.clear()
            await self._renew_due()
            if self._leases:
                rest = min(self._wake - self._driver.now(), 60.0)
            elif rest:
                # Linger for one more period: leases that come and go need not start this each time.
                self._wake, rest = self._driver.now() + rest, 0.0
            else:
                return
            await wait_until(self._driver, self._nudge, max(self._wake, self._driver.now() + 0.001))

    async def _renew_due(self) -> None:
        """Renew what is due, each server's apart. Nothing that is waited in keeps a lease alive."""
        homes: dict[Hashable, list[L]] = {}
        for lease in self._look():
            homes.setdefault(self._backend.home(lease.name), []).append(lease)
        for batch in homes.values():
            # Apart, so that a store that hangs does not delay the news of a passed deadline.
            try:
                self._driver.spawn(self._renew_apart(batch), "fencepost-renewal")
            except (RuntimeError, MemoryError):  # no other thread can be started just now
                await self.renew(batch)

    async def _renew_apart(self, batch: list[L]) -> None:
        with self._going_on():
            try:
                await self.renew(batch)
            except BaseException:
                for lease in batch:
                    lease._due = min(lease._due, self._driver.now())
                raise

    def _look(self) -> list[L]:
        """End what is over; return what is to be renewed now."""
        now = self._driver.now()
        self._wake = wake = inf  # from here on, arming a lease nudges too
        while self._reports:
            holder, why = self._reports.popleft()
            ref = self._leases.get(holder)
            if ref is not None and (lease := ref()) is not None:
                self._lose(lease, Reason.GONE, why)
        batch = []
        for holder, ref in self._leases.copy().items():
            lease = ref()
            if lease is None or lease._reason:
                if lease is None:
                    _log.warning("a lease was dropped without release; it is not renewed, its ttl frees it")
                self._leases.pop(holder, None)
            elif now >= lease.deadline:
                self._lose(lease, Reason.EXPIRED)
            else:
                if lease._due - now <= lease.ttl / 30 and lease._due < lease.deadline:
                    batch.append(lease)
                    lease._due = lease.deadline
                wake = min(wake, lease._due)
        self._wake = wake
        return batch
