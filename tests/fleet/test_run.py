"""A small fleet of real processes on every backend. At full size: `make torture`."""

import asyncio
import random

import pytest

from tests.conformance.backends import BACKENDS, Row
from tests.fleet.run import run
from tests.fleet.stage import Failed, Fleet, Plan

ROWS = [row for row in BACKENDS if row.promises.reach != "one process" and row.variant in ("", "cluster")]


async def trouble(fleet: Fleet) -> None:
    """Each thing that can happen to a worker, once, with balance restored after it."""
    for _ in range(3):
        await fleet.join()
    await fleet.settle()
    await fleet.join()
    await fleet.settle()
    one, two, three, _ = fleet.fit
    fleet.kill(one)
    await fleet.settle()
    await fleet.freeze(two)
    await fleet.settle()
    fleet.leave(three)
    await fleet.settle()
    assert await three.handle.wait() == 0


@pytest.mark.parametrize("row", [pytest.param(row, id=row.label) for row in ROWS])
def test_partitions_are_owned_again_after_a_join_a_kill_a_freeze_and_a_leave(
    row: Row, request: pytest.FixtureRequest
) -> None:
    slow = "twice its ttl" in row.promises.clock
    plan = Plan(
        backend=row.url(request.getfixturevalue),
        partitions=8,
        ttl=1.5,
        work=0.05,
        bound=3.0 if slow else 2.0,
        seed=random.SystemRandom().randrange(10**6),
    )
    facts = asyncio.run(run(plan, trouble))
    assert facts["violations"] == 0
    assert facts["overlapping_beliefs"] > 0, "the frozen worker's partitions were taken while it believed to own them"
    assert facts["faults"] == {"join": 4, "kill": 1, "leave": 1, "pause": 1, "resume": 1, "paused past the ttl": 1}


def test_a_run_without_faults_is_not_taken_for_proof(tmp_path: object) -> None:
    async def calm(fleet: Fleet) -> None:
        await fleet.join()
        await fleet.settle()

    with pytest.raises(Failed, match=r"not stressed(.|\n)*python -m tests.fleet.run .*--seed 5"):
        asyncio.run(run(Plan(backend="sqlite", workers=1, partitions=2, ttl=2.0, seed=5), calm))
