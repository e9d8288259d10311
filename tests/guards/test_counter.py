"""Read, change, write, by several processes, one of them frozen past its ttl: through each guard nothing is lost.

Without the guard, and when only the writes are fenced, the same run loses updates; else it would prove nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.guards import GUARDS
from tests.guards.counter import Crew, Job, Tally, play
from tests.harness.child import ChildFailed

PROCESSES, ROUNDS, STOPS = 5, 3, 2
# The memory guard lives in one process; the resource service has a torture of its own.
SHARED = [name for name in GUARDS if name not in ("memory", "resource")]

Run = Callable[..., Tally]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew(PROCESSES)
    yield crew
    crew.close()


@pytest.fixture(params=SHARED)
def run(request: pytest.FixtureRequest, crew: Crew, tmp_path: Path) -> Iterator[Run]:
    guard: str = request.param
    with ExitStack() as stack:
        address = GUARDS[guard].place(request.getfixturevalue, stack)

        def run(mode: str, *, enters: bool) -> Tally:
            job = Job(
                guard=guard,
                address=address,
                locks=f"sqlite://{tmp_path}/{mode}-{enters}.db",
                name=f"counter/{mode}/{enters}",
                mode=mode,
                enters=enters,
                rounds=ROUNDS,
            )
            with crew.at_work() as workers:
                return play(workers, job, stops=STOPS)

        yield run


@pytest.mark.slow
def test_a_guard_loses_no_update_and_without_it_the_same_run_does(run: Run) -> None:
    tally = run("strict", enters=True)
    assert tally.zombies == ["stale"] * STOPS
    assert tally.final == tally.admitted == len(tally.outcomes) - STOPS, "only the zombies are refused"

    unguarded = run("off", enters=False)
    assert unguarded.zombies == ["admitted"] * STOPS
    assert unguarded.final < unguarded.admitted

    only_writes = run("strict", enters=False)
    assert only_writes.zombies == ["admitted", "stale"], "the guard had not met the new holder yet, and had"
    assert only_writes.final < only_writes.admitted


@pytest.mark.slow
def test_a_worker_that_fails_shows_why_and_the_next_run_has_a_whole_crew(crew: Crew, tmp_path: Path) -> None:
    job = Job(guard="file", address=str(tmp_path), locks=f"sqlite://{tmp_path}/l.db", name="n", mode="?", enters=True)
    with pytest.raises(ChildFailed, match="Traceback"), crew.at_work() as workers:
        play(workers, job, stops=1)
    with crew.at_work() as workers:
        assert len(workers) == PROCESSES
        assert all(worker.running for worker in workers)
