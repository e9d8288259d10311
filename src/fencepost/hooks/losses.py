"""What an audit log says about locks: how often their holders lost them, and how."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

_EXPIRED = "its deadline has passed"  # the detail of a lost lease that expired


@dataclass
class Losses:
    """The locks of one store, or of one library that `fencepost.compat` replaces."""

    source: str
    first: float
    last: float
    acquired: int = 0
    expired: int = 0
    """Held no longer because their deadline passed while their holder worked."""
    taken: int = 0
    """Held no longer before that: released by another client, broken, or forgotten by the store."""
    too_late: int = 0
    """Releases that found the lock held no longer, and changed nothing."""


def losses(facts: Iterable[Mapping[str, Any]], *, since: float = 0.0) -> list[Losses]:
    """The losses of each kind of lock in an audit log; none where the log has no lock."""
    found: dict[str, Losses] = {}
    for fact in facts:
        kind, source, at = fact.get("kind"), fact.get("source"), fact.get("at")
        if kind not in ("acquired", "lost", "not_owner", "released") or not isinstance(source, str):
            continue
        if not isinstance(at, int | float) or not isfinite(at) or at < since:
            continue
        each = found.setdefault(source, Losses(source, at, at))
        each.first, each.last = min(each.first, at), max(each.last, at)
        if kind == "acquired":
            each.acquired += 1
        elif kind == "not_owner":
            each.too_late += 1
        elif kind == "lost":
            if fact.get("detail") == _EXPIRED:
                each.expired += 1
            else:
                each.taken += 1
    return sorted(found.values(), key=lambda each: each.source)
