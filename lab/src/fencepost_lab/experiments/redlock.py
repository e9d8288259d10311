"""Redlock on five nodes: a pause, a partition with a pause, and a node that forgets; without a guard and with it."""

import asyncio
from typing import Any

from fencepost.sync import connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Room
from fencepost_lab.experiments.quorum import Views
from fencepost_lab.experiments.succession import COLUMNS, NOTE, Scene, judge, play
from fencepost_lab.faults.record import Faults
from fencepost_lab.faults.signals import Victim
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers import Redis
from fencepost_lab.stage import actors
from fencepost_lab.stage.actors import Actor, Unexpected

NODES = 5


def run(settings: Settings, room: Room) -> Outcome:
    """Play every scene with the fence off and on."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    members = room.store("redlock").server.members
    faults = Faults()
    plays = []
    for scene in _scenes(settings, members, faults):
        found = []
        for fence in (False, True):
            switch = "on" if fence else "off"
            room.say(f"{scene.name}, fence {switch}")
            with Views(members, "AB", faults) as views:
                seen = actors.run(play(scene, views, faults, fence=fence))
            room.keep(f"redlock-{scene.name.replace(' ', '-')}-{switch}.jsonl", seen.lines)
            rows.append(seen.row(scene.name, switch))
            found.append(seen)
        judge(outcome, scene.name, *found)
        plays.append((scene.name, found))
    forgetful = outcome.figures["a node forgets"]["fence_off"]
    outcome.claim(
        "a node forgets: nobody paused, no clock was wrong, and A's lease had not run out",
        forgetful["a_left"] > 0 and forgetful["exclusion_broken"] == 1 and "kill" in forgetful["faults"],
        f"{forgetful['a_left']:.1f} s were left of A's lease when B acquired the lock",
    )
    _late(outcome, settings, members, faults, room)
    outcome.tables.append(Table("Two holders in a majority of five", COLUMNS, rows, note=NOTE))
    name, (off, on) = plays[1]
    outcome.plots.append(
        lanes(
            "lanes",
            f"{name.capitalize()}: A reaches only r1, r2 and r3, B only r3, r4 and r5, and A is stopped past its ttl.",
            [("no guard", off.testimony), ("guard", on.testimony)],
        )
    )
    bare, guarded = (sum(found[fence].figures["violations"] for _, found in plays) for fence in (0, 1))
    outcome.slo["violations"] = f"{guarded} in {len(plays)} Redlock scenes with the guard; {bare} without"
    return outcome


def _scenes(settings: Settings, members: list[Redis], faults: Faults) -> list[Scene]:
    async def stop(actor: Actor) -> None:
        await actor.stop()

    async def forget(actor: Actor) -> None:
        third = members[2]
        Victim(third.pid, "r3", faults).kill()
        await asyncio.to_thread(third.restart)
        faults.note("restart", "r3")

    return [
        Scene("a pause", settings["ttl"], stop, ends=Actor.resume),
        Scene("a partition and a pause", settings["ttl"], stop, ends=Actor.resume, a_lacks=(4, 5), b_lacks=(1, 2)),
        Scene("a node forgets", settings["long_ttl"], forget, a_lacks=(4, 5)),
    ]


def _late(outcome: Outcome, settings: Settings, members: list[Redis], faults: Faults, room: Room) -> None:
    """What Redlock's own clock check is good for: answers that come after the ttl are no grant."""
    room.say("answers that come too late")
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
