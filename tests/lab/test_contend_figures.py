"""How a contention run counts: latencies in buckets, and orders in O(n log n)."""

import itertools
import json
import math
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigError
from fencepost_lab.contend.load import Schedule
from fencepost_lab.contend.order import order
from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.recorder import ERROR, Recorder, merged, parse

durations = st.lists(st.floats(0, 5000, allow_nan=False), min_size=1, max_size=300)


def recorded(values: list[float]) -> Recorder:
    made = Recorder()
    for value in values:
        made.add(value)
    return made


@given(durations, st.floats(0.1, 100))
def test_a_percentile_is_never_less_than_it_is_and_hardly_more(values: list[float], percent: float) -> None:
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    told = recorded(values).percentile(percent)
    assert told is not None
    assert exact - 1e-9 <= told <= exact * (1 + ERROR) + 1e-9


@given(st.lists(durations, min_size=1, max_size=4))
def test_recorders_of_several_processes_add_up(parts: list[list[float]]) -> None:
    sent = [parse(json.loads(json.dumps(recorded(part).data()))) for part in parts]
    whole = recorded([value for part in parts for value in part])
    together = merged(sent).summary()
    assert together.pop("mean") == pytest.approx(whole.mean)
    assert together.items() <= whole.summary().items()


def test_a_recorder_needs_the_same_room_for_a_million_as_for_none() -> None:
    empty, full = Recorder(), recorded([number / 1e5 for number in range(20_000)])
    assert len(empty._counts) == len(full._counts)
    assert empty.percentile(50) is None


def test_waits_that_no_machine_has_are_kept_in_the_last_bucket() -> None:
    assert recorded([1e9]).percentile(50) == pytest.approx(8796, rel=0.01)
    assert recorded([-1.0]).percentile(50) == 0.0


@pytest.mark.parametrize("random", [False, True])
def test_all_processes_together_offer_the_rate_and_each_arrival_is_counted_once_it_is_due(random: bool) -> None:
    plan = Plan(rate=100, random=random, processes=3, warmup=0, duration=20)
    parts = [Schedule(plan.part(number), 20.0) for number in range(3)]
    due = [list(itertools.takewhile(lambda t: t < 20.0, map(part.due, itertools.count()))) for part in parts]
    everybody = sorted(itertools.chain(*due))
    assert len(everybody) == pytest.approx(2000, rel=0.15 if random else 0)
    assert len(set(everybody)) == len(everybody)
    gaps = [later - t for t, later in itertools.pairwise(everybody)]
    assert (max(gaps) > 3 * fmean(gaps)) is random
    for part, own in zip(parts, due, strict=True):
        for number in (0, 1, len(own) // 2, len(own) - 1):
            assert part.come(own[number] + 1e-9) == number + 1
            assert part.come(own[number] - 1e-9) == number
        assert own == list(itertools.takewhile(lambda t: t < 20.0, map(part.due, itertools.count())))


turns = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0, 10), st.floats(0, 10) | st.just(math.inf)),
    max_size=40,
    unique_by=lambda turn: turn[1],
)


@given(turns, st.sampled_from([0.0, 0.5]))
def test_inversions_are_the_pairs_served_against_their_arrival(
    found: list[tuple[int, float, float]], slack: float
) -> None:
    def against(tolerance: float) -> int:
        pairs = combinations(sorted(found), 2)
        return sum(a[0] == b[0] and b[1] - tolerance > a[1] and a[2] > b[2] for a, b in pairs)

    said = order(found, slack)
    assert (said.inversions, said.overtakes) == (against(0.0), against(slack))
    assert said.turns == len(found)


def test_tau_runs_from_the_same_order_to_the_reverse() -> None:
    assert order([(0, n, n + 5) for n in range(100)]).tau == 1
    assert order([(0, n, -n) for n in range(100)]).tau == -1
    assert order([(0, 1.0, 2.0), (1, 2.0, 1.0)]).tau is None, "two locks have no common order"


def test_an_order_of_many_turns_is_counted_whole() -> None:
    count = 20_000
    assert order([(0, n, -n) for n in range(count)]).inversions == count * (count - 1) // 2


def test_the_parts_of_a_plan_make_the_whole() -> None:
    plan = Plan(contenders=11, processes=3, sections=100)
    parts = [plan.part(number) for number in range(3)]
    assert sum(part.sections or 0 for part in parts) == 100
    assert len({name for part in parts for name in part.names}) == 11
    assert Plan(**json.loads(json.dumps(plan.data()))) == plan


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"contenders": 0}, "contenders must be at least 1"),
        ({"contenders": 2, "processes": 3}, "cannot fill"),
        ({"rate": 0}, "rate is a number of arrivals"),
        ({"random": True}, "random arrivals need a rate"),
        ({"random": True, "rate": 1e8}, "take a lower rate"),
        ({"ttl": 0}, "ttl must be greater than 0"),
        ({"duration": 0}, "duration must be greater than 0"),
        ({"work": -1}, "work must lie between"),
        ({"sections": 0}, "sections must be at least 1"),
        ({"pause": 1, "processes": 1}, "take more processes"),
        ({"key": ""}, "cannot be empty"),
    ],
)
def test_what_cannot_be_meant_is_named(options: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Plan(**options)  # type: ignore[arg-type]
