"""Every backend serves tasks of an event loop that is not asyncio's own, such as uvicorn brings along."""

import asyncio

import pytest
import uvloop

from fencepost import aio
from tests.conformance.backends import BACKENDS, Row

PATIENCE = 30.0


@pytest.mark.parametrize("row", BACKENDS, ids=lambda row: row.label)
def test_locks_are_taken_waited_for_cancelled_and_handed_over(row: Row, request: pytest.FixtureRequest) -> None:
    ttl = max(60.0, row.promises.min_ttl)

    async def scenario() -> None:
        async with aio.connect(row.url(request.getfixturevalue), ttl=ttl) as here:
            first = await here.acquire("lock")
            assert await here.try_acquire("lock") is None
            impatient = asyncio.create_task(here.acquire("lock"))
            patient = asyncio.create_task(here.acquire("lock", timeout=PATIENCE))
            await asyncio.sleep(0)  # both have begun
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            assert await first.release()
            second = await patient
            assert second.token > first.token
            assert await second.release()
            assert await here.status("lock") is None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
