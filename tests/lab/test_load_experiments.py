"""The experiments on contention, fairness and re-entrancy, small."""

import secrets
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import BackendError
from fencepost_lab.experiments import chosen
from fencepost_lab.experiments import watching as ramps
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.watching import Counts, Memory, watching
from fencepost_lab.report.outcome import Outcome
from fencepost_lab.stage.processes import Unexpected
from tests.harness.child import Child
from tests.harness.waiting import PATIENCE, until
from tests.lab.command import as_claimed, held, lab, needs

pytestmark = [pytest.mark.experiment, pytest.mark.redis, pytest.mark.timeout(300)]


def test_more_contenders_buy_nothing_but_waiting() -> None:
    needs("REDIS_SERVER")
    (experiment,) = chosen(["contention"])
    settings = experiment.settings(quick=True, backends=["redis"]) | {
        "contenders": [4, 40],
        "few": [1],
        "processes": {"redis": [2]},
        "duration": 0.8,
        "offer_duration": 1.0,
        "works": [0.05],
        "work_time": 0.2,
        "alone": 300,
        "peers": ["redis-spin", "kazoo"],  # of which one reaches Redis
    }
    with Context() as context:
        outcome = experiment.run(settings, context)
    measured = (
        "the wait grows in step",
        "a few contenders reach",
        "the lock keeps up",
        "until the capacity is reached",
    )
    as_claimed(outcome, *measured, "the backlog grows", "the longer the work")
    assert any("at most one holds the lock at a time" in each.text for each in outcome.claims)
    figures = outcome.figures["redis"]
    assert [each["contenders"] for each in figures["fencepost"]] == [1, 4, 40]
    assert [(each["contenders"], each["processes"]) for each in figures["processes"]] == [(2, 2)]
    assert [each["of"] for each in figures["offered"]] == [0.5, 2.0]
    several = {each["contenders"]: each["throughput"] for each in figures["fencepost"][1:]}
    assert figures["capacity"] == {"crowded": several[40], "most": max(several.values()), "contenders": 40}
    assert [each["rate"] for each in figures["offered"]] == [0.5 * several[40], 2.0 * several[40]]
    assert all(each["backlog"] and each["wait"]["count"] for each in figures["offered"])
    assert figures["works"][0]["sections"] == 5
    assert len(figures["redis-spin"]) == 2
    assert "kazoo" not in figures
    assert outcome.figures["peers"] == {"redis": version("redis")}
    assert figures["alone"]["sections"] == 300
    assert figures["checked"]["violations"] == 0
    assert figures["checked"]["acquired"] > 4
    assert {"uncontended-p99", "throughput"} <= set(outcome.slo)
    assert {plot.name for plot in outcome.plots} == {"load", "waits-redis", "throughput-redis", "backlog-redis"}
    assert [each["ceiling"] for each in figures["processes"]] == [None], "the others are being started meanwhile"
    assert outcome.tables[0].rows[-1][8:10] == ("", "")
    made_of = [row[:3] for row in outcome.tables[0].rows]
    assert made_of[0] == ("fencepost", 1, "tasks in 1 process")
    assert made_of[-1] == ("fencepost", 2, "processes")
    assert len(made_of) == 6


def test_a_queue_serves_in_turn_and_spinning_does_not() -> None:
    needs("REDIS_SERVER")
    (experiment,) = chosen(["fairness"])
    settings = experiment.settings(quick=True, backends=["redis"]) | {"duration": 1.5, "peers": ["redis-spin"]}
    with Context() as context:
        outcome = experiment.run(settings, context)
    as_claimed(outcome, "the longest wait is near the mean")
    assert "fairness" in outcome.slo
    assert outcome.figures["redis-spin on redis"]["order"]["overtakes"] > 0
    assert {plot.name for plot in outcome.plots} == {"order", "tail"}


@pytest.mark.etcd
def test_a_waiter_costs_a_watch_and_a_hand_over_fires_one() -> None:
    needs("ETCD")
    (experiment,) = chosen(["fairness"])
    settings = experiment.settings(quick=True, backends=["etcd"]) | {
        "watch_waiters": [3, 12],
        "watch_apart": [2],
        "watch_members": 1,
        "watch_idle": 0.1,
        "watch_turns": 4,
    }
    outcome = Outcome()
    with Context() as context:
        watching(outcome, settings, context)
    as_claimed(outcome)
    steps = outcome.figures["watching"]["etcd"]["steps"]
    assert [(step["waiters"], step["connections"]) for step in steps] == [(3, 1), (12, 1), (14, 3)]
    assert [step["watches"] for step in steps] == [3, 12, 14]
    assert all(step["joining"]["sent"] and step["turns"]["requests"] for step in steps)
    assert {plot.name for plot in outcome.plots} == {"watching"}


class Still:
    """A store whose servers count nothing."""

    def __init__(self) -> None:
        self.url = f"memory://still-{secrets.token_hex(4)}"

    def counts(self) -> Counts:
        return Counts(0, 0, 0, 0, 0)

    def memory(self) -> Memory:
        return Memory(0, 0)


@pytest.mark.parametrize(
    ("error", "ends"),
    [(Unexpected("nobody got it"), True), (BackendError("no answer", backend="etcd", ambiguous=True), False)],
)
async def test_a_ramp_ends_early_where_the_store_gives_up_and_fails_where_a_promise_is_broken(
    monkeypatch: pytest.MonkeyPatch, error: Exception, ends: bool
) -> None:
    done: list[int] = []

    async def step(meter: object, crowd: object, more: list[object], waiting: int, settings: object) -> dict[str, Any]:
        if waiting:
            raise error
        done.append(len(more))
        return {"memory": {"resident": 0}}

    monkeypatch.setattr(ramps, "_step", step)
    settings = {"watch_idle": 0.0, "watch_waiters": [2, 4], "watch_apart": [], "watch_limit": PATIENCE}
    ramp = ramps._ramp(Still(), settings, lambda what: None)
    if ends:
        with pytest.raises(Unexpected, match="nobody got it"):
            await ramp
    else:
        found = await ramp
        assert "no answer" in found["stopped"]
        assert len(found["steps"]) == 1
    assert done == [2]


def test_entering_again_is_the_same_lease_and_its_loss_is_told_at_every_level(tmp_path: Path) -> None:
    done = lab("run", "reentrancy", "--quick", "--backend", "sqlite", "--json", "--out", str(tmp_path))
    held(done)
    assert done.facts["figures"]["sqlite"]["not renewed"]["lost"]


def test_a_run_that_is_interrupted_while_it_measures_ends_and_claims_nothing(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    command = ["lab", "run", "contention", "--quick", "--backend", url, "--out", str(tmp_path / "runs")]
    with fencepost.connect(url) as locks, Child.fencepost(*command) as child:
        until(lambda: any(each.waiters for each in locks.list()), "many contend", watching=[child])
        child.signal(signal.SIGINT)
        assert child.wait() == 130, child.story
        assert child.output == []
    assert not list(tmp_path.glob("runs/*.json"))
