"""The servers, each started at most once per run, or taken from FENCEPOST_TEST_<NAME>_URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn, Protocol

import pytest

from fencepost.lab.servers import QUICK_ETCD, Consul, Etcd, EtcdCluster, Missing, Postgres, Redis, ZooKeeper
from fencepost.lab.servers.redis_groups import Independent, RedisCluster
from tests.bouncer import PgBouncer
from tests.object_store import ObjectStore


class Endpoint(Protocol):
    """Something with an address. A test that pauses or kills starts a server of its own instead."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class Given:
    """A server that somebody else runs."""

    url: str


def unavailable(reason: str) -> NoReturn:
    """Fail where a complete run was promised, skip elsewhere."""
    if os.environ.get("CI") == "true" or os.environ.get("FENCEPOST_REQUIRE_SERVERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextlib.contextmanager
def provided(name: str, server: AbstractContextManager[Endpoint]) -> Iterator[Endpoint]:
    """The address from the environment, else the server, started."""
    if url := os.environ.get(f"FENCEPOST_TEST_{name}_URL"):
        yield Given(url)
        return
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(server)
        except Missing as missing:
            unavailable(str(missing))
        yield started


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Endpoint]:
    with provided("REDIS", Redis()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Endpoint]:
    with provided("REDIS_CLUSTER", RedisCluster()) as server:
        yield server


@pytest.fixture(scope="session")
def redlock_servers() -> Iterator[Endpoint]:
    with provided("REDLOCK", Independent()) as servers:
        yield servers


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[Endpoint]:
    with provided("ETCD", Etcd(args=QUICK_ETCD)) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_cluster() -> Iterator[Endpoint]:
    with provided("ETCD", EtcdCluster(args=QUICK_ETCD)) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[Endpoint]:
    with provided("ZOOKEEPER", ZooKeeper()) as server:
        yield server


@pytest.fixture(scope="session")
def consul_server() -> Iterator[Endpoint]:
    # Not the usual 10 s: what expires here, expires soon.
    with provided("CONSUL", Consul(args=["-hcl", 'session_ttl_min = "500ms"'])) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Endpoint]:
    with provided("POSTGRES", Postgres()) as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer_server(postgres_server: Endpoint) -> Iterator[Endpoint]:
    with provided("PGBOUNCER", PgBouncer(target=postgres_server.url)) as server:
        yield server


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    with ObjectStore() as server:
        yield server
