"""A Redis of one test's own, which it may flush, pause and kill."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from fencepost.lab.servers import Missing, Redis
from tests.harness.servers import unavailable

PATIENCE = 30  # seconds to wait for what must come; far longer than it takes


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.005)


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
        return set(self.client.keys("*")) - {"lock:\x1ftoken"}


@pytest.fixture
def own_redis() -> Iterator[Own]:
    server = Redis(args=["--save", ""])
    try:
        server.start()
    except Missing as missing:
        unavailable(str(missing))
    client = redis.Redis(port=server.port, decode_responses=True)
    yield Own(server, client)
    client.close()
    server.kill()
    server.close()
