"""One slice, from start to verdict: what was done, what was harmed, what the checker says, and what was left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import platform
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import fencepost
from fencepost.driver import boottime
from fencepost.errors import FencepostError
from fencepost.rule import Stamp
from fencepost_lab.faults.record import Faults
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import FORMAT, Line, decode, encode
from fencepost_lab.torture import leaks
from fencepost_lab.torture.crew import Crew
from fencepost_lab.torture.nemesis import Menu, Nemesis, menu
from fencepost_lab.torture.plan import Plan
from fencepost_lab.torture.registers import Entry, register
from fencepost_lab.torture.site import Site, site
from fencepost_lab.torture.worker import PEERS

_SHOWN = 20
_FIRST = 30.0  # seconds until the first operation, at most, before the faults begin all the same
Result = dict[str, Any]
"""What a slice found, as JSON has it."""


@dataclasses.dataclass
class Progress:
    """How far a slice is, for those who watch."""

    plan: Plan
    seconds: float
    operations: int
    counts: Counter[str]
    faults: Counter[str]


def run(
    plan: Plan,
    *,
    keep: Path | None = None,
    show: Callable[[Progress], None] = lambda _: None,
    stop: list[bool] | None = None,
) -> Result:
    """Run a slice; ``keep`` is where its history goes. Ctrl-C ends it early, with a verdict on what was done so far.

    ``stop`` is given True when that happened. Raises ConfigError if it cannot be started, Broken if it shows nothing.
    """
    faults = Faults()
    stop = [] if stop is None else stop
    with tempfile.TemporaryDirectory(prefix="fencepost-torture-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with site(plan, folder, faults) as where:
            values = register(where.direct_guard)
            try:
                values.prepare()
                return _torment(plan, where, folder, faults, values, keep, show, stop)
            finally:
                values.close()


def _torment(
    plan: Plan,
    where: Site,
    folder: Path,
    faults: Faults,
    values: Any,
    keep: Path | None,
    show: Callable[[Progress], None],
    stop: list[bool],
) -> Result:
    chosen = menu(plan, where)
    start = boottime()
    crew = Crew(plan, where, folder, start, faults, chosen.client)
    nemesis = Nemesis(plan, where, crew, folder, faults, chosen, start)
    nemesis.prepare()
    with crew:
        while not crew.operations and boottime() < start + _FIRST:  # so that there is something to harm
            crew.pump()
        nemesis.begin()
        until = inf if plan.seconds is None else start + plan.seconds
        wanted = inf if plan.operations is None else plan.operations
        shown = start
        try:
            while boottime() < until and crew.operations < wanted and nemesis.failed is None:
                crew.pump()
                if boottime() - shown > 0.25:
                    shown = boottime()
                    show(Progress(plan, shown - start, crew.operations, crew.counts, nemesis.counts))
        except KeyboardInterrupt:
            stop.append(True)
        crew.calm()
        ending = _Ending(nemesis)
        while not ending.wait(0) or crew.stopped:
            crew.pump()
        calm = boottime() - start
        resting = boottime() + max(1.0, plan.ttl)  # so that there is something to see of what comes after
        while boottime() < resting and not stop:
            crew.pump()
        crew.finish()
        seconds = boottime() - start
    values.close()  # the server may have been killed under it: it connects again
    current = where.direct if not crew.board_store else where.direct_other
    served, slow = _liveness(plan, current, chosen)
    left = leaks.after(plan, where, current, crew.left)
    history = _history(plan, where, folder, faults, nemesis, start, calm, chosen, values)
    return _verdict(plan, where, chosen, crew, nemesis, history, keep, seconds, served, slow, left, folder)


class _Ending:
    """The end of the nemesis, without standing still meanwhile: paused workers must be woken."""

    def __init__(self, nemesis: Nemesis) -> None:
        import threading

        self._failed: list[BaseException] = []

        def end() -> None:
            try:
                nemesis.end()
            except BaseException as error:
                self._failed.append(error)

        self._thread = threading.Thread(target=end)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._failed:
            raise self._failed[0]
        return True


def _liveness(plan: Plan, url: str, chosen: Menu) -> tuple[dict[str, float], list[str]]:
    """How long each lock took to be granted once all faults were over, and which took too long.

    Every lock has a visitor here: what the dead have left in a queue is cleared by the next client that comes.
    """
    bound = max(2 * plan.ttl, 10.0)
    served: dict[str, float] = {}
    slow: list[str] = []
    with fencepost.connect(url, ttl=max(5.0, plan.ttl)) as locks:
        for key in plan.keys:
            for name in (key, f"{key}/leader", f"{key}/shared") if not plan.control else (key,):
                begun = time.monotonic()
                try:
                    locks.acquire(name, timeout=bound).release()
                except FencepostError as error:
                    slow.append(f"liveness: {name} was not granted within {bound:g} s of the last fault: {error}")
                served[name] = round(time.monotonic() - begun, 3)
    return served, slow


def _history(
    plan: Plan,
    where: Site,
    folder: Path,
    faults: Faults,
    nemesis: Nemesis,
    start: float,
    calm: float,
    chosen: Menu,
    values: Any,
) -> list[Line]:
    told: list[Line] = []
    for path in sorted(folder.glob("*.jsonl")):
        told += _lines(path)
    _recorded(told)
    told += [_marked(line) for line in faults.lines(start)] + nemesis.lines
    told.append({"t": round(calm, 6), "ev": "fault", "do": "calm"})
    told.sort(key=lambda line: float(line["t"]))
    accesses: list[Line] = []
    for key in plan.keys:
        for name in (key, f"{key}/leader"):
            accesses += _journal(plan, name, values.journal(name), told, None if plan.control else values.mark(name))
    # Sorting keeps the order of those that have one instant: what a client sent first, then what came of it.
    told = sorted([*told, *accesses], key=lambda line: float(line["t"]))
    last = told[-1]["t"]
    ends: list[Line] = []
    for key in plan.keys:
        if (made := values.journal(key)) and not plan.control:
            mark = values.mark(key)
            end = {"t": last, "ev": "end", "key": key, "value": made[-1].value, "version": len(made)}
            ends.append({**end, "mark": mark.token if mark else None})
    head: Line = {
        "t": 0,
        "ev": "run",
        "format": FORMAT,
        "source": "torture",
        "store": where.store,
        "control": plan.control,
        "seed": plan.seed,
        "clients": sorted({line["who"] for line in told if line["ev"] == "asked"}),
        "lock": plan.keys[0],
        "key": plan.keys[0],
        "fence": plan.control != "off" and plan.control not in PEERS,
        "promises": promises(plan, chosen),
        "counter": True,
        "ttl": plan.ttl,
        "grace": _GRACE,
    }
    return [head, *told, *ends]


def promises(plan: Plan, chosen: Menu) -> list[str]:
    """What must hold: a store that loses its state, or is told another time, can keep neither order nor exclusion."""
    if plan.control:
        return ["data"]
    order = [] if chosen.loses else ["order"]
    exclusion = [] if chosen.loses or chosen.shifts else ["exclusion"]
    return ["data", "inside", "deadline", "loss", "live", *order, *exclusion]


_GRACE = 5.0  # seconds that a client on a busy machine may take to notice what happened


def _marked(line: Line) -> Line:
    """A mark that an operator raised has a line of its own kind."""
    if line["do"] != "mark":
        return line
    return {"t": line["t"], "ev": "marked", "key": line["who"], "mark": line["mark"]}


def _recorded(told: list[Line]) -> None:
    """Put grants and renewals to when they happened: their lines were written later, by a thread that may be stopped.

    A renewal says what was left of the lease when its answer came; if that was nothing, it came too late, and stays so.
    """
    leases: dict[str, list[Line]] = {}
    for line in told:
        if line["ev"] in ("acquired", "renewed"):
            leases.setdefault(line["holder"], []).append(line)
    for lines in leases.values():
        first, *renewals = sorted(lines, key=lambda line: (line["ev"], line["until"]))
        first["t"] = min(first["t"], first.get("got", first["t"]))
        for line, before in zip(renewals, [first, *renewals], strict=False):
            line["t"] = min(line["t"], before["until"] - (line["left"] or 0.0))
        first["t"] = min(first["t"], *(line["t"] for line in renewals), first["t"])


def _lines(path: Path) -> Iterable[Line]:
    with path.open("rb") as file:
        for text in file:
            with contextlib.suppress(ValueError):  # the last line of one that was killed
                yield decode(text)


def _journal(plan: Plan, key: str, journal: list[Entry], told: list[Line], mark: Stamp | None) -> list[Line]:
    """What the values' own journal says: each write after the one before it, and the enters where they belong.

    An enter comes before the first write with a larger stamp, for it would have been refused after that. Each access
    was made after it was sent, and after the access before it: the earliest instant of which both are true is noted.
    ``_overtaken`` finds those that had been answered by then. An enter without an answer was made if the mark is its.
    """
    mine = [line for line in told if line.get("key") == key]
    sent = {_stamp(line): line["asked"] for line in mine if line["ev"] == "wrote"}
    granted = {line["holder"]: line["t"] for line in told if line["ev"] == "acquired" and line["lock"] == key}
    entered = [
        line
        for line in mine
        if line["ev"] == "read"
        and not plan.control
        and ("version" in line or (mark is not None and line["outcome"] == "unknown" and line["token"] == mark.token))
    ]
    enters = deque(sorted(entered, key=lambda line: (line["token"], line["seq"])))
    found: list[Line] = []
    t = 0.0
    for version, entry in enumerate([*journal, None], 1):
        while enters and (entry is None or (enters[0]["token"], enters[0]["seq"]) < (entry.stamp or (0, 0))):
            line = enters.popleft()
            t = max(t, line["asked"])
            found.append(_access(t, key, line["who"], "enter", _stamp(line)))
        if entry is not None:
            stamp = entry.stamp or (None, None, None)
            t = max(t, sent.get(stamp, granted.get(stamp[2], t)))
            facts = {"value": entry.value, "base": entry.base, "version": version}
            found.append(_access(t, key, entry.who, "write", stamp) | facts)
    return found


def _stamp(line: Line) -> tuple[Any, Any, Any]:
    return line["token"], line["seq"], line["holder"]


def _access(t: float, key: str, who: str, do: str, stamp: tuple[Any, Any, Any]) -> Line:
    token, seq, holder = stamp
    line = {"t": t, "ev": "access", "who": who, "do": do, "token": token, "seq": seq, "holder": holder}
    return line | {"verdict": "admit", "mark": token, "message": None, "lock": key, "key": key}


def _overtaken(history: list[Line]) -> list[str]:
    """Accesses that were answered before the one before them was even sent: that order is not the one of real time."""
    answered = {
        (line["key"], *_stamp(line)): line["t"]
        for line in history
        if (line["ev"] == "wrote" and line["outcome"] == "done") or (line["ev"] == "read" and "version" in line)
    }
    return [
        f"data: {line['do']} {_stamp(line)} of {line['key']} was answered before the access before it was sent"
        for line in history
        if line["ev"] == "access" and answered.get((line["key"], *_stamp(line)), inf) < line["t"] - 2e-6
    ]


def _verdict(
    plan: Plan,
    where: Site,
    chosen: Menu,
    crew: Crew,
    nemesis: Nemesis,
    history: list[Line],
    keep: Path | None,
    seconds: float,
    served: dict[str, float],
    slow: list[str],
    left: dict[str, Any],
    folder: Path,
) -> Result:
    report = check(history)
    found = [f"{each.t:.6f} {each.check}: {each.what}" for each in report.violations]
    if plan.control in PEERS:  # without tokens, only what was overwritten unread counts
        found = [each for each in found if "was computed from version" in each]
    wrong = [*crew.wrong, *nemesis.wrong]
    if not plan.control:
        found += _overtaken(history)
        found += slow
        wrong += left["wrong"]
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(keep, "wt", encoding="utf-8", compresslevel=6) as file:
            file.writelines(encode(line) + "\n" for line in history)
    return {
        "plan": plan.data() | {"store": where.store},
        "ok": not found and not wrong if not plan.control else bool(found) and not wrong,
        "operations": crew.operations,
        "seconds": round(seconds, 2),
        "promises": list(report.promises),
        "unchecked": report.unchecked,
        "violations": len(found),
        "examples": found[:_SHOWN],
        "wrong": wrong[:_SHOWN],
        "counts": dict(sorted(crew.counts.items())),
        "faults": dict(sorted(nemesis.counts.items())),
        "missed": dict(sorted(nemesis.missed.items())),
        "without": chosen.without,
        "checked": dict(sorted(report.counts.items())),
        "lost_updates": report.counts["lost_updates"],
        "overlapping_beliefs": report.counts["overlapping_beliefs"],
        "stale_refused": crew.counts["wrote:stale"] + crew.counts["read:stale"],
        "served": max(served.values(), default=0.0),
        "left": left["left"],
        "memory": _uses(crew.uses),
        "python": platform.python_version(),
    }


def _uses(samples: dict[str, list[tuple[float, int, int, int]]]) -> dict[str, Any]:
    """What the worker of the longest life used over time, thinned out, and by how much the worst worker grew."""
    if not samples:
        return {"samples": [], "growth": 0, "descriptors": 0, "threads": 0}
    longest = max(samples.values(), key=lambda each: each[-1][0] - each[0][0])
    step = max(1, len(longest) // 60)

    def most(which: int) -> int:
        return max(_growth([int(each[which]) for each in life]) for life in samples.values())

    return {
        "samples": [[round(t, 1), *uses] for t, *uses in longest[::step]],
        "growth": most(1),
        "descriptors": most(2),
        "threads": most(3),
    }


def _growth(sizes: list[int]) -> int:
    """By how much the last quarter is above the second one; the first fills caches."""
    if len(sizes) < 12:
        return 0
    quarter = len(sizes) // 4
    second, last = sorted(sizes[quarter : 2 * quarter]), sorted(sizes[-quarter:])
    return last[len(last) // 2] - second[len(second) // 2]
