"""Redlock on five nodes: a pause, a partition with a pause, and a node that forgets; without a guard and with it."""

import asyncio
from typing import Any

from fencepost.sync import connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.quorum import Views
from fencepost_lab.experiments.succession import COLUMNS, NOTE, Case, check_case, run_case
from fencepost_lab.faults.record import Faults
from fencepost_lab.faults.signals import Victim
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers import Redis
from fencepost_lab.stage import processes
from fencepost_lab.stage.processes import StepWorker, Unexpected

NODES = 5


def run(settings: Settings, context: Context) -> Outcome:
    """Run every case with the fence off and on."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    members = context.store("redlock").server.members
    faults = Faults()
    runs = []
    for case in _cases(settings, members, faults):
        found = []
        for fence in (False, True):
            switch = "on" if fence else "off"
            context.say(f"{case.name}, fence {switch}")
            with Views(members, "AB", faults) as views:
                seen = processes.run(run_case(case, views, faults, fence=fence))
            context.keep(f"redlock-{case.name.replace(' ', '-')}-{switch}", seen.lines)
            rows.append(seen.row(case.name, switch))
            found.append(seen)
        check_case(outcome, case.name, *found)
        runs.append((case.name, found))
    forgetful = outcome.figures["a node forgets"]["fence_off"]
    outcome.claim(
        "a node forgets: nobody paused, no clock was wrong, and A's lease had not run out",
        forgetful["a_left"] > 0 and forgetful["exclusion_broken"] == 1 and "kill" in forgetful["faults"],
        f"{forgetful['a_left']:.1f} s were left of A's lease when B acquired the lock",
    )
    _late(outcome, settings, members, faults, context)
    outcome.tables.append(Table("Two holders in a majority of five", COLUMNS, rows, note=NOTE))
    name, (off, on) = runs[1]
    outcome.plots.append(
        lanes(
            "lanes",
            f"{name.capitalize()}: A reaches only r1, r2 and r3, B only r3, r4 and r5, and A is stopped past its ttl.",
            [("no guard", off.record), ("guard", on.record)],
        )
    )
    bare, guarded = (sum(found[fence].figures["violations"] for _, found in runs) for fence in (0, 1))
    outcome.slo["violations"] = f"{guarded} in {len(runs)} Redlock cases with the guard; {bare} without"
    return outcome


def _cases(settings: Settings, members: list[Redis], faults: Faults) -> list[Case]:
    async def stop(worker: StepWorker) -> None:
        await worker.stop()

    async def forget(worker: StepWorker) -> None:
        third = members[2]
        Victim(third.pid, "r3", faults).kill()
        await asyncio.to_thread(third.restart)
        faults.note("restart", "r3")

    return [
        Case("a pause", settings["ttl"], stop, ends=StepWorker.resume),
        Case("a partition and a pause", settings["ttl"], stop, ends=StepWorker.resume, a_lacks=(4, 5), b_lacks=(1, 2)),
        Case("a node forgets", settings["long_ttl"], forget, a_lacks=(4, 5)),
    ]


def _late(outcome: Outcome, settings: Settings, members: list[Redis], faults: Faults, context: Context) -> None:
    """What Redlock's own clock check is good for: answers that come after the ttl are no grant."""
    context.say("answers that come too late")
    ttl = settings["ttl"]
    with Views(members, "C", faults) as views, connect(views.url("C", patience=20 * ttl)) as locks:
        if (lease := locks.try_acquire("late", ttl=ttl, renew=False)) is None or not lease.release():
            raise Unexpected("a free lock was not granted")
        for proxy in views.of("C"):
            proxy.slow(0.3 * ttl)  # two rounds, each to and fro
        granted = locks.try_acquire("late", ttl=ttl, renew=False)
        slowed = sum(proxy.slowed > 0 for proxy in views.of("C"))
        for proxy in views.of("C"):
            proxy.slow(0)
    outcome.claim(
        "late answers: a grant that took longer than its ttl is none, as Redlock promises",
        granted is None and slowed == NODES,
        f"asking took more than {1.2 * ttl:g} s of a ttl of {ttl:g} s, though every node said yes: "
        f"{'no lease' if granted is None else 'a lease was granted'}",
    )
