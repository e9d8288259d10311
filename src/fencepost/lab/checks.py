"""What must be true of a history, checked completely in O(n log n).

No search is needed: the system hands out the witness order itself, as tokens and versions. What is
checked depends on what the history's ``run`` line promises; the counts say whether anything happened
that could have gone wrong.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, TypeAlias

from fencepost.lab.history import Line
from fencepost.rule import Verdict

PROMISES = {
    "data": "no acknowledged write is lost, overwritten unread, or made by a holder that was replaced",
    "order": "tokens are distinct, and one acquired after another returned is larger",
    "owner": "a hold ends by its own holder, its expiry or a fault of the store",
    "left": "a holder that was told that it neither holds nor waits is not granted the lock afterwards",
    "told": "a holder whose renewal is refused knows that its lease is lost",
    "deadline": "no holder counts on its lease beyond its own deadline or the store's",
    "exclusion": "at most one holder's deadline lies in the future",
}
_SLACK = 2e-6  # the instants of a history are rounded to microseconds
_REFUSALS = {Verdict.STALE, Verdict.LATE, Verdict.CLASH, Verdict.MISSING, Verdict.REPLAY}


Stamped: TypeAlias = tuple[int | None, int | None, str | None]


class Violation(NamedTuple):
    """One thing that must not be: which check, when, and what."""

    check: str
    t: float
    what: str


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


class Acquire(NamedTuple):
    """One lease as its holder came to it."""

    asked: float
    t: float
    token: int
    holder: str


class Write(NamedTuple):
    """One write: made, as the resource's journal has it, or answered, as the client has it."""

    t: float
    stamp: Stamped
    value: Any
    base: int | None
    version: int
    outcome: str


class Refusal(NamedTuple):
    """One access that was refused."""

    t: float
    token: int | None
    verdict: str
    seen: int | None


class Gathered:
    """A history, sorted into what the checks look at."""

    def __init__(self) -> None:
        self.promises: tuple[str, ...] | None = None
        self.counts: Counter[str] = Counter()
        self.acquires: dict[str, list[Acquire]] = {}
        self.journal: dict[str, list[Write]] = {}
        self.answers: dict[str, list[Write]] = {}
        self.refusals: dict[str, list[Refusal]] = {}
        self.until: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.told: list[tuple[float, str]] = []
        self.wrong: list[Violation] = []
        self._gone: set[str] = set()
        self._last: dict[str, Stamped] = {}
        self._owners: dict[str, dict[int | None, str | None]] = {}
        self._service: dict[str, float] = {}
        self._believers: dict[str, dict[str, str]] = {}
        self._lock = self._key = ""

    def add(self, line: Line) -> None:
        self.counts["events"] += 1
        if taker := getattr(self, "_" + line["ev"], None):
            taker(line)

    def _run(self, line: Line) -> None:
        self._lock, self._key = line.get("lock", ""), line.get("key", "")
        if "promises" in line:
            self.promises = tuple(line["promises"])

    def _acquired(self, line: Line) -> None:
        t, lock, holder = line["t"], line.get("lock", self._lock), line["holder"]
        token = int(line["token"])
        self.acquires.setdefault(lock, []).append(Acquire(line["asked"], t, token, holder))
        believers = self._believers.setdefault(lock, {})
        if believers:
            self.counts["overlapping_beliefs"] += 1
        believers[holder] = line["who"]
        self._deadline(line)

    def _renewed(self, line: Line) -> None:
        self.counts["renewed"] += 1
        if line["t"] > self.until.get(line["holder"], inf) + _SLACK:
            what = f"{line['holder']} renewed a lease whose deadline had passed at {self.until[line['holder']]}"
            self.wrong.append(Violation("deadline", line["t"], what))
        self._deadline(line)

    def _told(self, line: Line) -> None:
        self.counts["told"] += 1
        self.told.append((line["t"], line["holder"]))

    def _deadline(self, line: Line) -> None:
        until, holder = line.get("until"), line["holder"]
        if until is None:
            return
        if until > self._service.get(holder, inf) + _SLACK:
            what = f"{holder} counts on its lease until {until}, the store only until {self._service[holder]}"
            self.wrong.append(Violation("deadline", line["t"], what))
        if line["t"] > until + _SLACK:
            what = f"{holder} was given a lease that was over at {until}"
            self.wrong.append(Violation("deadline", line["t"], what))
        self.until[holder] = until

    def _lost(self, line: Line) -> None:
        self.counts["lost"] += 1
        self._end(line)

    def _releasing(self, line: Line) -> None:
        self._end(line)

    def _end(self, line: Line) -> None:
        self.ended.setdefault(line["holder"], line["t"])
        self._believers.get(line.get("lock", self._lock), {}).pop(line["holder"], None)

    def _fault(self, line: Line) -> None:
        self.counts["fault:" + line["do"]] += 1
        if line["do"] == "kill":
            for believers in self._believers.values():
                for holder in [holder for holder, who in believers.items() if who == line.get("who")]:
                    del believers[holder]

    def _granted(self, line: Line) -> None:
        holder = line["holder"]
        self._service[holder] = line["until"]
        if holder in self._gone:
            self.wrong.append(Violation("left", line["t"], f"{holder} was granted the lock after it had left"))

    def _extended(self, line: Line) -> None:
        self._service[line["holder"]] = line["until"]

    def _freed(self, line: Line) -> None:
        self.counts["freed:" + line["how"]] += 1
        if line["how"] == "taken":
            what = f"the hold of {line['holder']} (token {line['token']}) was ended by somebody else"
            self.wrong.append(Violation("owner", line["t"], what))

    def _left(self, line: Line) -> None:
        self._gone.add(line["holder"])

    def _read(self, line: Line) -> None:
        if line.get("outcome") == "refused":
            self._refused(line, line["verdict"], line["seen"])

    def _wrote(self, line: Line) -> None:
        outcome = line["outcome"]
        self.counts["wrote:" + outcome] += 1
        if outcome == "refused":
            self._refused(line, line["verdict"], line["seen"])
        if outcome == "done" or (outcome == "refused" and line.get("attempts", 1) == 1):
            answer = Write(line["t"], _stamp(line), line["value"], line["base"], 0, outcome)
            self.answers.setdefault(line.get("key", self._key), []).append(answer)

    def _access(self, line: Line) -> None:
        verdict = line["verdict"]
        self.counts[f"{line['do']}:{verdict}"] += 1
        key = line.get("key", self._key)
        if verdict == Verdict.ADMIT and line["do"] != "read":
            self._admitted(line)
        elif verdict in (Verdict.REPLAY, Verdict.LATE):
            self._overtaken(line, self._last.get(key, (None, None, None)))
        if "version" in line:
            self._last[key] = _stamp(line)
            made = Write(line["t"], _stamp(line), line["value"], line["base"], line["version"], "")
            self.journal.setdefault(key, []).append(made)
            self.counts["zombie_writes"] += bool(line.get("zombie"))
        elif verdict != Verdict.REPLAY and verdict in _REFUSALS:
            self._refused(line, verdict, line["mark"])

    def _admitted(self, line: Line) -> None:
        owners = self._owners.setdefault(line.get("key", self._key), {})
        token, holder = _token(line), line["holder"]
        if owners.setdefault(token, holder) != holder:
            what = f"{owners[token]} and {holder} were both admitted under token {token}"
            self.wrong.append(Violation("data", line["t"], what))

    def _overtaken(self, line: Line, last: Stamped) -> None:
        """A replay repeats the last write that was made; a late one comes after a later write of its lease."""
        token, seq, holder = stamp = _stamp(line)
        if line["verdict"] == Verdict.REPLAY:
            fits = stamp == last
        else:
            fits = (token, holder) == (last[0], last[2]) and (seq or 0) < (last[1] or 0)
        if not fits:
            what = f"access {seq} of {holder} (token {token}) was called {line['verdict']}, after {last}"
            self.wrong.append(Violation("data", line["t"], what))

    def _refused(self, line: Line, verdict: str, seen: int | str | None) -> None:
        refusal = Refusal(line["t"], _token(line), verdict, None if seen is None else int(seen))
        self.refusals.setdefault(line.get("lock", self._lock), []).append(refusal)


def _token(line: Line) -> int | None:
    token = line["token"]
    return token if token is None or type(token) is int else int(token)


def _stamp(line: Line) -> Stamped:
    return _token(line), line.get("seq"), line.get("holder")


def check(history: Iterable[Line], promises: Collection[str] | None = None) -> Report:
    """Check a history against what it promises, or against ``promises``."""
    gathered = Gathered()
    for line in history:
        gathered.add(line)
    if promises is None:
        promises = gathered.promises if gathered.promises is not None else ("data", "order")
    report = Report(tuple(promises), counts=gathered.counts)
    found = gathered.wrong
    for acquires in gathered.acquires.values():
        report.counts["acquired"] += len(acquires)
        found += _order(acquires)
        found += _exclusion(acquires, gathered)
    for t, holder in gathered.told:
        if gathered.ended.get(holder, inf) > t + _SLACK:
            found.append(Violation("told", t, f"{holder} was told that its lease is gone, and goes on"))
    for key, journal in gathered.journal.items():
        report.counts["applied"] += len(journal)
        found += _journal(key, journal)
        report.counts["lost_updates"] += _overwritten(journal)
    for key, answers in gathered.answers.items():
        found += _answers(answers, gathered.journal.get(key, []))
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
    largest, place = 0, 0
    for each in sorted(acquires):
        while returned[place].t < each.asked:
            largest = max(largest, returned[place].token)
            place += 1
        if each.token < largest:
            what = f"{each.holder} asked after token {largest} had been returned, and got {each.token}"
            yield Violation("order", each.t, what)


def _exclusion(acquires: list[Acquire], gathered: Gathered) -> Iterable[Violation]:
    last, holder = -inf, ""
    for each in sorted(acquires, key=lambda each: each.t):
        until = gathered.until.get(each.holder)
        if until is None:
            continue
        if each.t < last - _SLACK:
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
