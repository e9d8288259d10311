"""Measures sides against a baseline in interleaved rounds, so that both meet the same machine."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Result:
    """One side of one bench. `ratio` is the median over the rounds of this side's time / the baseline's."""

    bench: str
    side: str
    seconds: float
    ratio: float
    low: float
    high: float
    aim: float | None

    @property
    def met(self) -> bool | None:
        """Is the aim met? None where there is none."""
        return None if self.aim is None else self.ratio <= self.aim


registry: list[Bench] = []


def bench(
    name: str, *, aim: Mapping[str, float] | float | None = None, iterations: int = 200, rounds: int = 30
) -> Callable[[Setup], Setup]:
    """Register a generator that sets up, yields its Sides once, and cleans up after itself.

    `iterations` calls of one side make a round; there are `rounds` rounds of every side.
    """

    def register(setup: Setup) -> Setup:
        registry.append(Bench(name=name, sides=contextmanager(setup), aims=aim, iterations=iterations, rounds=rounds))
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


facts: list[Fact] = []


def fact(
    name: str, *, aim: float, quick: Callable[[], float] | None = None
) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Register a function that finds one number; ``quick`` is called in its place by a smoke test."""

    def register(find: Callable[[], float]) -> Callable[[], float]:
        facts.append(Fact(name=name, find=find, aim=aim, quick=quick or find))
        return find

    return register


def measure(
    subject: Bench, *, rounds: int, order: random.Random, clock: Callable[[], float] = time.perf_counter
) -> list[Result]:
    """Run every side `rounds` times after one warm-up round, the order of the sides drawn again each round."""
    with subject.sides() as sides:
        names = list(sides)
        for name in names:
            _round(sides[name], subject.iterations, clock)
        spent: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in order.sample(names, len(names)):
                spent[name].append(_round(sides[name], subject.iterations, clock))
    baseline = spent[names[-1]]
    aims = subject.aims if isinstance(subject.aims, Mapping) else {names[0]: subject.aims}
    results = []
    for name in names:
        ratios = sorted(own / base for own, base in zip(spent[name], baseline, strict=True))
        tenth = len(ratios) // 10
        results.append(
            Result(
                bench=subject.name,
                side=name,
                seconds=statistics.median(spent[name]) / subject.iterations,
                ratio=statistics.median(ratios),
                low=ratios[tenth],
                high=ratios[-1 - tenth],
                aim=aims.get(name),
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
