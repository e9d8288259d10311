"""The proxy cuts, delays, loses and repeats for real, as a Redis behind it sees it, and records it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.errors import ConfigError
from fencepost_lab.faults.link import Link
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import HOST
from tests.harness.servers import Endpoint
from tests.harness.waiting import PATIENCE, until


class Between:
    """A client before the proxy, another past it, and what was recorded."""

    def __init__(self, url: str) -> None:
        self.past = redis.Redis.from_url(url, decode_responses=True)
        self.faults = Faults()
        self.proxy = Proxy(self.past.connection_pool.connection_kwargs["port"], who="redis", faults=self.faults)

    def client(self) -> Any:
        return redis.Redis(
            HOST,
            self.proxy.port,
            socket_timeout=PATIENCE,
            socket_connect_timeout=PATIENCE,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            single_connection_client=True,
        )

    def hasty(self, seconds: float = 0.3) -> Any:
        """One that is connected, and waits so long for an answer from now on."""
        client = self.client()
        assert client.ping()
        client.connection._sock.settimeout(seconds)
        return client

    def did(self) -> list[str]:
        return [fault["do"] for fault in self.faults]


@pytest.fixture
def between(redis_server: Endpoint) -> Iterator[Between]:
    made = Between(redis_server.url)
    made.past.delete("proxied")
    with made.proxy, made.past:
        yield made


def test_a_cut_is_silence_and_healing_delivers_what_was_sent(between: Between) -> None:
    with between.hasty() as client:
        between.proxy.cut()
        with pytest.raises(redis.TimeoutError):
            client.incr("proxied")
        until(lambda: between.proxy.held > 0, "it is held back")
        assert between.past.get("proxied") is None
        between.proxy.heal()
        until(lambda: between.past.get("proxied") == "1", "it arrives late")
    assert between.did() == ["cut", "heal"]
    assert between.faults[1]["held"] == between.proxy.held


@pytest.mark.parametrize(("way", "arrives"), [({"up": False}, "1"), ({"down": False}, None)])
def test_a_one_way_cut_lets_the_other_way_through(between: Between, way: dict[str, bool], arrives: str | None) -> None:
    with between.hasty() as client:
        between.proxy.cut(**way)
        with pytest.raises(redis.TimeoutError):
            client.incr("proxied")
        until(lambda: between.past.get("proxied") == arrives, "what is not cut goes through")
        until(lambda: between.proxy.held > 0, "one way is held back")
        between.proxy.heal()


def test_a_cut_can_spare_those_who_connect_after_it(between: Between) -> None:
    with between.hasty() as cut_off:
        between.proxy.cut(newcomers=False)
        with pytest.raises(redis.TimeoutError):
            cut_off.ping()
        with between.client() as newcomer:
            assert newcomer.ping()


def test_a_delay_is_at_least_as_long_as_asked(between: Between) -> None:
    with between.hasty(0.1) as client:
        between.proxy.slow(0.4)
        with pytest.raises(redis.TimeoutError):
            client.incr("proxied")
        until(lambda: between.proxy.slowed > 0, "it is slowed down")
        until(lambda: between.past.get("proxied") == "1", "late, but it arrives")
    between.proxy.slow(0)
    with between.client() as client:
        assert client.ping()
    assert [fault["by"] for fault in between.faults] == [0.4, 0]


def test_a_request_is_carried_out_and_its_answer_lost(between: Between) -> None:
    with between.client() as client:
        assert client.ping()
        between.proxy.drop_after(b"INCRBY")
        with pytest.raises(redis.ConnectionError):
            client.incr("proxied")
        assert between.past.get("proxied") == "1", "it was to be carried out"
        assert between.did() == ["lose"]
        assert client.incr("proxied") == 2, "only once"


def test_a_request_is_carried_out_twice_and_answered_once(between: Between) -> None:
    with between.client() as client:
        between.proxy.repeat(b"INCRBY")
        assert client.incr("proxied") in (1, 2)
        until(lambda: between.did() == ["repeat"], "it is repeated")
        assert between.past.get("proxied") == "2"
        assert client.incr("proxied") == 3, "the connection is still in step"


def test_a_delayed_request_arrives_after_later_ones_though_its_client_is_gone(between: Between) -> None:
    between.past.set("proxied", "old")
    between.proxy.delay(b"early")
    with between.hasty() as client, pytest.raises(redis.TimeoutError):
        client.set("proxied", "early")
    until(lambda: between.proxy.in_flight == 1, "it is on its way")
    with between.client() as client:
        client.set("proxied", "later")
    assert between.past.get("proxied") == "later"
    assert between.proxy.deliver() == [b"+OK\r\n"]
    assert between.past.get("proxied") == "early"
    assert between.proxy.in_flight == 0
    assert between.did() == ["delay", "deliver"]


def test_a_dropped_connection_is_noticed_and_replaced(between: Between) -> None:
    with between.client() as client:
        assert client.ping()
        between.proxy.drop()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        assert client.ping()
    assert between.did() == ["drop"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost/0", r"redis://127\.0\.0\.1:\d+/0"),
        ("redis://u:p%40@localhost:1/0?prefix=x", r"redis://u:p%40@127\.0\.0\.1:\d+/0\?prefix=x"),
        ("etcd://localhost:1,localhost:2?timeout=2s", r"etcd://127\.0\.0\.1:\d+,127\.0\.0\.1:\d+\?timeout=2s"),
    ],
)
def test_a_link_is_a_url_that_leads_through_proxies(url: str, shown: str) -> None:
    with Link(url, who="A") as link:
        assert re.fullmatch(shown, link.url)


def test_nobody_is_cut_off_from_a_file() -> None:
    with pytest.raises(ConfigError, match="take a store of redis"):
        Link("sqlite:///tmp/locks.db", who="A")


def test_faults_become_lines_of_a_history(between: Between) -> None:
    between.proxy.cut()
    between.proxy.heal()
    start = between.faults[0]["at"]
    first, second = between.faults.lines(start)
    assert first == {"t": 0, "ev": "fault", "do": "cut", "who": "redis", "up": True, "down": True}
    assert second["t"] > 0
    assert between.faults.of("heal", "redis") == between.faults[1:]
    assert between.faults.of("heal", "somebody else") == []
