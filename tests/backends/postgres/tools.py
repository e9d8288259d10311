"""A Postgres of a test module's own, and ways to look into it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

import psycopg

from fencepost_lab.servers import Postgres
from tests.harness.servers import running
from tests.harness.waiting import until

P = ParamSpec("P")
T = TypeVar("T")

LONG = 300.0  # a ttl that outlives the test: whatever frees the lock, it was not expiry


@contextlib.contextmanager
def started(*args: str) -> Iterator[Postgres]:
    """The server; the five seconds in which it takes nobody for dead are over."""
    with running(Postgres(args=args)) as server:
        young = "SELECT pg_postmaster_start_time() > clock_timestamp() - interval '5.1 seconds'"
        until(lambda: server.psql(young) == "f", "the server is five seconds old", poll=0.2)
        yield server


def session(server: Postgres) -> psycopg.Connection[Any]:
    """A session of nobody's."""
    return psycopg.connect(server.url, autocommit=True)


def aside(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
    """Make a call on a thread of its own; a test that has failed does not wait for one that is stuck."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call(*args, **options))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done
