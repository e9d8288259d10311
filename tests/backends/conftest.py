"""A Redis of one test's own, which it may flush, pause and kill."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from fencepost_lab.servers import Redis
from tests.harness.servers import running


@dataclass
class Own:
    """The server, and redis-py's view of it."""

    server: Redis
    client: Any

    @property
    def url(self) -> str:
        return self.server.url

    def requests(self) -> int:
        """How many scripts clients have asked for so far."""
        stats = self.client.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))

    def keys(self) -> set[str]:
        """Every key but the counter of tokens."""
        return set(self.client.keys("*")) - {"fencepost:lock:\x1ftoken"}


@pytest.fixture
def own_redis() -> Iterator[Own]:
    with (
        running(Redis(args=["--save", ""])) as server,
        redis.Redis(port=server.port, decode_responses=True) as client,
    ):
        yield Own(server, client)
        server.kill()
