"""A lease, as its holder knows it: what was granted, until when, and the stamps made under it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from math import inf
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from fencepost import check
from fencepost.driver import Driver, Signal, wait_until
from fencepost.driver.fork import at_fork
from fencepost.errors import ConfigError, LeaseLost
from fencepost.logs import logger
from fencepost.rule import Stamp


class Grant(NamedTuple):
    """A store's answer that the lock is now held.

    ``since`` is a local instant not later than the store's own: the deadline counted from it can be
    early, never late.
    """

    token: int
    ttl: float
    since: float


class Reason(StrEnum):
    """How a lease ended. The first three are the holder's own doing; after the others the lease is ``lost``."""

    RELEASED = "released"
    UNCONFIRMED = "unconfirmed"
    """``release()`` failed, and may be tried again; the ttl frees the lock otherwise."""
    CLOSED = "closed"
    """Its locks were closed. If the store failed to release it then, the ttl frees the lock."""
    EXPIRED = "expired"
    REPLACED = "replaced"
    GONE = "gone"
    """The store gave it away or lost it, or somebody broke the lock."""
    FORKED = "forked"
    """It is the parent's; this is a child that was forked."""


_RETURNED = frozenset({Reason.RELEASED, Reason.UNCONFIRMED, Reason.CLOSED})

_DETAILS = {
    Reason.RELEASED: "it was released",
    Reason.UNCONFIRMED: "its release failed; it may be tried again",
    Reason.CLOSED: "its locks were closed",
    Reason.EXPIRED: "its deadline has passed",
    Reason.REPLACED: "it was replaced before it was released",
    Reason.GONE: "the store gave it away or lost it",
    Reason.FORKED: "it belongs to the parent process",
}


class Keeper(Protocol):
    """What a lease needs of the core, which granted it, renews it and releases it."""

    driver: Driver

    async def renew(self, lease: Any) -> None: ...
    async def release(self, lease: Any) -> bool: ...
    async def finish(self, lease: Any) -> LeaseLost | None: ...


_ANSWER = 10  # a lease is at risk if its renewal has no answer ttl / _ANSWER after it was due
_gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
_forks = 0  # how many forks lie between this process and the first one


def _forked() -> None:
    global _gate, _forks
    _gate = threading.RLock()  # another thread of the parent's may have been inside
    _forks += 1


at_fork(after_in_child=_forked)


@dataclass(frozen=True, slots=True)
class Access:
    """One access to a resource, under a lease: the same on every retry."""

    resource: str
    stamp: Stamp
    signature: str = ""
    key: str = ""
    """The Idempotency-Key of an access that outlives the lease; if empty, it is made from resource and stamp."""

    @property
    def headers(self) -> dict[str, str]:
        """The stamp as HTTP headers, the same on every call.

        The Idempotency-Key is for receivers that do not check tokens: they can recognise a retry, but not a holder that
        was replaced. No two accesses share one, unless they were given the same ``key``, which is percent-encoded.
        """
        token, seq, holder = self.stamp
        headers = {
            "X-Fence-Token": str(token),
            "X-Fence-Seq": str(seq),
            "X-Fence-Holder": holder,
            "Idempotency-Key": self._idempotency_key(),
        }
        if self.signature:
            headers["X-Fence-Signature"] = self.signature
        return headers

    def _idempotency_key(self) -> str:
        if self.key:
            from urllib.parse import quote  # only here, as below: not every program sends headers

            # A header cannot carry all of Unicode, and receivers strip quotes and spaces from the ends of a key.
            return quote(self.key, safe="/:,;=+*()[]!$&'@")
        from hashlib import sha256

        token, seq, holder = self.stamp
        # Holder and seq are not enough: a bare token has no holder, and some clients keep one holder for all tokens.
        # A digest, because names may be long or not ASCII. No name contains NUL.
        names = f"{self.resource}\0{holder}".encode()
        return f"{token}-{seq}-{sha256(names).hexdigest()[:32]}"


class BaseLease:
    """One granted, time-bounded hold of a lock: what the leases of both faces share.

    Pass it to a guard, which takes one stamp from it for each access, or send ``access(resource).headers`` along
    with a request. Its accesses to one resource, reads through a guard included, are admitted in the order of their
    stamps.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_body",
        "_clock",
        "_core",
        "_detail",
        "_due",
        "_entered_by",
        "_forks",
        "_holds",
        "_kept_until",
        "_last_seq",
        "_on_loss",
        "_overdue",
        "_reason",
        "_releasing",
        "_renew_until",
        "_sign",
        "_signal",
        "_stored",
        "_turned",
        "_turns",
        "deadline",
        "holder",
        "name",
        "shared",
        "since",
        "token",
        "ttl",
    )

    def __init__(
        self,
        core: Keeper,
        name: str,
        holder: str,
        grant: Grant,
        renew: bool,
        max_hold: float | None,
        shared: bool = False,
    ) -> None:
        self.name = name
        self.holder = holder
        self._stored = holder  # as the store has it: the core adds its label
        token, ttl, since = grant
        self.token = token
        self.ttl = ttl
        self.since = since
        self.deadline = since + ttl
        self.shared = shared
        self._sign: Callable[[str, Stamp], str] | None = None
        self._core = core
        self._clock = core.driver.now
        self._last_seq = 0
        self._forks = _forks
        self._reason: Reason | None = None
        self._detail = ""
        self._begun = False
        self._entered_by: Callable[[], object] | None = None  # a weak reference to the thread or task in its block
        self._releasing: tuple[object, int] | None = None  # during a release: its Renewals and thread
        self._signal: Signal | None = None
        self._turns = 0  # changes into and out of risk: odd while it is at risk
        self._turned: Signal | None = None  # set at the next turn, the next renewal, or the end
        self._on_loss: tuple[Callable[[], object], ...] = ()
        self._body: Any = None  # the asyncio block that is cancelled when the lease is lost
        self._holds = 1  # nested blocks of a re-entrant lock that hold it
        self._kept_until: float | None = None  # the end of its block does not free the lock before this instant
        self._renew_until = (inf if max_hold is None else since + max_hold) if renew else -inf
        self._schedule(since)

    @property
    def remaining(self) -> float:
        """Seconds until the holder must assume that it lost the lease; 0 once the lease is over."""
        return 0.0 if self._reason else max(0.0, self.deadline - self._clock())

    @property
    def reason(self) -> Reason | None:
        """How the lease ended; None while it holds. While a release is under way it is RELEASED."""
        return self._reason or (Reason.EXPIRED if self._clock() >= self.deadline else None)

    @property
    def lost(self) -> bool:
        """Whether the holder can no longer be sure that it holds, and did not give the lock back itself."""
        reason = self.reason
        return reason is not None and reason not in _RETURNED

    @property
    def released(self) -> bool:
        """Whether the holder gave the lock back, by ``release()``, a block's end or ``close()``."""
        return self._reason in _RETURNED

    @property
    def _why(self) -> str:
        """The same as ``reason``, in words; empty while the lease holds."""
        reason = self.reason
        return "" if reason is None else self._detail or _DETAILS[reason]

    def check(self, *, margin: float | timedelta = 0.0) -> None:
        """Return while the lease holds; LeaseLost once its holder can no longer be sure of it.

        With a ``margin``, LeaseLost also while fewer seconds than that are left, for a holder that needs so much time
        to stop; the lease goes on. A lease is renewed when a third of its ttl has passed, so the margin must be
        shorter than two thirds of it: ConfigError otherwise.
        """
        if why := self._why:
            raise LeaseLost(self.name, self.token, why)
        if margin:
            seconds = check.seconds(margin, "margin")
            if seconds >= self.ttl * 2 / 3:
                raise ConfigError(
                    f"a margin of {seconds:g} s is too long for a ttl of {self.ttl:g} s, which is renewed when two "
                    f"thirds of it are left: take less than {self.ttl * 2 / 3:g} s, or a longer ttl"
                )
            if (left := self.remaining) < seconds:
                raise LeaseLost(self.name, self.token, f"it is expiring: {left:.3g} s are left of {self.ttl:g} s")

    @property
    def _risky(self) -> bool:
        """Whether the lease is at risk: it still holds, but a renewal failed or is overdue."""
        # Check the clock too: in a process that was frozen, the renewal loop could not note it.
        return self.reason is None and (self._turns % 2 == 1 or self._clock() >= self._overdue)

    def access(self, resource: str | None = None) -> Access:
        """The next access to ``resource``, by default the lock's own name, as a value; each call takes a new stamp.

        Use the same value to retry that access: a guard that has carried it out already recognises the stamp.
        LeaseLost in a forked child, which would issue the stamps of its parent a second time.
        """
        name = self.name if resource is None else check.name(resource, "resource")
        stamp = self._stamp()
        return Access(name, stamp, "" if self._sign is None else self._sign(name, stamp))

    @property
    def _inherited(self) -> bool:
        """Whether it was granted to a process that this one was forked from."""
        return self._forks != _forks

    def _require_own(self) -> None:
        """LeaseLost in a forked child: its stamps would be taken for retries of the parent's accesses."""
        if self._inherited:
            raise LeaseLost(self.name, self.token, _DETAILS[Reason.FORKED])

    def _stamp(self) -> Stamp:
        """The stamp of the next access."""
        self._require_own()
        with _gate:
            self._last_seq += 1
            return Stamp(self.token, self._last_seq, self.holder)

    def _entering_stamp(self, mark: Stamp | None) -> Stamp:
        """A new stamp that enters a resource with this mark, so that this lease's in-flight accesses become late.

        The mark itself if it is the lease's newest stamp: then all earlier accesses of this lease are late already.
        """
        self._require_own()
        newest = Stamp(self.token, self._last_seq, self.holder)
        return newest if mark == newest else self._stamp()

    def _schedule(self, renewed: float) -> None:
        """Plan the next renewal a third of the ttl after the last one; or the end, if it is not renewed by then."""
        third = renewed + self.ttl / 3
        self._due = third if third < self._renew_until else self.deadline
        self._expect(renewed)

    def _expect(self, renewed: float) -> None:
        """Set when the next renewal is overdue: ttl / _ANSWER after it is due, or never if there is none."""
        third = renewed + self.ttl / 3
        self._overdue = third + self.ttl / _ANSWER if third < self._renew_until else inf

    def _late(self, asked: float) -> float:
        """When the answer to a renewal sent at ``asked`` is late. A renewal that was sent late gets the same time."""
        return max(self._overdue, asked + self.ttl / _ANSWER)

    def _turn(self, at_risk: bool) -> bool:
        """Note whether the lease is at risk; return whether that has changed. It never does once the lease is over."""
        news = False
        if at_risk or self._turns % 2:  # most renewals change nothing
            with _gate:
                news = self.reason is None and (self._turns % 2 == 1) is not at_risk
                self._turns += news
        self._wake()  # even if nothing changed: a renewal has moved the deadline
        return news

    def _wake(self) -> None:
        """Wake those who wait in ``_until_turn``, so that they check again."""
        if self._turned is None:
            return
        with _gate:
            turned, self._turned = self._turned, None
        if turned is not None:
            turned.set()

    def _end(self, reason: Reason, detail: str = "") -> bool:
        """End the lease, once; say whether this call did."""
        with _gate:
            if self._reason is not None:
                return False
            self._reason, self._detail = reason, detail
        if self._signal is not None:
            self._signal.set()
        self._wake()
        return True

    def _claim_release(self, reason: Reason, by: tuple[object, int]) -> Reason | None:
        """Claim the release: None for the one caller that has to do it, else how the lease ended or is ending."""
        with _gate:
            known = self._reason
            if known is None:  # it is renewed no longer; the core sets the final reason once the store has answered
                self._reason = self.reason or reason
                self._releasing = by
        return known

    def _when_lost(self, call: Callable[[], object]) -> None:
        """Register a function to call when the lease is lost."""
        self._on_loss = (*self._on_loss, call)

    def _tell_loss(self) -> None:
        """The lease is lost: cancel the block that runs under it, and call what ``_when_lost`` registered."""
        for call in (*([] if self._body is None else [self._body.cancel]), *self._on_loss):
            try:
                call()
            except Exception:  # such as a block whose event loop was closed
                logger().exception("the loss of %r could not be told", self.name)

    def _begin_block(self) -> None:
        """Begin the block of this lease; ConfigError if it has begun before, LeaseLost if the lease is over."""
        if not self._begun:
            self.check()
        self._begin_once()

    def _begin_once(self) -> None:
        """As ``_begin_block``, for a lease that may be over already."""
        if self._begun:
            raise ConfigError(
                f"the lease on {self.name!r} has a block already, which releases it at its end; acquire it again for "
                f"another one"
            )
        self._begun = True

    def _waitable(self) -> Signal:
        """The signal that is set once the lease is over."""
        if self._signal is None:
            with _gate:
                self._signal = self._signal or self._core.driver.signal()
        return self._signal

    async def _until_over(self, timeout: float | None) -> bool:
        """Wait until the lease is over; False if ``timeout`` passed first."""
        now = self._clock
        until = inf if timeout is None else now() + timeout
        signal = self._waitable()
        # This does not rely on the renewal loop: the wait itself ends at the deadline.
        while self.reason is None:
            end = min(until, self.deadline)  # which a renewal moves
            if not await wait_until(self._core.driver, signal, end) and now() >= until:
                return self.reason is not None
        return True

    async def _until_turn(self, turned: Callable[[], bool], until: float = inf) -> bool:
        """Wait until ``turned()``; False if the lease was over, or the instant ``until`` had come, before that."""
        driver, now = self._core.driver, self._clock
        while True:
            with _gate:
                signal = self._turned = self._turned or driver.signal()
            # Check only after taking the signal: a change in between sets the signal.
            if self.reason is not None:
                return False
            if turned():
                return True
            if (instant := now()) >= until:
                return False
            soon = self._overdue if instant < self._overdue else inf
            await wait_until(driver, signal, min(until, self.deadline, soon))

    async def _until_risky(self, wanted: bool, timeout: float | timedelta | None) -> bool:
        """Wait until it is at risk, or no longer, as ``wanted``."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        until = inf if seconds is None else self._clock() + seconds
        return await self._until_turn(lambda: self._risky is wanted, until)

    def __repr__(self) -> str:
        state = self._why or f"{self.remaining:.3g} s left"
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"


class BaseEnded:
    """Set once the lease is over, however it ended."""

    __slots__ = ("_lease",)

    def __init__(self, lease: BaseLease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Whether the lease is over."""
        return self._lease.reason is not None

    __bool__ = is_set


class BaseAtRisk:
    """Set while the lease holds, although its renewal failed or is overdue."""

    __slots__ = ("_lease",)

    def __init__(self, lease: BaseLease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Whether the lease is at risk; False once it is over."""
        return self._lease._risky

    __bool__ = is_set


class Ambient(Enum):
    AMBIENT = "the lease of the block around"


AMBIENT: Final = Ambient.AMBIENT
"""Stands for the lease of the enclosing block whose lock has the resource's name, or that of a path above it."""

Fence: TypeAlias = BaseLease | Access | Stamp | int
"""What a guard accepts: a lease, an access (to retry it, or received from elsewhere), a stamp, or a bare token."""
FenceOrAmbient: TypeAlias = Fence | Literal[Ambient.AMBIENT]


def stamp(fence: Fence) -> Stamp:
    """The stamp for one write under ``fence``; ConfigError if it cannot be one."""
    if isinstance(fence, BaseLease):
        return fence._stamp()
    if isinstance(fence, Access):
        fence = fence.stamp
    if isinstance(fence, Stamp):
        return check.stamp(fence)
    return Stamp(check.token(fence))


def entering_stamp(fence: Fence) -> Stamp:
    """The stamp that enters under ``fence``: it raises the mark of a resource before it is read.

    A lease takes a new stamp each time, so entering again is a barrier: a write of this lease that got no answer, and
    is still in flight, is late from then on. A bare token enters with a seq of 0.
    """
    if isinstance(fence, BaseLease):
        return fence._stamp()
    if isinstance(fence, Access):
        fence = fence.stamp
    if isinstance(fence, Stamp):
        if fence.holder and fence.seq:
            return check.stamp(fence)
        return Stamp(check.token(fence.token), 0, check.holder(fence.holder))
    return Stamp(check.token(fence), 0)
