"""The plan that every worker of a fleet works out by itself."""

import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from fencepost.backend import Status
from fencepost.fleet.plan import MARK, assignments, member, partition, view

Owned = dict[str, list[int]]


@st.composite
def fleets(draw: st.DrawFn) -> tuple[int, Owned]:
    """So many partitions, and who owns which of them; some are nobody's."""
    members = [f"m{number}" for number in range(draw(st.integers(1, 9)))]
    count = draw(st.integers(1, 40))
    owners = draw(st.lists(st.sampled_from([*members, None]), min_size=count, max_size=count))
    return count, {each: [n for n, owner in enumerate(owners) if owner == each] for each in members}


def moves(owned: Owned, plan: Owned) -> int:
    return sum(len(set(numbers) - set(plan[member])) for member, numbers in owned.items())


@given(fleets())
def test_shares_cover_everything_once_and_differ_by_at_most_one(fleet: tuple[int, Owned]) -> None:
    count, owned = fleet
    plan = assignments(count, owned)
    assert sorted(number for numbers in plan.values() for number in numbers) == list(range(count))
    sizes = [len(numbers) for numbers in plan.values()]
    assert max(sizes) - min(sizes) <= 1


@given(fleets())
def test_no_more_partitions_are_given_up_than_balance_takes(fleet: tuple[int, Owned]) -> None:
    count, owned = fleet
    low, extra = divmod(count, len(owned))
    largest = sorted((len(numbers) for numbers in owned.values()), reverse=True)
    fewest = sum(max(0, size - low - (place < extra)) for place, size in enumerate(largest))
    assert moves(owned, assignments(count, owned)) == fewest


@given(fleets(), st.randoms(use_true_random=False))
def test_whoever_looks_while_partitions_are_on_the_move_plans_the_same(
    fleet: tuple[int, Owned], dice: random.Random
) -> None:
    count, owned = fleet
    plan = assignments(count, owned)
    now = {member: set(numbers) for member, numbers in owned.items()}
    for each, numbers in plan.items():
        for number in set(numbers) - set(owned[each]):
            step = dice.choice(("waits", "released", "taken"))
            if step != "waits":
                for held in now.values():
                    held.discard(number)
            if step == "taken":
                now[each].add(number)
    again = assignments(count, {each: sorted(held) for each, held in now.items()})
    assert {each: set(numbers) for each, numbers in again.items()} == {each: set(held) for each, held in plan.items()}


def test_a_worker_that_joins_takes_only_its_share() -> None:
    before = assignments(64, {f"m{number:02}": [] for number in range(11)})
    assert moves({**before, "m11": []}, assignments(64, {**before, "m11": []})) == 64 // 12


def listing(*held: tuple[str, str]) -> Iterable[Status]:
    return [Status(name, owner * MARK + "0" * MARK, 7, 1.0, ()) for name, owner in held]


def test_a_listing_shows_members_and_what_each_owns() -> None:
    found = view(
        "orders",
        listing(
            (member("orders", 4, "first/with-a-slash"), "a"),
            (member("orders", 4, "second"), "b"),
            (partition("orders", 0), "b"),
            (partition("orders", 2), "b"),
            (partition("orders", 3), "c"),
            ("orders/else", "a"),
            ("orders/02", "a"),
            ("orders/members", "a"),
        ),
    )
    assert found.count == 4
    assert {each.name: found.owned[each.mark] for each in found.members.values()} == {
        "first/with-a-slash": [],
        "second": [0, 2],
    }
    assert found.unowned == [1]
    assert found.owner(3) is None, "its holder is no member"
