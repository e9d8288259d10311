"""A holder that is cut off from the lock service alone: fence off, fence on, and one that looks at its lease."""

import asyncio
from dataclasses import dataclass
from typing import Any

from fencepost.driver import boottime
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.faults.link import Link
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import processes
from fencepost_lab.stage.client import Client
from fencepost_lab.stage.processes import Processes, StepWorker, Unexpected, open_processes, together
from fencepost_lab.stage.record import Record
from fencepost_lab.stage.worker import Fact

_BETWEEN = 0.03  # seconds between two writes of a holder that looks at its lease
_GRACE = 10.0  # seconds that it may take to stop, on however slow a machine


@dataclass(frozen=True, slots=True)
class Run:
    """One of the runs on a store; ``looks``: A looks at its lease before each write."""

    name: str
    title: str
    fence: bool
    looks: bool = False


RUNS = (Run("off", "fence off", False), Run("on", "fence on", True), Run("looks", "fence off, A looks", False, True))


def run(settings: Settings, context: Context) -> Outcome:
    """Run it on each store, all three at the same time."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    for backend in settings["backends"]:
        store = context.store(backend)
        ttl = max(settings["ttl"], store.min_ttl)
        context.say(f"{store.name}: a holder is cut off from it for longer than its ttl of {ttl:g} s")
        found = dict(zip((each.name for each in RUNS), processes.run(_all(store, ttl)), strict=True))
        for each in RUNS:
            context.keep(f"partition-{store.name}-{each.name}", found[each.name]["record"].history())
            rows.append(_row(store.name, each, found[each.name]))
        if not outcome.plots:
            outcome.plots.append(
                lanes(
                    "lanes",
                    f"A is cut off from {store.name}, and reaches the resource all the time; B takes over.",
                    [(each.title, found[each.name]["record"]) for each in RUNS],
                )
            )
        _add_claims(outcome, store.name, **found)
    outcome.tables.append(
        Table(
            "A holder without its lock service",
            ("store", "fence", "ttl", "left of A's lease", "held back", "A's answer", "counted", "violations"),
            rows,
            note="Left of A's lease: by A's own clock, when it wrote or stopped; negative: it was over. Held back: by "
            "the proxies. "
            "Counted: the value, of the increments that were acknowledged. Violations: what "
            "'fencepost check' found in the history.",
        )
    )
    runs = outcome.figures.values()
    off, on = (sum(each[name]["violations"] for each in runs) for name in ("off", "on"))
    refused = sum(each["on"]["answer"].get("status") == 409 for each in runs)
    outcome.slo["violations"] = f"{on} on {len(runs)} stores after a partition with the fence on; {off} with it off"
    outcome.slo["stale-refused"] = f"409 on {refused} of {len(runs)} stores, by a holder that was cut off"
    return outcome


async def _all(store: Store, ttl: float) -> list[dict[str, Any]]:
    async with open_processes() as built:
        on, off = await together(built.resource(fence=True), built.resource(fence=False))
        return await together(*(_run_once(built, store, ttl, each, on if each.fence else off) for each in RUNS))


async def _run_once(built: Processes, store: Store, ttl: float, how: Run, url: str) -> dict[str, Any]:
    """Let A be replaced while it is cut off from the store; what everybody saw."""
    record = Record(f"lab partition {store.name} {how.name}")
    options = ["--resource", url, "--key", record.key, "--ttl", f"{ttl}s", "--fence", "on" if how.fence else "off"]
    with Link(store.url, who="A") as link:
        first, second = await together(
            built.worker("A", record.hear, *options, *_looking(how, ttl), backend=link.url),
            built.worker("B", record.hear, *options, backend=store.url),
        )
        held = await first.acquire()
        await first.read()
        await first.prepared()
        link.cut()
        record.hear(_fault("cut"))
        last = await _write_on(first, ttl) if how.looks else None
        taken = await second.acquire()
        await second.read()
        await second.prepared()
        last = last or await first.write()
        await second.write()
        link.heal()
        record.hear(_fault("heal"))
        await second.finish()
        await first.finish()
    sent = last if last["event"] == "heeded" else record.of("sent", worker="A")[-1]
    if not link.held:
        raise Unexpected(
            f"A sent nothing while it was cut off from {store.name}: it had lost its lease before, as happens on a "
            f"machine that is too busy to renew {ttl:g} s in time; run it again with less beside it"
        )
    if taken["token"] <= held["token"]:
        raise Unexpected(f"B was to replace A, and has token {taken['token']} after A's {held['token']}")
    report = record.check()
    return {
        "record": record,
        "ttl": held["ttl"],
        "tokens": [held["token"], taken["token"]],
        "held_back": link.held,
        "left": round(sent["left"], 3),
        "before_b": round(taken["at"] - sent["at"], 3),
        "knew": bool(sent.get("lost", True)),
        "answer": {name: last[name] for name in ("event", "status", "verdict", "seen", "got") if name in last},
        "accepted_writers": len({fact["worker"] for fact in record.of("accepted")}),
        "acknowledged": len(record.of("accepted")),
        "value": await asyncio.to_thread(_value, url, record.key),
        "lost_updates": report.counts["lost_updates"],
        "violations": len(report.violations),
    }


def _looking(how: Run, ttl: float) -> list[str]:
    return ["--margin", f"{ttl / 3}s", "--writes", "1000000"] if how.looks else []


async def _write_on(worker: StepWorker, ttl: float) -> Fact:
    """Let the worker read and write until it stops by itself; why it did. Unexpected if it goes on past its lease."""
    until = boottime() + 2 * ttl + _GRACE
    while boottime() < until:
        await worker.go("write")
        fact = await worker.until("accepted", "refused", "heeded")
        if fact["event"] == "heeded":
            return fact
        await worker.read()
        await asyncio.sleep(_BETWEEN)
    raise Unexpected(f"A was to look at its lease of {ttl:g} s, and still writes long after it was cut off")


def _fault(do: str) -> Fact:
    return {"event": "fault", "do": do, "worker": "A", "at": boottime()}


def _value(url: str, key: str) -> int:
    with Client(url) as client:
        return int(client.read(key).body)


def _row(name: str, how: Run, seen: dict[str, Any]) -> tuple[Any, ...]:
    answer = seen["answer"]
    said = "stopped by itself" if how.looks else f"{answer['status']} {answer.get('verdict', 'accepted')}"
    numbers = (f"{seen['ttl']:g} s", f"{seen['left']:.2f} s", f"{seen['held_back']} bytes")
    return name, how.title, *numbers, said, f"{seen['value']} of {seen['acknowledged']}", seen["violations"]


def _add_claims(outcome: Outcome, name: str, *, off: dict[str, Any], on: dict[str, Any], looks: dict[str, Any]) -> None:
    found = {"off": off, "on": on, "looks": looks}
    outcome.figures[name] = {
        way: {key: value for key, value in seen.items() if key != "record"} for way, seen in found.items()
    }
    outcome.claim(
        f"{name}: A's lease is over by its own clock when B acquires, and A still reaches the resource",
        all(seen["left"] < 0 and seen["knew"] and seen["held_back"] for seen in (off, on)),
        f"A wrote {-off['left']:.2f} s and {-on['left']:.2f} s after its deadline; {off['held_back']} and "
        f"{on['held_back']} bytes between A and the store were held back",
    )
    outcome.claim(
        f"{name}: with the fence off, both are accepted and an update is lost",
        (off["accepted_writers"], off["acknowledged"], off["value"], off["lost_updates"]) == (2, 2, 1, 1)
        and off["violations"] > 0,
        f"{off['accepted_writers']} accepted writers, {off['acknowledged']} increments acknowledged, the value is "
        f"{off['value']}, {off['violations']} violations",
    )
    answer = on["answer"]
    outcome.claim(
        f"{name}: with the fence on, A is refused with 409 and nothing is lost",
        [answer.get("got"), answer.get("seen")] == on["tokens"]
        and answer.get("status") == 409
        and on["acknowledged"] == on["value"] == 1
        and not on["violations"],
        f"{answer.get('status', answer['event'])}, got {answer.get('got')}, seen {answer.get('seen')}; "
        f"{on['acknowledged']} increment acknowledged, the value is {on['value']}, {on['violations']} violations",
    )
    outcome.claim(
        f"{name}: A that looks at its lease with a margin stops while it still holds, and nothing is lost",
        looks["left"] > 0
        and looks["before_b"] > 0
        and looks["accepted_writers"] == 2
        and looks["acknowledged"] == looks["value"]
        and not looks["violations"],
        f"it stopped with {looks['left']:.2f} s left, {looks['before_b']:.2f} s before B acquired; "
        f"{looks['acknowledged']} increments acknowledged, the value is {looks['value']}",
    )
