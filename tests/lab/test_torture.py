"""A small torture, its control, and that its checks see what they are for. At full size: `make torment`."""

import random
from typing import Any

import pytest

from tests.programs.torture import Failed, Plan, torture
from tests.programs.torture_history import Life, count, overlaps, tokens_out_of_order, unexplained_values, violations

pytestmark = [pytest.mark.experiment, pytest.mark.slow]

SMALL = {"processes": 4, "increments": 50, "ttl": 0.3, "work": 0.002, "stops": 8, "kills": 4}


def small(**options: Any) -> Plan:
    return Plan(**SMALL | {"seed": random.SystemRandom().randrange(10**6)} | options)


@pytest.mark.slow
def test_guarded_increments_survive_pauses_and_kills() -> None:
    plan = small()
    counted = torture(plan)
    assert counted.final == counted.accepted >= plan.total
    assert counted.refused_writes > 0


@pytest.mark.slow
def test_with_the_fence_off_the_same_run_loses_updates() -> None:
    assert torture(small(fence=False)).lost_updates > 0


@pytest.mark.slow
def test_a_run_without_faults_is_not_taken_for_proof() -> None:
    with pytest.raises(Failed, match=r"not stressed(.|\n)*python -m tests.programs.torture .*--seed 5"):
        torture(small(processes=2, increments=5, stops=0, kills=0, seed=5))


def life(*facts: tuple[str, int, Any], killed: bool = False) -> Life:
    told = Life(0, killed=killed)
    for at, (event, token, value) in enumerate(facts):
        told.hear([{"event": event, "token": token, "value": value, "at": token + at / 10, "since": token}])
    return told


def test_two_accepted_writes_of_one_value_are_a_lost_update() -> None:
    lives = [life(("accepted", 1, "1")), life(("accepted", 2, "1"))]
    assert unexplained_values(lives, 1)
    assert violations(lives, count(lives, final=1, accepted=2, stops=1))


def test_a_value_that_nobody_can_have_written_is_found() -> None:
    assert unexplained_values([life(("accepted", 1, "1"))], 2) == ["2 was written by nobody"]


@pytest.mark.parametrize("last", [("sent", 2, "2"), ("read", 2, "1")])
def test_a_killed_worker_explains_the_write_it_never_heard_of(last: tuple[str, int, Any]) -> None:
    lives = [life(("accepted", 1, "1")), life(("acquired", 2, None), last, killed=True)]
    assert unexplained_values(lives, 2) == []
    assert unexplained_values(lives, 1) == []


def test_an_acknowledged_value_beyond_the_final_one_is_a_lost_update() -> None:
    assert unexplained_values([life(("accepted", 1, "1"), ("accepted", 1, "2"))], 1)


def test_a_token_that_repeats_or_runs_backwards_is_found() -> None:
    grants = [("acquired", 1, None), ("acquired", 3, None), ("acquired", 2, None)]
    assert not tokens_out_of_order([life(*grants)])
    repeated = life(*grants[:2])
    repeated.facts[1]["token"] = 1
    assert tokens_out_of_order([repeated])


def test_beliefs_overlap_only_if_the_older_holder_still_acts() -> None:
    older, newer = life(("acquired", 1, None), ("accepted", 1, "1")), life(("acquired", 2, None))
    assert overlaps([older, newer]) == 0
    older.facts[-1]["at"] = 2.5
    assert overlaps([older, newer]) == 1
