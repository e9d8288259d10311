"""How long partitions go without an owner, and how long a fleet is out of balance, as its store shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fencepost.fleet.plan import View


class Worker(Protocol):
    """A worker, as the source of faults knows it."""

    @property
    def fit(self) -> bool:
        """It runs, and has not been asked to leave."""

    @property
    def hit(self) -> float | None:
        """When it was killed or stopped; None while it runs."""


@dataclass
class Watch:
    """What the looks so far have shown."""

    count: int
    gaps: list[float] = field(default_factory=list)
    """How long each partition that lost its owner was without one that runs."""
    settled: list[float] = field(default_factory=list)
    """How long it took from each change of the fleet until it was in balance again."""
    looks: int = 0
    balanced: bool = False
    unserved: dict[int, float] = field(default_factory=dict)
    _served: dict[int, float] = field(default_factory=dict)
    _changed: float | None = None

    def changed(self, now: float) -> None:
        """Somebody came, left, or was hit."""
        self._changed = now
        self.balanced = False

    def look(self, now: float, view: View, workers: Mapping[str, Worker]) -> None:
        """Take in what the store shows."""
        self.looks += 1
        for number in range(self.count):
            self._partition(now, number, view, workers)
        sizes = [len(numbers) for numbers in view.owned.values()]
        there = {member.name for member in view.members.values()}
        fit = {name for name, worker in workers.items() if worker.fit}
        whole = all(view.owner(number) for number in range(self.count))
        self.balanced = there == fit and whole and max(sizes) - min(sizes) <= 1
        if self.balanced and self._changed is not None:
            self.settled.append(now - self._changed)
            self._changed = None

    def _partition(self, now: float, number: int, view: View, workers: Mapping[str, Worker]) -> None:
        owner = view.owner(number)
        worker = workers.get(owner.name) if owner else None
        if view.held.get(number) and (worker is None or worker.hit is None):
            # A holder that is no member finishes its work before it leaves.
            if number in self.unserved:
                self.gaps.append(now - self.unserved.pop(number))
            self._served[number] = now
        elif number in self._served:
            # It may have been owned, and hit again, between two looks.
            hit = (worker.hit if worker else None) or 0.0
            self.unserved[number] = max(self.unserved.get(number, self._served[number]), hit)

    def excuse(self, now: float) -> None:
        """Nobody could own anything until now: the store, or every worker, was down."""
        self._served = dict.fromkeys(self._served, now)
        self.unserved = dict.fromkeys(self.unserved, now)

    def longest(self, now: float) -> float:
        """The longest time without an owner, also of those that still have none."""
        return max([0.0, *self.gaps, *(now - since for since in self.unserved.values())])
