"""The SQL guards inside the transactions of every kind of connection they claim to take."""

import gc
import secrets
import sqlite3
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fencepost
from fencepost.driver import settle
from fencepost.errors import ConfigError, LateWrite, ReplayMismatch, StaleToken, TokenClash
from fencepost.events import Event
from fencepost.guards import aio, postgres, sqlite
from fencepost.guards.policy import Policy
from fencepost.once import once
from fencepost.rule import Stamp
from fencepost.sql import connections
from fencepost.sql.connections import is_async
from tests.harness.connections import KINDS, Kind, execute
from tests.harness.leases import lease as lease_of
from tests.harness.servers import Endpoint
from tests.harness.waiting import run

Scenario = Callable[[Kind, Any, str], Awaitable[None]]


async def balance(conn: Any, id: str) -> int | None:
    rows = await execute(conn, f"SELECT balance FROM account WHERE id = '{id}'")
    return rows[0][0] if rows else None


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, django: None) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def play(kind: Kind, postgres_url: str, sqlite_path: str, thing: str) -> Callable[[Scenario], None]:
    """Runs a scenario with an open connection to a database where ``thing`` has a balance of 100."""
    address = postgres_url if kind.guard.__name__.endswith("postgres") else sqlite_path

    async def whole(scenario: Scenario) -> None:
        async with kind.open(address) as conn:
            async with kind.transaction(conn):
                await execute(conn, f"INSERT INTO account (id, balance) VALUES ('{thing}', 100)")
            await scenario(kind, conn, thing)

    return lambda scenario: run(whole(scenario))


HIGH = Policy(ceiling="off")


async def mark(kind: Kind, conn: Any, thing: str) -> Stamp | None:
    async with kind.transaction(conn):
        found: Stamp | None = await settle(kind.guard.mark(conn, thing))
        return found


def test_mark_and_write_commit_together_and_a_stale_holder_changes_nothing(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        async with kind.transaction(conn):
            assert await settle(kind.guard.admit(conn, thing, Stamp(2**53 + 1, 3, "ann"), policy=HIGH)) is True
            await execute(conn, f"UPDATE account SET balance = 50 WHERE id = '{thing}'")
        assert await mark(kind, conn, thing) == Stamp(2**53 + 1, 3, "ann")
        async with kind.transaction(conn):
            await execute(conn, f"UPDATE account SET balance = 70 WHERE id = '{thing}'")
            with pytest.raises(StaleToken) as caught:
                await settle(kind.guard.admit(conn, thing, 2**53))
            assert caught.value.seen == 2**53 + 1
        async with kind.transaction(conn):
            assert await balance(conn, thing) == 70, "a refusal leaves the caller's transaction usable"

    play(scenario)


def test_rolling_back_restores_the_mark(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        async with kind.transaction(conn):
            await settle(kind.guard.enter(conn, thing, Stamp(5, 1, "ann")))

        async def failing() -> None:
            async with kind.transaction(conn):
                await settle(kind.guard.admit(conn, thing, Stamp(9, 1, "bob")))
                await execute(conn, f"UPDATE account SET balance = 0 WHERE id = '{thing}'")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert await mark(kind, conn, thing) == Stamp(5, 1, "ann")
        async with kind.transaction(conn):
            assert await balance(conn, thing) == 100

    play(scenario)


def test_a_retry_with_the_same_payload_is_recognised(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        offer = Stamp(5, 1, "ann")
        for fresh in (True, False):
            async with kind.transaction(conn):
                assert await settle(kind.guard.admit(conn, thing, offer, payload=b"50")) is fresh
        for payload in (b"60", None):
            async with kind.transaction(conn):
                with pytest.raises(ReplayMismatch):
                    await settle(kind.guard.admit(conn, thing, offer, payload=payload))

    play(scenario)


def test_a_fenced_transaction_is_admitted_before_it_reads(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        await withdraw(kind, conn, thing, Stamp(5, 1, "ann"))
        with pytest.raises(StaleToken):
            await withdraw(kind, conn, thing, 4)
        with pytest.raises(ZeroDivisionError):
            await withdraw(kind, conn, thing, 6, then=lambda: 1 / 0)
        assert await mark(kind, conn, thing) == Stamp(5, 1, "ann")
        async with kind.transaction(conn):
            assert await balance(conn, thing) == 90
            with pytest.raises(ConfigError, match="in a transaction already"):
                await withdraw(kind, conn, thing, 7)

    play(scenario)


async def withdraw(kind: Kind, conn: Any, thing: str, offer: Any, then: Callable[[], object] = bool) -> None:
    async def body() -> None:
        before = await balance(conn, thing)
        assert before is not None
        await execute(conn, f"UPDATE account SET balance = {before - 10} WHERE id = '{thing}'")
        then()

    fenced = kind.guard.fenced(conn, thing, offer)
    if is_async(conn):
        async with fenced:
            await body()
    else:
        with fenced:
            await body()


def test_inside_a_lock_the_lease_is_found(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        async with fencepost.aio.connect("memory://guards") as locks, locks.lock(thing) as lease:
            async with kind.transaction(conn):
                await settle(kind.guard.admit(conn, thing))
            async with kind.transaction(conn):
                await settle(kind.guard.admit_all(conn, {f"{thing}/b": lease, f"{thing}/a": lease}))
            assert await mark(kind, conn, thing) == Stamp(lease.token, 1, lease.holder)
            assert await mark(kind, conn, f"{thing}/a") == Stamp(lease.token, 2, lease.holder)

    play(scenario)


def test_a_mark_is_lowered_unless_it_has_moved(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        told: list[Event] = []

        async def lower(to: int, seen: int) -> Stamp:
            async with kind.transaction(conn):
                lowered: Stamp = await settle(kind.guard.lower_mark(conn, thing, to=to, seen=seen, hooks=[told.append]))
                return lowered

        for to, seen in ((5, 7), (7, 7), (8, 7)):
            with pytest.raises(ConfigError):
                await lower(to, seen)  # there is no mark; and those do not lower
        async with kind.transaction(conn):
            await settle(kind.guard.admit(conn, thing, Stamp(2**62, 3, "mallory"), policy=HIGH))
        with pytest.raises(ConfigError, match="at 4611686018427387904, and not at 7"):
            await lower(5, 7)
        assert await lower(5, 2**62) == Stamp(5) == await mark(kind, conn, thing)
        async with kind.transaction(conn):
            with pytest.raises(StaleToken):
                await settle(kind.guard.admit(conn, thing, 5))
            assert await settle(kind.guard.admit(conn, thing, Stamp(6, 1, "ann")))
        assert [(event.kind, event.token, event.seen) for event in told] == [("lower_mark", 5, 2**62)]

    play(scenario)


def test_the_guard_for_the_other_kind_of_connection_refuses_it(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "admit": lambda: kind.twin.admit(conn, thing, 5),
            "admit_all": lambda: kind.twin.admit_all(conn, {thing: 5}),
            "enter": lambda: kind.twin.enter(conn, thing, 5),
            "fenced": lambda: kind.twin.fenced(conn, thing, 5),
            "mark": lambda: kind.twin.mark(conn, thing),
            "raise_mark": lambda: kind.twin.raise_mark(conn, thing, to=5),
            "lower_mark": lambda: kind.twin.lower_mark(conn, thing, to=5, seen=6),
        }
        if kind.twin.__name__.endswith("postgres"):
            calls |= {
                "locked": lambda: kind.twin.locked(conn, thing),
                "install": lambda: kind.twin.install(conn),
            }
        assert {*calls, "ddl"} == set(kind.twin.__all__)
        for name, call in calls.items():
            with pytest.raises(ConfigError, match=kind.guard.__name__.replace(".", r"\.")):
                # The blocking one refuses at once: what nobody awaits must not look as if it had guarded anything.
                call() if is_async(conn) else await settle(call())
            assert name

    play(scenario)


def test_outside_a_transaction_it_says_so(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        if not kind.loose:
            # Such a connection opens its transaction by itself, with the first statement.
            await settle(kind.guard.admit(conn, thing, 5))
            await settle(conn.rollback())
        else:
            with pytest.raises(ConfigError, match="in no transaction"):
                await settle(kind.guard.admit(conn, thing, 5))
        assert await mark(kind, conn, thing) is None

    play(scenario)


def test_the_guard_for_the_other_database_refuses_it(play: Callable[[Scenario], None]) -> None:
    async def scenario(kind: Kind, conn: Any, thing: str) -> None:
        others = {postgres: sqlite, sqlite: postgres, aio.postgres: aio.sqlite, aio.sqlite: aio.postgres}
        other = others[kind.guard]
        for call in (other.admit, other.enter):
            async with kind.transaction(conn):
                with pytest.raises(ConfigError, match=r"leads to '|connection of sqlite3, SQLAlchemy or Django"):
                    await settle(call(conn, thing, 5))
        assert await mark(kind, conn, thing) is None

    play(scenario)


@pytest.mark.postgres
@pytest.mark.parametrize("pooled", [False, True])
async def test_a_connection_of_asyncpg_is_refused_with_the_way_that_works(postgres_url: str, pooled: bool) -> None:
    import asyncpg  # type: ignore[import-untyped]

    url = postgres_url.partition("?")[0]
    if pooled:
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as conn:
            await refused_by_all(conn)
    else:
        conn = await asyncpg.connect(url)
        try:
            await refused_by_all(conn)
        finally:
            await conn.close()


async def refused_by_all(conn: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: postgres.admit(conn, "account/42", 5),
        lambda: postgres.fenced(conn, "account/42", 5),
        lambda: aio.postgres.admit(conn, "account/42", 5),
        lambda: aio.postgres.fenced(conn, "account/42", 5),
        lambda: aio.sqlite.enter(conn, "account/42", 5),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"use asyncpg through SQLAlchemy, by a postgresql\+asyncpg:// URL"):
            await settle(call())


class Instrumented:
    """A connection that another one hides behind, as tracing wraps it."""

    def __init__(self, conn: object) -> None:
        self._conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


def test_one_class_of_proxies_may_stand_for_two_kinds_of_connections() -> None:
    class Psycopg:
        pgconn = transaction = object()

    class Alchemy:
        exec_driver_sql = object()

    found = [connections.kind(Instrumented(conn)) for conn in (Psycopg(), Alchemy(), Psycopg())]
    assert found == ["psycopg", "sqlalchemy", "psycopg"]


def test_a_class_of_connections_that_is_gone_is_forgotten() -> None:
    class Own:
        exec_driver_sql = object()

    assert connections.kind(Own()) == "sqlalchemy"
    there = weakref.ref(Own)
    del Own
    gc.collect()
    assert there() is None


@pytest.fixture(scope="module")
def ascii_url(postgres_server: Endpoint) -> Iterator[str]:
    """A database of encoding SQL_ASCII, from which psycopg gives text as bytes."""
    name = f"ascii_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        url = f"{postgres_server.url.rpartition('/')[0]}/{name}"
        with psycopg.connect(url) as conn:
            assert conn.execute("SELECT 'text'").fetchone() == (b"text",)
            postgres.install(conn)
        yield url
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def several_accesses(kind: Kind, conn: Any, thing: str) -> None:
    """One lease writes twice, another one is refused, and operators see who was here."""
    held = lease_of(thing, "änn", 5)
    for _ in range(2):
        async with kind.transaction(conn):
            await settle(kind.guard.admit(conn, thing, held))
    async with kind.transaction(conn):
        with pytest.raises(TokenClash):
            await settle(kind.guard.admit(conn, thing, Stamp(5, 3, "bob")))
    assert await mark(kind, conn, thing) == Stamp(5, 2, "änn")
    async with kind.transaction(conn):
        await settle(kind.guard.enter(conn, thing, held))
        with pytest.raises(LateWrite):
            await settle(kind.guard.admit(conn, thing, Stamp(5, 1, "änn")))
    async with kind.transaction(conn):
        assert await settle(kind.guard.raise_mark(conn, thing, to=9)) == Stamp(9)
        assert await settle(kind.guard.lower_mark(conn, thing, to=7, seen=9)) == Stamp(7)


@pytest.mark.parametrize("name", ["psycopg", "psycopg-async"])
async def test_a_postgres_of_encoding_sql_ascii_is_guarded_too(ascii_url: str, thing: str, name: str) -> None:
    kind = KINDS[name]
    async with kind.open(ascii_url) as conn:
        await several_accesses(kind, conn, thing)
        async with kind.transaction(conn):
            await settle(kind.guard.locked(conn, thing, timeout=5))


def test_a_run_in_a_postgres_of_encoding_sql_ascii_is_known_again(ascii_url: str, thing: str) -> None:
    with psycopg.connect(ascii_url) as conn:
        with once(conn, thing) as run:
            run.result = {"für": "änn"}
        with once(conn, thing) as run:
            assert (run.done, run.result) == (True, {"für": "änn"})


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
@pytest.mark.parametrize("name", ["sqlite3", "sqlite-alchemy", "sqlite-alchemy-async"])
async def test_an_sqlite_database_of_another_encoding_is_guarded_too(
    tmp_path: Path, thing: str, name: str, encoding: str
) -> None:
    path, kind = str(tmp_path / "app.sqlite3"), KINDS[name]
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"PRAGMA encoding = '{encoding}'")
        conn.execute("CREATE TABLE account (id TEXT)")
        assert conn.execute("PRAGMA encoding").fetchone() == (encoding,)
    async with kind.open(path) as conn:
        await several_accesses(kind, conn, thing)
