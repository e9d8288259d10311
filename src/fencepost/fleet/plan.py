"""Which worker should own which partitions: every worker computes the same plan by itself."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from fencepost.backend import Status

_NUMBER = re.compile("0|[1-9][0-9]{0,8}")
MARK = 16
"""How many hex digits all holder ids of one worker have in common at the start: a listing shows whose lease it is."""


def assignments(count: int, owned: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The partitions each member should own, by member, given those it owns now, in ascending order.

    Sizes differ by at most one, and no more partitions move than that takes. Carrying the plan out, in
    any order, does not change it: a member that looks while partitions move computes the same plan.
    """
    low, extra = divmod(count, len(owned))
    members = sorted(owned)
    # Members that own more than ``low`` get the extra partitions first. A member that owns exactly ``low`` has no
    # advantage: otherwise the plan would change while a member grows to ``low``.
    larger = [member for member in members if len(owned[member]) > low]
    if len(larger) < extra:
        larger += [member for member in members if len(owned[member]) <= low]
    ample = set(larger[:extra])
    plan = {member: list(owned[member][: low + (member in ample)]) for member in members}
    free = sorted(set(range(count)).difference(*plan.values()))
    given = 0
    for member, numbers in plan.items():
        need = low + (member in ample) - len(numbers)
        numbers += free[given : given + need]
        given += need
    return plan


class Member(NamedTuple):
    """A worker of a group."""

    name: str
    mark: str
    partitions: int
    """The number of partitions that it was started with."""
    status: Status


@dataclass(frozen=True, slots=True)
class View:
    """A group as a listing of its locks shows it: its members, and which partitions each owns."""

    group: str
    members: dict[str, Member] = field(default_factory=dict)
    """By mark."""
    held: dict[int, Status] = field(default_factory=dict)
    """The partitions that somebody holds."""
    owned: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of the partitions that each member holds, by mark, in ascending order."""

    @property
    def count(self) -> int:
        """How many partitions the group has, as its members say; 0 if it has none."""
        return max((member.partitions for member in self.members.values()), default=0)

    @property
    def unowned(self) -> list[int]:
        """The partitions that nobody holds."""
        return [number for number in range(self.count) if number not in self.held]

    def owner(self, number: int) -> Member | None:
        """The member that holds a partition; None if nobody holds it, or its holder is not a member."""
        status = self.held.get(number)
        return self.members.get(status.holder[:MARK]) if status else None


def prefix(group: str) -> str:
    """What the names of all locks of a group begin with."""
    return f"{group}/"


def partition(group: str, number: int) -> str:
    """The name of a partition's lock."""
    return f"{group}/{number}"


def member(group: str, count: int, name: str) -> str:
    """The name of the lock that a worker holds while it is a member."""
    return f"{group}/members/{count}/{name}"


_last: tuple[list[Status], View] = ([], View(""))


def view(group: str, listed: Iterable[Status]) -> View:
    """Read a listing of a group's locks. Do not change the view: the same listing returns the same object again.

    For example::

        print(view("orders", locks.list("orders/")).unowned)
    """
    global _last
    listed = list(listed)
    before, found = _last
    if found.group == group and before == listed:
        return found
    found = _view(group, listed)
    _last = listed, found
    return found


def _view(group: str, listed: Iterable[Status]) -> View:
    found = View(group)
    start = len(prefix(group))
    for status in listed:
        number, count, name = _read(status.name[start:])
        if number is not None:
            found.held[number] = status
        elif name:
            mark = status.holder[:MARK]
            found.members[mark] = Member(name, mark, count, status)
            found.owned[mark] = []
    for number in sorted(found.held):
        mark = found.held[number].holder[:MARK]
        if mark in found.owned:
            found.owned[mark].append(number)
    return found


@lru_cache(maxsize=4096)
def _read(rest: str) -> tuple[int | None, int, str]:
    """What a lock's name says after the group: the number of a partition, or a member's count and name."""
    if _NUMBER.fullmatch(rest):
        return int(rest), 0, ""
    kind, _, rest = rest.partition("/")
    count, _, name = rest.partition("/")
    if kind == "members" and _NUMBER.fullmatch(count):
        return None, int(count), name
    return None, 0, ""
