"""What must be true of a history, checked completely in O(n log n).

No search is needed: the system hands out the witness order itself, as tokens and versions. What is
checked depends on what the history's ``run`` line promises. A promise about which the history says nothing is not
kept: it is "not checked", with the reason. The counts say whether anything happened that could have gone wrong.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any

from fencepost.errors import ConfigError
from fencepost.rule import Verdict
from fencepost_lab.history.format import Line
from fencepost_lab.history.gather import (
    SLACK,
    Access,
    Gathered,
    Key,
    Lease,
    Refusal,
    Stamped,
    Violation,
    Write,
    violation,
)

PROMISES = {
    "data": "no acknowledged write is lost, overwritten unread, or made by a holder that was replaced; reads are true",
    "inside": "a holder enters before it writes, and writes nothing after its release",
    "order": "tokens are distinct, and one acquired after another returned is larger",
    "owner": "a hold ends by its own holder, its expiry or a fault of the store, and before the next one begins",
    "once": "a hold that has ended is not granted again under its old token: an eviction stays in force",
    "left": "a holder that was told that it neither holds nor waits is not granted the lock afterwards",
    "leaves": "an acquire that ends without a lease leaves neither a hold nor a place in the queue",
    "told": "a holder whose renewal is refused knows that its lease is lost",
    "loss": "a holder whose deadline passes knows that its lease is lost",
    "freed": "what a release says is true, and the store has freed the lock by then",
    "deadline": "no holder counts on its lease beyond its own deadline or the store's",
    "exclusion": "at most one holder's deadline lies in the future",
    "turns": "waiters are served in the order in which they queued",
    "epoch": "each epoch of an election has one leader, and no observer is led back to an older one",
    "live": "once the last fault has ended, every lock and resource that is asked serves within max(2 ttl, 10 s)",
}


@dataclass(slots=True)
class Report:
    """What a check found: nothing wrong if ``violations`` is empty; ``counts`` says how hard it was tried."""

    promises: tuple[str, ...]
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unchecked: dict[str, str] = field(default_factory=dict)
    """The promises about which the history says nothing, and why."""

    @property
    def ok(self) -> bool:
        """Nothing is broken; look at ``unchecked`` for what could not be."""
        return not self.violations

    @property
    def verdict(self) -> str:
        """broken, not checked (nothing is broken, and a promise could not be checked), or kept."""
        return "broken" if self.violations else "not checked" if self.unchecked else "kept"

    def states(self) -> dict[str, str]:
        """Each promise: kept, broken, or not checked."""
        broken = {each.check for each in self.violations}
        return {
            name: "broken" if name in broken else "not checked" if name in self.unchecked else "kept"
            for name in self.promises
        }

    def data(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "promises": self.states(),
            "unchecked": self.unchecked,
            "violations": [each._asdict() for each in self.violations],
            "counts": dict(sorted(self.counts.items())),
        }


def check(history: Iterable[Line], promises: Collection[str] | None = None) -> Report:
    """Check a history against what it promises, or against ``promises``; ConfigError if it is no history."""
    gathered = Gathered()
    for number, line in enumerate(history, 1):
        try:
            gathered.add(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"line {number} of the history, {line.get('ev')!r}, cannot be read"
            raise ConfigError(f"{what}: {type(error).__name__} {error}") from error
    if gathered.head is None:
        raise ConfigError("the history is empty: there is nothing that could be said to be kept")
    if promises is None:
        promises = gathered.head.get("promises") or ()
        if not promises:
            raise ConfigError("the run line promises nothing; name what must hold in it, or with --promise")
    if unknown := set(promises) - set(PROMISES):
        raise ConfigError(f"there is no promise {min(unknown)!r}; there are {', '.join(PROMISES)}")
    gathered.done()
    report = Report(tuple(promises), counts=gathered.counts)
    found = gathered.wrong
    for name in promises:
        found += _CHECKS[name](gathered, report)
    if "data" not in promises:  # what the counts tell of is wanted all the same
        list(_data(gathered, Report(())))
    report.counts["acquired"] = sum(map(len, gathered.leases.values()))
    report.violations = sorted((each for each in found if each.check in promises), key=lambda each: each.t)
    for name in {each.check for each in report.violations}:
        report.unchecked.pop(name, None)
    return report


# The resource.


def _data(gathered: Gathered, report: Report) -> Iterator[Violation]:
    head = gathered.head or {}
    looked = False
    issued = _issued(gathered)
    for name, key in gathered.keys.items():
        looked = looked or bool(key.journal or key.accesses or key.refusals or key.admitted)
        if gathered.journaled:
            gathered.counts["applied"] += len(key.journal)
            gathered.counts["lost_updates"] += sum(
                each.base is not None and each.base < each.version - 1 for each in key.journal
            )
            yield from _Journal(name, key, head).check()
        else:
            done = [each for each in key.accesses if each.write and each.outcome == "done"]
            gathered.counts["applied"] += len(done)
            gathered.counts["lost_updates"] += len(done) - len({each.version for each in done})
            yield from _clients(name, key, head)
        yield from _refusals(key, issued)
    if not looked:
        report.unchecked["data"] = "no reads or writes"


class _Journal:
    """The journal of one resource against itself, against its clients' answers, and against its end."""

    def __init__(self, name: str, key: Key, head: Line) -> None:
        self._name = name
        self._key = key
        self._head = head | ({"value": 0} if head.get("counter") else {})
        self._counter = bool(head.get("counter"))
        self._first = int(head.get("version") or 0)
        self._journal = sorted(key.journal, key=lambda each: each.version)
        self._versions = [each.version for each in self._journal]

    def check(self) -> Iterator[Violation]:
        yield from self._itself()
        if self._key.accesses:
            yield from self._answers()
        if self._key.end is not None:
            yield from self._end(self._key.end)

    def _itself(self) -> Iterator[Violation]:
        name, version = self._name, self._first
        values: dict[int, Any] = {self._first: 0}
        for index, each in enumerate(self._journal):
            if each.version != version + 1:
                if index == 0:
                    what = f"the first version of {name!r} is {each.version}, and the run began at {version}"
                    yield violation("versions-before", each.t, what)
                else:
                    kind = "version-twice" if each.version == version else "version-gap"
                    yield violation(kind, each.t, f"version {each.version} of {name!r} follows version {version}")
            version = each.version
            if each.base is not None and each.base != version - 1:
                lost = version - 1 - each.base
                what = f"version {version} of {name!r} was computed from version {each.base}: {lost} lost"
                yield violation("lost-update", each.t, what)
            if self._counter:
                values[version] = each.value
                read = None if each.base is None else values.get(each.base)
                if read is not None and (type(read) not in (int, float) or each.value != read + 1):
                    what = f"version {version} of {name!r} is {each.value}, computed from {read} of version {each.base}"
                    yield violation("wrong-value", each.t, what)

    def _answers(self) -> Iterator[Violation]:
        made: dict[Any, Write] = {}
        for entry in self._key.journal:
            made.setdefault(_identity(entry), entry)
        for each in self._key.accesses:
            if not each.write:
                if each.outcome == "done" and each.version is not None:
                    yield from self._read(each)
                continue
            token, seq, holder = each.stamp
            if token is None:
                continue
            write = made.get(_identity(each))
            kept = write is not None and _same(write.value, each.value)
            what = f"write {seq} of {holder} (token {token})"
            if each.outcome == "done":
                if not kept or write is None:
                    yield violation("write-missing", each.t, f"{what} was acknowledged, and is not in the journal")
                elif write.t > each.t + SLACK:
                    yield violation("early-answer", each.t, f"{what} was acknowledged before it was made at {write.t}")
            elif each.outcome == "refused" and each.attempts == 1 and kept:
                yield violation("refused-made", each.t, f"{what} was refused, and is in the journal")
            if kept and write is not None and write.base != each.version:
                what += f" was computed from version {each.version}, and from {write.base} as the resource has it"
                yield violation("other-base", each.t, what)

    def _read(self, read: Access) -> Iterator[Violation]:
        version, journal, first = read.version, self._journal, self._first
        assert version is not None
        index = bisect_left(self._versions, version)
        there = index < len(journal) and journal[index].version == version
        who = read.stamp[2]
        if not there and version != first:
            yield violation("unwritten-read", read.t, f"{who} read version {version}, which nobody wrote")
            return
        if there:
            write = journal[index]
            if write.t > read.t + SLACK:
                what = f"{who} read version {version}, which was written at {write.t}"
                yield violation("unwritten-read", read.t, what)
            elif not _same(write.value, read.value):
                what = f"{who} read {read.value!r} in version {version}, which is {write.value!r}"
                yield violation("unwritten-read", read.t, what)
        elif "value" in self._head and not _same(read.value, self._head["value"]):
            yield violation("unwritten-read", read.t, f"{who} read {read.value!r} before anything was written")
        after = index + there
        if after < len(journal) and journal[after].t < read.asked - SLACK:
            what = f"{who} asked at {read.asked} and read version {version}; {journal[after].version} was there by then"
            yield violation("old-read", read.t, what)

    def _end(self, end: Line) -> Iterator[Violation]:
        t, last = end["t"], self._journal[-1] if self._journal else None
        version = end.get("version")
        if version is not None and version != (last.version if last else self._first):
            what = (
                f"the end has version {version} of {self._name!r}, and the journal {last.version if last else 'none'}"
            )
            yield violation("end-differs", t, what)
        elif "value" in end and last is not None and not _same(end["value"], last.value):
            yield violation(
                "end-differs", t, f"{self._name!r} ends as {end['value']!r}, and was written {last.value!r}"
            )
        mark = end.get("mark")
        if mark is not None and self._key.mark is not None and int(mark) != self._key.mark[0]:
            yield violation(
                "mark-wrong", t, f"the mark ends as {mark}, and token {self._key.mark[0]} was admitted last"
            )
        for name in ("corrupted", "lost_updates"):
            if end.get(name):
                yield violation("end-differs", t, f"the resource itself counts {end[name]} {name.replace('_', ' ')}")


def _identity(write: Write | Access) -> Any:
    """What one write is known by: its stamp, and where that has no seq, its value too."""
    return write.stamp if write.stamp[1] is not None else (*write.stamp, repr(write.value))


def _clients(name: str, key: Key, head: Line) -> Iterator[Violation]:
    """Without a journal: is there an order of what the clients were told in which the rule gives these answers?

    The versions are the order. An access that saw or replaced version n comes before the write that made n + 1, and
    those that saw one version are in the order of their stamps, as the rule admits them. What is left to look at is
    whether that order can be: no stamp falls, nothing comes before what had ended when it began, and each
    version was written by somebody.
    """
    done = [each for each in key.accesses if each.outcome == "done" and each.version is not None]
    first = head.get("version")
    if first is None:
        first = min((each.version or 0 for each in done), default=0)
    if head.get("counter"):
        yield from _counted(done)
    order = sorted(done, key=_place)
    makers: dict[int, Access] = {}
    for each in order:
        if each.write and each.version is not None:
            last = makers.setdefault(each.version + 1, each)
            if last is not each:
                what = f"{last.stamp[2]} and {each.stamp[2]} both wrote over version {each.version} of {name!r}"
                yield violation("lost-update", each.t, f"{what}: one is lost")
    needed: set[int] = {each.version for each in done if each.version is not None and each.version > first}
    if makers:
        needed.update(_few(first + 1, max(makers), key))
    end = key.end.get("version") if key.end else None
    if end is not None and end > first:
        needed.update(_few(max([first, *needed, *makers]) + 1, end + 1, key))
    if missing := sorted(needed - set(makers)):
        order, wrong = _filled(name, missing, key, order)
        yield from wrong
        makers |= {(each.version or 0) + 1: each for each in order if each.outcome == "unknown"}
    yield from _real_time(name, order)
    yield from _seen(key, order)
    known = {version: each.value for version, each in makers.items()}
    for value in (head["value"],) if "value" in head else (each.value for each in order if each.version == first):
        known.setdefault(first, value)
    yield from _values(order, known)
    yield from _marks(name, order)
    if end is not None:
        newest = max([first, *(each.version + each.write for each in order if each.version is not None)])
        if end < newest:
            what = f"{name!r} ends in version {end}, and version {newest} was acknowledged or read"
            yield violation("end-differs", (key.end or {})["t"], what)
        elif end in known and "value" in (key.end or {}):
            value = (key.end or {})["value"]
            if not _same(value, known[end]):
                what = f"{name!r} ends as {value!r}, and version {end} is {known[end]!r}"
                yield violation("end-differs", (key.end or {})["t"], what)


def _few(start: int, end: int, key: Key) -> range:
    """The versions from ``start`` to ``end``; of a gap that all writes together cannot fill, only its beginning."""
    return range(start, min(end, start + len(key.accesses) + 1))


def _place(each: Access) -> tuple[int, int, int, float]:
    """Where an access belongs: by the version that it saw, writes after reads; then by its stamp."""
    return 2 * (each.version or 0) + each.write, each.stamp[0] or 0, each.stamp[1] or 0, each.asked


def _counted(done: list[Access]) -> Iterator[Violation]:
    for each in done:
        wanted = (each.version or 0) + each.write
        if each.value != wanted:
            did = "wrote" if each.write else "read"
            what = f"{each.stamp[2]} {did} {each.value!r}, where version {wanted} counts {wanted}"
            yield violation("wrong-value" if each.write else "unwritten-read", each.t, what)


def _filled(name: str, missing: list[int], key: Key, order: list[Access]) -> tuple[list[Access], list[Violation]]:
    """Put writes whose fate is not known where a version has no other writer; those that have none are wrong."""
    unknown: dict[int, list[Access]] = {}
    refused: dict[int, Access] = {}
    for each in key.accesses:
        if each.write and each.version is not None:
            # A write that was refused when it was repeated may have been made by its first attempt.
            if each.outcome == "unknown" or (each.outcome == "refused" and each.attempts > 1):
                unknown.setdefault(each.version + 1, []).append(each)
            elif each.outcome == "refused":
                refused[each.version + 1] = each
    read = {each.version: each.value for each in order if not each.write}
    if key.end is not None and "value" in key.end and key.end.get("version") is not None:
        read.setdefault(key.end["version"], key.end["value"])
    places = [_place(each) for each in order]
    ends = _ends(order)
    wrong: list[Violation] = []
    made: list[Access] = []
    for version in missing:
        at = bisect_left(places, (2 * version - 1,))
        before = order[at - 1].stamp if at else None
        after = order[at].stamp if at < len(order) else None
        candidates = unknown.get(version, [])
        fits = [
            each
            for each in candidates
            if each.asked <= ends[at] + SLACK
            and _admits(before, each.stamp)
            and _admits(each.stamp, after)
            and (version not in read or _same(read[version], each.value))
        ]
        if fits:
            made.append(min(fits, key=_place)._replace(t=inf, outcome="unknown"))
            continue
        near = order[at] if at < len(order) else order[-1] if order else None
        t = near.t if near else 0.0
        if version in refused:
            each = refused[version]
            what = f"write {each.stamp[1]} of {each.stamp[2]} was refused, and version {version} of {name!r} is there"
            wrong.append(violation("refused-made", max(t, each.t), what))
        else:
            what = f"version {version} of {name!r} was read or replaced, and nobody wrote it"
            wrong.append(violation("unwritten-read", t, what))
    return sorted([*order, *made], key=_place), wrong


def _admits(mark: Stamped | None, stamp: Stamped | None) -> bool:
    """Whether the rule admits ``stamp`` after ``mark``; where one is not known, it may."""
    if mark is None or stamp is None or mark[0] is None or stamp[0] is None:
        return True
    if stamp[0] != mark[0]:
        return stamp[0] > mark[0]
    return stamp[2] == mark[2] and (stamp[1] is None or mark[1] is None or stamp[1] > mark[1])


def _ends(order: list[Access]) -> list[float]:
    """For each place, when the first of those that come there or later had ended."""
    ends = [inf] * (len(order) + 1)
    for index in range(len(order) - 1, -1, -1):
        ends[index] = min(ends[index + 1], order[index].t)
    return ends


def _real_time(name: str, order: list[Access]) -> Iterator[Violation]:
    ends = _ends(order)
    for index, each in enumerate(order):
        if each.asked <= ends[index + 1] + SLACK:
            continue
        who, t = each.stamp[2], each.t if each.t < inf else each.asked
        if each.write:
            later = next(other for other in order[index + 1 :] if other.t == ends[index + 1])
            if not later.write and later.version == (each.version or 0) + 1:
                what = f"{later.stamp[2]} read version {later.version} of {name!r} before {who} began to write it"
                yield violation("unwritten-read", later.t, what)
            else:
                what = f"{who} wrote over version {each.version} of {name!r}, and a later one was known at {later.t}"
                yield violation("lost-update", t, what)
        else:
            what = (
                f"{who} asked at {each.asked} and read version {each.version} of {name!r}; a later one was known then"
            )
            yield violation("old-read", t, what)


def _seen(key: Key, order: list[Access]) -> Iterator[Violation]:
    """A client that was refused as stale saw a mark that could be there between its question and its answer."""
    refused = [each for each in key.accesses if each.seen is not None and each.verdict == Verdict.STALE]
    if not refused:
        return
    # What was admitted is in the order of its stamps: nothing was admitted before a smaller stamp was asked for.
    admitted = [each for each in order if each.stamp[0] is not None and (each.write or each.stamp[1] is not None)]
    admitted.sort(key=_stamps)
    stamps = [_stamps(each) for each in admitted]
    begun = [-inf]
    for each in admitted:
        begun.append(max(begun[-1], each.asked))
    ends = _ends(admitted)
    first: dict[int | None, float] = {}  # when each token can have been admitted at the earliest
    for each in key.accesses:
        if each.outcome != "refused" or each.attempts > 1:
            at = bisect_left(stamps, _stamps(each))
            following = admitted[at] if each.write and at < len(admitted) and stamps[at] != _stamps(each) else None
            if following is not None and (following.version or 0) <= (each.version or 0):
                continue  # it was not made: the next one did not see its version
            earliest = max(each.asked, begun[at])
            first[each.stamp[0]] = min(earliest, first.get(each.stamp[0], inf))
    for each in refused:
        seen = each.seen or 0
        if first.get(seen, inf) > each.t + SLACK:
            what = f"token {each.stamp[0]} was refused for mark {seen}, under which nobody can have been admitted yet"
            yield violation("unused-mark", each.t, what)
        larger = bisect_right(stamps, (seen, inf))  # those of larger tokens, and when the first of them was over
        if ends[larger] < each.asked - SLACK:
            what = f"token {each.stamp[0]} was refused for mark {seen}, after {stamps[larger][0]} had been admitted"
            yield violation("mark-wrong", each.t, what)
    refused.sort(key=lambda each: each.t)
    times, marks = [each.t for each in refused], [0]
    for each in refused:
        marks.append(max(marks[-1], each.seen or 0))
    for each in admitted:
        mark = marks[bisect_left(times, each.asked - SLACK)]
        if mark > (each.stamp[0] or 0):
            what = f"{each.stamp[2]} was admitted under token {each.stamp[0]}, after somebody had seen the mark {mark}"
            yield violation("stale-write" if each.write else "stale-enter", min(each.t, 1e300), what)


def _stamps(each: Access) -> tuple[float, float]:
    return each.stamp[0] or 0, each.stamp[1] or 0


def _values(order: list[Access], known: dict[int, Any]) -> Iterator[Violation]:
    for each in order:
        if not each.write and each.version in known and not _same(each.value, known[each.version]):
            what = f"{each.stamp[2]} read {each.value!r} in version {each.version}, which is {known[each.version]!r}"
            yield violation("unwritten-read", each.t, what)


def _marks(name: str, order: list[Access]) -> Iterator[Violation]:
    """The stamps of what was admitted grow; a read without a seq does not enter."""
    mark: Stamped | None = None
    for each in order:
        stamp = each.stamp
        if stamp[0] is None:
            if each.write and each.outcome == "done":
                yield violation("no-token", each.t, f"a write to {name!r} was made without a token")
            continue
        if not each.write and stamp[1] is None:
            continue
        if _admits(mark, stamp):
            mark = stamp
            continue
        assert mark is not None
        t, what = min(each.t, 1e300), f"{'write' if each.write else 'read'} {stamp[1]} of {stamp[2]}"
        what += f" (token {stamp[0]}) was admitted by {name!r} after {mark}"
        if stamp[0] != mark[0]:
            yield violation("stale-write" if each.write else "stale-enter", t, what)
        elif stamp[2] != mark[2]:
            yield violation("two-holders", t, what)
        else:
            yield violation("made-twice" if stamp[1] == mark[1] else "late-write", t, what)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


def _issued(gathered: Gathered) -> dict[int, tuple[float, set[str]]]:
    """When each token was first known to a client, and by whom."""
    issued: dict[int, tuple[float, set[str]]] = {}
    for leases in gathered.leases.values():
        for each in leases:
            if each.token is not None:
                t, holders = issued.get(each.token, (inf, set()))
                holders.add(each.holder)
                issued[each.token] = (min(t, each.t), holders)
    return issued


def _refusals(key: Key, issued: dict[int, tuple[float, set[str]]]) -> Iterator[Violation]:
    for each in key.refusals:
        token, seen, verdict = each.stamp[0], each.seen, each.verdict
        if token is None or verdict not in (Verdict.STALE, Verdict.LATE, Verdict.CLASH, Verdict.REPLAY):
            continue
        what = f"token {token} was refused as {verdict} for mark {seen}"
        if seen is None or (issued.get(seen, (inf, ()))[0] > each.t and seen != _marked_by_hand(key)):
            yield violation("unissued-mark", each.t, f"{what}, which nobody was issued")
        elif verdict == Verdict.STALE and each.stamp[2]:
            if seen <= token:
                yield violation("false-stale", each.t, what)
        elif seen < token or (verdict != Verdict.STALE and seen != token):
            yield violation(f"false-{verdict}", each.t, what)
        elif verdict == Verdict.CLASH and not each.judged and not _others(key, issued, each):
            yield violation("false-clash", each.t, f"{what}, and nobody but {each.stamp[2]} had it")


def _marked_by_hand(key: Key) -> int | None:
    return key.mark[0] if key.mark is not None and key.mark[2] == "" else None


def _others(key: Key, issued: dict[int, tuple[float, set[str]]], refusal: Refusal) -> bool:
    """Whether somebody else has the token of a clash."""
    token, _, holder = refusal.stamp
    assert token is not None
    return bool(issued.get(token, (0.0, set()))[1] - {holder}) or key.owners.get(token, holder) != holder


def _inside(gathered: Gathered, report: Report) -> Iterator[Violation]:
    looked = sum(len(key.journal) for key in gathered.keys.values())
    for key in gathered.keys.values():
        if gathered.journaled:
            continue
        entered: dict[tuple[int | None, str | None], float] = {}
        for each in key.accesses:
            token, seq, holder = each.stamp
            if each.outcome != "refused" and not each.write and seq is not None:
                entered[token, holder] = min(each.t, entered.get((token, holder), inf))
        for each in key.accesses:
            if each.write and each.outcome == "done":
                looked += 1
                token, _, holder = each.stamp
                if entered.get((token, holder), inf) > each.t + SLACK:
                    what = f"{holder} wrote under token {token} before it had entered"
                    yield violation("not-entered", each.t, what)
    if not looked:
        report.unchecked["inside"] = "no writes"


# Tokens and leases.


def _order(gathered: Gathered, report: Report) -> Iterator[Violation]:
    looked = False
    for leases in gathered.leases.values():
        known = [(each.asked, each.t, each.token, each.holder) for each in leases if each.token is not None]
        looked = looked or len(known) > 1
        owner: dict[int, str] = {}
        for _, t, token, holder in known:
            if owner.setdefault(token, holder) != holder:
                yield violation("token-repeated", t, f"token {token} was granted to {owner[token]} and to {holder}")
        returned = sorted((t, token) for _, t, token, _ in known)
        largest, index = 0, 0
        for asked, t, token, holder in sorted(known):
            while index < len(returned) and returned[index][0] < asked:
                largest = max(largest, returned[index][1])
                index += 1
            if token < largest:
                what = f"{holder} asked after token {largest} had been returned, and got {token}"
                yield violation("token-fell", t, what)
    if not looked:
        report.unchecked["order"] = "no two leases of one lock have tokens"


def _exclusion(gathered: Gathered, report: Report) -> Iterator[Violation]:
    drift = float((gathered.head or {}).get("drift") or 0.0)
    looked = False
    for lock, leases in gathered.leases.items():
        active: list[tuple[float, str, bool]] = []  # when each may count on it no longer, its holder, if it is alone
        seen = 0
        for each in leases:
            if each.until is None:
                continue
            seen += 1
            while active and active[0][0] <= each.t + SLACK:
                heappop(active)
            end = min(each.reach - drift * each.ttl, each.ended)
            others = active if each.limit is None else [other for other in active if other[2]]
            if each.limit is not None and not others and len(active) >= each.limit:
                others = active
            if others and end > each.t + SLACK:
                until, holder, _ = max(others)
                what = f"{each.holder} acquired {lock!r} while {holder} could count on it until {until:.6f}"
                yield violation("overlap", each.t, what)
            heappush(active, (end, each.holder, each.limit is None))
        looked = looked or seen > 1
    if not looked:
        report.unchecked["exclusion"] = "no two leases of one lock with until"


def _deadline(gathered: Gathered, report: Report) -> Iterator[Violation]:
    if not gathered.counts["deadlines"]:
        report.unchecked["deadline"] = "no leases with until"
    return iter(())


def _told(gathered: Gathered, report: Report) -> Iterator[Violation]:
    for t, holder in gathered.told:
        lease = gathered.holders.get(holder)
        if lease is not None and lease.ended > t + SLACK:
            yield violation("not-heeded", t, f"{holder} was told that its lease is gone, and goes on")
    if not gathered.told:
        report.unchecked["told"] = "no holder was told that its renewal came too late"


def _loss(gathered: Gathered, report: Report) -> Iterator[Violation]:
    """Each holder that runs has ended its belief soon after its deadline."""
    grace = _grace(gathered)
    stopped = _stops(gathered)
    looked = False
    for leases in gathered.leases.values():
        for each in leases:
            if each.until is None:
                continue
            due = each.until
            for start, end in stopped.get(each.who, ()):
                if start <= due + grace:
                    due = max(due, end)
            if min(each.ended, gathered.last) <= due + grace:
                looked = looked or each.ended < inf
                continue
            looked = True
            what = f"the lease of {each.holder} was over at {each.until}, and it had not noticed by {due + grace:.6f}"
            yield violation("loss-unnoticed", due + grace, what)
    if not looked:
        report.unchecked["loss"] = "no lease with until ended"


def _grace(gathered: Gathered) -> float:
    grace = (gathered.head or {}).get("grace")
    return 1.0 if grace is None else float(grace)


def _stops(gathered: Gathered) -> dict[str, list[tuple[float, float]]]:
    """When each client was stopped, and until when; one that was killed never goes on as it was."""
    open_: dict[str, float] = {}
    found: dict[str, list[tuple[float, float]]] = {}
    for t, do, who in gathered.faults:
        if do == "calm":
            for name, start in open_.items():
                found.setdefault(name, []).append((start, t))
            open_.clear()
        elif who is None:
            continue
        elif do == "pause":
            open_.setdefault(who, t)
        elif do == "kill":
            found.setdefault(who, []).append((open_.pop(who, t), inf))
        elif do == "resume" and who in open_:
            found.setdefault(who, []).append((open_.pop(who), t))
    for name, start in open_.items():
        found.setdefault(name, []).append((start, inf))
    return found


# The service.


def _owner(gathered: Gathered, report: Report) -> Iterator[Violation]:
    if not gathered.counts["granted"] and not gathered.counts["freed:taken"]:
        report.unchecked["owner"] = "the service did not say what it granted"
    return iter(())


def _once(gathered: Gathered, report: Report) -> Iterator[Violation]:
    over: set[tuple[str, str, Any]] = set()
    for t, lock, holder, line in gathered.service:
        if line["ev"] == "freed":
            over.add((lock, holder, line["token"]))
        elif line["ev"] == "granted" and (lock, holder, line["token"]) in over:
            what = f"the hold of {holder} (token {line['token']}) had ended, and was granted again"
            yield violation("granted-again", t, what)
    if not over:
        report.unchecked["once"] = "the service did not say that a hold ended"


def _left(gathered: Gathered, report: Report) -> Iterator[Violation]:
    if not gathered.counts["left"]:
        report.unchecked["left"] = "no holder was told that it neither holds nor waits"
    return iter(())


def _leaves(gathered: Gathered, report: Report) -> Iterator[Violation]:
    grace = _grace(gathered)
    spans: dict[str, list[tuple[float, float]]] = {}
    begun: dict[tuple[str, str], float] = {}
    for t, _, holder, line in gathered.service:
        kind = "hold" if line["ev"] in ("granted", "freed") else "place"
        if line["ev"] in ("granted", "queued"):
            begun.setdefault((holder, kind), t)
            if kind == "hold" and (holder, "place") in begun:
                spans.setdefault(holder, []).append((begun.pop((holder, "place")), t))
        elif (holder, kind) in begun:
            spans.setdefault(holder, []).append((begun.pop((holder, kind)), t))
    for (holder, _), t in begun.items():
        spans.setdefault(holder, []).append((t, inf))
    looked = False
    for t, holder in gathered.gave_up:
        if t + grace > gathered.last:
            continue
        looked = looked or bool(gathered.service)
        if any(end > t + grace for _, end in spans.get(holder, ())):
            what = f"{holder} gave up, and still held or waited {grace:g} s later"
            yield violation("left-behind", t + grace, what)
    if not looked:
        report.unchecked["leaves"] = "no acquire ended without a lease where the service says who holds and waits"


def _freed(gathered: Gathered, report: Report) -> Iterator[Violation]:
    granted: dict[str, float] = {}
    freed: dict[str, list[tuple[float, str]]] = {}
    for t, _, holder, line in gathered.service:
        if line["ev"] == "granted":
            granted[holder] = t
        elif line["ev"] == "freed":
            freed.setdefault(holder, []).append((t, line["how"]))
    looked = False
    for t, holder, ok in gathered.releases:
        if ok is None or holder not in granted:
            continue
        looked = True
        before = [how for at, how in freed.get(holder, ()) if at <= t + SLACK]
        if not before:
            yield violation(
                "release-untrue", t, f"the release of {holder} was answered, and the store still had its hold"
            )
        elif ok and "released" not in before:
            what = f"{holder} was told that it released the lock, whose hold had ended otherwise: {before[-1]}"
            yield violation("release-untrue", t, what)
    if not looked:
        report.unchecked["freed"] = "no release was answered where the service says what it frees"


def _turns(gathered: Gathered, report: Report) -> Iterator[Violation]:
    if any(line["ev"] == "queued" for _, _, _, line in gathered.service):
        yield from _queues(gathered)
        return
    race = (gathered.head or {}).get("race")
    if race is None:
        report.unchecked["turns"] = "the service did not say who queued, and the run line has no race"
        return
    stopped = _stops(gathered)
    looked = False
    for lock, leases in gathered.leases.items():
        turns = sorted((each for each in leases if each.token is not None), key=lambda each: each.asked)
        looked = looked or len(turns) > 1
        yield from _overtaken(lock, turns, float(race), stopped)
    if not looked:
        report.unchecked["turns"] = "no two leases of one lock have tokens"


def _queues(gathered: Gathered) -> Iterator[Violation]:
    """As the service has it: the lock goes to the first of those that wait and still ask."""
    queues: dict[str, dict[str, float]] = {}
    for t, lock, holder, line in gathered.service:
        queue = queues.setdefault(lock, {})
        if line["ev"] == "queued":
            queue[holder] = inf if line.get("until") is None else line["until"]
        elif line["ev"] == "unqueued":
            queue.pop(holder, None)
        elif line["ev"] == "granted":
            waiting = [each for each, until in queue.items() if until >= t - SLACK]
            if holder not in queue and waiting:
                yield violation("barged", t, f"{holder} was granted {lock!r}, for which {waiting[0]} waited")
            elif holder in queue and queue[holder] < t - SLACK:
                what = f"{holder} was granted {lock!r}, and had stopped asking at {queue[holder]}"
                yield violation("silent-served", t, what)
            elif waiting and waiting[0] != holder:
                yield violation(
                    "overtaken", t, f"{holder} was granted {lock!r} before {waiting[0]}, which came earlier"
                )
            queue.pop(holder, None)


def _overtaken(
    lock: str, turns: list[Lease], race: float, stopped: dict[str, list[tuple[float, float]]]
) -> Iterator[Violation]:
    """As the clients have it: who asked much later has the larger token. One that was stopped may be passed over."""
    asked = [each.asked for each in turns]
    smallest: list[Lease | None] = [None] * (len(turns) + 1)  # of each and those who asked later
    for index in range(len(turns) - 1, -1, -1):
        best = smallest[index + 1]
        smallest[index] = turns[index] if best is None or turns[index].token < best.token else best  # type: ignore[operator]
    for each in turns:
        first = smallest[bisect_right(asked, each.asked + race)]
        if first is None or each.token is None or first.token is None or first.token > each.token:
            continue
        if any(start <= each.t and end >= each.asked for start, end in stopped.get(each.who, ())):
            continue
        what = f"{first.holder} asked for {lock!r} {first.asked - each.asked:.3f} s after {each.holder}, and was first"
        yield violation("overtaken", first.t, what)


# Elections, and whether it goes on.


def _epoch(gathered: Gathered, report: Report) -> Iterator[Violation]:
    for lock, said in gathered.leaders.items():
        leads: dict[int, str] = {}
        newest: dict[str, int] = {}
        for t, who, token, leader in said:
            if leads.setdefault(token, leader) != leader:
                yield violation("two-leaders", t, f"{leads[token]} and {leader} both lead {lock!r} in epoch {token}")
            if token < newest.get(who, 0):
                what = f"{who} was told of epoch {token} of {lock!r}, after epoch {newest[who]}"
                yield violation("epoch-fell", t, what)
            newest[who] = max(token, newest.get(who, 0))
    if not gathered.leaders:
        report.unchecked["epoch"] = "no observer was told who leads"


_ENDS = {"resume": "pause", "heal": "cut", "restart": "kill"}


def _live(gathered: Gathered, report: Report) -> Iterator[Violation]:
    head = gathered.head or {}
    machines = set(head.get("service") or ()) | {"service", "resource", "store"}
    under_way: dict[tuple[str, str | None], int] = {}
    calm = 0.0
    for t, do, who in gathered.faults:
        calm = t
        if do == "calm" or (do == "heal" and who is None):
            under_way = {} if do == "calm" else {key: n for key, n in under_way.items() if key[0] != "cut"}
        elif do in _ENDS:
            under_way.pop((_ENDS[do], who), None)
        elif do in _ENDS.values() and (do == "cut" or who in machines):
            under_way[do, who] = 1
    if under_way:
        do, who = min(under_way, key=str)
        report.unchecked["live"] = f"the fault {do} of {who} did not end"
        return
    ttl = max([float(head.get("ttl") or 0.0), *(each.ttl for leases in gathered.leases.values() for each in leases)])
    bound = max(2 * ttl, 10.0)
    looked = False
    for lock, asks in gathered.asks.items():
        recent = [each for each in asks if each.t > calm and (each.t < inf or gathered.last - each.asked > bound)]
        looked = looked or bool(recent)
        yield from _unserved(lock, recent, gathered, calm, bound)
    for asked, what in gathered.failures:
        if asked > calm + bound:
            yield violation("still-failing", asked, f"{what}, {asked - calm:.1f} s after the last fault")
    if not looked:
        report.unchecked["live"] = f"nobody asked for a lock after the last fault, at {calm:g}"


def _unserved(lock: str, asks: Iterable[Any], gathered: Gathered, calm: float, bound: float) -> Iterator[Violation]:
    """Those that asked while the lock stood free for longer than ``bound``."""
    free = calm
    gaps: list[tuple[float, float]] = []
    for each in gathered.leases.get(lock, ()):
        if each.t - free > bound:
            gaps.append((free, each.t))
        free = max(free, min(each.ended, inf if each.until is None else each.until))
    if gathered.last - free > bound:
        gaps.append((free, gathered.last))
    for start, end in gaps:
        for ask in asks:
            since = max(ask.asked, start)
            if min(ask.t, end) - since > bound:
                what = f"{ask.who} asked for {lock!r}, which stood free for {min(ask.t, end) - since:.1f} s"
                yield violation("not-served", since + bound, what)
                break


_CHECKS = {
    "data": _data,
    "inside": _inside,
    "order": _order,
    "owner": _owner,
    "once": _once,
    "left": _left,
    "leaves": _leaves,
    "told": _told,
    "loss": _loss,
    "freed": _freed,
    "deadline": _deadline,
    "exclusion": _exclusion,
    "turns": _turns,
    "epoch": _epoch,
    "live": _live,
}
