"""Measures sides against a baseline in interleaved rounds, so that both meet the same machine."""

import gc
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench.profile import Profile, Sampling, children, repeat

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
    profile: Profile | None = None

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
    profile: Callable[[AbstractContextManager[object]], object] | None
    """Does the same once, with the part to look at inside the given block. None: that is all of `quick`."""


facts: list[Fact] = []
UNSEEN: AbstractContextManager[object] = nullcontext()
"""What a fact enters in place of a profile."""


def fact(
    name: str,
    *,
    aim: float,
    quick: Callable[[], float] | None = None,
    bound: str = "",
    profile: Callable[[AbstractContextManager[object]], object] | None = None,
) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Register a function that finds one number; ``quick`` is called in its place by a smoke test.

    ``profile`` is called to see where the time goes, if ``quick`` is too short for that, or does much else besides.
    """

    def register(find: Callable[[], float]) -> Callable[[], float]:
        facts.append(Fact(name=name, find=find, aim=aim, quick=quick or find, bound=bound, profile=profile))
        return find

    return register


def profile_fact(subject: Fact) -> Profile:
    """Where the time goes while a fact is found."""
    sampling = Sampling(starts=subject.profile is None)
    try:
        if subject.profile is not None:
            subject.profile(sampling)
        else:
            with sampling:
                subject.quick()
    except RuntimeError as error:  # such as that py-spy took so long that leases expired; what was found stands
        return Profile(failure=str(error))
    return sampling.profile


@dataclass
class Spent:
    """What the rounds of a side took: in seconds, and of processors, by this process and by those that it started."""

    rounds: list[float] = field(default_factory=list)
    client: float = 0.0
    servers: float = 0.0


def servers_time() -> float:
    """The seconds of processors that the processes which this one has started have used so far."""
    over = resource.getrusage(resource.RUSAGE_CHILDREN)
    servers, pids = over.ru_utime + over.ru_stime, children(os.getpid())
    while pids:
        pid = pids.pop()
        try:
            own, *reaped = _counted(pid)
            pids += children(pid)
        except OSError:  # it has just ended
            continue
        servers += max(own, _scheduled(pid)) + sum(reaped)
    return servers


def _counted(pid: int) -> tuple[float, float, float]:
    """The seconds of processors that a process has used, and that its children did which have ended, user and system.

    They are counted in ticks of 10 ms, and what is left of a tick is not.
    """
    ticks = [int(used) for used in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]
    second = os.sysconf("SC_CLK_TCK")
    return (ticks[0] + ticks[1]) / second, ticks[2] / second, ticks[3] / second


def _scheduled(pid: int) -> float:
    """The same of its present threads, to the nanosecond: a database has hundreds of processes that do little each.

    It is 0 where the kernel does not tell.
    """
    used = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it has just ended
                used += int((thread / "schedstat").read_text().split()[0])
    return used / 1e9


def measure(
    subject: Bench,
    *,
    rounds: int,
    order: random.Random,
    clock: Callable[[], float] = time.perf_counter,
    own: Callable[[], float] = time.process_time,
    servers: Callable[[], float] = servers_time,
    profiled: Callable[[Result], bool] = lambda result: False,
    sample: Callable[[Callable[[], object]], Profile] = repeat,
) -> list[Result]:
    """Run every side `rounds` times after one warm-up round, the order of the sides drawn again each round.

    Then profile the sides that are to be `profiled`, so that it disturbs no round.
    """
    with subject.sides() as sides:
        names = list(sides)
        for name in names:
            with _uncollected():
                _calls(sides[name], subject.iterations)
        spent = {name: Spent() for name in names}
        for _ in range(rounds):
            for name in order.sample(names, len(names)):
                mine = spent[name]
                with _uncollected():
                    # Neither the collection of the heap nor the counting itself is work of this side.
                    theirs, ours, start = servers(), own(), clock()
                    _calls(sides[name], subject.iterations)
                    end, after = clock(), own()
                mine.rounds.append(end - start)
                mine.client += after - ours
                mine.servers += servers() - theirs
        results = _results(subject, spent)
        for number, result in enumerate(results):
            if profiled(result):
                with _uncollected():
                    found = sample(partial(_calls, sides[result.side], subject.iterations))
                results[number] = replace(result, profile=found)
    return results


def _results(subject: Bench, spent: Mapping[str, Spent]) -> list[Result]:
    names = list(spent)
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


def _calls(side: Callable[[], object], iterations: int) -> None:
    for _ in range(iterations):
        side()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Begin with a collected heap, and keep it from being collected."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
