"""A small fleet of real processes on every backend. At full size: `make torment`."""

import pytest

from tests.conformance.backends import BACKENDS, Row
from tests.fleet.run import run
from tests.fleet.stage import Failed, Fleet, Plan
from tests.harness.threads import on_thread
from tests.harness.waiting import PATIENCE

ROWS = [row for row in BACKENDS if row.promises.reach != "one process" and not row.variant]


async def trouble(fleet: Fleet) -> None:
    """Each thing that can happen to a worker, once, with balance restored after it; two are hit at the same time."""
    for _ in range(2):
        await fleet.join()
    await fleet.settle()
    await fleet.join()
    await fleet.settle()
    one, two, three = fleet.fit
    fleet.kill(one)
    await fleet.freeze(two)  # until the one that is left owns everything
    await fleet.settle()
    fleet.leave(three)
    await fleet.settle()
    assert await on_thread(three.child.wait) == 0


@pytest.mark.slow
@pytest.mark.experiment
@pytest.mark.parametrize("row", [pytest.param(row, id=row.label) for row in ROWS])
async def test_partitions_are_owned_again_after_a_join_a_kill_a_freeze_and_a_leave(
    row: Row, request: pytest.FixtureRequest
) -> None:
    # How soon a partition is owned again depends on the machine; `make torment` and the simulator hold it to 2 ttl.
    plan = Plan(backend=row.url(request.getfixturevalue), partitions=6, ttl=2.5, work=0.05, bound=PATIENCE)
    facts = await run(plan, trouble)
    assert facts["violations"] == 0
    assert facts["overlapping_beliefs"] > 0, "the frozen worker's partitions were taken while it believed to own them"
    assert facts["faults"] == {"join": 3, "kill": 1, "leave": 1, "pause": 1, "resume": 1, "paused past the ttl": 1}


async def test_a_run_without_faults_is_not_taken_for_proof() -> None:
    async def calm(fleet: Fleet) -> None:
        await fleet.join()
        await fleet.settle()

    with pytest.raises(Failed, match=r"not stressed(.|\n)*python -m tests.fleet.run .*--seed 5"):
        await run(Plan(backend="sqlite", workers=1, partitions=2, ttl=2.0, seed=5), calm)


async def test_a_worker_that_ends_unasked_shows_its_traceback() -> None:
    async def broken(fleet: Fleet) -> None:
        fleet.group = "no/members/here"
        await fleet.join()
        await fleet.settle()

    with pytest.raises(Failed, match=r"w0: .*ended with status 1(.|\n)*Traceback(.|\n)*may be 'members'"):
        await run(Plan(backend="sqlite", workers=1, partitions=2), broken)
