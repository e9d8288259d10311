"""Five independent Redis servers that a test may pause, kill and flush."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fencepost_lab.servers import HOST, Redis
from fencepost_lab.servers.redis_groups import Independent
from tests.harness.servers import running
from tests.harness.waiting import GIVES_UP, until


class Five:
    """The servers, and redis-py's view of each of them."""

    def __init__(self, servers: Independent) -> None:
        self.servers = servers
        # A node that was killed refuses at once; one that is only slow must not be taken for one that hangs.
        self.url = f"{servers.url}?node_timeout={GIVES_UP:g}s"

    @property
    def members(self) -> list[Redis]:
        return self.servers.members

    def at(self, index: int) -> Any:
        return redis.Redis(HOST, self.members[index].port, decode_responses=True)

    def value(self, index: int, key: str = "fencepost:lock:a") -> str | None:
        with self.at(index) as client:
            found: str | None = client.get(key)
            return found

    def kill(self, *indices: int) -> None:
        for index in indices:
            self.members[index].kill()
            assert not self.members[index].running

    def revive(self, *indices: int) -> None:
        """Start killed servers again; what they knew is gone."""
        for index in indices:
            self.members[index].restart()
            with self.at(index) as client:
                assert not client.exists("fencepost:lock:\x1ftoken"), "nothing was to survive"


@pytest.fixture(scope="module")
def started() -> Iterator[Independent]:
    with running(Independent()) as servers:
        yield servers
        servers.kill()


@pytest.fixture
def five(started: Independent) -> Iterator[Five]:
    """Five servers that know nothing; whatever the test does to them is undone."""
    yield Five(started)
    for member in started.members:
        if member.running:
            member.resume()
        else:
            member.restart()
    for member in started.members:
        with redis.Redis(HOST, member.port) as client:
            # A client that still looks after the node has its say first.
            until(lambda client=client: len(client.client_list()) == 1, "nobody else is connected")  # type: ignore[misc]
            client.flushall()
            client.script_flush()
