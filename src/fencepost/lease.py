"""A lease, as its holder knows it: what was granted, until when, and the stamps made under it."""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple, TypeAlias

from fencepost import check
from fencepost.errors import LeaseLost
from fencepost.rule import Stamp


class Grant(NamedTuple):
    """A store's answer that the lock is now held.

    ``since`` is a local instant not later than the store's own: the deadline counted from it can be
    early, never late.
    """

    token: int
    ttl: float
    since: float


class Lease:
    """One granted, time-bounded hold of a lock.

    Pass it to a guard, which takes one stamp from it for each access, or send ``headers()`` along
    with a request. Its accesses to one resource are admitted in the order of their stamps.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_seq",
        "deadline",
        "ended",
        "holder",
        "name",
        "signature",
        "since",
        "token",
        "ttl",
    )

    def __init__(self, name: str, holder: str, grant: Grant, clock: Callable[[], float]) -> None:
        self.name = name
        self.holder = holder
        self.token = grant.token
        self.ttl = grant.ttl
        self.since = grant.since
        self.deadline = grant.since + grant.ttl
        self.ended = ""
        self.signature = ""
        self._clock = clock
        self._seq = count(1)

    @property
    def remaining(self) -> float:
        """Seconds until the holder must assume loss; 0 once it has."""
        return 0.0 if self.ended else max(0.0, self.deadline - self._clock())

    @property
    def over(self) -> str:
        """Why the lease is over: released, lost or past its deadline; empty while it holds."""
        return self.ended or ("its deadline has passed" if self._clock() >= self.deadline else "")

    def check(self) -> None:
        """Return while the lease holds; LeaseLost once its holder can no longer be sure of it."""
        if why := self.over:
            raise LeaseLost(self.name, self.token, why)

    def stamp(self) -> Stamp:
        """The stamp of the next access; each call counts as one."""
        return Stamp(self.token, next(self._seq), self.holder)

    def entry(self) -> Stamp:
        """The stamp that enters: it raises the mark of a resource before it is read."""
        return Stamp(self.token, 0, self.holder)

    def headers(self) -> dict[str, str]:
        """The next access's stamp as HTTP headers; send the same headers again when retrying it.

        The Idempotency-Key, new for each access, is for receivers that know nothing else: they can tell
        a retry, but not a holder that has been replaced.
        """
        token, seq, holder = self.stamp()
        headers = {
            "X-Fence-Token": str(token),
            "X-Fence-Seq": str(seq),
            "X-Fence-Holder": holder,
            "Idempotency-Key": f"{holder}-{seq}",
        }
        if self.signature:
            headers["X-Fence-Signature"] = self.signature
        return headers

    def __repr__(self) -> str:
        state = self.over or f"{self.remaining:.3g} s left"
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"


class Signed(NamedTuple):
    """A stamp that came from elsewhere, with the signature that came with it."""

    stamp: Stamp
    signature: str


Offer: TypeAlias = Lease | Stamp | Signed | int
"""What a guard accepts: a lease, a stamp taken from one earlier, with its signature or without, or a bare token."""


def stamp(offer: Offer) -> Stamp:
    """The stamp for one write under ``offer``; ConfigError if it cannot be one."""
    if isinstance(offer, Lease):
        return offer.stamp()
    if isinstance(offer, Signed):
        offer = offer.stamp
    if isinstance(offer, Stamp):
        return check.stamp(offer)
    return Stamp(check.token(offer))


def entry(offer: Offer) -> Stamp:
    """The stamp that enters under ``offer``; ConfigError if it cannot be one."""
    if isinstance(offer, Lease):
        return offer.entry()
    if isinstance(offer, Signed):
        offer = offer.stamp
    if isinstance(offer, Stamp):
        return Stamp(check.token(offer.token), 0, check.holder(offer.holder))
    return Stamp(check.token(offer), 0)
