"""A history, read once and sorted into what its checks look at; what one line alone gives away is noted here."""

from collections import Counter
from math import inf
from typing import Any, NamedTuple, TypeAlias

from fencepost.rule import Verdict
from fencepost_lab.history.format import FORMAT, Line

SLACK = 2e-6  # the instants of a history are rounded to microseconds
_REFUSALS = {Verdict.STALE, Verdict.LATE, Verdict.CLASH, Verdict.MISSING, Verdict.REPLAY}

Stamped: TypeAlias = tuple[int | None, int | None, str | None]


class Violation(NamedTuple):
    """One thing that must not be: which check, when, and what."""

    check: str
    t: float
    what: str


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
        self.journaled = True
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
        if line.get("format", FORMAT) != FORMAT:
            raise ValueError(f"format {line['format']}, where this fencepost knows {FORMAT}")
        self._lock, self._key = line.get("lock", ""), line.get("key", "")
        self.journaled = line.get("journal", True)
        if "promises" in line:
            self.promises = tuple(line["promises"])

    def _acquired(self, line: Line) -> None:
        t, lock, holder = line["t"], line.get("lock", self._lock), line["holder"]
        token = int(line["token"] or 0)  # not every lock has tokens; nobody promises their order then
        self.acquires.setdefault(lock, []).append(Acquire(float(line["asked"]), t, token, holder))
        believers = self._believers.setdefault(lock, {})
        if believers:
            self.counts["overlapping_beliefs"] += 1
        believers[holder] = line["who"]
        self._deadline(line)

    def _renewed(self, line: Line) -> None:
        self.counts["renewed"] += 1
        if line["t"] > self.until.get(line["holder"], inf) + SLACK:
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
        if until > self._service.get(holder, inf) + SLACK:
            what = f"{holder} counts on its lease until {until}, the store only until {self._service[holder]}"
            self.wrong.append(Violation("deadline", line["t"], what))
        if line["t"] > until + SLACK:
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
            self._last[key] = _later(self._last.get(key), _stamp(line))
        elif verdict in (Verdict.REPLAY, Verdict.LATE):
            self._overtaken(line, self._last.get(key, (None, None, None)))
        if "version" in line:
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
        """A replay repeats the last access that was made; a late one comes after a later access of its lease."""
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


def _later(last: Stamped | None, stamp: Stamped) -> Stamped:
    """The mark after ``stamp`` was admitted; an enter with a seq of 0 raises nothing under its own token."""
    same = last is not None and (last[0], last[2]) == (stamp[0], stamp[2])
    return last if last is not None and same and (stamp[1] or 0) < (last[1] or 0) else stamp


def _stamp(line: Line) -> Stamped:
    return _token(line), line.get("seq"), line.get("holder")
