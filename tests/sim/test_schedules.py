"""Schedules chosen by Hypothesis, so that whatever fails shrinks to its core."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from fencepost_lab.sim import Scenario, parse, run
from fencepost_lab.sim.scenario import BACKENDS, MACHINES
from fencepost_lab.sim.seeds import check_trace

CLIENTS = ["A", "B", "C"]
TIMES = st.integers(0, 80).map(lambda tenths: tenths / 10)


@st.composite
def scenarios(draw: st.DrawFn, fencing: str = "enter", most: int = 25) -> Scenario:
    """Any backend, any clients' actions, any faults."""
    backend = draw(st.sampled_from(BACKENDS))
    client = st.sampled_from(CLIENTS)
    span = st.sampled_from([0.5, 1.5, 4.0])
    actions = [
        st.builds(
            lambda who, do: {"who": who, "do": do}, client, st.sampled_from(["acquire", "read", "write", "release"])
        ),
        st.builds(lambda who: {"who": who, "do": "rmw", "work": 0.5}, client),
        st.builds(lambda who, rounds: {"who": who, "do": "work", "rounds": rounds}, client, st.integers(1, 3)),
        st.builds(lambda who, length: {"who": who, "do": "pause", "for": length}, client, span),
        st.builds(lambda who, length: {"who": who, "do": "cut", "for": length}, client, span),
        st.builds(lambda who, by: {"who": who, "do": "slow", "by": by}, client, span),
        st.builds(lambda who, do: {"who": who, "do": do}, client, st.sampled_from(["kill", "restart", "cancel"])),
        st.just({"do": "evict", "who": "service"}),
    ]
    if machines := MACHINES[backend]:
        machine = st.sampled_from(machines)
        actions += [
            st.builds(lambda who, by: {"who": who, "do": "jump", "by": by}, machine, st.sampled_from([-5, 5, 60])),
            st.builds(lambda who, length: {"who": who, "do": "pause", "for": length}, machine, span),
            st.builds(lambda who: {"who": who, "do": "lose"}, machine),
            st.builds(lambda lag: {"do": "failover", "who": "service", "lag": lag}, st.sampled_from([None, 0, 1])),
        ]
    chosen = draw(st.lists(st.tuples(TIMES, st.one_of(actions)), max_size=most))
    data: dict[str, Any] = {
        "seed": draw(st.integers(0, 3)),
        "settings": {
            "backend": backend,
            "fencing": fencing,
            "clients": CLIENTS,
            "ttl": draw(st.sampled_from([1, 2])),
            "renew": draw(st.booleans()),
            "duplicate": draw(st.sampled_from([0, 0.2])),
        },
        "actions": [{"at": at, **action} for at, action in chosen],
        "until": 10,
    }
    return parse(data)


@pytest.mark.slow
@pytest.mark.experiment
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_no_schedule_breaks_a_promise(scenario: Scenario) -> None:
    assert not check_trace(run(scenario)).violations


@pytest.mark.slow
@pytest.mark.experiment
def test_a_schedule_that_loses_an_update_shrinks_to_its_core() -> None:
    def loses(scenario: Scenario) -> bool:
        return bool(run(scenario)[-1]["lost_updates"])

    found = find(
        scenarios("off", most=12),
        loses,
        settings=settings(
            max_examples=1000,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    assert loses(found)
    assert len(found.actions) <= 8
