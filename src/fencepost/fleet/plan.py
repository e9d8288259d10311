"""Who should own what: one plan that every worker works out by itself, and comes to the same end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fencepost.backend import Status

MARK = 16
"""So many hex digits begin all holder ids of one worker: a listing tells whose lease it shows."""


def shares(count: int, owned: Mapping[str, Iterable[int]]) -> dict[str, set[int]]:
    """The partitions each member should own, by member, given what each owns now.

    Sizes differ by at most one, and no more partitions move than that takes. Carrying the plan out, in
    any order, does not change it: whoever looks while partitions are on the move plans the same.
    """
    low, extra = divmod(count, len(owned))
    held = {member: sorted(numbers) for member, numbers in sorted(owned.items())}
    # Those that have more than the smaller share keep it; growing up to the smaller share earns nobody a larger one.
    ample = sorted(held, key=lambda member: len(held[member]) <= low)[:extra]
    plan = {member: set(numbers[: low + (member in ample)]) for member, numbers in held.items()}
    free = iter(sorted(set(range(count)).difference(*plan.values())))
    for member, numbers in plan.items():
        numbers.update(next(free) for _ in range(low + (member in ample) - len(numbers)))
    return plan


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of a group."""

    name: str
    mark: str
    count: int
    """How many partitions it thinks there are."""
    status: Status


@dataclass(frozen=True, slots=True)
class View:
    """A group as a listing of its locks shows it: who is there, and who owns what."""

    group: str
    members: dict[str, Member] = field(default_factory=dict)
    """By mark."""
    held: dict[int, Status] = field(default_factory=dict)
    """The partitions that somebody holds."""

    @property
    def count(self) -> int:
        """How many partitions the group has, as its members say; 0 if it has none."""
        return max((member.count for member in self.members.values()), default=0)

    @property
    def unowned(self) -> list[int]:
        """The partitions that nobody holds."""
        return [number for number in range(self.count) if number not in self.held]

    def owner(self, number: int) -> Member | None:
        """The member that holds a partition; None if nobody does, or somebody who is no member."""
        status = self.held.get(number)
        return self.members.get(status.holder[:MARK]) if status else None

    def owned(self, mark: str) -> list[int]:
        """The partitions that a member holds."""
        return [number for number, status in self.held.items() if status.holder[:MARK] == mark]


def prefix(group: str) -> str:
    """What the names of all locks of a group begin with."""
    return f"{group}/"


def partition(group: str, number: int) -> str:
    """The name of a partition's lock."""
    return f"{group}/{number}"


def member(group: str, count: int, name: str) -> str:
    """The name of the lock that a worker holds while it is a member."""
    return f"{group}/members/{count}/{name}"


def view(group: str, listed: Iterable[Status]) -> View:
    """Read a listing of a group's locks."""
    found = View(group)
    for status in listed:
        rest = status.name.removeprefix(prefix(group))
        if rest.isascii() and rest.isdecimal() and rest == str(int(rest)):
            found.held[int(rest)] = status
        elif rest.startswith("members/"):
            count, _, name = rest.removeprefix("members/").partition("/")
            if count.isascii() and count.isdecimal() and name:
                mark = status.holder[:MARK]
                found.members[mark] = Member(name, mark, int(count), status)
    return found
