"""What a guard adds to a transaction that people really write."""

from collections.abc import Iterator

import psycopg
import redis as redis_py

from bench.harness import Sides, bench
from fencepost.guards import postgres, redis
from fencepost.lease import BaseLease
from fencepost_lab.servers import Postgres, Redis
from tests.harness.leases import lease as lease_of

UPDATE = "UPDATE account SET balance = balance + %s WHERE id = %s"


def _lease() -> BaseLease:
    return lease_of("account/1", "a" * 32, 1_700_000_000_000_000)


def _prepare(conn: "psycopg.Connection[tuple[object, ...]]") -> None:
    conn.execute("CREATE TABLE account (id int PRIMARY KEY, balance bigint) WITH (fillfactor = 50)")
    conn.execute("INSERT INTO account SELECT n, 0 FROM generate_series(1, 1000) AS n")
    with conn.transaction():
        postgres.install(conn)


def _transaction(fsync: bool) -> Iterator[Sides]:
    lease = _lease()
    with Postgres(fsync=fsync) as server, psycopg.connect(server.url, autocommit=True) as conn:
        _prepare(conn)

        def bare() -> None:
            with conn.transaction():
                conn.execute(UPDATE, (-1, 1))
                conn.execute(UPDATE, (1, 2))

        def admitted() -> None:
            with conn.transaction():
                postgres.admit(conn, "account/1", lease)
                conn.execute(UPDATE, (-1, 1))
                conn.execute(UPDATE, (1, 2))

        yield {"with admit": admitted, "bare": bare}


@bench("guards: postgres, two updates with admit vs without", aim=1.6, iterations=100, rounds=40)
def transaction() -> Iterator[Sides]:
    """Without fsync, so that nothing but the work itself is measured: the worst case for the guard."""
    yield from _transaction(fsync=False)


@bench("guards: postgres, two updates with admit vs without, to the disk", aim=1.6, iterations=50, rounds=20)
def durable_transaction() -> Iterator[Sides]:
    """As a real server runs."""
    yield from _transaction(fsync=True)


@bench(
    "guards: redis, SET through the guard vs bare",
    bound="Redis runs a script of two commands where the bare side has one; the rest is the same round trip.",
    aim=1.3,
    iterations=200,
    rounds=40,
)
def command() -> Iterator[Sides]:
    lease = _lease()
    with Redis() as server, redis_py.from_url(server.url) as client:
        guard = redis.RedisGuard(client)
        yield {
            "guarded": lambda: guard.execute("SET", "account/1", "value", lease=lease),
            "bare": lambda: client.set("account/1", "value"),
        }
