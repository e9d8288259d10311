"""A fleet in the simulated world: hundreds of workers on a few hosts, the real group, core, renewals and rule.

Hosts and workers are killed, frozen and cut off, workers come and leave, the store restarts; then it all stops, and
the fleet must be in balance again.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any

from fencepost.errors import FencepostError
from fencepost.fleet.plan import prefix, view
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import FORMAT, Line
from fencepost_lab.history.gather import Violation
from fencepost_lab.sim.counters import Counters
from fencepost_lab.sim.kinds import ConsensusStore
from fencepost_lab.sim.network import Message, Network
from fencepost_lab.sim.ownership import Watch
from fencepost_lab.sim.run import quiet
from fencepost_lab.sim.scenario import Settings
from fencepost_lab.sim.service import Service
from fencepost_lab.sim.workers import Host, Worker
from fencepost_lab.sim.world import Node, World

GROUP = "orders"
BOUND = 2.0
"""So many ttl may a partition be without an owner that runs."""
DRIFT = 0.05
"""By this fraction the clocks of hosts run faster or slower than the store's."""
_STEPS = 20_000_000
_LOOKS = 10  # in each ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the fleet is, and how much happens to it."""

    workers: int = 200
    hosts: int = 12
    partitions: int = 240
    ttl: float = 3.0
    faults: int = 8


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    """The longest time, in ttl, that a partition was without an owner that runs."""


class _Silent(Network):
    """A network that does not tell of every message: there are too many."""

    def _tell(self, message: Message, sent: float, copy: int, fate: str) -> None:
        pass


class Fleet:
    """One world, made from a seed."""

    def __init__(self, seed: int, size: Size) -> None:
        self.size = size
        self.dice = dice = Random(seed)
        self.world = world = World(seed, shuffle=True)
        kind = dice.choice(("redis", "etcd", "zookeeper"))
        ttl = size.ttl
        settings = Settings(backend=kind, fence="hybrid", ttl=ttl, patience=0.3 * ttl, offsets=True)
        self.network = _Silent(world, delay=(0.001 * ttl, 0.02 * ttl), loss=0.0, duplicate=0.0)
        self.service = Service(world, self.network, settings, prefix(GROUP))
        self.store = self.service.stores[self.service.nodes[0]]
        self.store.recalls, self.store.freshness = False, 0.02 * ttl
        self.node = Node(world, "resource")
        self.counters = Counters(world.tell)
        self.network.join(self.node, self._access)
        self.watch = Watch(size.partitions)
        self.workers: dict[str, Worker] = {}
        self.faults: Counter[str] = Counter()
        self.hosts = [
            Host(f"h{n}", dice.uniform(0, 1000), dice.uniform(1 - DRIFT, 1 + DRIFT)) for n in range(size.hosts)
        ]
        # Clocks run at rates of their own, by so much at most; a Redis that restarts has forgotten who owns what.
        self.head = world.tell(
            "run", format=FORMAT, source=f"fleet on {kind}", promises=["data", "inside", "order", "exclusion"],
            drift=DRIFT / (1 - DRIFT), counter=True, ttl=ttl,
        )  # fmt: skip

    def run(self) -> Outcome:
        """Everything that the seed holds; what came of it."""
        world, size, dice = self.world, self.size, self.dice
        ttl = size.ttl
        for number in range(size.workers):
            world.at(dice.uniform(0, ttl), None, self.join, self.hosts[number % size.hosts])
        # The fleet gathers, is harmed, is left alone until everything must be in balance, and stays so.
        harmed, healed, balanced = 1.5 * ttl, (1.5 + size.faults * 0.5) * ttl, (1.5 + size.faults * 0.5 + 5.0) * ttl
        for _ in range(size.faults):
            world.plan(dice.uniform(harmed, healed), self._harm, dice.choice(self.kinds))
        self._look()
        world.run(balanced + 2 * ttl, _STEPS)
        return self._outcome(balanced)

    def _outcome(self, calm: float) -> Outcome:
        world = self.world
        for worker in self.workers.values():
            worker.end()
        report = check(world.trace)
        ttl = self.size.ttl
        longest = self.watch.longest(world.now) / ttl
        found = Outcome(0, report.violations, report.counts, longest)
        wrong = [("liveness", f"a partition had no owner for {longest:.2f} ttl")] * (longest > BOUND)
        if not self.watch.balanced:
            wrong.append(("balance", "the fleet is not in balance, long after all faults"))
        if late := sum(line["ev"] == "acquired" and line["t"] > calm for line in world.trace):
            wrong.append(("balance", f"{late} partitions still move, long after all faults"))
        found.violations += [Violation(kind, world.now, what) for kind, what in wrong]
        found.counts.update({f"fleet:{what}": number for what, number in self.faults.items()})
        found.counts["fleet:moves"] = report.counts["acquired"]
        return found

    def _access(self, message: Message) -> None:
        answer = self.counters.judge(*message.body)
        self.network.send("resource", message.src, message.what, answer, answers=message.id)

    def _look(self) -> None:
        """See, again and again, who owns what."""
        if self.store.node.up:
            listed = self.store.on_list("", prefix(GROUP))[1:]
            self.watch.look(self.world.now, view(GROUP, listed), self.workers)
        if not any(worker.fit for worker in self.workers.values()):
            self.watch.excuse(self.world.now)  # in a small fleet all may be down at once
        self.world.at(self.world.now + self.size.ttl / _LOOKS, None, self._look)

    # What happens to it.

    kinds = (
        "kill_host", "freeze_host", "cut_host", "kill", "freeze", "cut", "leave", "grow", "shrink", "restart",
    )  # fmt: skip

    def _note(self, what: str) -> None:
        self.faults[what] += 1
        self.watch.changed(self.world.now)

    def join(self, host: Host) -> None:
        """Start a worker."""
        worker = Worker(f"w{len(self.workers)}", host, self.world, self.network, self.service, self.size)
        self.workers[worker.name] = worker
        host.workers.append(worker)
        self._note("join")

    def _harm(self, what: str) -> None:
        dice, ttl = self.dice, self.size.ttl
        hosts = [host for host in self.hosts if any(worker.fit for worker in host.workers)]
        if not hosts:
            return
        host = dice.choice(hosts)
        fit = [worker for worker in host.workers if worker.fit]
        victims = fit if what.endswith("_host") else [dice.choice(fit)]
        self._note(what)
        span = ttl * dice.uniform(0.5, 3.0)
        if what.startswith("kill"):
            for worker in victims:
                worker.kill()
                self.world.at(self.world.now + span, None, self.join, host)
        elif what.startswith(("freeze", "cut")):
            way = "freeze" if what.startswith("freeze") else dice.choice(("out", "in", "both"))
            for worker in victims:
                worker.hurt(way)
                self.world.at(self.world.now + span, None, worker.heal, way)
            self.world.at(self.world.now + span, None, self.watch.changed, self.world.now + span)
        elif what in ("leave", "shrink"):
            everybody = [worker for worker in self.workers.values() if worker.fit]
            number = 1 if what == "leave" else len(everybody) // dice.choice((3, 5, 10))
            for worker in dice.sample(everybody, min(number, len(everybody) - 1)):
                worker.leave()
        elif what == "grow":
            for _ in range(self.size.workers // dice.choice((4, 10, 20))):
                self.world.at(self.world.now + dice.uniform(0, ttl), None, self.join, dice.choice(self.hosts))
        else:
            self._restart()

    def _restart(self) -> None:
        """The store goes down and comes up again: a Redis with nothing, a consensus store with all it had."""
        if not self.store.node.up:
            return
        self.store.kill()
        down = 0.3 * self.size.ttl
        self.world.at(self.world.now + down, None, self.store.restart, 0.0)
        self.world.at(self.world.now + down, None, self._up)
        if not isinstance(self.store, ConsensusStore):
            self.faults["emptied"] += 1
            self.head["promises"] = ["data", "inside", "order"]

    def _up(self) -> None:
        self.watch.excuse(self.world.now)
        self.watch.changed(self.world.now)


def run_seed(seed: int, size: Size | None = None) -> tuple[Outcome, list[Line]]:
    """Run one seed; what came of it, and its trace."""
    collects = gc.isenabled()
    gc.disable()  # it would look through the whole world again and again, and find little
    try:
        with quiet:
            fleet = Fleet(seed, size or Size())
            outcome = fleet.run()
    finally:
        if collects:
            gc.enable()
    outcome.seed = seed
    return outcome, fleet.world.trace


def run_seeds(seeds: Iterable[int], size: Size | None = None, workers: int | None = None) -> Iterator[Outcome]:
    """Run many seeds, on all cores; what came of each, as it comes."""
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(_outcome, size=size), seeds)


def _outcome(seed: int, size: Size | None) -> Outcome:
    try:
        return run_seed(seed, size)[0]
    except FencepostError as error:  # one that breaks off must not take the others with it, nor go unnamed
        return Outcome(seed, [Violation("whole", 0.0, f"it broke off: {error!r}")])


def facts(outcomes: list[Outcome]) -> dict[str, Any]:
    """Many outcomes in a few numbers."""
    total: Counter[str] = Counter()
    for each in outcomes:
        total.update(each.counts)
    return {
        "seeds": len(outcomes),
        "failed": [each.seed for each in outcomes if each.violations],
        "longest_gap_in_ttl": round(max((each.longest for each in outcomes), default=0.0), 3),
        "faults": {
            name.partition(":")[2]: number for name, number in sorted(total.items()) if name.startswith("fleet:")
        },
        "writes": total["applied"],
        "stale_refused": total["write:stale"] + total["enter:stale"],
        "overlapping_beliefs": total["overlapping_beliefs"],
    }
