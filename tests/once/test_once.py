"""Run once, in the transactions of every kind of connection: the effect and its memory become true together."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from fencepost.driver import settle
from fencepost.errors import BackendError, ConfigError
from fencepost.once import Run, aio, once, purge
from fencepost.sql.connections import is_async
from tests.harness.connections import KINDS, Kind, execute
from tests.harness.threads import background
from tests.harness.waiting import run, until

Scenario = Callable[[Any, str, Kind], Awaitable[None]]


@asynccontextmanager
async def entered(conn: Any, id: str) -> Any:
    if is_async(conn):
        async with aio.once(conn, id) as run:
            yield run
    else:
        with once(conn, id) as run:
            yield run


def forget(conn: Any, before: timedelta | datetime) -> Any:
    return aio.purge(conn, before) if is_async(conn) else purge(conn, before)


async def pay(conn: Any, thing: str, amount: int = 10) -> Run:
    """The effect, once: ten off the balance."""
    run: Run
    async with entered(conn, f"pay/{thing}") as run:
        if not run.done:
            await execute(conn, f"UPDATE account SET balance = balance - {amount} WHERE id = '{thing}'")
            run.result = {"paid": amount, "in": ("cash",)}
    return run


async def spoil(conn: Any, id: str, thing: str, *, result: Any = None, error: Exception | None = None) -> None:
    """An attempt that makes its effect and then fails."""
    async with entered(conn, id) as run:
        await execute(conn, f"UPDATE account SET balance = 0 WHERE id = '{thing}'")
        if error:
            raise error
        run.result = result


@pytest.fixture(params=KINDS)
def play(
    request: pytest.FixtureRequest, django: None, postgres_url: str, sqlite_path: str, thing: str
) -> Callable[[Scenario], int]:
    """Runs a scenario with an open connection, and says what the balance is in the end; it was 100."""
    kind = KINDS[request.param]
    address = postgres_url if kind.guard.__name__.endswith("postgres") else sqlite_path

    async def whole(scenario: Scenario) -> int:
        async with kind.open(address) as conn:
            async with kind.transaction(conn):
                await execute(conn, f"INSERT INTO account (id, balance) VALUES ('{thing}', 100)")
            await scenario(conn, thing, kind)
        async with kind.open(address) as conn, kind.transaction(conn):
            return int((await execute(conn, f"SELECT balance FROM account WHERE id = '{thing}'"))[0][0])

    return lambda scenario: run(whole(scenario))


def test_the_second_attempt_gets_the_result_of_the_first(play: Callable[[Scenario], int]) -> None:
    async def scenario(conn: Any, thing: str, kind: Kind) -> None:
        first = await pay(conn, thing)
        assert (first.done, first.result) == (False, {"paid": 10, "in": ["cash"]})
        again = await pay(conn, thing, 20)
        assert (again.done, again.result) == (True, first.result)

    assert play(scenario) == 90


def test_a_block_that_raises_leaves_neither_effect_nor_memory(play: Callable[[Scenario], int]) -> None:
    async def scenario(conn: Any, thing: str, kind: Kind) -> None:
        with pytest.raises(LookupError):
            await spoil(conn, f"pay/{thing}", thing, error=LookupError())
        assert not (await pay(conn, thing)).done

    assert play(scenario) == 90


def test_inside_the_callers_transaction_it_commits_with_it(play: Callable[[Scenario], int]) -> None:
    async def scenario(conn: Any, thing: str, kind: Kind) -> None:
        async def rolled_back() -> None:
            async with kind.transaction(conn):
                await pay(conn, thing)
                raise LookupError

        with pytest.raises(LookupError):
            await rolled_back()
        async with kind.transaction(conn):
            assert not (await pay(conn, thing)).done, "the caller rolled it back"
            with pytest.raises(KeyError):
                await spoil(conn, f"other/{thing}", thing, error=KeyError())
        assert (await pay(conn, thing)).done, "and a block that failed inside took nothing else with it"

    assert play(scenario) == 90


def test_what_json_cannot_carry_is_refused_and_nothing_happened(play: Callable[[Scenario], int]) -> None:
    async def scenario(conn: Any, thing: str, kind: Kind) -> None:
        with pytest.raises(ConfigError, match="cannot be kept as JSON"):
            await spoil(conn, f"pay/{thing}", thing, result={object()})

    assert play(scenario) == 100


def test_a_forgotten_look_at_done_doubles_nothing(play: Callable[[Scenario], int]) -> None:
    async def scenario(conn: Any, thing: str, kind: Kind) -> None:
        await pay(conn, thing)
        with pytest.raises(ConfigError, match=r"look at run\.done first"):
            await spoil(conn, f"pay/{thing}", thing, result="twice")

    assert play(scenario) == 90


def test_purged_runs_can_happen_again(play: Callable[[Scenario], int]) -> None:
    async def scenario(conn: Any, thing: str, kind: Kind) -> None:
        await pay(conn, thing)
        assert await settle(forget(conn, timedelta(days=1))) == 0
        assert await settle(forget(conn, datetime(2020, 1, 1, tzinfo=UTC))) == 0
        assert (await pay(conn, thing)).done
        assert await settle(forget(conn, timedelta(0))) >= 1
        assert not (await pay(conn, thing)).done

    assert play(scenario) == 80


def test_two_at_once_in_postgres_the_second_waits_and_gets_the_result(postgres_url: str, thing: str) -> None:
    def second() -> Run:
        with psycopg.connect(postgres_url) as conn, once(conn, thing) as run:
            return run

    with psycopg.connect(postgres_url) as conn, psycopg.connect(postgres_url, autocommit=True) as watch:
        with once(conn, thing) as run:
            other = background(second)
            waiting = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
            until(lambda: watch.execute(waiting, [conn.info.backend_pid]).fetchall(), "it waits", watching=[other])
            run.result = "first"
        got = other.result()
    assert (got.done, got.result) == (True, "first")


def test_in_postgres_it_waits_no_longer_than_lock_timeout(postgres_url: str, thing: str) -> None:
    with psycopg.connect(postgres_url) as conn, psycopg.connect(postgres_url) as impatient:
        impatient.execute("SET lock_timeout = '50ms'")
        with once(conn, thing) as run:
            with pytest.raises(BackendError, match="at work for longer"), once(impatient, thing):
                pytest.fail("never both")
            run.result = "first"
            impatient.execute("SELECT 1")  # the savepoint was rolled back, and the caller's transaction goes on
        impatient.rollback()
        with once(impatient, thing) as run:
            assert (run.done, run.result) == (True, "first")


def test_two_at_once_in_sqlite_the_second_waits_for_as_long_as_its_connection_does(tmp_path: Path, thing: str) -> None:
    path = tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(path)) as conn, closing(sqlite3.connect(path, timeout=0.05)) as impatient:
        with once(conn, thing) as run:
            with pytest.raises(BackendError, match="write lock"), once(impatient, thing):
                pytest.fail("never both")
            run.result = "first"
        with once(impatient, thing) as run:
            assert (run.done, run.result) == (True, "first")


def test_a_connection_of_the_other_kind_is_told_so(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as conn:
        with pytest.raises(ConfigError, match=r"use fencepost\.once$"):
            aio.once(conn, "run")
        with pytest.raises(ConfigError, match=r"use fencepost\.once$"):
            run(aio.purge(conn, timedelta(days=1)))
        with pytest.raises(ConfigError, match=r"keep= is for Redis"):
            once(conn, "run", keep=1)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="run id cannot be empty"):
            once(conn, "")


async def test_an_asyncio_connection_is_refused_in_the_call(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.sqlite3'}")
    async with engine.connect() as conn:
        with pytest.raises(ConfigError, match=r"use fencepost\.once\.aio"):
            once(conn, "run")
        with pytest.raises(ConfigError, match=r"use fencepost\.once\.aio"):
            purge(conn, timedelta(days=1))
    await engine.dispose()


def test_an_unprepared_postgres_names_the_command(postgres_server: Any) -> None:
    with (
        psycopg.connect(postgres_server.url, options="-csearch_path=nowhere") as conn,
        pytest.raises(ConfigError, match="fencepost guard install"),
        once(conn, "run"),
    ):
        pass


async def test_where_each_statement_commits_by_itself_it_is_refused(postgres_url: str, thing: str) -> None:
    url = f"postgresql+psycopg://{postgres_url.partition('://')[2]}"
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async_engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    effect = f"INSERT INTO account (id, balance) VALUES ('{thing}', 100)"
    with engine.connect() as conn, Session(engine) as session:
        async with async_engine.connect() as async_conn:
            for each in (conn, session, async_conn):
                with pytest.raises(ConfigError, match="AUTOCOMMIT"):
                    async with entered(each, thing):
                        await execute(each, effect)
                with pytest.raises(ConfigError, match="AUTOCOMMIT"):
                    await settle(forget(each, timedelta(0)))
    with psycopg.connect(postgres_url) as look:
        assert look.execute("SELECT 1 FROM account WHERE id = %s", [thing]).fetchall() == []
        with once(look, thing) as run:
            assert not run.done, "nothing was claimed"


@pytest.mark.parametrize("name", ["postgres-django", "sqlite-django"])
async def test_where_django_would_not_commit_the_block_it_is_refused(
    name: str, django: None, postgres_url: str, sqlite_path: str, thing: str
) -> None:
    kind = KINDS[name]
    async with kind.open("") as conn:
        conn.set_autocommit(False)
        for attempt in (lambda: once(conn, thing), lambda: kind.guard.fenced(conn, thing, 5)):
            with pytest.raises(ConfigError, match="autocommit is off"), attempt():
                pytest.fail("what is done here would be lost")
        with pytest.raises(ConfigError, match="autocommit is off"):
            purge(conn, timedelta(0))
        conn.rollback()
        conn.set_autocommit(True)
        with once(conn, thing) as run:
            assert not run.done


@pytest.mark.parametrize("name", [name for name in KINDS if "alchemy" in name])
@pytest.mark.parametrize("mine", [False, True], ids=["its transaction", "the caller's"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_block_that_ends_its_transaction_through_sqlalchemy_is_told_so(
    ending: str, mine: bool, name: str, postgres_url: str, sqlite_path: str, thing: str
) -> None:
    kind = KINDS[name]
    async with kind.open(postgres_url if name.startswith("postgres") else sqlite_path) as conn:
        if mine:
            await execute(conn, "SELECT 1")
        with pytest.raises(ConfigError, match="ended inside it"):
            async with entered(conn, thing):
                await settle(getattr(conn, ending)())
        await settle(conn.rollback())


ENDINGS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "commit": lambda conn: conn.commit(),
    "rollback": lambda conn: conn.rollback(),
    "with": lambda conn: conn.__exit__(None, None, None),
    "script": lambda conn: conn.executescript("CREATE TABLE IF NOT EXISTS other (x)"),
}


@pytest.mark.parametrize("mine", [False, True], ids=["its transaction", "the caller's"])
@pytest.mark.parametrize("more", [False, True], ids=["nothing after", "more after"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_block_that_ends_its_own_transaction_is_told_so_and_keeps_nothing_from_then_on(
    ending: str, more: bool, mine: bool, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as conn:
        conn.execute("CREATE TABLE effect (x)")
        conn.commit()
        if mine:
            conn.execute("BEGIN")

        def cut_in_two() -> None:
            with once(conn, "run") as run:
                ENDINGS[ending](conn)
                if more:
                    conn.execute("INSERT INTO effect VALUES (1)")
                run.result = "made"

        with pytest.raises(ConfigError, match="ended inside it"):
            cut_in_two()
        conn.rollback()
        assert conn.execute("SELECT count(*) FROM effect").fetchone() == (0,)
        if ending == "rollback":
            with once(conn, "run") as run:
                assert not run.done
        else:
            with pytest.raises(ConfigError, match="begun and has not ended"), once(conn, "run"):
                pytest.fail("nobody knows what it did")


def test_a_run_inside_itself_is_not_taken_for_done(play: Callable[[Scenario], int]) -> None:
    async def scenario(conn: Any, thing: str, kind: Kind) -> None:
        with pytest.raises(ConfigError, match="under way in this very transaction"):
            async with entered(conn, f"pay/{thing}"):
                await pay(conn, thing)

    assert play(scenario) == 100


@pytest.mark.parametrize("wrong", [None, "app.sqlite3", object()], ids=["None", "a path", "an object"])
def test_what_is_no_connection_is_told_what_would_be_one(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="sqlite3, psycopg, SQLAlchemy or Django is needed"), once(wrong, "run"):
        pytest.fail("there is nothing to remember it in")


def test_purge_takes_no_bare_number(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as conn, pytest.raises(ConfigError, match="timedelta"):
        purge(conn, 86400)  # type: ignore[arg-type]
