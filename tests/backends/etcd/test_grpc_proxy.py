"""Locks behind etcd's grpc-proxy, which numbers watches itself, as etcd did before 3.4."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fencepost import connect
from fencepost_lab.servers import Server, http_json
from fencepost_lab.servers.processes import program
from tests.backends.etcd.tools import LONG, queued
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import until


@dataclass(kw_only=True, eq=False)
class GrpcProxy(Server):
    """One proxy in front of the member at ``target``."""

    target: str

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    def command(self) -> list[str]:
        return [
            *(program("ETCD"), "grpc-proxy", "start", "--endpoints", self.target, "--listen-addr", self.address),
            *("--data-dir", str(self.folder / "data")),
        ]

    def ping(self) -> bool:
        return bool(http_json(self.port, "GET", "/health")["health"] == "true")


@pytest.fixture
def proxy(etcd_server: Endpoint) -> Iterator[GrpcProxy]:
    with GrpcProxy(target=etcd_server.url.partition("://")[2]) as started:
        yield started


def test_a_waiter_gets_the_lock_although_its_watch_tells_it_nothing(proxy: GrpcProxy) -> None:
    name = secrets.token_hex(4)
    with connect(proxy.url, ttl=LONG) as locks:
        lease = locks.acquire(name)
        waiter = background(lambda: locks.acquire(name, timeout=LONG))
        until(lambda: queued(locks, name, 1), "a waiter", watching=[waiter])
        assert lease.release()
        assert waiter.result().release()


def test_a_lease_is_kept_although_the_proxy_answers_only_when_it_renews_itself(proxy: GrpcProxy) -> None:
    with connect(proxy.url, ttl=15) as locks:
        lease = locks.acquire(secrets.token_hex(4))
        for _ in range(3):
            lease.renew()
        seen = lease.deadline
        until(lambda: lease.deadline > seen or lease.ended, "it is renewed")
        lease.check()
        channels = locks._core.backend._rpc.channels  # type: ignore[attr-defined]
        assert channels.dial == 0, "no other request is cut off for that"
        assert lease.release()
