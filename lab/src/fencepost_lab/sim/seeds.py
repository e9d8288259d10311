"""Seeded testing: run many random scenarios, hold each trace to its promises, keep those that fail."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fencepost_lab.history.checks import Report, check
from fencepost_lab.history.format import Line
from fencepost_lab.history.gather import Violation
from fencepost_lab.sim.chaos import chaos
from fencepost_lab.sim.run import run
from fencepost_lab.sim.scenario import Scenario

_BATCH = 50


@dataclass(slots=True)
class Failure:
    """A scenario that broke a promise."""

    scenario: Scenario
    violations: list[Violation]

    def replay(self, fencing: str, calm: bool) -> str:
        """The command that shows it again."""
        extra = (f" --fencing {fencing}" if fencing != "enter" else "") + (" --calm" if calm else "")
        return f"fencepost sim --seed {self.scenario.seed}{extra}"


@dataclass(slots=True)
class Tally:
    """How many seeds were run, what happened in them, and which failed."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.seeds += other.seeds
        self.counts.update(other.counts)
        self.failures += other.failures


def check_trace(trace: list[Line], *, weakened: bool = False, calm: bool = False) -> Report:
    """Hold a trace to its promises. A weakened guard is held to its data all the same: that is what is tried."""
    report = check(trace, ("data",) if weakened else None)
    if calm:
        report.violations += stuck(trace)
    return report


def told(scenario: Scenario) -> list[Line]:
    """A run with every promise it broke as a note at its instant, to be looked at."""
    trace = run(scenario)
    *events, end = trace
    calm = any(action["do"] == "calm" for action in scenario.actions)
    found = check_trace(trace, weakened=scenario.settings.fencing != "enter", calm=calm).violations
    notes: list[Line] = [{"t": each.t, "ev": "note", "text": f"Broken: {each.check}: {each.what}"} for each in found]
    noted = sorted([*events, *notes], key=lambda line: line["t"])
    return [*noted, end | {"lines": len(noted)}]


def stuck(trace: list[Line]) -> list[Violation]:
    """What did not get done although every fault had stopped: a liveness failure."""
    end = trace[-1]
    found = [
        Violation("liveness", end["t"], f"{who} has {rounds} rounds left, long after the faults stopped")
        for who, rounds in end["unfinished"].items()
    ]
    if not found and end["holder"] is not None:
        found.append(Violation("liveness", end["t"], f"{end['holder']} still holds the lock, and nobody wants it"))
    if not found and end["waiting"]:
        found.append(Violation("liveness", end["t"], f"{end['waiting']} still wait, and nobody holds the lock"))
    return found


def try_seeds(seeds: Iterable[int], *, fencing: str = "enter", calm: bool = False, stop: bool = False) -> Tally:
    """Run seeds one after the other; with ``stop``, until the first that fails."""
    tally = Tally()
    for seed in seeds:
        scenario = chaos(seed, fencing=fencing, calm=calm)
        trace = run(scenario)
        report = check_trace(trace, weakened=fencing != "enter", calm=calm)
        tally.seeds += 1
        tally.counts.update(report.counts)
        tally.counts.update(f"{state}:{promise}" for promise, state in report.states().items())
        if not report.ok:
            tally.failures.append(Failure(scenario, report.violations))
            if stop:
                break
    return tally


def try_many(
    first: int,
    seeds: int,
    *,
    fencing: str = "enter",
    calm: bool = False,
    workers: int | None = None,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Run ``seeds`` seeds from ``first`` on, on all cores."""
    from concurrent.futures import ProcessPoolExecutor  # Python in a browser has no processes, and no such modules
    from multiprocessing import get_context

    total = Tally()
    batches = [range(start, min(start + _BATCH, first + seeds)) for start in range(first, first + seeds, _BATCH)]
    job = partial(try_seeds, fencing=fencing, calm=calm)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for tally in pool.map(job, batches):
            total.add(tally)
            progress(total)
    return total


def keep(failure: Failure, folder: Path) -> Path:
    """Write a failing scenario where the tests will always run it again."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = failure.scenario.settings
    path = folder / f"{settings.backend}-{settings.fencing}-{failure.scenario.seed}.json"
    found: dict[str, Any] = {"broke": [each.what for each in failure.violations[:5]]}
    path.write_text(json.dumps({**found, **failure.scenario.data()}, indent=1) + "\n")
    return path
