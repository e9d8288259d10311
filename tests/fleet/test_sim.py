"""Fleets in the simulated world. At full size, 200 workers on 12 hosts: `fencepost fleet sim`, `make torment`."""

from collections.abc import Mapping, Sequence
from random import SystemRandom
from typing import Any

import pytest

from fencepost.errors import NotAcquired
from fencepost.fleet import group, plan
from fencepost.fleet.plan import assignments
from fencepost.guards.memory import MemoryGuard
from fencepost_lab.history.format import digest
from fencepost_lab.sim import fleet
from fencepost_lab.sim.fleet import Fleet, Size, facts, run_seed

pytestmark = [pytest.mark.slow, pytest.mark.experiment]

SMALL = Size(workers=24, hosts=5, partitions=30)


def test_any_seed_keeps_its_promises_and_is_stressed() -> None:
    start = SystemRandom().randrange(10**6)
    outcomes = [run_seed(seed, SMALL)[0] for seed in (0, 1, start, start + 1)]
    assert not [(each.seed, each.violations[:3]) for each in outcomes if each.violations]
    told = facts(outcomes)  # those of the fixed seeds alone are enough
    assert told["overlapping_beliefs"] > 0
    assert told["stale_refused"] > 0


def test_fifty_workers_on_twelve_hosts() -> None:
    outcome, _ = run_seed(1, Size(workers=50, hosts=12, partitions=60))
    assert outcome.violations == []
    assert outcome.counts["fleet:join"] >= 50


@pytest.mark.parametrize("size", [(1, 1, 1), (4, 2, 4), (6, 3, 8), (3, 12, 3)], ids=str)
def test_a_small_fleet_of_which_nobody_may_be_left_is_not_blamed_for_it(size: tuple[int, int, int]) -> None:
    workers, hosts, partitions = size
    for seed in range(8):
        found = run_seed(seed, Size(workers=workers, hosts=hosts, partitions=partitions))[0]
        assert found.violations == [], seed


def test_a_seed_gives_the_same_world_again() -> None:
    assert digest(run_seed(3, SMALL)[1]) == digest(run_seed(3, SMALL)[1])


def test_a_fleet_whose_store_has_lost_everything_gathers_again_as_it_did_at_first() -> None:
    fleet = Fleet(3, Size(workers=60, hosts=5, partitions=60, faults=0))
    asked, send = [], fleet.network.send

    def count(src: str, dst: str, what: str, *rest: Any, **facts: Any) -> int:
        if what == "take":
            asked.append(fleet.world.now)
        return send(src, dst, what, *rest, **facts)

    fleet.network.send = count  # type: ignore[method-assign]
    fleet.world.plan(lost := 3 * fleet.size.ttl, fleet._restart)
    assert fleet.run().violations == []
    assert fleet.faults["emptied"] == 1
    at_first = sum(instant < lost for instant in asked)
    assert 60 < len(asked) - at_first < 1.5 * at_first


def found(seeds: range) -> set[str]:
    """Which promises were broken in the first of these seeds that broke any."""
    for seed in seeds:
        if broken := {each.check for each in run_seed(seed, SMALL)[0].violations}:
            return broken
    return set()


def test_a_resource_that_admits_everybody_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryGuard, "enter", lambda *_: None)
    monkeypatch.setattr(MemoryGuard, "write", lambda *_: True)
    assert found(range(5)) == {"data"}


def test_orphans_that_nobody_minds_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group.Group, "_orphans", lambda *_: [])
    assert found(range(6, 46)) == {"liveness"}


def test_workers_that_keep_what_they_have_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(count: int, owned: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        return {member: [*numbers, *assignments(count, owned)[member]] for member, numbers in owned.items()}

    monkeypatch.setattr(plan, "assignments", greedy)
    assert found(range(5)) == {"balance"}


def test_a_seed_that_breaks_off_is_named_and_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off(seed: int, size: Size | None) -> None:
        raise NotAcquired("orders/members/240/w7", 6.0)

    monkeypatch.setattr(fleet, "run_seed", breaks_off)
    outcome = fleet._outcome(41, SMALL)
    assert outcome.seed == 41
    assert "orders/members/240/w7" in outcome.violations[0].what
    assert facts([outcome])["failed"] == [41]
