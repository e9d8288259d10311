"""Who came first against who was served first, in O(n log n)."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

Turn: TypeAlias = tuple[int, float, float]
"""The lock's number, when somebody asked for it, and when it was served."""


class Order(NamedTuple):
    """How far the order of service is from the order of arrival, over all pairs of turns at one lock.

    ``tau`` is Kendall's: 1 for the same order, 0 for no relation, -1 for the reverse; None without a pair.
    """

    turns: int
    pairs: int
    inversions: int
    """Pairs of which the later one was served first."""
    overtakes: int
    """Those of them who came later by more than the tolerance: not just a race on the wire."""
    tau: float | None


def order(turns: Iterable[Turn], tolerance: float = 0.01) -> Order:
    """Compare the two orders, each lock for itself."""
    count = pairs = inversions = overtakes = 0
    for _, group in groupby(sorted(turns), key=lambda turn: turn[0]):
        mine = [(asked, served) for _, asked, served in group]
        count += len(mine)
        pairs += len(mine) * (len(mine) - 1) // 2
        inversions += overtaken(mine, 0.0)
        overtakes += overtaken(mine, tolerance)
    tau = 1 - 2 * inversions / pairs if pairs else None
    return Order(count, pairs, inversions, overtakes, tau)


def overtaken(turns: Sequence[tuple[float, float]], tolerance: float) -> int:
    """Pairs of which one asked more than ``tolerance`` earlier than the other, and was served later.

    ``turns`` are (asked, served), ordered by asked. A Fenwick tree counts, over the ranks of service, those who
    asked long enough ago.
    """
    rank = {index: place for place, index in enumerate(sorted(range(len(turns)), key=lambda i: turns[i][1]), 1)}
    tree = [0] * (len(turns) + 1)
    found = waiting = 0
    for index, (asked, _) in enumerate(turns):
        while turns[waiting][0] < asked - tolerance:
            slot = rank[waiting]
            while slot < len(tree):
                tree[slot] += 1
                slot += slot & -slot
            waiting += 1
        slot, before = rank[index], 0
        while slot:
            before += tree[slot]
            slot -= slot & -slot
        found += waiting - before
    return found
