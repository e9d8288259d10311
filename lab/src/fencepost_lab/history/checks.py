"""What must be true of a history, checked completely in O(n log n).

No search is needed: the system hands out the witness order itself, as tokens and versions. What is
checked depends on what the history's ``run`` line promises; the counts say whether anything happened
that could have gone wrong.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from fencepost.errors import ConfigError
from fencepost.rule import Verdict
from fencepost_lab.history.format import Line
from fencepost_lab.history.gather import SLACK, Acquire, Gathered, Refusal, Violation, Write

PROMISES = {
    "data": "no acknowledged write is lost, overwritten unread, or made by a holder that was replaced",
    "order": "tokens are distinct, and one acquired after another returned is larger",
    "owner": "a hold ends by its own holder, its expiry or a fault of the store",
    "left": "a holder that was told that it neither holds nor waits is not granted the lock afterwards",
    "told": "a holder whose renewal is refused knows that its lease is lost",
    "deadline": "no holder counts on its lease beyond its own deadline or the store's",
    "exclusion": "at most one holder's deadline lies in the future",
}


@dataclass(slots=True)
class Report:
    """What a check found: nothing wrong if ``violations`` is empty; ``counts`` says how hard it was tried."""

    promises: tuple[str, ...]
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.violations

    def data(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "ok": self.ok,
            "promises": list(self.promises),
            "violations": [each._asdict() for each in self.violations],
            "counts": dict(sorted(self.counts.items())),
        }


def check(history: Iterable[Line], promises: Collection[str] | None = None) -> Report:
    """Check a history against what it promises, or against ``promises``."""
    gathered = Gathered()
    for number, line in enumerate(history, 1):
        try:
            gathered.add(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"line {number} of the history, {line['ev']!r}, cannot be read"
            raise ConfigError(f"{what}: {type(error).__name__} {error}") from error
    if promises is None:
        promises = gathered.promises if gathered.promises is not None else ("data", "order")
    if unknown := set(promises) - set(PROMISES):
        raise ConfigError(f"there is no promise {min(unknown)!r}; there are {', '.join(PROMISES)}")
    report = Report(tuple(promises), counts=gathered.counts)
    found = gathered.wrong
    for acquires in gathered.acquires.values():
        report.counts["acquired"] += len(acquires)
        found += _order(acquires) if "order" in promises else ()
        found += _exclusion(acquires, gathered)
    for t, holder in gathered.told:
        if gathered.ended.get(holder, inf) > t + SLACK:
            found.append(Violation("told", t, f"{holder} was told that its lease is gone, and goes on"))
    for key, journal in gathered.journal.items():
        report.counts["applied"] += len(journal)
        found += _journal(key, journal)
        report.counts["lost_updates"] += _overwritten(journal)
    for key, answers in gathered.answers.items():
        if gathered.journaled:
            found += _answers(answers, gathered.journal.get(key, []))
        else:
            done = [each for each in answers if each.outcome == "done"]
            report.counts["applied"] += len(done)
            report.counts["lost_updates"] += len(done) - len({each.base for each in done})
            found += _unjournaled(key, done)
    for lock, refusals in gathered.refusals.items():
        found += _refusals(refusals, gathered.acquires.get(lock, []))
    report.violations = sorted((each for each in found if each.check in promises), key=lambda each: each.t)
    return report


def _order(acquires: list[Acquire]) -> Iterable[Violation]:
    owner: dict[int, str] = {}
    for each in acquires:
        if owner.setdefault(each.token, each.holder) != each.holder:
            what = f"token {each.token} was granted to {owner[each.token]} and to {each.holder}"
            yield Violation("order", each.t, what)
    returned = sorted(acquires, key=lambda each: each.t)
    largest, index = 0, 0
    for each in sorted(acquires):
        while returned[index].t < each.asked:
            largest = max(largest, returned[index].token)
            index += 1
        if each.token < largest:
            what = f"{each.holder} asked after token {largest} had been returned, and got {each.token}"
            yield Violation("order", each.t, what)


def _exclusion(acquires: list[Acquire], gathered: Gathered) -> Iterable[Violation]:
    last, holder = -inf, ""
    for each in sorted(acquires, key=lambda each: each.t):
        until = gathered.until.get(each.holder)
        if until is None:
            continue
        if each.t < last - SLACK:
            what = f"{each.holder} acquired the lock while {holder} could count on it until {last}"
            yield Violation("exclusion", each.t, what)
        end = min(until, gathered.ended.get(each.holder, inf))
        if end > last:
            last, holder = end, each.holder


def _journal(key: str, journal: list[Write]) -> Iterable[Violation]:
    seqs: dict[tuple[int | None, str | None], int] = {}
    largest, version = 0, None
    for each in sorted(journal, key=lambda each: each.version):
        token, seq, holder = each.stamp
        if version is not None and each.version != version + 1:
            yield Violation("data", each.t, f"version {each.version} of {key!r} follows version {version}")
        version = each.version
        if token is None or token < largest:
            yield Violation("data", each.t, f"version {version} of {key!r} has token {token}, after token {largest}")
        largest = max(largest, token or 0)
        if seq is not None and seq <= seqs.get((token, holder), 0):
            what = f"write {seq} of {holder} (token {token}) was made after its write {seqs[token, holder]}"
            yield Violation("data", each.t, what)
        seqs[token, holder] = seq or 0
        if each.base is not None and each.base != version - 1:
            what = f"version {version} of {key!r} was computed from version {each.base}: {version - 1 - each.base} lost"
            yield Violation("data", each.t, what)


def _unjournaled(key: str, done: list[Write]) -> Iterable[Violation]:
    """Only the clients' word: no two acknowledged writes come from one version, and tokens grow with the versions."""
    last: Write | None = None
    largest = 0
    for each in sorted(done, key=lambda each: (each.base or 0, each.t)):
        token = each.stamp[0] or 0
        if last is not None and each.base == last.base:
            what = f"{last.stamp[2]} and {each.stamp[2]} both wrote over version {each.base} of {key!r}: one is lost"
            yield Violation("data", each.t, what)
        elif token < largest:
            yield Violation("data", each.t, f"token {token} wrote {key!r} after token {largest}")
        last, largest = each, max(largest, token)


def _overwritten(journal: list[Write]) -> int:
    return sum(each.base is not None and each.base < each.version - 1 for each in journal)


def _answers(answers: list[Write], journal: list[Write]) -> Iterable[Violation]:
    made = {(each.stamp, _plain(each.value)) for each in journal}
    for each in answers:
        token, seq, holder = each.stamp
        if token is None:
            continue
        kept = (each.stamp, _plain(each.value)) in made
        if each.outcome == "done" and not kept:
            what = f"write {seq} of {holder} (token {token}) was acknowledged, and is not in the journal"
            yield Violation("data", each.t, what)
        if each.outcome == "refused" and kept:
            what = f"write {seq} of {holder} (token {token}) was refused, and is in the journal"
            yield Violation("data", each.t, what)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else repr(value)


def _refusals(refusals: list[Refusal], acquires: list[Acquire]) -> Iterable[Violation]:
    issued: dict[int, float] = {}
    for each in acquires:
        issued[each.token] = min(each.t, issued.get(each.token, inf))
    for refusal in refusals:
        seen, token = refusal.seen, refusal.token
        if token is None:
            continue
        if seen is None or issued.get(seen, inf) > refusal.t:
            yield Violation("data", refusal.t, f"token {token} was refused for mark {seen}, which nobody was issued")
        elif not (seen > token if refusal.verdict == Verdict.STALE else seen == token):
            what = f"token {token} was refused as {refusal.verdict} for mark {seen}"
            yield Violation("data", refusal.t, what)
