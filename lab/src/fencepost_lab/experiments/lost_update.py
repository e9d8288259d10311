"""Fencing only the writes against entering first: the update that is lost in between."""

import asyncio
from typing import Any

from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import processes
from fencepost_lab.stage.client import Client
from fencepost_lab.stage.processes import Processes, Unexpected, open_processes, together
from fencepost_lab.stage.record import Record


def run(settings: Settings, context: Context) -> Outcome:
    """Run it on each store, both ways at the same time."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    for backend in settings["backends"]:
        store = context.store(backend)
        context.say(f"{store.name}: a stale write between a read and its write")
        runs = dict(
            zip(("writes", "enter"), processes.run(_both(store, max(settings["ttl"], store.min_ttl))), strict=True)
        )
        outcome.figures[store.name] = figures = {}
        for name, (record, value) in runs.items():
            context.keep(f"lost-update-{store.name}-{name}", record.history())
            found = record.check()
            figures[name] = seen = {
                "acknowledged": len(record.of("accepted")),
                "value": value,
                "lost_updates": found.counts["lost_updates"],
                "refused": len(record.of("refused")),
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
            titles = [(title, runs[name][0]) for name, title in _WAYS.items()]
            outcome.plots.append(
                lanes("lanes", "B reads while A is stopped; A wakes and writes before B does.", titles)
            )
    columns = ("store", "fenced", "acknowledged", "value", "lost updates", "refused", "violations")
    outcome.tables.append(Table("Two increments of one value", columns, rows))
    return outcome


_WAYS = {"writes": "writes only", "enter": "enter first"}


async def _both(store: Store, ttl: float) -> list[tuple[Record, int]]:
    async with open_processes() as built:
        return await together(*(_run_once(built, store, ttl, enter) for enter in ("--no-enter", "--enter")))


async def _run_once(built: Processes, store: Store, ttl: float, enter: str) -> tuple[Record, int]:
    """Let A write between B's read and B's write; what was said, and what the resource holds."""
    record = Record(f"lab lost-update {store.name} {enter.strip('-')}")
    url = await built.resource(fence=True)
    options = ("--resource", url, "--key", record.key, "--ttl", f"{ttl}s", "--edit", "count", enter)
    first, second = await built.workers("AB", record.hear, *options, backend=store.url)
    for worker in (first, second):
        await worker.acquire()
        await worker.read()
        await worker.prepared()
        if worker is first:
            await worker.stop()
    first.resume()
    await first.write()
    await second.write()
    await second.finish()
    await first.finish()
    older, newer = (fact["token"] for fact in record.of("acquired"))
    if older >= newer or record.check().counts["overlapping_beliefs"] != 1:
        raise Unexpected(f"B was to take the lock over while A was stopped, with tokens {older} and {newer}")
    with Client(url) as client:
        return record, int((await asyncio.to_thread(client.read, record.key)).body)
