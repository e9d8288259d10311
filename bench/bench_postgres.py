"""Locks in Postgres, against what Postgres itself takes for two single-row updates, and against tooz."""

import asyncio
import importlib.util
from collections.abc import Iterator
from typing import Any

import psycopg

import fencepost
from bench.harness import Sides, bench
from fencepost import aio
from fencepost_lab.servers import Postgres


def _bare(url: str) -> "psycopg.Connection[Any]":
    bare = psycopg.connect(url, autocommit=True)
    bare.execute(
        "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, holder text, n bigint) WITH (fillfactor = 50)"
    )
    bare.execute("INSERT INTO bare VALUES ('bench', '', 0) ON CONFLICT DO NOTHING")
    return bare


def _pair(bare: "psycopg.Connection[Any]") -> None:
    """What no lock in Postgres can do without: take the row, give it back."""
    bare.execute("UPDATE bare SET holder = %s, n = n + 1 WHERE name = %s AND holder = ''", ("me", "bench"))
    bare.execute("UPDATE bare SET holder = '' WHERE name = %s AND holder = %s", ("bench", "me"))


def _sides(server: Postgres) -> Iterator[Sides]:
    with fencepost.connect(server.url) as locks, _bare(server.url) as bare:
        yield {"fencepost": lambda: locks.acquire("bench").release(), "two bare updates": lambda: _pair(bare)}


@bench("postgres: acquire + release vs two bare single-row updates", aim=1.3, iterations=100, rounds=30)
def uncontended() -> Iterator[Sides]:
    """Without fsync: what is left is the work itself."""
    with Postgres() as server:
        yield from _sides(server)


@bench("postgres with fsync: acquire + release vs two bare single-row updates", aim=1.3, iterations=30, rounds=20)
def durable() -> Iterator[Sides]:
    with Postgres(fsync=True) as server:
        yield from _sides(server)


if importlib.util.find_spec("tooz") and importlib.util.find_spec("psycopg2"):

    @bench("postgres: acquire + release vs tooz's lock", aim=1 / 5, iterations=20, rounds=20)
    def against_tooz() -> Iterator[Sides]:
        from tooz import coordination  # type: ignore[import-untyped, import-not-found, unused-ignore]

        with Postgres() as server, fencepost.connect(server.url) as locks:
            host, port = server.address.split(":")
            coordinator = coordination.get_coordinator(
                f"postgresql://postgres:{server.password}@{host}:{port}/postgres", b"bench"
            )
            coordinator.start()
            lock = coordinator.get_lock(b"bench")

            def theirs() -> None:
                assert lock.acquire()
                assert lock.release()

            yield {"fencepost": lambda: locks.acquire("bench").release(), "tooz": theirs}
            coordinator.stop()


def hot(size: int) -> Iterator[Sides]:
    """Everybody waits for the same lock at once, and takes it once. The native recipe takes a session each."""
    with Postgres(args=["-c", "max_connections=320"]) as server, asyncio.Runner() as loop:
        locks = aio.connect(server.url)
        crowd = [loop.run(psycopg.AsyncConnection.connect(server.url, autocommit=True)) for _ in range(size)]

        async def ours() -> None:
            async def one() -> None:
                await (await locks.acquire("hot")).release()

            await asyncio.gather(*(one() for _ in range(size)))

        async def theirs() -> None:
            async def one(session: "psycopg.AsyncConnection[Any]") -> None:
                await session.execute("SELECT pg_advisory_lock(1)")
                await session.execute("SELECT pg_advisory_unlock(1)")

            await asyncio.gather(*map(one, crowd))

        yield {
            f"fencepost, {size} tasks": lambda: loop.run(ours()),
            f"advisory locks, {size} sessions": lambda: loop.run(theirs()),
        }
        for session in crowd:
            loop.run(session.close())
        loop.run(locks.close())


_ROWS = (
    "An advisory lock is in the server's memory and writes nothing. Here each section writes a hold and its end, as "
    "rows that outlive a crash."
)


@bench("postgres: hot key, 50 waiters, each once", bound=_ROWS, aim=1.3, iterations=1, rounds=20)
def hot_50() -> Iterator[Sides]:
    yield from hot(50)


@bench("postgres: hot key, 200 waiters, each once", bound=_ROWS, aim=1.3, iterations=1, rounds=10)
def hot_200() -> Iterator[Sides]:
    yield from hot(200)
