"""Requests that break on their way to Consul: what can be tried again, and what is not trusted any more."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fencepost
from fencepost.backends.consul.http import Http, _Link
from fencepost.driver import run
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Event
from fencepost_lab.faults.proxy import Proxy, _Pair
from fencepost_lab.servers import HOST, Consul, http_json
from tests.conformance.faces import FACES, Client
from tests.harness.threads import background
from tests.harness.waiting import GIVES_UP, PATIENCE, until

pytestmark = pytest.mark.consul

TTL = 300.0  # nothing here gets free by expiry
DELETE, DESTROY = b'"Verb":"delete"', b"/v1/session/destroy/"


@pytest.fixture(scope="module")
def server() -> Iterator[Consul]:
    with Consul() as started:
        yield started


def sessions(server: Consul) -> list[Any]:
    found: list[Any] = http_json(server.port, "GET", "/v1/session/list")
    return found


class Meddler(Proxy):
    """Breaks the connection of the first request to remove a key, and holds back requests to destroy a session."""

    def __init__(self, target: int) -> None:
        self.broken = 0
        self.held_back = 0
        self.let_go = threading.Event()
        super().__init__(target)

    def _spring(self, pair: _Pair, data: bytes) -> None:
        if DELETE in data and not self.broken:
            self.broken += 1
            raise ConnectionResetError
        if DESTROY in data:
            self.held_back += 1
            self.let_go.wait()
        super()._spring(pair, data)


def test_a_session_that_is_to_be_ended_is_never_lent_again(server: Consul) -> None:
    with (
        Meddler(server.port) as proxy,
        fencepost.connect(f"consul://{proxy.address}/doomed?timeout=30s", ttl=TTL) as locks,
    ):
        lease = locks.acquire("x")
        with pytest.raises(BackendError):
            lease.release()
        assert proxy.broken == 1
        other = background(lambda: locks.acquire("y"))
        until(lambda: proxy.held_back == 1, "its session is being ended", watching=[other])
        assert lease.release(), "the first try never arrived"
        again = locks.acquire("z")
        proxy.let_go.set()
        other.result()
        again.renew()
        assert again.release()


class Listing(Proxy):
    """Lists on which connections there were requests to lock a key, and to look at a session."""

    def __init__(self, target: int) -> None:
        self.locked: list[_Pair] = []
        self.looked: list[_Pair] = []
        super().__init__(target)

    def _spring(self, pair: _Pair, data: bytes) -> None:
        for mark, pairs in ((b'"Verb":"lock"', self.locked), (b"/v1/session/info/", self.looked)):
            if mark in data:
                pairs.append(pair)
        super()._spring(pair, data)


def test_the_watch_of_sessions_leaves_the_first_connection_to_requests(server: Consul) -> None:
    """Its first query, too: a process that is out of descriptors renews over the connection that it has."""
    with (
        Listing(server.port) as proxy,
        fencepost.connect(f"consul://{proxy.address}/watch", ttl=TTL) as locks,
        locks.lock("x"),
    ):
        until(lambda: len(proxy.looked) > 1, "the watch waits for a change")
        assert len(proxy.locked) == 1
        assert proxy.locked[0] not in proxy.looked


def test_a_waiter_that_can_open_no_second_connection_gets_the_lock(
    server: Consul, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a process is out of descriptors: it cannot be told that the lock is free, so it asks now and then."""
    refused: list[OSError] = []
    url = f"{server.url}/single"
    with fencepost.connect(url, ttl=TTL) as others, fencepost.connect(url, ttl=TTL) as locks:
        http: Http = locks._core.backend._http  # type: ignore[attr-defined]

        class Limited(_Link):  # not _Link itself: the watch of the other locks connects too, at any time
            @classmethod
            async def connect(cls, *args: Any) -> _Link:
                if http._links:
                    refused.append(OSError(errno.EMFILE, "Too many open files"))
                    raise refused[-1]
                return await super().connect(*args)

        held = others.acquire("x")
        monkeypatch.setattr(http, "_kind", Limited)
        waits = background(lambda: locks.acquire("x", timeout=PATIENCE))
        until(lambda: refused, "it waits, and could not ask to be told", watching=[waits])
        assert held.release()
        assert waits.result().release()


def test_a_release_whose_answer_was_lost_is_confirmed_by_the_second_try(server: Consul) -> None:
    events: list[Event] = []
    with (
        Proxy(server.port) as proxy,
        fencepost.connect(f"consul://{proxy.address}/unheard", ttl=TTL, hooks=[events.append]) as locks,
        fencepost.connect(f"{server.url}/unheard", ttl=TTL) as others,
    ):
        lease = locks.acquire("x")
        proxy.drop_after(DELETE)
        with pytest.raises(BackendError) as failed:
            lease.release()
        assert failed.value.ambiguous
        next_one = others.acquire("x", timeout=PATIENCE)  # so it was carried out
        assert lease.release()
        assert "not_owner" not in [event.kind for event in events]
        next_one.renew()


def test_a_release_that_is_tried_again_after_its_session_was_lost_answers_no(server: Consul) -> None:
    with (
        Proxy(server.port) as proxy,
        fencepost.connect(f"consul://{proxy.address}/lost", ttl=TTL) as locks,
        fencepost.connect(f"{server.url}/lost", ttl=TTL) as others,
    ):
        lease = locks.acquire("x")
        proxy.cut()
        released = background(lease.release)
        until(lambda: proxy.holds(b'"Verb":"delete"'), "the request was on its way")
        proxy.drop()
        with pytest.raises(BackendError):
            released.result()
        proxy.heal()
        for each in sessions(server):
            http_json(server.port, "PUT", f"/v1/session/destroy/{each['ID']}")
        next_one = others.acquire("x", timeout=PATIENCE)
        assert not lease.release()
        next_one.renew()


@pytest.mark.parametrize("face", FACES)
async def test_after_one_request_without_an_answer_no_idle_connection_is_trusted(server: Consul, face: str) -> None:
    with Proxy(server.port) as proxy:
        client = Client(face, f"consul://{proxy.address}/suspect?timeout=3s", ttl=TTL)
        leases = await asyncio.gather(*(client.acquire(f"x{number}") for number in range(4)))
        for lease in await asyncio.gather(*(client.acquire(f"y{number}") for number in range(4))):
            assert await lease.release()
        assert len(proxy._pairs) > 1, "there are several connections"
        proxy.cut(newcomers=False)  # those there are lead nowhere from now on
        with pytest.raises(BackendError, match=r"no answer in time|timed out"):
            await client.status("y")
        assert proxy.held
        assert await client.status("y") is None
        for lease in leases:
            assert await lease.release()
        await client.close()


class Returning(list[_Link]):
    """Idle connections; just before the next one is given back, ``first`` is called."""

    def __init__(self, links: list[_Link], first: Callable[[], None]) -> None:
        super().__init__(links)
        self._first: Callable[[], None] | None = first

    def append(self, link: _Link) -> None:
        first, self._first = self._first, None
        if first is not None:
            first()
        super().append(link)


@pytest.mark.parametrize("face", FACES)
async def test_a_connection_that_comes_back_while_the_locks_are_closed_is_closed(
    server: Consul, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    """Its thread has its answer, and another thread closes the locks before the connection is idle again."""
    client = Client(face, f"{server.url}/back", ttl=TTL)
    http: Http = client.raw._core.backend._http
    assert await client.status("x") is None
    [link] = http._idle
    with contextlib.closing(link):
        monkeypatch.setattr(http, "_idle", Returning(http._idle, http.close))
        assert await client.status("x") is None, "an answer that has come is not lost"
        assert not http._idle
        assert not http._links
        assert not link.fresh(), "it is closed"
    await client.close()


@pytest.mark.parametrize("token", ["x%0d%0aX-Evil:1", "x%0aX-Evil:1", "x%00"])
def test_an_acl_token_cannot_bring_a_header_of_its_own(token: str) -> None:
    with pytest.raises(ConfigError, match="ACL token") as refused:
        fencepost.connect(f"consul://:{token}@localhost")
    assert "Evil" not in str(refused.value)


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        _CHUNKED + b"1;a=b\r\n{\r\n1\r\n}\r\n0\r\nX-One: 1\r\nX-Two: 2\r\n\r\n",
        _CHUNKED + b"2\r\n{}\r\n0\r\n\r\n",
    ],
    ids=["continue", "trailers", "chunks"],
)
def test_what_a_proxy_may_add_to_an_answer_is_read_over(answer: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(answer)
        (found,) = run(_Link(here).exchange(b"GET /", 1, PATIENCE))
        assert (found.status, found.json) == (200, {})


@pytest.mark.parametrize("face", FACES)
async def test_an_answer_that_comes_bit_by_bit_is_given_up_in_time(face: str) -> None:
    over, dripped = threading.Event(), list[int]()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                with near, contextlib.suppress(OSError):
                    near.sendall(b"HTTP/1.1 200 OK\r\nX-Consul-Index: ")
                    while not over.wait(0.05):
                        near.sendall(b"1")
                        dripped.append(1)

    with socket.create_server((HOST, 0)) as listening:
        threading.Thread(target=drip, daemon=True).start()
        client = Client(face, f"consul://{HOST}:{listening.getsockname()[1]}?timeout={GIVES_UP:g}s", ttl=TTL)
        with pytest.raises(BackendError):
            await client.status("a")
        assert dripped
        over.set()
        await client.close()
        listening.shutdown(socket.SHUT_RDWR)
