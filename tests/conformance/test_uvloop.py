"""Every backend serves tasks of an event loop that is not asyncio's own, such as uvicorn brings along."""

import asyncio
import secrets

import pytest
import uvloop

from fencepost import aio
from tests.conformance.backends import BACKENDS, Row
from tests.harness.waiting import PATIENCE


@pytest.mark.parametrize("row", BACKENDS, ids=lambda row: row.label)
def test_locks_are_taken_waited_for_cancelled_and_handed_over(row: Row, request: pytest.FixtureRequest) -> None:
    ttl, name = max(300.0, row.promises.min_ttl), f"uvloop-{secrets.token_hex(4)}"

    async def whole() -> None:
        async with asyncio.timeout(PATIENCE), aio.connect(row.url(request.getfixturevalue), ttl=ttl) as here:
            first = await here.acquire(name)
            assert await here.try_acquire(name) is None
            impatient = asyncio.create_task(here.acquire(name))
            patient = asyncio.create_task(here.acquire(name, timeout=PATIENCE))
            await asyncio.sleep(0)  # both have begun
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            assert await first.release()
            second = await patient
            assert second.token > first.token
            assert await second.release()
            assert await here.status(name) is None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())
