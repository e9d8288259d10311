"""Read, change, write, by eight processes that are frozen past their ttl: through each guard nothing is lost.

Without the guard, and when only the writes are fenced, the same run loses updates; else it would prove nothing.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest

from tests.conformance.guards import GUARDS
from tests.guards.counter import Job, Tally, Worker, play

PROCESSES, ROUNDS, STOPS, TTL = 8, 3, 2, 0.4
# The memory guard lives in one process; the resource service has a torture of its own.
SHARED = [name for name in GUARDS if name not in ("memory", "resource")]


class Crew(NamedTuple):
    workers: list[Worker]
    told: "Queue[tuple[Worker, dict[str, Any]]]"


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    told: Queue[tuple[Worker, dict[str, Any]]] = Queue()
    with ExitStack() as stack:
        workers = [Worker(told) for _ in range(PROCESSES)]
        for worker in workers:
            stack.callback(worker.close)
        yield Crew(workers, told)


@pytest.fixture(params=SHARED)
def run(request: pytest.FixtureRequest, crew: Crew, tmp_path: Path) -> Iterator[Any]:
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
                ttl=TTL,
            )
            tally = play(crew.workers, crew.told, job, stops=STOPS)
            assert len(tally.zombies) == STOPS, "so many were frozen past their ttl, and woke up writing"
            return tally

        yield run


def test_through_the_guard_no_update_is_lost(run: Any) -> None:
    tally = run("strict", enters=True)
    assert tally.zombies == ["stale"] * STOPS
    assert tally.final == tally.admitted
    assert tally.admitted >= PROCESSES * ROUNDS - STOPS - 4, "only zombies, and a few on a slow machine, are refused"


def test_without_the_guard_the_same_run_loses_updates(run: Any) -> None:
    tally = run("off", enters=False)
    assert tally.zombies == ["admitted"] * STOPS
    assert tally.final < tally.admitted


def test_fencing_only_the_writes_the_same_run_loses_updates(run: Any) -> None:
    tally = run("strict", enters=False)
    assert "admitted" in tally.zombies, "the guard had not met the new holder yet"
    assert tally.final < tally.admitted
