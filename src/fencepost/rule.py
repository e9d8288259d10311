"""The one rule: may this access pass, given the largest stamp the resource has admitted?

Every guard executes this rule in the same atomic step as the access itself. Stores that cannot call
Python (SQL, Lua, etcd transactions) restate it in their own language; a property test holds each of
them to this file.
"""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["MAX_TOKEN", "Stamp", "Verdict", "judge"]

MAX_TOKEN = 2**63 - 1


class Verdict(StrEnum):
    """What a guard says about one access."""

    ADMIT = "admit"
    STALE = "stale"
    LATE = "late"
    CLASH = "clash"
    REPLAY = "replay"
    MISSING = "missing"
    FORGED = "forged"
    LEAP = "leap"


class Stamp(NamedTuple):
    """What travels with one access: the lease's token, the access's number under it, the holder.

    Each access of a lease takes a seq of its own, an enter as well as a write. A bare token, from a client that
    sends nothing else, is ``Stamp(token, 1, "")`` and stands for one write; it enters with a seq of 0, which
    raises the mark to the token and leaves that one write open.

        Stamp(token=33, seq=2, holder="b1946ac92492d234")
    """

    token: int
    seq: int = 1
    holder: str = ""


def judge(mark: Stamp | None, offer: Stamp) -> Verdict:
    """Say whether ``offer`` may pass a resource whose largest admitted stamp is ``mark``.

    A bare offer names no holder, so it proves neither a replay nor a clash: at the mark's own token a bare
    write is simply stale, unless the mark is that of a bare token that has only entered. A late access was
    overtaken by a later one of its lease; the guard cannot know whether it was carried out before that.

        assert judge(Stamp(34), Stamp(33)) is Verdict.STALE
        assert judge(Stamp(33), Stamp(34)) is Verdict.ADMIT
    """
    if mark is None or offer.token > mark.token:
        return Verdict.ADMIT
    if offer.token < mark.token:
        return Verdict.STALE
    if offer.holder != mark.holder:
        return Verdict.CLASH if offer.holder else Verdict.STALE
    if offer.seq == 0 or offer.seq > mark.seq:
        return Verdict.ADMIT
    if offer.seq < mark.seq:
        return Verdict.LATE
    return Verdict.REPLAY if offer.holder else Verdict.STALE


def raised(mark: Stamp | None, offer: Stamp) -> Stamp:
    """The mark after ``offer`` was admitted; a bare token that enters again leaves the mark as it is."""
    if mark is None or offer.token > mark.token or offer.seq > mark.seq:
        return offer
    return mark
