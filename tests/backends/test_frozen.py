"""A server that is frozen: an acquire with a timeout is over soon after it, long before the store's own time-out."""

import secrets
from collections.abc import Callable, Iterator

import pytest

import fencepost
from fencepost.errors import BackendError, NotAcquired
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import Consul, Etcd, Postgres, Redis, ZooKeeper
from fencepost_lab.servers.server import Server
from tests.harness.servers import running
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.silence

OWN = f"{PATIENCE * 10:g}s"
"""The store's own time-out: who waits for it has not finished in time."""
KINDS: dict[str, tuple[Callable[[], Server], str]] = {
    "redis": (Redis, f"timeout={OWN}"),
    "postgres": (Postgres, f"timeout={OWN}"),
    "etcd": (Etcd, f"timeout={OWN}"),
    "consul": (Consul, f"timeout={OWN}"),
    "zookeeper": (ZooKeeper, f"connect_timeout={OWN}"),
}
"""Each store's server, and its own time-out."""


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in KINDS])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(KINDS[request.param][0]()) as server:
        yield server


@pytest.mark.redis
def test_a_listening_connection_that_never_comes_does_not_outlast_a_timeout() -> None:
    with Redis() as server, Proxy(server.port) as proxy, fencepost.connect(server.url, ttl=PATIENCE) as others:
        slow = f"redis://{proxy.address}?timeout={OWN}&connect_timeout={OWN}"
        with fencepost.connect(slow, ttl=PATIENCE) as locks:
            assert locks.acquire("a").release(), "its connection is open"
            others.acquire("a", renew=False)
            proxy.cut_newcomers()
            asking = background(lambda: locks.acquire("a", timeout=0.5))
            with pytest.raises((BackendError, NotAcquired)):
                asking.result()
            proxy.heal()


@pytest.mark.parametrize("queued", [False, True], ids=["free", "held"])
def test_a_blocking_acquire_does_not_outlast_its_timeout(
    server: Server, queued: bool, request: pytest.FixtureRequest
) -> None:
    name = f"lock-{secrets.token_hex(4)}"
    options = KINDS[request.node.callspec.params["server"]][1]
    with (
        fencepost.connect(f"{server.url}?{options}", ttl=PATIENCE) as locks,
        fencepost.connect(server.url, ttl=PATIENCE) as others,
    ):
        assert locks.acquire(name).release(), "its connection is open"
        if queued:
            others.acquire(name, renew=False)
        with server.paused():
            asking = background(lambda: locks.acquire(name, timeout=0.5))
            with pytest.raises((BackendError, NotAcquired)):
                asking.result()
