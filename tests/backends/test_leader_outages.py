"""Leadership while its store is down: who was elected before runs on, all others are told."""

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.errors import BackendError
from fencepost_lab.servers import Redis
from tests.harness.waiting import PATIENCE, run, until

pytestmark = pytest.mark.redis

TTL = 3.0


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def turned_away(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a candidate has met the outage, and told so."""
    return any("running again" in record.getMessage() for record in caplog.records)


def test_who_was_elected_before_runs_on_through_an_outage(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    tokens: list[int] = []

    def lead() -> None:
        for term in locks.election("scheduler", ttl=TTL):
            tokens.append(term.token)
            if len(tokens) == 2:
                return
            term.ended.wait()

    with fencepost.connect(server.url) as locks, caplog.at_level(logging.WARNING, "fencepost"):
        leader = threading.Thread(target=lead)
        leader.start()
        until(lambda: bool(tokens), "it is served")
        server.kill()
        until(lambda: turned_away(caplog), "it is turned away")
        assert len(tokens) == 1
        server.restart()
        leader.join(PATIENCE)
    assert not leader.is_alive()
    assert tokens[0] < tokens[1]


def test_in_asyncio_too(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[int]:
        tokens: list[int] = []
        async with fencepost.aio.connect(server.url) as locks, asyncio.timeout(PATIENCE):
            async for term in locks.election("scheduler", ttl=TTL):
                tokens.append(term.token)
                if len(tokens) == 2:
                    break
                server.kill()
                asyncio.get_running_loop().run_in_executor(None, restart)
                await term.ended.wait()
        return tokens

    def restart() -> None:
        until(lambda: turned_away(caplog), "it is turned away")
        server.restart()

    with caplog.at_level(logging.WARNING, "fencepost"):
        first, second = run(main())
    assert first < second


def test_a_first_election_and_an_observer_are_told_of_the_outage(server: Redis) -> None:
    with fencepost.connect(server.url) as locks:
        seen = locks.election("scheduler").changes()
        assert next(seen) is None
        server.kill()
        with pytest.raises(BackendError):
            next(seen)
        with pytest.raises(BackendError):
            next(iter(locks.election("scheduler")))
        server.restart()
        assert next(iter(locks.election("scheduler"))).token
