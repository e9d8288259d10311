"""A run is a pure function of its scenario, and each fault does what it says."""

import contextlib
from typing import Any

import pytest

from fencepost.errors import ConfigError
from fencepost_lab.history.format import Line
from fencepost_lab.sim import digest, lines, parse, run, world
from fencepost_lab.sim.chaos import chaos
from tests.harness.child import Child

FAILOVER = {"at": 2, "do": "failover", "lag": None}


def play(*actions: dict[str, Any], until: float = 12, **settings: Any) -> list[Line]:
    return run(parse({"settings": settings, "actions": list(actions), "until": until}))


def act(at: float, who: str, do: str, **options: Any) -> dict[str, Any]:
    return {"at": at, "who": who, "do": do, **options}


def of(trace: list[Line], ev: str, **facts: Any) -> list[Line]:
    return [line for line in trace if line["ev"] == ev and all(line.get(key) == value for key, value in facts.items())]


@pytest.mark.parametrize("seed", range(10))
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert lines(run(chaos(seed))) == lines(run(chaos(seed)))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    program = (
        "from fencepost_lab.sim import digest, run; from fencepost_lab.sim.chaos import chaos;"
        "print(*(digest(run(chaos(seed))) for seed in range(12)))"
    )
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(Child.python("-c", program, env={"PYTHONHASHSEED": hashing})) for hashing in ("1", "2")
        ]
        here = [digest(run(chaos(seed))) for seed in range(12)]
        assert [child.succeed() for child in children] == [[" ".join(here)]] * 2
    assert len(set(here)) == 12


@pytest.mark.parametrize("seed", range(10))
def test_what_happens_before_an_instant_does_not_depend_on_actions_after_it(seed: int) -> None:
    whole = chaos(seed)
    data = whole.data()
    fork = data["until"] / 2
    data["actions"] = [action for action in data["actions"] if action["at"] < fork]
    before = [[line for line in run(each)[1:] if line["t"] < fork] for each in (whole, parse(data))]
    # Which cuts and losses a message meets is known only when it arrives; what has arrived is the same.
    assert before[0] == before[1]
    assert before[0]


def test_a_paused_client_receives_but_computes_nothing() -> None:
    trace = play(act(0, "A", "acquire"), act(0.001, "A", "pause", **{"for": 3}))
    answer = of(trace, "message", what="take:granted")[0]
    assert answer["fate"] == "arrived"
    assert answer["t"] < 0.1
    assert of(trace, "acquired")[0]["t"] >= 3.001


def test_a_client_that_slept_through_its_whole_lease_asks_again() -> None:
    trace = play(act(0, "A", "acquire"), act(0.001, "A", "pause", **{"for": 8}), renew=False)
    assert [line["token"] for line in of(trace, "acquired")] == [2]
    assert of(trace, "acquired")[0]["until"] > 8


def test_what_a_client_was_about_to_do_comes_first_when_it_wakes() -> None:
    trace = play(act(0, "A", "acquire"), act(0.1, "A", "pause", **{"for": 8}), act(0.2, "A", "write"), fencing="off")
    sent = of(trace, "message", src="A", what="write")[0]["sent"]
    assert sent == of(trace, "fault", do="resume")[0]["t"]
    assert sent <= of(trace, "lost")[0]["t"]


def test_a_one_way_cut_loses_requests_but_not_answers() -> None:
    trace = play(act(0, "A", "cut", way="out", **{"from": "service"}), act(1, "A", "acquire"), until=1.5)
    assert {line["fate"] for line in of(trace, "message", src="A")} == {"cut"}
    trace = play(act(0, "A", "cut", way="in", **{"from": "service"}), act(1, "A", "acquire"), until=1.5)
    assert of(trace, "message", src="A")[0]["fate"] == "arrived"
    assert of(trace, "message", src="store")[0]["fate"] == "cut"
    assert of(trace, "granted")
    assert not of(trace, "acquired")


def test_a_slow_clock_believes_longer_than_the_service() -> None:
    trace = play(act(0, "A", "skew", rate=0.5), act(0.1, "A", "acquire"), renew=False)
    assert of(trace, "acquired")[0]["until"] > of(trace, "granted")[0]["until"] + 4


@pytest.mark.parametrize(("backend", "expires"), [("redis", True), ("etcd", False), ("zookeeper", False)])
def test_a_jump_of_the_wall_clock_expires_leases_on_redis_alone(backend: str, expires: bool) -> None:
    trace = play(act(0, "A", "acquire"), act(1, "service", "jump", by=60), until=1.2, backend=backend)
    assert bool(of(trace, "freed", how="jump")) is expires


def grants(backend: str, fault: dict[str, Any], **settings: Any) -> list[tuple[str, int]]:
    """What A and B are granted before and after a fault."""
    trace = play(act(0, "A", "acquire"), fault, act(4, "B", "acquire"), backend=backend, ttl=60, **settings)
    return [(line["holder"], line["token"]) for line in of(trace, "granted")]


def test_a_redis_failover_grants_the_lock_and_its_token_again() -> None:
    assert grants("redis", FAILOVER) == [("A1", 1), ("B1", 1)]


@pytest.mark.parametrize(("who", "granted"), [("r2", [("A1", 1)]), ("service", [("A1", 1), ("B1", 1)])])
def test_redlock_outlives_the_failover_of_one_machine_and_not_of_all(who: str, granted: list[tuple[str, int]]) -> None:
    assert grants("redlock", {**FAILOVER, "who": who}) == granted


@pytest.mark.parametrize("backend", ["redis", "redlock"])
def test_a_hybrid_token_survives_a_failover(backend: str) -> None:
    (_, first), (_, second) = grants(backend, FAILOVER, fence="hybrid")
    assert second > first


@pytest.mark.parametrize("backend", ["etcd", "zookeeper"])
def test_a_new_leader_knows_what_the_old_one_granted(backend: str) -> None:
    assert [holder for holder, _ in grants(backend, FAILOVER)] == ["A1"]


@pytest.mark.parametrize(("tail", "tokens"), [(0, [1, 2]), (3, [1, 1])])
def test_a_restarted_redis_has_lost_its_tail(tail: float, tokens: list[int]) -> None:
    trace = play(
        act(0, "A", "acquire"),
        act(1, "A", "release"),
        act(2, "service", "kill"),
        act(2.5, "service", "restart", tail=tail),
        act(3, "B", "acquire"),
    )
    assert [line["token"] for line in of(trace, "granted")] == tokens


def test_an_evicted_holder_learns_it_from_its_next_renewal() -> None:
    trace = play(act(0, "A", "acquire"), {"at": 0.5, "do": "evict"})
    assert of(trace, "freed", how="evict")
    assert of(trace, "told")[0]["t"] == of(trace, "lost")[0]["t"]


def test_the_holder_can_be_named_without_knowing_it() -> None:
    trace = play(act(0, "B", "acquire"), act(1, "holder", "pause"), until=1.5)
    assert of(trace, "fault", do="pause")[0]["who"] == "B"


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("{", "a scenario is JSON"),
        ([], "a scenario is an object"),
        ({"seed": -1}, "seed is an integer"),
        ({"until": 0}, "until lies between"),
        ({"until": float("nan")}, "until is a number"),
        ({"settings": {"ttl": 0}}, "ttl lies between"),
        ({"settings": {"ttl": "5"}}, "setting 'ttl' cannot be '5'"),
        ({"settings": {"renew": 1}}, "setting 'renew' cannot be 1"),
        ({"settings": {"backend": "mysql"}}, "backend is one of"),
        ({"settings": {"delay": [2, 1]}}, "delay is"),
        ({"settings": {"colour": 1}}, "no setting 'colour'"),
        ({"settings": {"clients": ["A", "A"]}}, "clients are"),
        ({"actions": [{"do": "fly"}]}, "an action has"),
        ({"actions": [{"do": "acquire", "who": "Z"}]}, "there is no 'Z' here"),
        ({"actions": [{"do": "acquire", "who": "store"}]}, "there is no 'store' here"),
        ({"actions": [{"do": "lose", "who": "A"}]}, "happens to the service"),
        ({"settings": {"backend": "embedded"}, "actions": [{"do": "failover"}]}, "has no machine of its own"),
        (
            {"settings": {"backend": "embedded"}, "actions": [{"do": "kill", "who": "service"}]},
            "has no machine of its own",
        ),
        ({"actions": [{"do": "pause", "who": "A", "long": 1}]}, "has no option 'long'"),
        ({"actions": [{"do": "skew", "who": "A", "rate": 0}]}, "rate lies between"),
        ({"actions": [{"do": "cut", "who": "A", "from": "Q"}]}, "from is"),
        ({"actions": [{"do": "pause", "who": "A", "for": "long"}]}, "for is a number"),
        ({"actions": [{"do": "note"}] * 2001}, "a list of at most 2000"),
    ],
)
def test_a_scenario_that_cannot_be_meant_is_refused(scenario: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(scenario)


@pytest.mark.slow
def test_a_scenario_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "MAX_STEPS", 10_000)
    busy = [act(0, who, "work", rounds=1e6, work=0, think=0) for who in "ABCD"]
    with pytest.raises(ConfigError, match="shorten it"):
        play(*busy, until=3600, delay=[0, 0], backend="embedded")
