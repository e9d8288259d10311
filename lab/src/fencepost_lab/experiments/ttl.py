"""Holders killed and holders stopped, at several ttls: how long the resource is blocked, and what is violated."""

import asyncio
from collections import Counter
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import processes
from fencepost_lab.stage.processes import Processes, Unexpected, open_processes, together
from fencepost_lab.stage.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def run(settings: Settings, context: Context) -> Outcome:
    """Sweep the ttls on each store; the rounds of one ttl run at the same time."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    for backend in settings["backends"]:
        store = context.store(backend)
        sweep: dict[float, dict[str, Any]] = {}
        ttls = sorted({max(ttl, store.min_ttl) for ttl in settings["ttls"]})
        for ttl in ttls:
            context.say(f"{store.name}: killing holders of leases of {ttl:g} s")
            records = processes.run(_rounds(store, ttl, settings["rounds"], settings["pause"] * ttls[0]))
            sweep[ttl] = _count(records)
            context.keep(f"ttl-{store.name}-{ttl:g}s", records[0].history())
            rows.append(_row(store.name, ttl, sweep[ttl]))
        outcome.figures[store.name] = {f"{ttl:g}": seen for ttl, seen in sweep.items()}
        _add_claims(outcome, store.name, sweep)
    columns = (
        "store",
        "ttl",
        "blocked, median",
        "blocked, longest",
        "of the ttl",
        "B replaced",
        "B refused",
        "violations",
    )
    note = (
        "B was stopped for the same time at every ttl; a short one lets C replace it, and the guard refuses B's write."
    )
    outcome.tables.append(Table("Killed holders block, slow holders are replaced", columns, rows, note))
    outcome.plots.append(_plot(outcome.figures))
    shortest = [min(each.items(), key=lambda item: float(item[0])) for each in outcome.figures.values()]
    outcome.slo["violations"] = "; ".join(f"{seen['violations']} at a ttl of {ttl} s" for ttl, seen in shortest[:1])
    return outcome


def _add_claims(outcome: Outcome, name: str, sweep: dict[float, dict[str, Any]]) -> None:
    medians = [median(seen["blocked"]) for seen in sweep.values()]
    outcome.claim(
        f"{name}: the longer the ttl, the longer a dead holder blocks the resource",
        all(less < more for less, more in pairwise(medians)),
        ", ".join(f"ttl {ttl:g} s: {each:.2f} s" for ttl, each in zip(sweep, medians, strict=True)),
    )
    shortest = next(iter(sweep.values()))
    outcome.claim(
        f"{name}: at the shortest ttl slow holders are replaced, and every write of theirs is refused",
        shortest["replaced"] == shortest["refused"] == shortest["rounds"],
        f"{shortest['replaced']} of {shortest['rounds']} replaced, {shortest['refused']} refused",
    )
    outcome.claim(
        f"{name}: no violation at any ttl",
        not any(seen["violations"] for seen in sweep.values()),
        ", ".join(f"ttl {ttl:g} s: {seen['violations']}" for ttl, seen in sweep.items()),
    )


def _row(name: str, ttl: float, seen: dict[str, Any]) -> tuple[Any, ...]:
    middle, longest = median(seen["blocked"]), max(seen["blocked"])
    times = f"{ttl:g} s", f"{middle:.2f} s", f"{longest:.2f} s", f"{middle / ttl:.0%}"
    return name, *times, seen["replaced"], seen["refused"], seen["violations"]


def _count(records: list[Record]) -> dict[str, Any]:
    blocked = []
    tally: Counter[str] = Counter(replaced=0, refused=0, violations=0)
    for each in records:
        [killed] = (fact["at"] for fact in each.of("fault", worker="A") if fact["do"] == "kill")
        [successor] = each.of("acquired", worker="B")
        [last] = each.of("acquired", worker="C")
        [woke] = (fact["at"] for fact in each.of("fault", worker="B") if fact["do"] == "resume")
        blocked.append(round(successor["at"] - killed, 3))
        tally["replaced"] += last["at"] < woke
        tally["refused"] += len(each.of("refused", worker="B"))
        tally["violations"] += len(each.check().violations)
    return {"rounds": len(records), "blocked": blocked, **tally}


async def _rounds(store: Store, ttl: float, rounds: int, pause: float) -> list[Record]:
    async with open_processes() as built:
        url = await built.resource(fence=True)
        # A renewal comes at each third of the ttl: the kills are spread over one such third.
        phases = [ttl / 3 * index / rounds for index in range(rounds)]
        return await together(*(_round(built, store, url, ttl, phase, pause) for phase in phases))


async def _round(built: Processes, store: Store, url: str, ttl: float, phase: float, pause: float) -> Record:
    record = Record(f"lab ttl {store.name} {ttl:g}s")
    options = ("--resource", url, "--key", record.key, "--ttl", f"{ttl}s", "--edit", "append")
    dead, slow, last = await built.workers("ABC", record.hear, *options, backend=store.url)
    await dead.acquire()
    await slow.go("acquire")
    await asyncio.sleep(phase)
    await dead.kill()
    await slow.until("acquired")
    await slow.read()
    await slow.prepared()
    await last.go("acquire")
    await slow.stop()
    await asyncio.sleep(pause)
    replaced = bool(record.of("acquired", worker="C"))
    if replaced:
        await last.read()
    slow.resume()
    answer = await slow.write()
    # Had C come in at the very end of the pause, unseen, it would not have entered yet, and B would rightly be first.
    if replaced != (answer["event"] == "refused"):
        raise Unexpected(f"B was {'replaced' if replaced else 'still the holder'}, and its write was {answer['event']}")
    await slow.finish()
    if not replaced:
        await last.until("acquired")
        await last.go("read")
    await last.write()
    await last.finish()
    return record


def _plot(figures: dict[str, dict[str, Any]]) -> Plot:
    def paint(axes: "Axes") -> None:
        for name, sweep in figures.items():
            spots = [(float(ttl), each) for ttl, seen in sweep.items() for each in seen["blocked"]]
            axes.plot(*zip(*spots, strict=True), linestyle="none", label=name, alpha=0.7)
        ttls = sorted({float(ttl) for sweep in figures.values() for ttl in sweep})
        axes.plot(ttls, ttls, marker="", linestyle="--", color="gray", label="the ttl itself")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(ttls, [f"{ttl:g}" for ttl in ttls])
        axes.set_yticks(ttls, [f"{ttl:g}" for ttl in ttls])
        axes.minorticks_off()
        axes.set_xlabel("ttl in seconds")
        axes.set_ylabel("blocked, in seconds")
        axes.legend()

    return plots.draw("blocked", "How long a killed holder blocks the resource: one mark for each kill.", paint)
