"""The Prometheus hook: every event is counted where the design says, and nothing else is a label."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fencepost.errors import ConfigError, Refused
from fencepost.events import Event
from fencepost.guards import memory
from fencepost.guards.policy import Policy
from fencepost.hooks.prometheus import Metrics
from fencepost.rule import Stamp, Verdict
from tests.harness.child import Child
from tests.harness.logs import logged


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
        "fencepost_lock_acquire_success_total",
        "fencepost_lock_acquire_attempts_total",
        "fencepost_lock_acquire_timeouts_total",
        "fencepost_lock_acquire_latency_seconds",
        "fencepost_lock_held_seconds",
        "fencepost_lock_renew_total",
        "fencepost_lock_renew_slack_ratio",
        "fencepost_release_by_non_owner_total",
        "fencepost_lease_expired_while_executing_total",
        "fencepost_fencing_reject_total",
        "fencepost_resource_stale_token_rejections_total",
        "fencepost_token_gap",
        "fencepost_critical_write_without_token_total",
        "fencepost_fencing_would_reject_total",
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
    assert counted["fencepost_lock_acquire_attempts_total"] == 2
    assert counted["fencepost_lock_acquire_success_total"] == 1
    assert counted["fencepost_lock_acquire_timeouts_total"] == 1
    assert counted["fencepost_lock_acquire_latency_seconds_sum"] == 0.003
    assert counted["fencepost_lock_held_seconds_sum"] == 2.0
    assert counted["fencepost_lock_renew_slack_ratio_count"] == 1
    assert counted["fencepost_lease_expired_while_executing_total"] == 1
    assert counted["fencepost_release_by_non_owner_total"] == 1
    answers = {"renewed": 1.0, "unknown": 1.0}
    assert {
        result: counted.registry.get_sample_value("fencepost_lock_renew_total", {"result": result})
        for result in answers
    } == answers


def test_a_guard_s_decisions_are_counted(counted: Counted) -> None:
    guard = memory.MemoryGuard[bytes](hooks=[counted.hook])
    guard.write("thing", b"1", Stamp(5, 2, "ann"))
    guard.read("thing", Stamp(5, 2, "ann"))
    guard.write("thing", b"1", Stamp(5, 2, "ann"))
    for offer in (Stamp(4, 1, "old"), Stamp(5, 1, "ann"), Stamp(5, 2, "ann"), Stamp(5, 1, "bob")):
        with pytest.raises(Refused):
            guard.write("thing", b"other", offer)
    assert counted["fencepost_resource_writes_accepted_total"] == 1
    assert counted["fencepost_resource_writes_replayed_total"] == 1
    for verdict in ("stale", "late", "replay", "clash"):
        assert counted[f"fencepost_fencing_reject_total/{verdict}"] == 1
        assert counted[f"fencepost_fencing_would_reject_total/{verdict}"] == 0
    assert counted["fencepost_fencing_reject_total/missing"] == 0
    assert counted["fencepost_resource_stale_token_rejections_total"] == 1
    assert counted["fencepost_token_gap_count"] == 6
    assert counted.registry.get_sample_value("fencepost_token_gap_bucket", {"le": "-1.0"}) == 1


def test_what_was_let_pass_against_the_rule_is_counted_apart(counted: Counted) -> None:
    for verdict in (Verdict.STALE, Verdict.MISSING):
        counted.hook(
            Event(kind="decision", name="thing", source="memory", verdict=verdict, enforced=False, action="write")
        )
    assert counted["fencepost_fencing_would_reject_total/stale"] == 1
    assert counted["fencepost_fencing_reject_total/stale"] == 0
    assert counted["fencepost_resource_stale_token_rejections_total"] == 0
    assert counted["fencepost_critical_write_without_token_total"] == 1
    assert counted["fencepost_resource_writes_accepted_total"] == 2


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
    assert counted["fencepost_fencing_override_total"] == 1
    counted.hook(Event(kind="raise_mark", name="thing", source="redis", token=50))
    assert (counted["fencepost_fencing_mark_raised_total"], counted["fencepost_fencing_mark_lowered_total"]) == (1, 0)
    counted.hook(Event(kind="lower_mark", name="thing", source="redis", token=5, seen=50))
    assert (counted["fencepost_fencing_mark_raised_total"], counted["fencepost_fencing_mark_lowered_total"]) == (1, 1)


def test_the_prefix_can_be_another_one() -> None:
    registry = CollectorRegistry()
    Metrics(registry, prefix="billing_")(Event(kind="attempt", name="a", source="memory"))
    assert registry.get_sample_value("billing_lock_acquire_attempts_total") == 1
    bare = CollectorRegistry()
    Metrics(bare, prefix="")
    assert bare.get_sample_value("lock_acquire_attempts_total") == 0
    for wrong in ("bill-ing_", "9_", "é_", None):
        with pytest.raises(ConfigError, match="prefix of metrics"):
            Metrics(CollectorRegistry(), prefix=wrong)  # type: ignore[arg-type]


def test_locks_are_counted_by_store_and_class_and_all_series_begin_at_zero() -> None:
    registry = CollectorRegistry()
    hook = Metrics(registry, classes=lambda name: name.partition("/")[0])
    hook(Event(kind="attempt", name="account/42", source="redis"))
    hook(Event(kind="attempt", name="account/43", source="redis"))
    hook(Event(kind="attempt", name="report/1", source="etcd"))

    def value(name: str, backend: str, kind: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"fencepost_{name}", {"backend": backend, "class": kind, **labels})

    assert value("lock_acquire_attempts_total", "redis", "account") == 2
    assert value("lock_acquire_attempts_total", "etcd", "report") == 1
    assert value("lock_acquire_timeouts_total", "redis", "account") == 0
    assert value("fencing_reject_total", "redis", "account", verdict="clash") == 0
    assert value("lock_held_seconds_count", "etcd", "report") == 0


def test_there_are_at_most_twenty_classes(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    hook = Metrics(registry, classes=lambda name: name)
    for number in range(100):
        hook(Event(kind="attempt", name=str(number), source="redis"))
    samples = [
        sample
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "fencepost_lock_acquire_attempts_total"
    ]
    assert len(samples) == 20
    assert sum(sample.value for sample in samples) == 100
    assert next(sample.value for sample in samples if sample.labels["class"] == "other") == 81
    assert len(logged(caplog)) == 1


def test_a_function_that_fails_costs_no_count(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    hook = Metrics(registry, classes=lambda name: {"a": 1}[name])  # type: ignore[arg-type,return-value]
    for name in ("a", "b"):  # a number, and an error
        hook(Event(kind="attempt", name=name, source="redis"))
    labels = {"backend": "redis", "class": "other"}
    assert registry.get_sample_value("fencepost_lock_acquire_attempts_total", labels) == 2
    assert "no class" in caplog.text
    with pytest.raises(ConfigError, match="classes="):
        Metrics(CollectorRegistry(), classes="account")  # type: ignore[arg-type]
