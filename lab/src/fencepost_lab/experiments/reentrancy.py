"""A lock entered again and again: its token, its time, its renewals, and how its loss is told."""

import threading
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fencepost.driver import boottime
from fencepost.errors import LeaseLost, NotAcquired
from fencepost.sync import Lease, Lock, connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers.stores import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOCK = "reentrancy"


class Dive:
    """One thread that goes ``depth`` levels deep into a lock, and works at each."""

    def __init__(self, depth: int, work: float) -> None:
        self.depth = depth
        self.work = work
        self.levels: list[dict[str, Any]] = []
        self.left: list[tuple[float, float]] = []
        self.told = 0
        self.refused = False
        self.begun = boottime()

    def into(self, lock: Lock, level: int = 1) -> None:
        """Enter, work, go deeper; every level that is told of a loss counts it."""
        try:
            with lock as lease:
                self.levels.append({"level": level, "token": lease.token, "remaining": lease.remaining})
                self._look(lease)
                lease.ended.wait(self.work)  # works, unless it loses its lease
                self._look(lease)
                if level < self.depth:
                    self.into(lock, level + 1)
        except LeaseLost:
            self.told += 1

    def _look(self, lease: Lease) -> None:
        self.left.append((boottime() - self.begun, lease.remaining))


def run(settings: Settings, context: Context) -> Outcome:
    """Dive with renewal and without, and into a lock that is not re-entrant."""
    outcome = Outcome()
    for backend in settings["backends"]:
        store = context.store(backend)
        ttl = max(settings["ttl"], store.min_ttl)
        context.say(f"{store.name}: {settings['depth']} levels")
        seen = {name: _dive(store, ttl, settings, renew=name == "renewed") for name in ("renewed", "not renewed")}
        seen["plain"] = _plain(store, ttl)
        outcome.figures[store.name] = {"ttl": ttl, **seen}
        _add_claims(outcome, store.name, settings["depth"], seen)
        outcome.tables.append(_table(store.name, ttl, seen))
        if backend == settings["backends"][0]:
            outcome.plots.append(_plot(store.name, ttl, seen))
    return outcome


def _dive(store: Store, ttl: float, settings: Settings, *, renew: bool) -> dict[str, Any]:
    """What the levels met, and when a waiter had the lock."""
    depth = settings["depth"]
    events: Counter[str] = Counter()
    with connect(store.url, hooks=[lambda event: events.update([event.kind])]) as mine, connect(store.url) as other:
        lock = mine.lock(LOCK, ttl=ttl, renew=renew, reentrant=True)
        dive = Dive(depth, settings["stretch"] * ttl / depth)
        had: list[tuple[float, int]] = []

        def wait() -> None:
            lease = other.acquire(LOCK, ttl=max(30.0, ttl), timeout=60 + 10 * ttl)
            had.append((boottime(), lease.token))
            lease.release()

        waiter = threading.Thread(target=wait)
        lost = False
        try:
            with lock as outermost:
                token = outermost.token
                waiter.start()
                dive.into(lock)
                dive.refused = _refused(lock)
                ended = boottime()
        except LeaseLost:
            lost = True
        waiter.join()
        at, successor = had[0]
        return {
            "token": token,
            "levels": dive.levels,
            "left": dive.left,
            "told": dive.told,
            "lost": lost,
            "refused": dive.refused,
            "renewed": events["renewed"],
            "attempts": events["attempt"],
            "heir": successor,
            "heir_first": at < ended,
            "held": boottime() - dive.begun,
        }


def _refused(lock: Lock) -> bool:
    """Whether the lock, still held by the block around, refuses to be entered once more."""
    try:
        with lock:
            return False
    except LeaseLost:
        return True


def _plain(store: Store, ttl: float) -> dict[str, bool]:
    """What a lock that is not re-entrant does to who enters it twice."""
    with connect(store.url) as locks, locks.lock(f"{LOCK}-plain", ttl=ttl):
        try:
            with locks.lock(f"{LOCK}-plain", ttl=ttl, timeout=0.2):
                return {"waited_for_itself": False}
        except NotAcquired:
            return {"waited_for_itself": True}


def _add_claims(outcome: Outcome, name: str, depth: int, seen: dict[str, Any]) -> None:
    renewed, once = seen["renewed"], seen["not renewed"]
    tokens = {level["token"] for level in renewed["levels"]}
    outcome.claim(
        f"{name}: every level has the one lease, and asks the store for nothing",
        tokens == {renewed["token"]} and len(renewed["levels"]) == depth and renewed["attempts"] == 1,
        f"{len(renewed['levels'])} levels, {len(tokens)} token, {renewed['attempts']} acquire",
    )
    outcome.claim(
        f"{name}: renewed, it outlasts its ttl at any depth, and goes to the waiter after the outermost block",
        not renewed["lost"] and renewed["told"] == 0 and not renewed["heir_first"] and renewed["renewed"] > 0,
        f"{renewed['renewed']} renewals, lost: {renewed['lost']}, the waiter's token {renewed['heir']}",
    )
    left = [level["remaining"] for level in once["levels"]]
    outcome.claim(
        f"{name}: not renewed, entering again buys no time",
        once["lost"] and all(later < earlier for earlier, later in pairwise(left)),
        "left at each entry: " + ", ".join(f"{each:.2f} s" for each in left),
    )
    outcome.claim(
        f"{name}: the loss is told at every level, a new entry is refused, and the waiter has a larger token",
        once["lost"] and once["told"] >= len(once["levels"]) > 0 and once["refused"] and once["heir"] > once["token"],
        f"the outermost block and all {len(once['levels'])} inside it were told, new entry refused: {once['refused']}",
    )
    outcome.claim(
        f"{name}: a lock that is not re-entrant makes its holder wait for itself",
        seen["plain"]["waited_for_itself"],
        "NotAcquired" if seen["plain"]["waited_for_itself"] else "it was entered",
    )


def _table(name: str, ttl: float, seen: dict[str, Any]) -> Table:
    rows = [
        (way, len(each["levels"]), each["attempts"], each["renewed"], each["told"], "yes" if each["lost"] else "no")
        for way, each in seen.items()
        if way != "plain"
    ]
    columns = ("lease", "levels entered", "acquires", "renewals", "blocks told of loss, inside", "lost")
    return Table(f"A lock entered again on {name}, ttl {ttl:g} s", columns, rows)


def _plot(name: str, ttl: float, seen: dict[str, Any]) -> Plot:
    def paint(axes: "Axes") -> None:
        for way in ("renewed", "not renewed"):
            left = seen[way]["left"]
            axes.plot([t / ttl for t, _ in left], [rest / ttl for _, rest in left], label=way)
        axes.set_xlabel("time since the outermost block was entered, in ttls")
        axes.set_ylabel("left of the lease, in ttls")
        axes.set_ylim(bottom=0)
        axes.legend()

    caption = f"{name}: what is left of the lease as each level is entered and worked in."
    return plots.draw("left", caption, paint)
