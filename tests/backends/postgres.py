"""A Postgres of a test module's own, and ways to look into it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from fencepost import sync
from tests.conftest import unavailable
from tests.processes import wait_until
from tests.servers import Missing, Postgres

LONG = 60.0  # a ttl that outlives the test: whatever frees the lock, it was not expiry
PATIENCE = 30.0


@contextlib.contextmanager
def started(*args: str) -> Iterator[Postgres]:
    """The server; the five seconds in which it takes nobody for dead are over."""
    server = Postgres(args=args)
    try:
        server.start()
    except Missing as missing:
        unavailable(str(missing))
    try:
        young = "SELECT pg_postmaster_start_time() > clock_timestamp() - interval '5.1 seconds'"
        assert wait_until(lambda: server.psql(young) == "f", timeout=PATIENCE, poll=0.2)
        yield server
    finally:
        server.close()


def session(server: Postgres) -> psycopg.Connection[Any]:
    """A session of nobody's."""
    return psycopg.connect(server.url, autocommit=True)


def line(locks: sync.Locks, name: str, count: int) -> tuple[str, ...]:
    """The waiters of a lock, once there are as many."""

    def waiters() -> tuple[str, ...]:
        status = locks.status(name)
        return status.waiters if status else ()

    assert wait_until(lambda: len(waiters()) == count, timeout=PATIENCE, poll=0.005), f"{len(waiters())} wait"
    return waiters()


def crowd(size: int = 64) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, "crowd")
