"""`postgres.locked`: lock and data in one transaction, on every kind of connection."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from fencepost.driver import settle
from fencepost.errors import ConfigError, NotAcquired
from fencepost.guards import postgres
from tests.harness.connections import KINDS, Kind, execute
from tests.harness.waiting import run, until

POSTGRES = [name for name in KINDS if not name.startswith("sqlite")]
Scenario = Callable[[Kind, Any], Awaitable[None]]


@pytest.fixture(params=POSTGRES)
def play(request: pytest.FixtureRequest, postgres_url: str, django: None) -> Callable[[Scenario], None]:
    kind = KINDS[request.param]

    async def whole(scenario: Scenario) -> None:
        async with kind.open(postgres_url) as conn:
            await scenario(kind, conn)

    return lambda scenario: run(whole(scenario))


def test_the_lock_is_held_until_the_transaction_ends(
    play: Callable[[Scenario], None], postgres_url: str, thing: str
) -> None:
    async def scenario(kind: Kind, conn: Any) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as other:

            def free() -> bool:
                with other.transaction():
                    try:
                        postgres.locked(other, thing, timeout=0)
                    except NotAcquired:
                        assert other.execute("SELECT 1").fetchall() == [(1,)], "the transaction goes on"
                        return False
                    return True

            async with kind.transaction(conn):
                await settle(kind.guard.locked(conn, thing))
                await settle(kind.guard.locked(conn, thing))
                assert not free()
                await execute(conn, "SELECT 1")
                assert not free()
            assert free()

            async def fail() -> None:
                async with kind.transaction(conn):
                    await settle(kind.guard.locked(conn, thing))
                    raise RuntimeError

            with pytest.raises(RuntimeError):
                await fail()
            assert free()

    play(scenario)


def test_waiting_ends_at_the_timeout(play: Callable[[Scenario], None], postgres_url: str, thing: str) -> None:
    async def scenario(kind: Kind, conn: Any) -> None:
        with psycopg.connect(postgres_url) as other:
            postgres.locked(other, thing)
            with pytest.raises(NotAcquired, match=thing):
                async with kind.transaction(conn):
                    await settle(kind.guard.locked(conn, thing, timeout=0.05))
        async with kind.transaction(conn):
            await settle(kind.guard.locked(conn, thing, timeout=5))
            assert await execute(conn, "SELECT current_setting('lock_timeout')") == [("0",)], "as it was before"

    play(scenario)


def test_outside_a_transaction_it_would_hold_nothing(play: Callable[[Scenario], None], thing: str) -> None:
    async def scenario(kind: Kind, conn: Any) -> None:
        if kind.loose:
            with pytest.raises(ConfigError, match="no transaction"):
                await settle(kind.guard.locked(conn, thing))

    play(scenario)


@pytest.mark.parametrize("timeout", [None, 0, 5])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_would_not_see_what_the_holder_before_it_wrote_is_refused(
    play: Callable[[Scenario], None], thing: str, level: str, timeout: float | None
) -> None:
    """Its snapshot is from before the wait: under the lock, it would insert what is there already."""

    async def scenario(kind: Kind, conn: Any) -> None:
        async def attempt() -> None:
            async with kind.transaction(conn):
                await execute(conn, f"SET TRANSACTION ISOLATION LEVEL {level}")
                await settle(kind.guard.locked(conn, thing, timeout=timeout))

        with pytest.raises(ConfigError, match="take READ COMMITTED"):
            await attempt()
        async with kind.transaction(conn):
            await execute(conn, "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")  # in Postgres the same as committed
            await settle(kind.guard.locked(conn, thing, timeout=timeout))

    play(scenario)


def test_read_change_write_under_it_loses_no_update(postgres_url: str, thing: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("INSERT INTO account (id, balance) VALUES (%s, 0)", [thing])

    def deposit(times: int) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as conn:
            for _ in range(times):
                with conn.transaction():
                    postgres.locked(conn, thing)
                    ((balance,),) = conn.execute("SELECT balance FROM account WHERE id = %s", [thing]).fetchall()
                    conn.execute("UPDATE account SET balance = %s WHERE id = %s", [balance + 1, thing])

    with ThreadPoolExecutor(8) as crowd:
        for task in [crowd.submit(deposit, 25) for _ in range(8)]:
            task.result(60)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        assert conn.execute("SELECT balance FROM account WHERE id = %s", [thing]).fetchall() == [(200,)]


def test_a_session_that_is_killed_leaves_nothing_behind(postgres_url: str, thing: str) -> None:
    with psycopg.connect(postgres_url) as killed, psycopg.connect(postgres_url, autocommit=True) as other:
        postgres.locked(killed, thing)
        other.execute("SELECT pg_terminate_backend(%s)", [killed.info.backend_pid])

        def free() -> bool:
            with other.transaction():
                try:
                    postgres.locked(other, thing, timeout=0)
                except NotAcquired:
                    return False
                return True

        until(free, "its lock is free")
        killed.close()
