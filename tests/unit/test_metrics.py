"""The Prometheus hook: every event is counted where the design says, and nothing else is a label."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fencepost.errors import Refused
from fencepost.events import Event
from fencepost.guards import memory
from fencepost.guards.policy import Policy
from fencepost.hooks.prometheus import Metrics
from fencepost.rule import Stamp, Verdict
from tests.harness.child import Child


class Counted:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.hook = Metrics(self.registry)

    def __getitem__(self, name: str) -> float:
        base, _, verdict = name.partition("/")
        value = self.registry.get_sample_value(base, {"verdict": verdict} if verdict else {})
        assert value is not None, f"no sample {name}"
        return value


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_the_names_of_the_design_are_all_there(counted: Counted) -> None:
    families = {family.name for family in counted.registry.collect()}
    for name in (
        "lock_acquire_success_total",
        "lock_acquire_attempts_total",
        "lock_acquire_timeouts_total",
        "lock_acquire_latency_seconds",
        "lock_held_seconds",
        "lock_renew_total",
        "lock_renew_slack_ratio",
        "release_by_non_owner_total",
        "lease_expired_while_executing_total",
        "fencing_reject_total",
        "resource_stale_token_rejections_total",
        "token_gap",
        "critical_write_without_token_total",
        "fencing_would_reject_total",
    ):
        assert name.removesuffix("_total") in families


def test_a_lock_s_life_is_counted(counted: Counted) -> None:
    def tell(kind: str, **facts: float) -> None:
        counted.hook(Event(kind=kind, name="lock", source="memory", token=7, holder="ann", **facts))  # type: ignore[arg-type]

    tell("attempt")
    tell("attempt")
    tell("acquired", seconds=0.003)
    tell("timeout", seconds=1.0)
    tell("abandoned")
    tell("renewed", ratio=0.66)
    tell("unrenewed")
    tell("released", seconds=2.0)
    tell("lost")
    tell("not_owner")
    assert counted["lock_acquire_attempts_total"] == 2
    assert counted["lock_acquire_success_total"] == 1
    assert counted["lock_acquire_timeouts_total"] == 1
    assert counted["lock_acquire_latency_seconds_sum"] == 0.003
    assert counted["lock_held_seconds_sum"] == 2.0
    assert counted["lock_renew_slack_ratio_count"] == 1
    assert counted["lease_expired_while_executing_total"] == 1
    assert counted["release_by_non_owner_total"] == 1
    answers = {"renewed": 1.0, "unknown": 1.0}
    assert {
        result: counted.registry.get_sample_value("lock_renew_total", {"result": result}) for result in answers
    } == answers


def test_a_guard_s_decisions_are_counted(counted: Counted) -> None:
    guard = memory.MemoryGuard[bytes](hooks=[counted.hook])
    guard.write("thing", b"1", Stamp(5, 2, "ann"))
    guard.read("thing", Stamp(5, 2, "ann"))
    guard.write("thing", b"1", Stamp(5, 2, "ann"))
    for offer in (Stamp(4, 1, "old"), Stamp(5, 1, "ann"), Stamp(5, 2, "ann"), Stamp(5, 1, "bob")):
        with pytest.raises(Refused):
            guard.write("thing", b"other", offer)
    assert counted["resource_writes_accepted_total"] == 1
    assert counted["resource_writes_replayed_total"] == 1
    for verdict in ("stale", "late", "replay", "clash"):
        assert counted[f"fencing_reject_total/{verdict}"] == 1
        assert counted[f"fencing_would_reject_total/{verdict}"] == 0
    assert counted["fencing_reject_total/missing"] == 0
    assert counted["resource_stale_token_rejections_total"] == 1
    assert counted["token_gap_count"] == 6
    assert counted.registry.get_sample_value("token_gap_bucket", {"le": "-1.0"}) == 1


def test_what_was_let_pass_against_the_rule_is_counted_apart(counted: Counted) -> None:
    for verdict in (Verdict.STALE, Verdict.MISSING):
        counted.hook(
            Event(kind="decision", name="thing", source="memory", verdict=verdict, enforced=False, action="write")
        )
    assert counted["fencing_would_reject_total/stale"] == 1
    assert counted["fencing_reject_total/stale"] == 0
    assert counted["resource_stale_token_rejections_total"] == 0
    assert counted["critical_write_without_token_total"] == 1
    assert counted["resource_writes_accepted_total"] == 2


def test_no_label_names_a_lock_a_holder_or_a_token(counted: Counted) -> None:
    guard = memory.MemoryGuard[bytes](hooks=[counted.hook])
    guard.write("the-resource", b"1", Stamp(123456789, 1, "the-holder"))
    counted.hook(Event(kind="acquired", name="the-lock", source="redis", token=123456789, holder="the-holder"))
    text = generate_latest(counted.registry).decode()
    assert not any(word in text for word in ("the-resource", "the-holder", "the-lock", "123456789"))


def test_a_missing_package_names_the_pip_command() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from fencepost.errors import ConfigError\n"
        "try:\n    import fencepost.hooks.prometheus\n"
        "except ConfigError as error:\n    print(error)"
    )
    with Child.python("-c", program) as child:
        assert "pip install 'fencepost[metrics]'" in "\n".join(child.succeed())


def test_what_is_done_by_hand_is_counted_and_the_end_of_an_override_is_not(counted: Counted) -> None:
    policy = Policy()
    policy.override("drill", hooks=[counted.hook])
    policy.resume(hooks=[counted.hook])
    assert counted["fencing_override_total"] == 1
    counted.hook(Event(kind="raise_mark", name="thing", source="redis", token=50))
    assert (counted["fencing_mark_raised_total"], counted["fencing_mark_lowered_total"]) == (1, 0)
    counted.hook(Event(kind="lower_mark", name="thing", source="redis", token=5, seen=50))
    assert (counted["fencing_mark_raised_total"], counted["fencing_mark_lowered_total"]) == (1, 1)
