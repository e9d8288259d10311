"""A history, read once and sorted into what its checks look at; what one line alone gives away is noted here."""

from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from math import inf
from typing import Any, NamedTuple, TypeAlias

from fencepost.rule import Verdict
from fencepost_lab.history.format import EVENTS, FORMAT, Line

SLACK = 2e-6  # the instants of a history are rounded to microseconds

Stamped: TypeAlias = tuple[int | None, int | None, str | None]

KINDS: dict[str, tuple[str, str]] = {
    "lost-update": ("data", "a write replaced a version that its writer had not read"),
    "stale-write": ("data", "a write was admitted after a newer token had entered or written"),
    "stale-enter": ("data", "an enter was admitted after a newer token had entered or written"),
    "mark-wrong": ("data", "the mark fell, or is not the largest token that was admitted"),
    "two-holders": ("data", "two holders were admitted under one token"),
    "late-write": ("data", "an access was admitted after a later one of the same lease"),
    "made-twice": ("data", "one write was made twice"),
    "no-token": ("data", "a write was made without a token"),
    "no-lease": ("data", "an access was admitted from a holder that had not acquired the lock"),
    "version-gap": ("data", "a version is missing between two others"),
    "version-twice": ("data", "one version was made twice"),
    "versions-before": ("data", "the first version is not the one after the run's beginning"),
    "wrong-value": ("data", "a value does not follow from the version that it was computed from"),
    "other-base": ("data", "client and resource name different versions that a write was computed from"),
    "said-corrupt": ("data", "the resource itself says that a write was corrupt"),
    "write-missing": ("data", "a write was acknowledged, and was never made"),
    "early-answer": ("data", "a write was acknowledged before it was made"),
    "refused-made": ("data", "a write was refused, and is visible"),
    "unwritten-read": ("data", "a read returned what nobody had written"),
    "old-read": ("data", "a read returned an older version than one that was known before it began"),
    "end-differs": ("data", "what is there at the end is not what was written last"),
    "false-stale": ("data", "a token was refused as stale, and none above it had been admitted"),
    "false-clash": ("data", "a token was refused as a clash, and no other holder had used it"),
    "false-replay": ("data", "an access was called a replay, and the one before it was another"),
    "false-late": ("data", "an access was called late, and no later one of its lease had been admitted"),
    "unissued-mark": ("data", "an access was refused for a mark that nobody had been issued"),
    "unused-mark": ("data", "an access was refused for a mark under which nobody had made an access"),
    "not-entered": ("inside", "a holder wrote before it had entered"),
    "after-release": ("inside", "a holder began a write after it had given its lease back"),
    "token-repeated": ("order", "one token was granted to two holders"),
    "token-fell": ("order", "a token is smaller than one that was returned before it was asked for"),
    "holder-repeated": ("order", "two leases have one holder id"),
    "taken": ("owner", "a hold was ended by somebody else"),
    "granted-twice": ("owner", "the store granted a lock that it had granted to somebody else"),
    "granted-again": ("once", "a hold that had ended was granted again under its old token"),
    "granted-after-leaving": ("left", "the lock was granted to a holder that had left"),
    "left-behind": ("leaves", "an acquire that ended without a lease still holds or waits"),
    "not-heeded": ("told", "a holder was told of its loss, and went on"),
    "loss-unnoticed": ("loss", "a holder's deadline passed, and it did not notice"),
    "release-untrue": ("freed", "what a release said is not what became of the hold"),
    "beyond-store": ("deadline", "a holder counts on its lease longer than the store"),
    "over-on-arrival": ("deadline", "a holder was given a lease that was over"),
    "renewed-late": ("deadline", "a holder renewed a lease whose deadline had passed"),
    "overlap": ("exclusion", "a lock was acquired while others could count on it"),
    "overtaken": ("turns", "a waiter was served before one that had queued earlier"),
    "barged": ("turns", "somebody who did not wait was served before those who did"),
    "silent-served": ("turns", "a waiter was served that had stopped asking"),
    "two-leaders": ("epoch", "one epoch has two leaders"),
    "epoch-fell": ("epoch", "an observer was told of an older epoch than before"),
    "not-served": ("live", "a lock stood free too long after the last fault, and somebody asked for it"),
    "still-failing": ("live", "a request failed too long after the last fault"),
}
"""Every kind of violation: the promise that it breaks, and what it means."""


class Violation(NamedTuple):
    """One thing that must not be: which promise it breaks, when, what, and its kind in ``KINDS``."""

    check: str
    t: float
    what: str
    kind: str = ""


def violation(kind: str, t: float, what: str) -> Violation:
    return Violation(KINDS[kind][0], t, what, kind)


class Lease:
    """One lease as its holder came to it, and what became of it."""

    __slots__ = ("asked", "ended", "holder", "limit", "lock", "reach", "released", "t", "token", "ttl", "until", "who")

    def __init__(
        self, lock: str, who: str, holder: str, token: int | None, asked: float, t: float, ttl: float, limit: int | None
    ) -> None:
        self.lock = lock
        self.who = who
        self.holder = holder
        self.token = token
        self.asked = asked
        self.t = t
        self.ttl = ttl
        self.limit = limit
        self.until: float | None = None
        self.reach = 0.0
        """How far it was counted on, also by a deadline that was moved back later."""
        self.ended = inf
        """When its holder lost it, began to give it back, or was killed."""
        self.released = inf
        """When its holder began to give it back."""


class Write(NamedTuple):
    """A write that was made, as the resource's journal has it."""

    t: float
    stamp: Stamped
    value: Any
    base: int | None
    version: int


class Access(NamedTuple):
    """A read or a write as its client has it; ``version`` is what it read, or what it computed its write from."""

    asked: float
    t: float
    stamp: Stamped
    write: bool
    value: Any
    version: int | None
    outcome: str
    attempts: int
    verdict: str = ""
    seen: int | None = None


class Refusal(NamedTuple):
    """One access that was refused."""

    t: float
    stamp: Stamped
    verdict: str
    seen: int | None
    judged: bool
    """The resource says so, not only its client."""


class Key:
    """All that is known of one resource."""

    __slots__ = ("accesses", "admitted", "end", "entered", "journal", "mark", "owners", "refusals", "sent", "shown")

    def __init__(self) -> None:
        self.mark: Stamped | None = None
        """The largest stamp that was admitted so far."""
        self.shown = 0
        """The mark that the resource last said it has."""
        self.owners: dict[int | None, str | None] = {}
        self.entered: set[tuple[int | None, str | None]] = set()
        self.admitted = 0
        self.journal: list[Write] = []
        self.accesses: list[Access] = []
        self.refusals: list[Refusal] = []
        self.sent: dict[Stamped, Access] = {}
        self.end: Line | None = None


class Ask(NamedTuple):
    """An acquire from its beginning to its answer."""

    asked: float
    t: float
    who: str


class Gathered:
    """A history, sorted into what the checks look at. ValueError for a line that cannot be."""

    def __init__(self) -> None:
        self.head: Line | None = None
        self.journaled = True
        self.counts: Counter[str] = Counter()
        self.wrong: list[Violation] = []
        self.keys: dict[str, Key] = {}
        self.leases: dict[str, list[Lease]] = {}
        self.holders: dict[str, Lease] = {}
        self.asks: dict[str, list[Ask]] = {}
        self.asking: dict[tuple[str, str], float] = {}
        self.failures: list[tuple[float, str]] = []
        """When a request began that failed, and what it was."""
        self.told: list[tuple[float, str]] = []
        self.gave_up: list[tuple[float, str]] = []
        self.releases: list[tuple[float, str, bool | None]] = []
        self.faults: list[tuple[float, str, str | None]] = []
        self.service: list[tuple[float, str, str, Line]] = []
        """What the service believed: when, of which lock, of which holder, and the line."""
        self.leaders: dict[str, list[tuple[float, str, int, str]]] = {}
        self.last = 0.0
        self._gone: set[str] = set()
        self._service: dict[str, float] = {}
        self._holding: dict[str, str] = {}
        self._believers: dict[str, dict[str, str]] = {}
        self._unleased: set[tuple[str, Stamped]] = set()
        self._lock = self._key = ""
        self._events = 0
        self._line: Line = {}
        self._ended = False
        self._takers: dict[str, Callable[[Line], None] | None] = {
            name: getattr(self, "_" + name, None) for name in EVENTS
        }

    def add(self, line: Line) -> None:
        t, ev = line["t"], line["ev"]
        if ev not in self._takers:
            near = get_close_matches(str(ev), EVENTS, 1)
            hint = f"did you mean {near[0]!r}?" if near else "see docs/check.md for the kinds of lines"
            raise ValueError(f"nobody knows this kind of line; {hint}")
        _check_fields(line)
        if not self.last <= t < inf:
            raise ValueError(f"t is {t}, after {self.last}: lines are in the order of t; sort them by it")
        if (self.head is None) is not (ev == "run"):
            raise ValueError(
                "the first line is the run line, and says what is promised"
                if self.head is None
                else "there is a second run line: these are two histories, or one twice; check each by itself"
            )
        if self._ended and ev != "end":
            raise ValueError("it comes after the end line")
        if t == self.last and line == self._line and ev in _ONCE:
            raise ValueError("it is the line before it once more")
        self.last, self._line = t, line
        if taker := self._takers[ev]:
            taker(line)
        self._events += 1

    def done(self) -> None:
        """All lines were added."""
        self.counts["events"] = self._events
        for key in self.keys.values():
            for each in key.sent.values():
                if each.write:
                    self.counts["wrote:unknown"] += 1
                key.accesses.append(each)
        for (who, lock), asked in self.asking.items():
            self.asks.setdefault(lock, []).append(Ask(asked, inf, who))

    def key(self, name: str) -> Key:
        found = self.keys.get(name)
        if found is None:
            found = self.keys[name] = Key()
        return found

    def note(self, kind: str, t: float, what: str) -> None:
        self.wrong.append(violation(kind, t, what))

    def _run(self, line: Line) -> None:
        if line.get("format", FORMAT) != FORMAT:
            raise ValueError(f"format {line['format']}, where this fencepost knows {FORMAT}")
        for name in ("promises", "service"):
            if not isinstance(line.get(name), list | None) or not all(
                isinstance(each, str) for each in line.get(name) or ()
            ):
                raise ValueError(f"{name} is a list of texts")
        self.head = line
        self._lock, self._key = line.get("lock", ""), line.get("key", "")
        self.journaled = bool(line.get("journal", True))

    # Acquiring.

    def _asked(self, line: Line) -> None:
        self.asking[line["who"], line.get("lock", self._lock)] = line["t"]

    def _answered(self, line: Line, lock: str) -> None:
        who = line["who"]
        began = self.asking.pop((who, lock), None)
        asked = line.get("asked", began)
        if asked is not None:
            self.asks.setdefault(lock, []).append(Ask(asked, line["t"], who))

    def _acquired(self, line: Line) -> None:
        t, lock = line["t"], line.get("lock", self._lock)
        who, holder, asked = (_known(line[name], name) for name in ("who", "holder", "asked"))
        lease = Lease(lock, who, holder, _token(line), asked, t, line.get("ttl") or 0.0, line.get("limit"))
        self.leases.setdefault(lock, []).append(lease)
        self._answered(line, lock)
        if holder in self.holders:
            self.note("holder-repeated", t, f"{holder} acquired {lock!r}, and had a lease under the same id before")
        self.holders[holder] = lease
        believers = self._believers.setdefault(lock, {})
        if believers:
            self.counts["overlapping_beliefs"] += 1
        believers[holder] = who
        self._deadline(line, lease)

    def _renewed(self, line: Line) -> None:
        self.counts["renewed"] += 1
        lease = self.holders.get(line["holder"])
        if lease is None:
            return
        if lease.until is not None and line["t"] > lease.until + SLACK:
            what = f"{line['holder']} renewed a lease whose deadline had passed at {lease.until}"
            self.note("renewed-late", line["t"], what)
        self._deadline(line, lease)

    def _deadline(self, line: Line, lease: Lease) -> None:
        until, holder = line.get("until"), line["holder"]
        if until is None:
            return
        if until > self._service.get(holder, inf) + SLACK:
            what = f"{holder} counts on its lease until {until}, the store only until {self._service[holder]}"
            self.note("beyond-store", line["t"], what)
        if line["t"] > until + SLACK:
            self.note("over-on-arrival", line["t"], f"{holder} was given a lease that was over at {until}")
        self.counts["deadlines"] += 1
        if lease.until is not None:
            lease.reach = min(lease.reach, line["t"])
        lease.until = until
        lease.reach = max(lease.reach, until)

    def _lost(self, line: Line) -> None:
        self.counts["lost"] += 1
        self._end_belief(line["holder"], line["t"])

    def _releasing(self, line: Line) -> None:
        self._end_belief(line["holder"], line["t"])
        if lease := self.holders.get(line["holder"]):
            lease.released = min(lease.released, line["t"])

    def _end_belief(self, holder: str, t: float) -> None:
        if lease := self.holders.get(holder):
            lease.ended = min(lease.ended, t)
            self._believers[lease.lock].pop(holder, None)

    def _released(self, line: Line) -> None:
        self.releases.append((line["t"], line["holder"], line["ok"]))

    def _timeout(self, line: Line) -> None:
        self._answered(line, line.get("lock", self._lock))
        if line.get("holder") is not None:
            self.gave_up.append((line["t"], line["holder"]))

    _cancelled = _timeout

    def _failed(self, line: Line) -> None:
        if "QueueFull" not in str(line.get("why")):
            asked = _known(line.get("asked", line["t"]), "asked")
            self.failures.append((asked, f"{line['who']} could not acquire: {line.get('why')}"))
        self._timeout(line)

    def _told(self, line: Line) -> None:
        self.counts["told"] += 1
        self.told.append((line["t"], line["holder"]))

    def _leader(self, line: Line) -> None:
        token = _token(line)
        if token is None:
            raise ValueError("token is the epoch, and missing")
        said = line["t"], line["who"], token, line["leader"]
        self.leaders.setdefault(line.get("lock", self._lock), []).append(said)

    # Faults.

    def _fault(self, line: Line) -> None:
        do, who = line["do"], line.get("who")
        self.counts["fault:" + do] += 1
        self.faults.append((line["t"], do, who))
        if do == "kill":
            for asking in [asking for asking in self.asking if asking[0] == who]:
                del self.asking[asking]
            for believers in self._believers.values():
                for holder in [holder for holder, name in believers.items() if name == who]:
                    self._end_belief(holder, line["t"])

    # The service.

    def _granted(self, line: Line) -> None:
        holder, _ = line["holder"], _token(line)
        self._service[holder] = line["until"]
        if holder in self._gone:
            self.note("granted-after-leaving", line["t"], f"{holder} was granted the lock after it had left")
        lock: str = line.get("lock", self._lock)
        other = self._holding.get(lock)
        if other not in (None, holder) and self._service.get(str(other), inf) > line["t"] + SLACK:
            self.note("granted-twice", line["t"], f"{lock!r} was granted to {holder} while it was granted to {other}")
        self._holding[lock] = holder
        self.counts["granted"] += 1
        self._believed(line)

    def _extended(self, line: Line) -> None:
        self._service[line["holder"]] = line["until"]

    def _freed(self, line: Line) -> None:
        _token(line)
        self.counts["freed:" + line["how"]] += 1
        if line["how"] == "taken":
            what = f"the hold of {line['holder']} (token {line['token']}) was ended by somebody else"
            self.note("taken", line["t"], what)
        if self._holding.get(lock := line.get("lock", self._lock)) == line["holder"]:
            del self._holding[lock]
        self._believed(line)

    def _left(self, line: Line) -> None:
        self.counts["left"] += 1
        self._gone.add(line["holder"])

    def _believed(self, line: Line) -> None:
        self.service.append((line["t"], line.get("lock", self._lock), line["holder"], line))

    _queued = _unqueued = _believed

    # The resource.

    def _sent(self, line: Line) -> None:
        do = line["do"]
        if do not in ("read", "write"):
            raise ValueError(f"do is read or write, not {do!r}")
        stamp = _stamp(line)
        sent = Access(line["t"], inf, stamp, do == "write", line.get("value"), line.get("base"), "unknown", 1)
        self.key(line.get("key", self._key)).sent[stamp] = sent

    def _read(self, line: Line) -> None:
        key = self.key(line.get("key", self._key))
        stamp = _stamp(line)
        if key.sent:
            key.sent.pop(stamp, None)
        outcome = line.get("outcome") or "done"
        self._client(key, line, stamp, outcome, False, line.get("version"))

    def _wrote(self, line: Line) -> None:
        outcome = line["outcome"]
        self.counts["wrote:" + outcome] += 1
        key = self.key(line.get("key", self._key))
        stamp = _stamp(line)
        if key.sent:
            key.sent.pop(stamp, None)
        self._client(key, line, stamp, outcome, True, line["base"])

    def _client(self, key: Key, line: Line, stamp: Stamped, outcome: str, write: bool, version: int | None) -> None:
        t = line["t"]
        asked = line.get("asked")
        asked = t if asked is None else asked
        verdict, seen = "", None
        if outcome == "refused":
            verdict, seen = line["verdict"], line["seen"]
            seen = None if seen is None else int(seen)
            key.refusals.append(Refusal(t, stamp, verdict, seen, False))
        elif outcome == "unknown":
            self.failures.append((asked, f"{line.get('who')} got no answer from the resource"))
        elif outcome != "done":
            raise ValueError(f"outcome is done, refused or unknown, not {outcome!r}")
        if not self.journaled and outcome == "done":
            self._leased(line, stamp, write)
        if write and stamp[2] is not None and (lease := self.holders.get(stamp[2])) and asked > lease.released + SLACK:
            what = f"{stamp[2]} began a write at {asked}, after it had given its lease back at {lease.released}"
            self.note("after-release", t, what)
        attempts = line.get("attempts", 1)
        value = line.get("value")
        key.accesses.append(Access(asked, t, stamp, write, value, version, outcome, attempts, verdict, seen))

    def _access(self, line: Line) -> None:
        if not self.journaled:
            raise ValueError('the run line says "journal": false, so that no line can come from the resource')
        do, verdict, t = line["do"], line["verdict"], line["t"]
        self.counts[f"{do}:{verdict}"] += 1
        if do not in ("read", "enter", "write"):
            raise ValueError(f"do is read, enter or write, not {do!r}")
        key = self.key(line.get("key", self._key))
        stamp = _stamp(line)
        if verdict == Verdict.ADMIT:
            if do != "read":
                self._admitted(key, line, stamp, do)
            if line.get("version") is not None:
                key.journal.append(Write(t, stamp, line["value"], line["base"], line["version"]))
                self.counts["zombie_writes"] += bool(line.get("zombie"))
                if line.get("corrupt"):
                    self.note("said-corrupt", t, f"the resource calls version {line['version']} corrupt")
        elif verdict == Verdict.REPLAY:
            if stamp != key.mark:
                self._untrue("false-replay", key, stamp, t)
        else:
            if verdict == Verdict.LATE and not _overtaken(key.mark, stamp):
                self._untrue("false-late", key, stamp, t)
            mark = line["mark"]
            key.refusals.append(Refusal(t, stamp, verdict, None if mark is None else int(mark), True))
            if verdict == Verdict.STALE and key.mark and (stamp[0] or 0) >= (key.mark[0] or 0):
                bare = not stamp[2] and stamp[0] == key.mark[0]
                if not bare:
                    self._untrue("false-stale", key, stamp, t)
            elif verdict == Verdict.CLASH and not (key.mark and key.mark[0] == stamp[0] and key.mark[2] != stamp[2]):
                self._untrue("false-clash", key, stamp, t)
        if do != "read" and line.get("mark") is not None:
            self._shown(key, int(line["mark"]), t)

    def _admitted(self, key: Key, line: Line, stamp: Stamped, do: str) -> None:
        token, seq, holder = stamp
        key.admitted += 1
        if token is None:
            if do == "write":
                self.note("no-token", line["t"], f"a write of {line.get('who')} was made without a token")
            return
        self._leased(line, stamp, True)
        if do == "enter":
            key.entered.add((token, holder))
        elif (token, holder) not in key.entered:
            key.entered.add((token, holder))
            self.note("not-entered", line["t"], f"{holder} wrote under token {token} before it had entered")
        if key.owners.setdefault(token, holder) != holder:
            what = f"{key.owners[token]} and {holder} were both admitted under token {token}"
            self.note("two-holders", line["t"], what)
        mark = key.mark
        if mark is None or token > (mark[0] or 0):
            key.mark = stamp
        elif token < (mark[0] or 0):
            what = f"{do} {seq} of {holder} was admitted under token {token}, after token {mark[0]}"
            self.note("stale-write" if do == "write" else "stale-enter", line["t"], what)
        elif holder == mark[2] and seq is not None and mark[1] is not None and seq:
            if seq > mark[1]:
                key.mark = stamp
            elif seq == mark[1]:
                if do == "write":  # an enter that the network repeats changes nothing
                    self.note("made-twice", line["t"], f"write {seq} of {holder} (token {token}) was admitted twice")
            else:
                what = f"{do} {seq} of {holder} (token {token}) was admitted after its access {mark[1]}"
                self.note("late-write", line["t"], what)

    def _leased(self, line: Line, stamp: Stamped, write: bool) -> None:
        """The holder of an access that was admitted has acquired the lock, under that token."""
        token, _, holder = stamp
        if token is None or (not write and line.get("seq") is None):
            return
        lease = self.holders.get(holder or "")
        if lease is not None and lease.token == token:
            return
        lock = line.get("lock", self._lock)
        if not holder and any(each.token == token for each in self.leases.get(lock, ())):
            return
        seen = line.get("key", self._key), (token, None, holder)
        if seen not in self._unleased:
            self._unleased.add(seen)
            what = f"{holder or line.get('who')} was admitted under token {token}, and the history has no such lease"
            self.note("no-lease", line["t"], what)

    def _shown(self, key: Key, mark: int, t: float) -> None:
        """The mark is the largest token that was admitted; one from before the run stays until a larger one comes."""
        largest = (key.mark[0] if key.mark else 0) or 0
        if mark < key.shown:
            self.note("mark-wrong", t, f"the mark fell from {key.shown} to {mark}")
        elif mark < largest:
            self.note("mark-wrong", t, f"the mark is {mark}, and token {largest} was admitted before")
        elif key.shown and mark > max(largest, key.shown):
            self.note("mark-wrong", t, f"the mark rose to {mark}, and nobody was admitted under that token")
        key.shown = mark

    def _marked(self, line: Line) -> None:
        key, mark = self.key(line.get("key", self._key)), int(line["mark"])
        key.mark, key.shown = (mark, 0, ""), mark

    def _untrue(self, kind: str, key: Key, stamp: Stamped, t: float) -> None:
        token, seq, holder = stamp
        what = f"access {seq} of {holder} (token {token}) was called {kind.removeprefix('false-')}, after {key.mark}"
        self.note(kind, t, what)

    def _end(self, line: Line) -> None:
        self._ended = True
        wrote = line.get("lines")
        if wrote is not None and wrote != self._events:
            raise ValueError(
                f"its writer counted {wrote} lines before this one, and here are {self._events}: "
                "lines are missing, or there twice; record it again"
            )
        if "value" in line or "version" in line:
            self.key(line.get("key", self._key)).end = line


_ONCE = frozenset(("asked", "acquired", "releasing", "released", "granted", "freed", "read", "wrote", "access"))
"""Kinds of which no two lines can be the same, down to the instant."""


_LARGEST = 2**63
_NUMBER, _WHOLE, _TOKEN, _TEXT = "a number", "a whole number", "a whole number or its digits", "a text"
_TYPES = {_NUMBER: (int, float), _WHOLE: (int,), _TOKEN: (int, str), _TEXT: (str,)}
_FIELDS = {
    **dict.fromkeys(("t", "asked", "until", "ttl", "race", "drift", "grace"), _NUMBER),
    **dict.fromkeys(("seq", "version", "base", "limit", "attempts", "lines"), _WHOLE),
    **dict.fromkeys(("token", "mark", "seen", "above"), _TOKEN),
    **dict.fromkeys(("who", "holder", "lock", "key", "do", "how", "verdict", "outcome", "leader"), _TEXT),
}
_FITS = {name: (*_TYPES[kind], type(None)) for name, kind in _FIELDS.items()}


def _check_fields(line: Line) -> None:
    """ValueError for a field of another kind than its name says; what a line does not know may be null."""
    for name, value in line.items():
        fits = _FITS.get(name)
        if fits is None:
            continue
        kind = type(value)
        if kind not in fits or (kind is not str and value is not None and not -_LARGEST <= value <= _LARGEST):
            raise ValueError(f"{name} is {_FIELDS[name]}, below 2^63 if it is one, not {repr(value)[:40]}")
        if kind is str and int in fits and not (len(value) < 20 and value.isdecimal()):
            raise ValueError(f"{name} is {_FIELDS[name]}, not {value[:40]!r}")
    asked = line.get("asked")
    if asked is not None and asked > line["t"] + SLACK:
        raise ValueError(f"asked is {asked}, after t: it is when the client began to ask for what this line answers")


def _known(value: Any, name: str) -> Any:
    if value is None:
        raise ValueError(f"{name} is null")
    return value


def _token(line: Line) -> int | None:
    token = line["token"]
    return token if token is None or type(token) is int else int(token)


def _stamp(line: Line) -> Stamped:
    token = line["token"]
    return token if token is None or type(token) is int else int(token), line.get("seq"), line.get("holder")


def _overtaken(mark: Stamped | None, stamp: Stamped) -> bool:
    return mark is not None and (mark[0], mark[2]) == (stamp[0], stamp[2]) and (stamp[1] or 0) < (mark[1] or 0)
