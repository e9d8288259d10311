"""Measures sides against a baseline in interleaved rounds, so that both meet the same machine."""

import gc
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

Sides = Mapping[str, Callable[[], object]]
"""What is measured, by name, each called once per iteration. The last side is the baseline."""

Setup = Callable[[], Iterator[Sides]]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A registered measurement: `aims` are the ratios to the baseline that sides, by name, should not exceed."""

    name: str
    sides: Callable[[], AbstractContextManager[Sides]]
    aims: Mapping[str, float] | float | None
    """A number alone is for the first side."""
    iterations: int
    rounds: int
    bound: str
    """What keeps it from being faster, for a reader of a missed aim."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One side of one bench. `ratio` is the median over the rounds of this side's time / the baseline's.

    `client` and `servers` are how many cores this process, and all that it has started, kept busy meanwhile.
    """

    bench: str
    side: str
    seconds: float
    ratio: float
    low: float
    high: float
    aim: float | None
    client: float
    servers: float
    bound: str

    @property
    def met(self) -> bool | None:
        """Is the aim met? None where there is none."""
        return None if self.aim is None else self.ratio <= self.aim


registry: list[Bench] = []


def bench(
    name: str,
    *,
    aim: Mapping[str, float] | float | None = None,
    iterations: int = 200,
    rounds: int = 30,
    bound: str = "",
) -> Callable[[Setup], Setup]:
    """Register a generator that sets up, yields its Sides once, and cleans up after itself.

    `iterations` calls of one side make a round; there are `rounds` rounds of every side. `bound` says what keeps it
    from being faster, where that is known.
    """

    def register(setup: Setup) -> Setup:
        sides = contextmanager(setup)
        registry.append(Bench(name=name, sides=sides, aims=aim, iterations=iterations, rounds=rounds, bound=bound))
        return setup

    return register


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number that is not a time: counted or compared within one run, and not to exceed `aim`."""

    name: str
    find: Callable[[], float]
    aim: float
    quick: Callable[[], float]
    """The same with less, for a smoke test; its aim means little then."""
    bound: str


facts: list[Fact] = []


def fact(
    name: str, *, aim: float, quick: Callable[[], float] | None = None, bound: str = ""
) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Register a function that finds one number; ``quick`` is called in its place by a smoke test."""

    def register(find: Callable[[], float]) -> Callable[[], float]:
        facts.append(Fact(name=name, find=find, aim=aim, quick=quick or find, bound=bound))
        return find

    return register


@dataclass
class Spent:
    """What the rounds of a side took: in seconds, and of processors, by this process and by those that it started."""

    rounds: list[float] = field(default_factory=list)
    client: float = 0.0
    servers: float = 0.0


def processors() -> tuple[float, float]:
    """The seconds of processors that this process has used so far, and all those that it has started."""
    over = resource.getrusage(resource.RUSAGE_CHILDREN)
    servers, pids = over.ru_utime + over.ru_stime, _children(os.getpid())
    while pids:
        pid = pids.pop()
        try:
            used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
            pids += _children(pid)
        except OSError:  # it has just ended
            continue
        servers += sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
    return time.process_time(), servers


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            found += map(int, (thread / "children").read_text().split())
    return found


def measure(
    subject: Bench,
    *,
    rounds: int,
    order: random.Random,
    clock: Callable[[], float] = time.perf_counter,
    used: Callable[[], tuple[float, float]] = processors,
) -> list[Result]:
    """Run every side `rounds` times after one warm-up round, the order of the sides drawn again each round."""
    with subject.sides() as sides:
        names = list(sides)
        for name in names:
            _round(sides[name], subject.iterations, clock)
        spent = {name: Spent() for name in names}
        for _ in range(rounds):
            for name in order.sample(names, len(names)):
                mine, before = spent[name], used()
                mine.rounds.append(_round(sides[name], subject.iterations, clock))
                after = used()
                mine.client += after[0] - before[0]
                mine.servers += after[1] - before[1]
    baseline = spent[names[-1]].rounds
    aims = subject.aims if isinstance(subject.aims, Mapping) else {names[0]: subject.aims}
    results = []
    for name in names:
        mine = spent[name]
        ratios = sorted(own / base for own, base in zip(mine.rounds, baseline, strict=True))
        tenth = len(ratios) // 10
        results.append(
            Result(
                bench=subject.name,
                side=name,
                seconds=statistics.median(mine.rounds) / subject.iterations,
                ratio=statistics.median(ratios),
                low=ratios[tenth],
                high=ratios[-1 - tenth],
                aim=aims.get(name),
                client=mine.client / sum(mine.rounds),
                servers=mine.servers / sum(mine.rounds),
                bound=subject.bound,
            )
        )
    return results


def _round(side: Callable[[], object], iterations: int, clock: Callable[[], float]) -> float:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = clock()
        for _ in range(iterations):
            side()
        return clock() - start
    finally:
        if was_enabled:
            gc.enable()
