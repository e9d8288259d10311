"""A lock around each request of a WSGI application, without a framework."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from werkzeug.test import Client

import fencepost
from fencepost.contrib.wsgi import Hold
from fencepost.errors import ConfigError, LeaseLost
from fencepost.guards.memory import MemoryGuard


@pytest.fixture
def locks() -> Iterator[fencepost.Locks]:
    with fencepost.connect("memory://") as locks:
        yield locks


def key(environ: dict[str, Any]) -> str | None:
    return environ["PATH_INFO"].strip("/") or None


def test_a_request_holds_its_lock_until_its_body_is_made(locks: fencepost.Locks) -> None:
    closed = []

    class Body:
        def __init__(self, lease: fencepost.Lease) -> None:
            self.lease = lease

        def __iter__(self) -> Iterator[bytes]:
            status = locks.status("account/1")
            yield str(status and status.token == self.lease.token).encode()

        def close(self) -> None:
            closed.append(True)

    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if "fencepost.lease" not in environ:
            start("200 OK", [])
            return [b"no lock"]
        start("201 Created", [("X-Made", "1")])(b"is held: ")
        return Body(environ["fencepost.lease"])

    client = Client(Hold(app, locks, key, timeout=0, retry_after=5))
    answer = client.get("/account/1")
    assert (answer.status_code, answer.text, answer.headers["X-Made"]) == (201, "is held: True", "1")
    assert closed == [True]
    assert client.get("/").text == "no lock"
    assert client.get("/" + "x" * 600).status_code == 404, "no lock can have that name"
    with locks.lock("account/1"):
        busy = client.get("/account/1")
        assert (busy.status_code, busy.headers["Retry-After"]) == (423, "5")
        assert client.get("/account/2").status_code == 201
    assert locks.list("account/") == []


def test_a_request_that_was_replaced_is_409(locks: fencepost.Locks) -> None:
    guard: MemoryGuard[str] = MemoryGuard()
    written = []

    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        lease = environ["fencepost.lease"]
        locks.break_lock(lease.name)  # as if it had expired
        if environ["REQUEST_METHOD"] == "PUT":
            with locks.lock(lease.name) as newer:
                guard.write(lease.name, "new", newer)
                written.append("new")
            guard.write(lease.name, "old", lease)
            written.append("old")
        return [b"done"]

    client = Client(Hold(app, locks, key))
    answer = client.put("/account/1")
    assert (answer.status_code, answer.headers["X-Fence-Verdict"]) == (409, "stale")
    assert written == ["new"]
    answer = client.get("/account/2")
    assert (answer.status_code, answer.headers["X-Fence-Verdict"]) == (409, "lost")


def test_what_the_application_raises_comes_through(locks: fencepost.Locks) -> None:
    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        raise LeaseLost("another", 1, "it expired")

    with pytest.raises(LeaseLost):
        Client(Hold(app, locks, key)).get("/account/1")
    with pytest.raises(RuntimeError, match="start_response"):
        Client(Hold(lambda environ, start: [], locks, key)).get("/account/1")
    assert locks.list("account/") == []
    with pytest.raises(ConfigError, match="status"):
        Hold(app, locks, key, busy=99)


def test_a_store_that_cannot_be_reached_is_503() -> None:
    with closing(fencepost.connect("redis://127.0.0.1:1")) as locks:
        answer = Client(Hold(lambda environ, start: [], locks, key, busy=499)).get("/account/1")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    with fencepost.connect("memory://") as locks, locks.lock("account/1"):
        client = Client(Hold(lambda environ, start: [], locks, key, timeout=0, busy=499))
        assert client.get("/account/1").status == "499 Busy"
