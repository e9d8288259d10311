"""The experiments with faults, at a size that fits a test run: each shows what it claims."""

import re
from pathlib import Path
from typing import Any

import pytest

import fencepost_lab
from fencepost.errors import ConfigError
from fencepost_lab.experiments import chosen
from fencepost_lab.experiments.context import Context
from fencepost_lab.faults.network import Network
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import load
from fencepost_lab.report.outcome import Outcome
from tests.harness.servers import unavailable
from tests.lab.command import as_claimed, needs

pytestmark = [pytest.mark.experiment, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

NOTE = Path(fencepost_lab.__file__).parent / "experiments" / "redlock-note.md"


def shown(name: str, folder: Path, *measured: str, **smaller: Any) -> Outcome:
    """The outcome of a quick run, with some parameters smaller still; fails unless it was ``as_claimed``."""
    (experiment,) = chosen([name])
    settings = experiment.settings(quick=True)
    assert set(smaller) <= set(settings)
    with Context(keep=folder) as context:
        outcome = experiment.run(settings | smaller, context)
        assert context.stores, "the report names the stores' versions"
    as_claimed(outcome, *measured)
    return outcome


def test_redlock_has_two_holders_and_the_guard_refuses_one(tmp_path: Path) -> None:
    needs("REDIS_SERVER")
    outcome = shown("redlock", tmp_path, ttl=2.4)
    forgets = outcome.figures["a node forgets"]
    for fence in ("fence_off", "fence_on"):
        assert forgets[fence]["a_held"] == ["r1", "r2", "r3"]
        assert set(forgets[fence]["b_held"]) == {"r3", "r4", "r5"}
        assert {"cut", "kill", "restart"} <= set(forgets[fence]["faults"])
    assert {"cut", "pause", "resume"} <= set(outcome.figures["a partition and a pause"]["fence_on"]["faults"])
    assert not check(load(tmp_path / "redlock-a-node-forgets-off.jsonl.gz")).ok
    assert check(load(tmp_path / "redlock-a-node-forgets-on.jsonl.gz")).ok
    assert outcome.slo["violations"].startswith("0 in 3")


def test_a_clock_that_jumps_breaks_redlock_and_not_the_guard(tmp_path: Path) -> None:
    for program in ("REDIS_SERVER", "CC"):
        needs(program)
    # A clock this fast leaves B more than a second inside A's lease.
    outcome = shown("drift", tmp_path, ttl=2.4, rounds=1, rates=[1.0, 4.0])
    assert [each["early"] for each in outcome.figures["rates"]] == [0, 1]


def test_a_large_key_space_costs_memory_only_while_it_is_held(tmp_path: Path) -> None:
    for program in ("REDIS_SERVER", "ETCD"):
        needs(program)
    outcome = shown(
        "keyspace",
        tmp_path,
        "stays as long as the lease is kept alive",
        "others get their locks",
        keys=20_000,
        ttl=4.0,  # the last ones are laid long before the first expire
        lazy_keys=10_000,
        lazy_ttl=1.0,
        etcd_members=1,
        etcd_leases=[100],
        etcd_ttl=5.0,  # a busy machine lays them all before the first expire
        etcd_quiet=0.1,
        etcd_burst=0.1,
        etcd_outage=0.1,
        etcd_quota=120_000,
        etcd_chunk=32,
        etcd_shared=10,
    )
    assert 100 < outcome.figures["redis"]["bytes_per_lock"] < 400
    assert outcome.figures["etcd_outage"]["killed"] == 1
    assert outcome.figures["etcd_outage"]["left_after"] == outcome.figures["etcd_outage"]["leases"] > 0
    names = {"memory", "lazy", "etcd-leases", "etcd-outage", "etcd-revisions"}
    assert {plot.name for plot in outcome.plots} == names


def test_tokens_survive_what_their_source_survives(tmp_path: Path) -> None:
    for program in ("REDIS_SERVER", "ETCD", "CC"):
        needs(program)
    outcome = shown("counters", tmp_path, "the hybrid costs next to nothing", turns=3, cycles=40, keys=5_000, ttl=1.0)
    assert outcome.figures["survival"]["hybrid, FLUSHALL"]["guard"] == "admitted"
    assert outcome.figures["survival"]["per lock, FLUSHALL"]["guard"] == "refused as stale"


def test_a_holder_that_is_cut_off_is_refused_or_stops_in_time(tmp_path: Path) -> None:
    needs("REDIS_SERVER")
    outcome = shown("partition", tmp_path, ttl=3.0)
    found = outcome.figures["redis"]
    assert found["off"]["answer"]["event"] == "accepted"
    assert found["on"]["answer"]["status"] == 409
    assert found["looks"]["answer"]["event"] == "heeded"
    for name, ok in (("off", False), ("on", True), ("looks", True)):
        report = check(load(tmp_path / f"partition-redis-{name}.jsonl.gz"))
        assert report.ok is ok
        assert report.counts["fault:cut"] == report.counts["fault:heal"] == 1


def test_a_write_that_is_delayed_in_flight_is_refused(tmp_path: Path) -> None:
    outcome = shown("delay", tmp_path, ttl=3.0)
    verdicts = {name: each["fence_on"]["answer"]["verdict"] for name, each in outcome.figures["sqlite"].items()}
    assert verdicts == {"dead": "stale", "waiting": "stale", "again": "late"}
    for name in verdicts:
        assert not check(load(tmp_path / f"delay-sqlite-{name}-off.jsonl.gz")).ok
        report = check(load(tmp_path / f"delay-sqlite-{name}-on.jsonl.gz"))
        assert report.verdict == "kept"
        assert report.counts["fault:delay"] == report.counts["fault:deliver"] == 1


@pytest.mark.postgres
@pytest.mark.s3
def test_a_row_and_an_object_refuse_a_replaced_holder(tmp_path: Path) -> None:
    needs("POSTGRES_BIN")
    outcome = shown("resources", tmp_path)
    assert outcome.figures["object in-flight"]["fence_on"]["condition_failed"]
    assert check(load(tmp_path / "resources-row-between-on.jsonl.gz")).ok
    assert not check(load(tmp_path / "resources-column-after-off.jsonl.gz")).ok


@pytest.mark.server
def test_a_fleet_serves_all_partitions_again_and_replaced_workers_are_refused(tmp_path: Path) -> None:
    needs("REDIS_SERVER")
    try:
        with Network(["A"]):
            pass
    except ConfigError as error:
        unavailable(str(error))
    # How soon depends on the machine; `make lab` checks it.
    changes: dict[str, Any] = {"hosts": 3, "workers": 3, "silent": 1, "dead": 0, "ttl": 2.5}
    outcome = shown("fleet", tmp_path, "serve every partition again within", **changes)
    for name, ok in (("off", False), ("on", True)):
        report = check(load(tmp_path / f"fleet-{name}.jsonl.gz"))
        assert report.ok is ok
        assert report.counts["fault:cut"] == report.counts["fault:heal"] == 2
        seen = outcome.figures[name]
        assert seen["held"] == seen["late"] == seen["delayed"] == 2


def test_the_note_on_redlock_reads_the_same_in_the_docs() -> None:
    page = Path(__file__).parents[2] / "docs" / "lab" / "redlock-note.md"
    assert page.read_text("utf-8") == re.sub(r"^##(#+ )", r"\1", NOTE.read_text("utf-8"), flags=re.MULTILINE)
