"""Clocks that jump and run fast under Redlock's nodes: what becomes of its exclusion, and what the guard does."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fencepost.driver import boottime
from fencepost.errors import StaleToken
from fencepost.guards.memory import MemoryGuard
from fencepost.sync import Lease, Locks, connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.quorum import Views
from fencepost_lab.experiments.succession import COLUMNS, NOTE, Case, check_case, run_case
from fencepost_lab.faults.clock import ClockedRedis
from fencepost_lab.faults.record import Faults
from fencepost_lab.report import plots
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers import Cluster
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import processes
from fencepost_lab.stage.processes import StepWorker, Unexpected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NODES = 5
ALLOWED = 1.01
"""How fast a node's clock may run, as the backend promises."""
FAST = 1.5
"""So fast that no load of this machine hides what it does."""


class Clocked(Cluster[ClockedRedis]):
    """Five independent Redis, each with a wall clock of its own."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(
            lambda number, _: ClockedRedis(who=f"r{number}", faults=faults, args=["--save", ""]), size=NODES
        )

    @property
    def url(self) -> str:
        return f"redlock://{','.join(member.address for member in self.members)}/0"


def run(settings: Settings, context: Context) -> Outcome:
    """Let one clock jump, then all of them run at different rates, then all of them jump back."""
    outcome = Outcome()
    faults = Faults()
    with Clocked(faults) as nodes:
        context.stores["redlock"] = Store("redlock", nodes.url, nodes)
        _jump(outcome, nodes, faults, settings, context)
        with connect(nodes.url) as first, connect(nodes.url) as second:
            seen = [_rate(nodes, first, second, rate, settings, context) for rate in settings["rates"]]
            back = _back(nodes, first, faults)
    _add_rate_claims(outcome, seen)
    outcome.figures["back"] = back
    outcome.claim(
        "tokens grow although every clock was set back by an hour",
        back["after"] > back["before"] and back["jumps"] == NODES,
        f"{back['after']} after {back['before']}",
    )
    return outcome


def _jump(outcome: Outcome, nodes: Clocked, faults: Faults, settings: Settings, context: Context) -> None:
    """A has r1, r2 and r3. The clock of r3 jumps past A's ttl, and r3 votes again."""
    ttl = settings["long_ttl"]

    async def jump(worker: StepWorker) -> None:
        nodes.members[2].clock.jump(2 * ttl)

    case = Case("a clock jumps", ttl, jump, a_lacks=(4, 5))
    found = []
    for fence in (False, True):
        switch = "on" if fence else "off"
        context.say(f"{case.name}, fence {switch}")
        with Views(nodes.members, "AB", faults) as views:
            seen = processes.run(run_case(case, views, faults, fence=fence))
        context.keep(f"drift-jump-{switch}", seen.lines)
        found.append(seen)
    off, on = found
    check_case(outcome, case.name, off, on)
    outcome.claim(
        "a clock jumps: one clock of five was enough, well inside A's lease",
        off.figures["a_left"] > 0 and off.figures["exclusion_broken"] == 1 and "jump" in off.figures["faults"],
        f"{off.figures['a_left']:.1f} s were left of A's lease when B acquired the lock",
    )
    rows = [seen.row(case.name, fence) for seen, fence in ((off, "off"), (on, "on"))]
    outcome.tables.append(Table("One clock of five jumps ahead", COLUMNS, rows, note=NOTE))
    outcome.plots.append(
        lanes(
            "lanes",
            "The clock of r3 jumps while A works inside its lease; r3, r4 and r5 are B's majority.",
            [("no guard", off.record), ("guard", on.record)],
        )
    )


def _rate(
    nodes: Clocked, first: Locks, second: Locks, rate: float, settings: Settings, context: Context
) -> dict[str, Any]:
    """Let A hold without renewing while all clocks run at a rate; when B gets the lock, and what the guard says."""
    ttl, rounds = settings["ttl"], settings["rounds"]
    context.say(f"clocks at {rate:g} times their rate")
    for member in nodes.members:
        member.clock.skew(rate)
    guard = MemoryGuard[str]()
    left: list[float] = []
    refused = 0
    for number in range(rounds):
        name = f"drift-{rate:g}-{number}"
        lease = first.acquire(name, ttl=ttl, renew=False)
        guard.enter(name, lease)
        successor = _insist(second, name, ttl)
        left.append(lease.deadline - boottime())
        guard.enter(name, successor)
        guard.write(name, "B", successor)
        try:
            guard.write(name, "A", lease)
        except StaleToken:
            refused += 1
        successor.release()
        lease.release()
    for member in nodes.members:
        member.clock.skew(1.0)
    early = sum(each > 0 for each in left)
    return {"rate": rate, "ttl": ttl, "left": left, "early": early, "rounds": rounds, "refused": refused}


def _insist(locks: Locks, name: str, ttl: float) -> Lease:
    """Ask again and again: the backend's own pauses would hide how early it was."""
    until = time.monotonic() + 20 * ttl + 20
    while time.monotonic() < until:
        if lease := locks.try_acquire(name, ttl=ttl, renew=False):
            return lease
        time.sleep(0.003)
    raise Unexpected(f"nobody acquired {name!r} although its ttl of {ttl:g} s was over")


def _back(nodes: Clocked, locks: Locks, faults: Faults) -> dict[str, int]:
    """Set every clock back by an hour between two leases; their tokens."""
    with locks.lock("back", ttl=30) as lease:
        before = lease.token
    for member in nodes.members:
        member.clock.jump(-3600)
    with locks.lock("back", ttl=30) as lease:
        return {"before": before, "after": lease.token, "jumps": sum(each["by"] == -3600 for each in faults.of("jump"))}


def _add_rate_claims(outcome: Outcome, seen: Sequence[dict[str, Any]]) -> None:
    outcome.figures["rates"] = list(seen)
    kept = [each for each in seen if each["rate"] <= ALLOWED]
    broken = [each for each in seen if each["rate"] >= FAST]
    outcome.claim(
        f"nobody acquires before A's deadline while clocks run at most {ALLOWED:g} times as fast as A's",
        bool(kept) and not any(each["early"] for each in kept),
        ", ".join(f"{each['early']} of {each['rounds']} at {each['rate']:g}" for each in kept),
    )
    outcome.claim(
        "faster clocks hand the lock to B inside A's lease, every time",
        bool(broken) and all(each["early"] == each["rounds"] for each in broken),
        ", ".join(f"{each['early']} of {each['rounds']} at {each['rate']:g}" for each in broken),
    )
    outcome.claim(
        "the guard refuses A's late write at every rate",
        all(each["refused"] == each["rounds"] for each in seen),
        f"{sum(each['refused'] for each in seen)} of {sum(each['rounds'] for each in seen)} refused",
    )
    rows = [
        (f"{each['rate']:g}", f"{each['early']} of {each['rounds']}", f"{max(each['left']):.2f} s", each["refused"])
        for each in seen
    ]
    outcome.tables.append(
        Table(
            f"All five clocks run at a rate; ttl {seen[0]['ttl']:g} s",
            ("rate", "B acquired inside A's lease", "most that was left of it", "A refused by the guard"),
            rows,
            note="Negative: A's own deadline had passed by that much before anybody else had the lock.",
        )
    )

    def paint(axes: "Axes") -> None:
        for each in seen:
            axes.plot([each["rate"]] * each["rounds"], each["left"], "o", color=plots.BLUE, alpha=0.7)
        axes.axhline(0, color=plots.RED, linewidth=1.5, label="A's deadline, on A's clock")
        axes.axvline(ALLOWED, color=plots.GREEN, linestyle="--", label="the 1 % that the backend allows for")
        axes.set_xlabel("rate of the nodes' clocks")
        axes.set_ylabel("left of A's lease when B acquired, s")
        axes.legend(fontsize=9)

    outcome.plots.append(
        plots.draw("rates", "Above the line two hold at once, and neither has done anything wrong.", paint)
    )
