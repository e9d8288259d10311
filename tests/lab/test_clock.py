"""A Redis whose wall clock jumps and drifts while it runs, and what that does to a lock in it."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import fencepost
from fencepost.driver import boottime
from fencepost_lab.faults.clock import ClockedRedis
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import HOST, Missing
from fencepost_lab.servers.processes import programs
from tests.harness.servers import running
from tests.harness.waiting import until

pytestmark = pytest.mark.redis


@pytest.fixture
def server() -> Iterator[ClockedRedis]:
    with running(ClockedRedis(who="r1", faults=Faults(), args=["--save", ""])) as started:
        yield started


@pytest.fixture
def client(server: ClockedRedis) -> Iterator[Any]:
    with redis.Redis(HOST, server.port, decode_responses=True) as connected:
        yield connected


def told(client: Any) -> float:
    """The server's time."""
    seconds, us = client.time()
    return float(seconds) + float(us) / 1e6


def ahead(client: Any) -> float:
    """How far the server's clock is ahead of ours, at least: its answer may have been long on its way."""
    return told(client) - time.time()


def ahead_at_most(client: Any) -> float:
    """The same, at most."""
    asked = time.time()
    return told(client) - asked


def test_a_clock_that_jumps_ends_a_lock_that_had_a_minute_left(server: ClockedRedis, client: Any) -> None:
    assert abs(ahead(client)) < 5, "until then it tells the time"
    assert client.set("fencepost:lock:a", "A", nx=True, px=60_000)
    assert not client.set("fencepost:lock:a", "B", nx=True, px=60_000)
    server.clock.jump(120)
    assert ahead(client) > 115
    assert client.set("fencepost:lock:a", "B", nx=True, px=60_000), "a second client takes it"
    server.clock.jump(-120)
    assert abs(ahead(client)) < 5
    assert [(fault["do"], fault["who"], fault["by"]) for fault in server.faults] == [
        ("jump", "r1", 120),
        ("jump", "r1", -120),
    ]


def test_a_fast_clock_shortens_leases_and_keeps_what_it_has_gained(server: ClockedRedis, client: Any) -> None:
    server.clock.skew(100.0)
    assert client.set("fencepost:lock:a", "A", nx=True, px=60_000)
    until(lambda: not client.exists("fencepost:lock:a"), "a minute there is less than that here", deadline=50)
    gained = ahead(client)
    assert gained > 50
    server.clock.skew(1.0)
    assert ahead_at_most(client) >= gained
    assert abs(ahead(client) - server.clock.offset) < 5
    assert [fault["rate"] for fault in server.faults] == [100.0, 1.0]


def test_a_restart_keeps_the_clock(server: ClockedRedis) -> None:
    server.clock.jump(1000)
    server.restart()
    with redis.Redis(HOST, server.port, decode_responses=True) as client:
        assert ahead(client) > 900


def test_without_a_compiler_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(programs(), "CC", raising=False)
    with pytest.raises(Missing, match="apt-get install gcc libc6-dev"):
        ClockedRedis().start()


def test_a_clock_that_runs_a_little_fast_gives_no_lock_away_before_its_holders_deadline(server: ClockedRedis) -> None:
    server.clock.skew(1.005)
    with fencepost.connect(server.url) as locks, fencepost.connect(server.url) as others:
        lease = locks.acquire("a", ttl=2, renew=False)
        while (other := others.try_acquire("a")) is None:
            pass
        assert boottime() >= lease.deadline, "two held it for a moment"
        assert other.token > lease.token
    assert [fault["do"] for fault in server.faults] == ["skew"]
