"""The real core, guard and rule in thousands of random worlds; and that these worlds find what is broken."""

import json
from pathlib import Path

import pytest

from fencepost_lab.sim import parse, run
from fencepost_lab.sim.chaos import WEAKENED, chaos
from fencepost_lab.sim.seeds import Tally, check_trace, keep, try_many, try_seeds
from tests.sim.mutants import EQUIVALENT, FAULTS, RELEASE, RULE, broken, broken_rule, unconditional_release

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))
SEEDS, CALM = 500, 100
"""`make torment` runs 10,000 and 2,000 of them."""
STRESS = {
    "overlapping_beliefs": 100,
    "zombie_writes": 100,
    "write:stale": 200,
    "enter:stale": 80,
    "enter:clash": 10,
    "write:replay": 100,
    "write:late": 50,
    "enter:late": 20,
    "freed:expired": 400,
    "freed:failover": 50,
    "freed:jump": 10,
    "told": 50,
    "wrote:unknown": 100,
    "lost": 400,
    **{f"kept:{promise}": 50 for promise in ("data", "inside", "order", "owner", "once", "left", "leaves", "told")},
    **{f"kept:{promise}": 150 for promise in ("loss", "freed", "deadline", "exclusion", "turns")},
}
"""What must have happened, at least so often, for so many seeds without a violation to mean anything."""


def reasons(tally: Tally) -> str:
    return "\n".join(f"{each.replay('enter', False)}: {each.violations[0]}" for each in tally.failures)


@pytest.mark.slow
@pytest.mark.experiment
def test_no_promise_is_broken_whatever_fails() -> None:
    tally = try_seeds(range(SEEDS))
    assert not tally.failures, reasons(tally)
    assert tally.seeds == SEEDS
    idle = {what: tally.counts[what] for what, least in STRESS.items() if tally.counts[what] < least}
    assert not idle, f"these hardly happened: {idle}"
    for fault in ("pause", "cut", "kill", "restart", "skew", "jump", "failover", "lose", "evict"):
        assert tally.counts[f"fault:{fault}"] > 50, fault


@pytest.mark.slow
@pytest.mark.experiment
def test_once_the_faults_stop_all_work_gets_done() -> None:
    tally = try_seeds(range(CALM), calm=True)
    assert not tally.failures, reasons(tally)
    assert tally.counts["fault:calm"] == CALM


@pytest.mark.slow
@pytest.mark.experiment
def test_many_seeds_on_all_cores_give_what_one_process_finds() -> None:
    seen: list[int] = []
    tally = try_many(20, 60, workers=2, progress=lambda so_far: seen.append(so_far.seeds))
    assert seen == [50, 60]
    assert (tally.seeds, tally.counts) == (60, try_seeds(range(20, 80)).counts)


@pytest.mark.parametrize("fencing", WEAKENED)
def test_a_weakened_guard_is_found_out(fencing: str) -> None:
    tally = try_seeds(range(1000), fencing=fencing, stop=True)
    assert tally.failures, f"1000 seeds, and nobody noticed that fencing is {fencing}"


@pytest.mark.slow
@pytest.mark.parametrize(("fencing", "seeds"), [("off", 30), ("writes", 30), ("nobarrier", 100)])
def test_a_weakened_guard_loses_updates(fencing: str, seeds: int) -> None:
    assert try_seeds(range(seeds), fencing=fencing).counts["lost_updates"] > 0


def found_out() -> bool:
    return bool(
        try_seeds(range(200), stop=True).failures
        or try_seeds(range(20), calm=True, stop=True).failures
        or try_seeds(range(200, 1000), stop=True).failures
    )


@pytest.mark.slow
@pytest.mark.parametrize("mutant", RULE)
def test_one_changed_comparison_in_the_rule_is_found_out(mutant: str) -> None:
    with broken_rule(mutant):
        assert found_out()


@pytest.mark.parametrize("where", RELEASE)
def test_an_unconditional_release_is_found_out(where: str) -> None:
    with unconditional_release(where):
        assert found_out()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_core_or_a_store_is_found_out_by_its_promise(name: str) -> None:
    """By the first of 300 seeds that finds it; ``python -m tests.sim.mutants`` looks for that seed."""
    fault = FAULTS[name]
    with broken(fault):
        report = check_trace(run(chaos(fault.seed)))
    assert fault.promise in {each.check for each in report.violations}
    assert not check_trace(run(chaos(fault.seed))).violations, "without the fault"


@pytest.mark.parametrize("name", EQUIVALENT)
def test_a_fault_that_breaks_no_promise_still_fits_the_source(name: str) -> None:
    fault, why = EQUIVALENT[name]
    assert why
    with broken(fault):
        assert not check_trace(run(chaos(1))).violations


@pytest.mark.parametrize("path", REGRESSIONS, ids=[path.stem for path in REGRESSIONS])
def test_what_failed_once_does_not_fail_again(path: Path) -> None:
    scenario = parse(path.read_bytes())
    calm = any(action["do"] == "calm" for action in scenario.actions)
    assert not check_trace(run(scenario), calm=calm).violations


def test_a_failing_seed_is_kept_and_can_be_replayed(tmp_path: Path) -> None:
    failure = try_seeds(range(1000), fencing="off", stop=True).failures[0]
    seed = failure.scenario.seed
    assert failure.replay("off", False) == f"fencepost sim --seed {seed} --fencing off"
    assert chaos(seed, fencing="off") == failure.scenario
    path = keep(failure, tmp_path / "kept")
    assert json.loads(path.read_text())["broke"]
    again = parse(path.read_bytes())
    assert again == failure.scenario
    assert check_trace(run(again), weakened=True).violations == failure.violations
