"""Fencing only the writes against entering first: the update that is lost in between."""

import asyncio
from typing import Any

from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Room
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import actors
from fencepost_lab.stage.actors import Stage, Unexpected, stage, together
from fencepost_lab.stage.client import Client
from fencepost_lab.stage.record import Testimony


def run(settings: Settings, room: Room) -> Outcome:
    """Play it on each store, both ways at the same time."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    for backend in settings["backends"]:
        store = room.store(backend)
        room.say(f"{store.name}: a stale write between a read and its write")
        plays = dict(
            zip(("writes", "enter"), actors.run(_both(store, max(settings["ttl"], store.min_ttl))), strict=True)
        )
        outcome.figures[store.name] = figures = {}
        for name, (testimony, value) in plays.items():
            room.keep(f"lost-update-{store.name}-{name}.jsonl", testimony.history())
            found = testimony.check()
            figures[name] = seen = {
                "acknowledged": len(testimony.of("accepted")),
                "value": value,
                "lost_updates": found.counts["lost_updates"],
                "refused": len(testimony.of("refused")),
                "violations": len(found.violations),
            }
            rows.append((store.name, _WAYS[name], *seen.values()))
        writes, enter = figures["writes"], figures["enter"]
        outcome.claim(
            f"{store.name}: with tokens on the writes alone, an update is lost",
            writes["lost_updates"] == writes["acknowledged"] - writes["value"] == 1 and writes["violations"] > 0,
            f"{writes['acknowledged']} increments acknowledged, the value is {writes['value']}",
        )
        outcome.claim(
            f"{store.name}: entering first, the stale write is refused and nothing is lost",
            enter["refused"] == 1 and enter["acknowledged"] == enter["value"] == 1 and not enter["violations"],
            f"{enter['refused']} refused, {enter['acknowledged']} acknowledged, the value is {enter['value']}",
        )
        if not outcome.plots:
            titles = [(title, plays[name][0]) for name, title in _WAYS.items()]
            outcome.plots.append(
                lanes("lanes", "B reads while A is stopped; A wakes and writes before B does.", titles)
            )
    columns = ("store", "fenced", "acknowledged", "value", "lost updates", "refused", "violations")
    outcome.tables.append(Table("Two increments of one value", columns, rows))
    return outcome


_WAYS = {"writes": "writes only", "enter": "enter first"}


async def _both(store: Store, ttl: float) -> list[tuple[Testimony, int]]:
    async with stage() as built:
        return await together(*(_play(built, store, ttl, enter) for enter in ("--no-enter", "--enter")))


async def _play(built: Stage, store: Store, ttl: float, enter: str) -> tuple[Testimony, int]:
    """Let A write between B's read and B's write; what was said, and what the resource holds."""
    testimony = Testimony(f"lab lost-update {store.name} {enter.strip('-')}")
    url = await built.resource(fence=True)
    options = ("--resource", url, "--key", testimony.key, "--ttl", f"{ttl}s", "--edit", "count", enter)
    first, second = await built.actors("AB", testimony.hear, *options, backend=store.url)
    for actor in (first, second):
        await actor.go("acquire")
        await actor.until("acquired")
        await actor.go("read")
        await actor.until("read")
        await actor.prepared()
        if actor is first:
            await actor.stop()
    first.resume()
    await first.write()
    await second.write()
    await second.finish()
    await first.finish()
    older, newer = (fact["token"] for fact in testimony.of("acquired"))
    if older >= newer or testimony.check().counts["overlapping_beliefs"] != 1:
        raise Unexpected(f"B was to take the lock over while A was stopped, with tokens {older} and {newer}")
    with Client(url) as client:
        return testimony, int((await asyncio.to_thread(client.read, testimony.key)).body)
