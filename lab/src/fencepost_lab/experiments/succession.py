"""One run for every way in which Redlock lets two hold: A acquires, something happens, B acquires, both write."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fencepost_lab.experiments.quorum import Views
from fencepost_lab.faults.record import Faults
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import Line
from fencepost_lab.report.outcome import Outcome
from fencepost_lab.stage.client import Client
from fencepost_lab.stage.processes import StepWorker, Unexpected, open_processes
from fencepost_lab.stage.record import Record

COLUMNS = ("case", "fence", "A held", "B held", "left of A's lease", "accepted writers", "counted", "A's answer")
NOTE = (
    "A held, B held: the nodes on which each had the lock when it was granted. Left of A's lease: by A's own clock, "
    "when B acquired; negative: it had run out. Counted: the value, of the increments that were acknowledged."
)


@dataclass(frozen=True, slots=True)
class Case:
    """A way to two holders: what happens between A's acquire and B's, and after B's write."""

    name: str
    ttl: float
    happens: Callable[[StepWorker], Awaitable[None]]
    ends: Callable[[StepWorker], None] = lambda worker: None
    a_lacks: tuple[int, ...] = ()
    b_lacks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseRun:
    """What was seen."""

    record: Record
    lines: list[Line]
    figures: dict[str, Any]

    def row(self, case: str, fence: str) -> tuple[Any, ...]:
        seen = self.figures
        answer = f"{seen['answer']['status']} {seen['answer'].get('verdict', 'accepted')}"
        counted = f"{seen['value']} of {seen['acknowledged']}"
        held = (" ".join(seen["a_held"]), " ".join(seen["b_held"]))
        return case, fence, *held, f"{seen['a_left']:.2f} s", seen["accepted_writers"], counted, answer


async def run_case(case: Case, views: Views, faults: Faults, *, fence: bool) -> CaseRun:
    """Run a case once; Unexpected if it did not come to two holders."""
    switch = "on" if fence else "off"
    record = Record(f"lab {case.name} {switch}")
    async with open_processes() as built:
        resource = await built.resource(fence=fence)
        options = ("--resource", resource, "--key", record.key, "--ttl", f"{case.ttl}s", "--fence", switch)
        # Nodes that a worker is cut off from cost it this much of its lease.
        backends = {name: views.url(name, patience=min(case.ttl / 3, 1.0)) for name in ("A", "B")}
        first, second = await asyncio.gather(
            *(built.worker(name, record.hear, *options, "--no-renew", backend=url) for name, url in backends.items())
        )
        if case.a_lacks:
            views.cut("A", *case.a_lacks)
        if case.b_lacks:
            views.cut("B", *case.b_lacks)
        held = await first.acquire()
        a_held = views.majority(record.key, held["holder"])
        await first.read()
        await first.prepared()
        await case.happens(first)
        taken = await second.acquire()
        b_held = views.majority(record.key, taken["holder"])
        await second.go("read")
        await second.write()
        case.ends(first)
        answer = await first.write()
        for name in "AB":
            for proxy in views.of(name):
                proxy.heal()
        with Client(resource) as client:
            value = int((await asyncio.to_thread(client.read, record.key)).body)
    if taken["token"] <= held["token"]:
        raise Unexpected(f"B's token was to be larger, and is {taken['token']} after {held['token']}")
    start = min(fact["at"] for fact in record.facts)
    happened = [line for line in faults.lines(start) if line["t"] >= 0]
    lines = sorted([*record.history(), *happened], key=lambda line: float(line["t"]))
    report = check(lines)
    figures = {
        "tokens": [held["token"], taken["token"]],
        "a_held": a_held,
        "b_held": b_held,
        "a_left": round(held["since"] + held["ttl"] - taken["at"], 3),
        "accepted_writers": len({fact["worker"] for fact in record.of("accepted")}),
        "acknowledged": len(record.of("accepted")),
        "value": value,
        "answer": {name: answer[name] for name in ("status", "verdict", "seen", "got") if name in answer},
        "overlapping_beliefs": report.counts["overlapping_beliefs"],
        "lost_updates": report.counts["lost_updates"],
        "violations": len(report.violations),
        "exclusion_broken": len(check(lines, ["exclusion"]).violations),
        "faults": sorted({key.removeprefix("fault:") for key in report.counts if key.startswith("fault:")}),
    }
    return CaseRun(record, lines, figures)


def check_case(outcome: Outcome, case: str, off: CaseRun, on: CaseRun) -> None:
    """Two holders without the guard lose an update; with it, the replaced holder is refused."""
    bare, guarded = off.figures, on.figures
    outcome.figures[case] = {"fence_off": bare, "fence_on": guarded}
    outcome.claim(
        f"{case}: A and B each had a majority of the five nodes, and both believed that they held",
        all(min(len(each["a_held"]), len(each["b_held"])) >= 3 for each in (bare, guarded))
        and bare["overlapping_beliefs"] == guarded["overlapping_beliefs"] == 1,
        f"A {' '.join(bare['a_held'])}, then B {' '.join(bare['b_held'])}; A's lease had {bare['a_left']:.2f} s left",
    )
    outcome.claim(
        f"{case}: without a guard both are accepted and an update is lost",
        (bare["accepted_writers"], bare["acknowledged"], bare["value"], bare["lost_updates"]) == (2, 2, 1, 1),
        f"{bare['accepted_writers']} accepted writers, {bare['acknowledged']} increments acknowledged, "
        f"the value is {bare['value']}",
    )
    answer = guarded["answer"]
    outcome.claim(
        f"{case}: the guard refuses A and nothing is lost",
        [answer.get("got"), answer.get("seen")] == guarded["tokens"]
        and answer["status"] == 409
        and guarded["acknowledged"] == guarded["value"] == 1
        and not guarded["violations"],
        f"{answer['status']}, got {answer.get('got')}, seen {answer.get('seen')}; {guarded['acknowledged']} increment "
        f"acknowledged, the value is {guarded['value']}, {guarded['violations']} violations",
    )
