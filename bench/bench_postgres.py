"""Locks in Postgres, against what Postgres itself takes for two single-row updates, and against tooz."""

import asyncio
import importlib.util
from collections.abc import Iterator
from typing import Any

import psycopg

import fencepost
from bench.harness import Sides, bench
from tests.servers import Postgres


def _bare(url: str) -> "psycopg.Connection[Any]":
    bare = psycopg.connect(url, autocommit=True)
    bare.execute("CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, holder text, n bigint) WITH (fillfactor = 50)")
    bare.execute("INSERT INTO bare VALUES ('bench', '', 0) ON CONFLICT DO NOTHING")
    return bare


def _pair(bare: "psycopg.Connection[Any]") -> None:
    """What no lock in Postgres can do without: take the row, give it back."""
    bare.execute("UPDATE bare SET holder = %s, n = n + 1 WHERE name = %s AND holder = ''", ("me", "bench"))
    bare.execute("UPDATE bare SET holder = '' WHERE name = %s AND holder = %s", ("bench", "me"))


def _sides(server: Postgres) -> Iterator[Sides]:
    with fencepost.connect(server.url) as locks, _bare(server.url) as bare:
        sides: dict[str, Any] = {"fencepost": lambda: locks.acquire("bench").release()}
        if importlib.util.find_spec("tooz") and importlib.util.find_spec("psycopg2"):
            from tooz import coordination

            host, port = server.address.split(":")
            coordinator = coordination.get_coordinator(f"postgresql://postgres@{host}:{port}/postgres", b"bench")
            coordinator.start()
            lock = coordinator.get_lock(b"bench")

            def cycle() -> None:
                assert lock.acquire()
                lock.release()

            sides["tooz"] = cycle
        yield sides | {"two bare updates": lambda: _pair(bare)}


@bench("postgres: acquire + release vs two bare single-row updates", aim=1.3, iterations=100, rounds=30)
def uncontended() -> Iterator[Sides]:
    """Without fsync: what is left is the work itself."""
    with Postgres() as server:
        yield from _sides(server)


@bench("postgres with fsync: acquire + release vs two bare single-row updates", aim=1.3, iterations=30, rounds=20)
def durable() -> Iterator[Sides]:
    with Postgres(fsync=True) as server:
        yield from _sides(server)
