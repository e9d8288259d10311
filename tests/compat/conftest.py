"""A Redis of these tests' own, and what the compat locks tell of themselves."""

from collections.abc import Iterator

import pytest
import redis

from fencepost.compat import observe, observed
from fencepost.events import Event
from fencepost_lab.servers import HOST
from fencepost_lab.servers import Redis as Server
from tests.harness.servers import running


@pytest.fixture(scope="module")
def module_redis() -> Iterator[Server]:
    with running(Server(args=["--save", ""])) as server:
        yield server


@pytest.fixture
def own_redis(module_redis: Server) -> Iterator[Server]:
    """A server that knows nothing; its keys and users are the test's."""
    yield module_redis
    with redis.Redis(HOST, module_redis.port) as client:
        client.flushall()
        client.script_flush()


@pytest.fixture
def client(own_redis: Server) -> Iterator[redis.Redis]:
    with redis.Redis(HOST, own_redis.port) as client:
        yield client


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Every event of the compat locks."""
    events: list[Event] = []
    monkeypatch.setattr(observed, "_hooks", None)
    observe(events.append)
    return events
