"""What is counted, in one place: every instrument, and what each event adds to which."""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from fencepost.driver.fork import in_child
from fencepost.errors import ConfigError
from fencepost.events import Event
from fencepost.rule import Verdict

_LATENCY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_HELD = (0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 1800, 3600)
_SLACK = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
# Below 0: refused as stale. 0: the same lease again. 1: the next one. A leap is an issuer gone wild.
_GAP = (-1, 0, 1, 10, 100, 1e3, 1e6, 1e9, 1e12)
_REFUSALS = tuple(verdict.value for verdict in Verdict if verdict is not Verdict.ADMIT)


class Instrument(NamedTuple):
    """A counter, or a histogram if it has buckets. ``values`` are all values of its one label."""

    text: str
    buckets: tuple[float, ...] = ()
    label: Literal["", "verdict", "result"] = ""
    values: tuple[str, ...] = ()


INSTRUMENTS: dict[str, Instrument] = {
    "lock_acquire_attempts_total": Instrument("Acquires begun."),
    "lock_acquire_success_total": Instrument("Acquires that got the lock."),
    "lock_acquire_timeouts_total": Instrument("Acquires that timed out."),
    "lock_acquire_latency_seconds": Instrument("How long getting a lock took.", _LATENCY),
    "lock_held_seconds": Instrument("How long locks were held until their release.", _HELD),
    "lock_renew_total": Instrument(
        "Renewals, by the store's answer: renewed or unknown.", label="result", values=("renewed", "unknown")
    ),
    "lock_renew_slack_ratio": Instrument("Fraction of the ttl that was left when a lease was renewed.", _SLACK),
    "lease_at_risk_total": Instrument("Outages in which a renewal failed or was overdue while the lease held."),
    "lease_recovered_total": Instrument("Leases at risk that were renewed again."),
    "release_by_non_owner_total": Instrument("Releases of a lock held no longer."),
    "lease_expired_while_executing_total": Instrument("Leases lost while their holder worked."),
    "fencing_reject_total": Instrument("Accesses refused by a guard, by verdict.", label="verdict", values=_REFUSALS),
    "fencing_would_reject_total": Instrument(
        "Accesses a guard let pass against the rule, by verdict.", label="verdict", values=_REFUSALS
    ),
    "fencing_override_total": Instrument("Times a guard was told to let everything pass for a while."),
    "fencing_mark_raised_total": Instrument("Marks raised by hand."),
    "fencing_mark_lowered_total": Instrument("Marks lowered by hand."),
    "resource_stale_token_rejections_total": Instrument("Accesses refused for an older token."),
    "critical_write_without_token_total": Instrument("Writes to a guarded resource without a token."),
    "resource_writes_accepted_total": Instrument("Writes a guard let pass."),
    "resource_writes_replayed_total": Instrument("Repeated writes answered as done."),
    "token_gap": Instrument("Offered token minus the mark's token.", _GAP),
}


PREFIX = "fencepost_"
"""What the names of all instruments begin with, unless told otherwise."""
MOST_CLASSES = 20
OTHER = "other"
_PREFIX = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?", re.ASCII)
_log = logging.getLogger("fencepost")


def named(prefix: str) -> dict[str, str]:
    """The whole name of each instrument; ConfigError if the prefix is invalid."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"the prefix of metrics is of letters, digits and _, such as {PREFIX!r}, not {prefix!r}")
    return {name: prefix + name for name in INSTRUMENTS}


class Classes:
    """The class of a lock or a resource, by its name: at most 20 of them, then "other".

    This keeps the number of series small, whatever ``of`` returns. If ``of`` raises, the class is "other" too.
    """

    def __init__(self, of: Callable[[str], str]) -> None:
        if not callable(of):
            raise ConfigError(f"classes= is a function from a name to its class, not {of!r}")
        self._of = of
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._known = {OTHER}
        self._told = False
        in_child(self, Classes._forked)

    def _forked(self) -> None:
        self._gate = threading.RLock()  # a thread of the parent may have held it

    def __call__(self, name: str) -> str:
        try:
            found = self._of(name)
            if found.__class__ is not str:
                raise TypeError(f"a class is a str, not {found!r}")
        except Exception as error:  # whatever their function raises
            self._tell(f"{name!r} is of no class: {type(error).__name__}: {error}")
            return OTHER
        if found in self._known:
            return found
        with self._gate:
            if len(self._known) < MOST_CLASSES:
                self._known.add(found)
            elif found not in self._known:
                self._tell(f"there are {MOST_CLASSES} classes already; {found!r} and later ones are {OTHER!r}")
                return OTHER
        return found

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            _log.warning("metrics: %s", what)


class Measure(NamedTuple):
    """One more of a counter, or one value of a histogram."""

    name: str
    value: float = 1
    label: str = ""


def measure(event: Event) -> Iterator[Measure]:
    """What ``event`` adds. No label ever names a lock, a holder or a token."""
    match event.kind:
        case "decision":
            yield from _decision(event)
        case "attempt":
            yield Measure("lock_acquire_attempts_total")
        case "acquired":
            yield Measure("lock_acquire_success_total")
            yield Measure("lock_acquire_latency_seconds", event.seconds or 0.0)
        case "timeout":
            yield Measure("lock_acquire_timeouts_total")
        case "renewed":
            yield Measure("lock_renew_total", label="renewed")
            if event.ratio is not None:
                yield Measure("lock_renew_slack_ratio", event.ratio)
        case "unrenewed":
            yield Measure("lock_renew_total", label="unknown")
        case "at_risk":
            yield Measure("lease_at_risk_total")
        case "recovered":
            yield Measure("lease_recovered_total")
        case "lost":
            yield Measure("lease_expired_while_executing_total")
        case "released":
            if event.seconds is not None:
                yield Measure("lock_held_seconds", event.seconds)
        case "not_owner":
            yield Measure("release_by_non_owner_total")
        case "override":
            if event.seconds:
                yield Measure("fencing_override_total")
        case "raise_mark":
            yield Measure("fencing_mark_raised_total")
        case "lower_mark":
            yield Measure("fencing_mark_lowered_total")


def _decision(event: Event) -> Iterator[Measure]:
    verdict = event.verdict or Verdict.ADMIT
    if event.token is not None and event.seen is not None:
        yield Measure("token_gap", event.token - event.seen)
    if verdict is Verdict.MISSING and event.action == "write":
        yield Measure("critical_write_without_token_total")
    if event.enforced:
        yield Measure("fencing_reject_total", label=verdict.value)
        if verdict is Verdict.STALE:
            yield Measure("resource_stale_token_rejections_total")
        return
    if event.enforced is False:
        yield Measure("fencing_would_reject_total", label=verdict.value)
    if event.action == "write":
        replayed = verdict is Verdict.REPLAY and event.enforced is None
        yield Measure("resource_writes_replayed_total" if replayed else "resource_writes_accepted_total")
