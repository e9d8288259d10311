"""Partitions under joins, leaves, kills and freezes: each owned again within twice the ttl, never two admitted writers.

    python -m tests.fleet.run [--backend redis] [--workers 12] [--partitions 64] [--seconds 300] [--seed N] [--json]

The workers are processes, half of them blocking, half of them asyncio; each counts up its partitions through a
guarded resource. The history of every grant and access is held to its promises, and the store is looked at all along.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fencepost.driver import boottime
from fencepost_lab.history.format import lines
from fencepost_lab.servers.stores import store
from tests.fleet.stage import Failed, Fleet, Plan


def verdict(fleet: Fleet) -> dict[str, Any]:
    """The facts of a run; Failed, with the command that repeats it, if they show what must not be."""
    plan, watch, report = fleet.plan, fleet.watch, fleet.report()
    longest = watch.longest(boottime())
    counts = report.counts
    facts = {
        "command": plan.command,
        "faults": dict(sorted(fleet.faults.items())),
        "gaps": len(watch.gaps),
        "longest_gap_in_ttl": round(longest / plan.ttl, 3),
        "mean_gap_in_ttl": round(sum(watch.gaps) / max(1, len(watch.gaps)) / plan.ttl, 3),
        "settled": len(watch.settled),
        "longest_settling_in_ttl": round(max(watch.settled, default=0.0) / plan.ttl, 3),
        "looks": watch.looks,
        "assigned": counts["acquired"],
        "writes": counts["applied"],
        "stale_refused": counts["write:stale"] + counts["enter:stale"],
        "overlapping_beliefs": counts["overlapping_beliefs"],
        "violations": len(report.violations),
    }
    wrong = [f"{each.t:.3f} {each.check}: {each.what}" for each in report.violations[:20]]
    if longest > plan.bound * plan.ttl:
        wrong.append(f"a partition was without an owner for {longest:.2f} s, more than {plan.bound:g} x {plan.ttl:g} s")
    wrong += [f"not stressed: no {what}" for what in ("kill", "paused past the ttl") if not fleet.faults[what]]
    wrong += [f"not stressed: {what} is 0" for what in ("overlapping_beliefs", "gaps", "writes") if not facts[what]]
    if wrong:
        raise Failed("\n".join([*wrong, json.dumps(facts), f"run it again: {plan.command}"]))
    return facts


async def torment(fleet: Fleet) -> None:
    """Harm somebody every now and then, and start somebody anew, until the time is over; then let it settle."""
    plan, dice = fleet.plan, fleet.random
    for _ in range(plan.workers):
        await fleet.join()
    await fleet.settle()
    end = boottime() + plan.seconds
    frozen: set[asyncio.Task[None]] = set()
    while boottime() < end:
        await asyncio.sleep(plan.every * dice.uniform(0.5, 1.5))
        choices = ["join"] * 2 if len(fleet.fit) < plan.workers else []
        if len(fleet.fit) > plan.workers * 2 // 3:
            choices += ["kill", "freeze", "leave"]
        what, victim = dice.choice(choices), dice.choice(fleet.fit)
        if what == "join":
            await fleet.join()
        elif what == "freeze":
            frozen.add(asyncio.create_task(fleet.freeze(victim, plan.ttl * dice.uniform(1.1, 2.5))))
        else:
            (fleet.kill if what == "kill" else fleet.leave)(victim)
    if frozen:
        await asyncio.wait(frozen)
    await fleet.settle()


Act = Callable[[Fleet], Awaitable[None]]


async def run(plan: Plan, act: Act = torment, keep: Path | None = None) -> dict[str, Any]:
    """Run the plan; what was found. Raises Failed."""
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-fleet-", ignore_cleanup_errors=True) as folder,
        store(plan.backend, Path(folder)) as where,
    ):
        async with Fleet(where.url, plan) as fleet:
            await act(fleet)
            try:
                return verdict(fleet)
            finally:
                if keep is not None:
                    keep.write_text(lines(fleet.told), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet.run", description=(__doc__ or "").partition("\n")[0])
    for option in dataclasses.fields(Plan):
        default = random.SystemRandom().randrange(10**6) if option.name == "seed" else option.default
        parser.add_argument(f"--{option.name}", type=type(option.default), default=default)
    parser.add_argument("--keep", type=Path, help="write the history here, for fencepost check")
    parser.add_argument("--json", action="store_true")
    asked = vars(parser.parse_args())
    as_json, keep = asked.pop("json"), asked.pop("keep")
    try:
        facts = asyncio.run(run(Plan(**asked), keep=keep))
    except AssertionError as failed:
        print(f"FAILED: {failed}", file=sys.stderr)
        return 1
    print(json.dumps(facts) if as_json else "\n".join(f"{name:>24} {value}" for name, value in facts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
