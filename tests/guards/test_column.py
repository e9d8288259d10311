"""The column form, in Postgres and in SQLite, through the connections people have."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool

from fencepost.check import AHEAD
from fencepost.errors import ConfigError, StaleToken, TokenLeap
from fencepost.events import Event
from fencepost.guards import column, postgres, sqlite
from fencepost.guards.policy import Policy
from fencepost.rule import MAX_TOKEN, Stamp
from tests.harness.leases import lease as lease_of


def _psycopg(postgres_url: str, sqlite_path: str) -> Any:
    return psycopg.connect(postgres_url)


def _sqlite(postgres_url: str, sqlite_path: str) -> Any:
    return sqlite3.connect(sqlite_path)


def _postgres_alchemy(postgres_url: str, sqlite_path: str) -> Any:
    return sqlalchemy.create_engine(
        f"postgresql+psycopg://{postgres_url.partition('://')[2]}", poolclass=NullPool
    ).connect()


def _sqlite_alchemy(postgres_url: str, sqlite_path: str) -> Any:
    return sqlalchemy.create_engine(f"sqlite:///{sqlite_path}", poolclass=NullPool).connect()


@pytest.fixture(params=[_psycopg, _sqlite, _postgres_alchemy, _sqlite_alchemy])
def conn(request: pytest.FixtureRequest, postgres_url: str, sqlite_path: str) -> Iterator[Any]:
    open: Callable[[str, str], Any] = request.param
    with closing(open(postgres_url, sqlite_path)) as conn:
        yield conn
        conn.rollback()


@pytest.fixture
def key(conn: Any, thing: str) -> dict[str, str]:
    insert = f"INSERT INTO account (id, balance) VALUES ('{thing}', 100)"
    conn.execute(sqlalchemy.text(insert) if hasattr(conn, "exec_driver_sql") else insert)
    return {"id": thing}


@pytest.fixture
def triggered(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A row of SQLite at epoch 5, with the library's own triggers on its table."""
    with closing(sqlite3.connect(tmp_path / "app.sqlite3", isolation_level=None)) as conn:
        conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, lock_epoch INTEGER)")
        for statement in sqlite.ddl("account", column="lock_epoch", key=["id"]):
            conn.execute(statement)
        conn.execute("INSERT INTO account VALUES (42, 100, 0), (43, 100, 0), (44, 100, NULL)")
        conn.execute("BEGIN IMMEDIATE")
        column.write(conn, "account", {"id": 42}, {"balance": 50}, 5)
        yield conn


def test_sqlite_s_trigger_and_the_column_form_go_together(triggered: sqlite3.Connection) -> None:
    key = {"id": 42}
    with pytest.raises(StaleToken):
        column.write(triggered, "account", key, {"balance": 0}, 4)
    assert column.read(triggered, "account", key, ["balance"], 6) == {"balance": 50}
    with pytest.raises(TokenLeap):
        column.write(triggered, "account", key, {"balance": 0}, 1000, policy=Policy(max_jump=10))
    column.write(triggered, "account", key, {"balance": 60}, 6, policy=Policy(max_jump=10))
    assert triggered.execute("SELECT * FROM account WHERE id = 42").fetchone() == (42, 60, 6)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE account SET balance = 0 WHERE id = 42",
        "DELETE FROM account WHERE id = 42",
        "INSERT OR REPLACE INTO account VALUES (42, 0, 0)",
        "REPLACE INTO account (id, balance) VALUES (42, 0)",
        "INSERT OR REPLACE INTO account VALUES (42, 0, 5)",
        "UPDATE OR REPLACE account SET id = 42, lock_epoch = 9 WHERE id = 43",
        "INSERT INTO account VALUES (42, 0, 9) ON CONFLICT DO UPDATE SET balance = 0",
    ],
)
def test_sqlite_s_triggers_refuse_what_carries_no_newer_token(triggered: sqlite3.Connection, change: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="fencepost: "):
        triggered.execute(change)
    assert triggered.execute("SELECT * FROM account ORDER BY id").fetchall()[:2] == [(42, 50, 5), (43, 100, 0)]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE account SET lock_epoch = 6 WHERE id = 42",
        "INSERT OR REPLACE INTO account VALUES (42, 0, 6)",
        "INSERT OR IGNORE INTO account (id, balance) VALUES (42, 0)",
        "INSERT INTO account (id) VALUES (42) ON CONFLICT DO NOTHING",
        "INSERT INTO account (id) VALUES (42) ON CONFLICT DO UPDATE SET lock_epoch = 6",
        "INSERT OR REPLACE INTO account VALUES (43, 0, 0)",
        "DELETE FROM account WHERE id > 42",
        "INSERT INTO account VALUES (45, 0, 0)",
        "UPDATE account SET id = 46, lock_epoch = 6 WHERE id = 42",
    ],
)
def test_sqlite_s_triggers_let_everything_else_pass(triggered: sqlite3.Connection, change: str) -> None:
    triggered.execute("INSERT OR IGNORE INTO account (id) VALUES (42)")
    triggered.execute(change)
    with pytest.raises(sqlite3.IntegrityError, match="fencepost: "):
        triggered.execute("REPLACE INTO account (id, lock_epoch) SELECT id, 1 FROM account WHERE lock_epoch > 4")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE account SET lock_epoch = {} WHERE id = 42",
        "UPDATE account SET lock_epoch = {} WHERE id = 44",
        "INSERT OR REPLACE INTO account VALUES (42, 0, {})",
        "INSERT INTO account (id) VALUES (42) ON CONFLICT DO UPDATE SET lock_epoch = {}",
    ],
)
@pytest.mark.parametrize("wild", [str(MAX_TOKEN), "in two days", "1e300", "'x'", "x'ff'"])
def test_sqlite_s_triggers_refuse_an_epoch_that_no_issuer_can_have_come_to(
    triggered: sqlite3.Connection, change: str, wild: str
) -> None:
    """It would lock everybody out: each later token is smaller, and so is each number than any text."""
    if wild == "in two days":
        wild = str(time.time_ns() // 1000 + 2 * AHEAD)
    with pytest.raises(sqlite3.IntegrityError, match="fencepost: no issuer"):
        triggered.execute(change.format(wild))
    assert triggered.execute("SELECT lock_epoch FROM account ORDER BY id").fetchall() == [(5,), (0,), (None,)]
    triggered.execute(change.format(time.time_ns() // 1000 + AHEAD // 2))


@pytest.mark.parametrize(
    "change", ["UPDATE account SET lock_epoch = {} WHERE id = 42", "REPLACE INTO account VALUES (42, 0, {})"]
)
def test_sqlite_s_triggers_are_as_high_as_they_were_last_installed(triggered: sqlite3.Connection, change: str) -> None:
    def install(ceiling: Literal["on", "off"]) -> None:
        for statement in sqlite.ddl("account", column="lock_epoch", key=["id"], ceiling=ceiling):
            triggered.execute(statement)

    install("off")
    for no_token in ("1e300", "'x'", "x'ff'", str(MAX_TOKEN + 1)):
        with pytest.raises(sqlite3.IntegrityError, match="fencepost: no issuer"):
            triggered.execute(change.format(no_token))
    with pytest.raises(sqlite3.IntegrityError, match="no newer fencing token"):
        triggered.execute(change.format(4))
    triggered.execute(change.format(MAX_TOKEN // 2))
    install("on")
    with pytest.raises(sqlite3.IntegrityError, match="fencepost: no issuer"):
        triggered.execute(change.format(MAX_TOKEN))
    install("off")
    triggered.execute(change.format(MAX_TOKEN))


def test_a_ceiling_without_a_trigger_to_have_it_is_refused() -> None:
    for ddl in (sqlite.ddl, postgres.ddl):
        with pytest.raises(ConfigError, match="'off' is for the trigger"):
            ddl(ceiling="off")
        with pytest.raises(ConfigError, match="a ceiling is 'on' or 'off', not 'low'"):
            ddl("account", column="lock_epoch", ceiling="low")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Policy"):
        postgres.ddl("account", resource="account/{id}", ceiling="off")


def test_a_wild_epoch_in_sqlite_is_taken_down_as_documented(triggered: sqlite3.Connection) -> None:
    """However it came there: before the triggers were made, or around them."""
    drop = 'DROP TRIGGER "fencepost_epoch account"'
    triggered.execute(drop)
    triggered.execute('DROP TRIGGER "fencepost_leap account"')
    triggered.execute(f"UPDATE account SET lock_epoch = {MAX_TOKEN} WHERE id = 42")
    for statement in sqlite.ddl("account", column="lock_epoch", key=["id"]):
        triggered.execute(statement)
    with pytest.raises(StaleToken):
        column.write(triggered, "account", {"id": 42}, {"balance": 0}, 6)
    lower = f"UPDATE account SET lock_epoch = 5 WHERE lock_epoch = {MAX_TOKEN}"
    for statement in (drop, lower, *sqlite.ddl("account", column="lock_epoch", key=["id"])):
        triggered.execute(statement)
    column.write(triggered, "account", {"id": 42}, {"balance": 60}, 6)
    with pytest.raises(sqlite3.IntegrityError, match="fencepost: "):
        triggered.execute("UPDATE account SET balance = 0 WHERE id = 42")


def test_where_the_epoch_itself_is_so_far_sqlite_s_triggers_take_the_next_ones(triggered: sqlite3.Connection) -> None:
    far = time.time_ns() // 1000 + 10 * AHEAD
    triggered.execute('DROP TRIGGER "fencepost_leap account"')
    triggered.execute(f"UPDATE account SET lock_epoch = {far} WHERE id = 42")
    for statement in sqlite.ddl("account", column="lock_epoch", key=["id"]):
        triggered.execute(statement)
    triggered.execute(f"UPDATE account SET lock_epoch = {far + 1} WHERE id = 42")
    triggered.execute(f"REPLACE INTO account VALUES (42, 0, {far + 2})")


def row(conn: Any, key: dict[str, str]) -> tuple[int, int]:
    query = f"SELECT balance, lock_epoch FROM account WHERE id = '{key['id']}'"
    found = conn.execute(sqlalchemy.text(query) if hasattr(conn, "exec_driver_sql") else query).fetchone()
    return found[0], found[1]


def test_one_token_stands_for_one_write(conn: Any, key: dict[str, str]) -> None:
    column.write(conn, "account", key, {"balance": 50}, lease_of("a", "ann", 2**53), policy=Policy(ceiling="off"))
    assert row(conn, key) == (50, 2**53)
    for token in (2**53, 2**53 - 1):
        with pytest.raises(StaleToken) as caught:
            column.write(conn, "account", key, {"balance": 0}, token)
        assert caught.value.seen == 2**53
    column.write(conn, "account", key, {"balance": 60}, 2**53 + 1, policy=Policy(ceiling="off"))
    assert row(conn, key) == (60, 2**53 + 1)


def test_reading_locks_the_row_and_refuses_a_holder_that_was_replaced(conn: Any, key: dict[str, str]) -> None:
    assert column.read(conn, "account", key, ["balance"], 5) == {"balance": 100}
    column.write(conn, "account", key, {"balance": 90}, 5)
    assert column.read(conn, "account", key, ["balance"], Stamp(5, 1, "ann")) == {"balance": 90}
    with pytest.raises(StaleToken):
        column.read(conn, "account", key, ["balance"], 4)


def test_a_row_that_is_not_there_is_no_stale_token(conn: Any) -> None:
    with pytest.raises(LookupError):
        column.write(conn, "account", {"id": "nobody"}, {"balance": 0}, 5)
    with pytest.raises(LookupError):
        column.read(conn, "account", {"id": "nobody"}, ["balance"], 5)
    with pytest.raises(ConfigError, match="every row"):
        column.write(conn, "account", {}, {"balance": 0}, 5)


def test_the_policy_holds_here_too(conn: Any, key: dict[str, str]) -> None:
    column.write(conn, "account", key, {"balance": 90}, 5)
    column.write(conn, "account", key, {"balance": 80}, 4, policy=Policy("shadow"))
    assert row(conn, key) == (80, 5), "written by grace, and the epoch did not go back"
    column.write(conn, "account", key, {"balance": 70}, policy=Policy("enforce"))
    column.write(conn, "account", key, {"balance": 60}, 3, policy=Policy("off"))
    assert row(conn, key) == (60, 5)
    with pytest.raises(TokenLeap):
        column.write(conn, "account", key, {"balance": 0}, MAX_TOKEN, policy=Policy(max_jump=10))
    column.write(conn, "account", key, {"balance": 50}, 15, policy=Policy(max_jump=10))
    assert row(conn, key) == (50, 15)


def test_a_token_that_no_issuer_can_have_come_to_is_refused_by_default(conn: Any, key: dict[str, str]) -> None:
    before = row(conn, key)
    for access in (
        lambda: column.write(conn, "account", key, {"balance": 0}, MAX_TOKEN),
        lambda: column.read(conn, "account", key, ["balance"], MAX_TOKEN),
    ):
        with pytest.raises(TokenLeap):
            access()
    assert row(conn, key) == before


def test_a_key_that_finds_several_rows_is_no_stale_token(conn: Any, key: dict[str, str], thing: str) -> None:
    insert = f"INSERT INTO account (id, balance) VALUES ('{thing}-2', 100)"
    conn.execute(sqlalchemy.text(insert) if hasattr(conn, "exec_driver_sql") else insert)
    with pytest.raises(LookupError, match=r"finds \d+ rows of account, not one; roll back"):
        column.write(conn, "account", {"balance": 100}, {"balance": 0}, 5)


def test_reading_outside_a_transaction_is_refused_for_it_locks_nothing(postgres_url: str, sqlite_path: str) -> None:
    insert = "INSERT INTO account (id, balance) VALUES ('loose', 100)"
    engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_path}", poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with (
        psycopg.connect(postgres_url, autocommit=True) as pg,
        closing(sqlite3.connect(sqlite_path, isolation_level=None)) as lite,
        engine.connect() as alchemy,
    ):
        pg.execute(insert)
        lite.execute(insert)
        for conn in (pg, lite, alchemy):
            with pytest.raises(ConfigError, match="open a transaction around"):
                column.read(conn, "account", {"id": "loose"}, ["balance"], 5)
        with pg.transaction():
            assert column.read(pg, "account", {"id": "loose"}, ["balance"], 5) == {"balance": 100}
        lite.execute("BEGIN IMMEDIATE")
        assert column.read(lite, "account", {"id": "loose"}, ["balance"], 5) == {"balance": 100}


def test_whatever_rows_a_connection_makes_a_row_is_read_as_it_is(postgres_url: str, sqlite_path: str) -> None:
    insert = "INSERT INTO account (id, balance) VALUES ('shaped', 100)"
    with psycopg.connect(postgres_url) as pg, closing(sqlite3.connect(sqlite_path)) as lite:
        lite.row_factory = lambda cursor, row: dict(zip("abc", row, strict=False))
        for factory in (psycopg.rows.scalar_row, psycopg.rows.dict_row, psycopg.rows.args_row(lambda *row: object())):
            pg.row_factory = factory  # type: ignore[assignment]
            for conn in (pg, lite):
                conn.execute(insert)
                found = column.read(conn, "account", {"id": "shaped"}, ["balance", "id"], 5)
                assert found == {"balance": 100, "id": "shaped"}
                conn.rollback()


def test_a_row_that_was_read_is_locked_until_its_reader_s_transaction_ends(postgres_url: str, thing: str) -> None:
    key = {"id": thing}
    with psycopg.connect(postgres_url) as holder, psycopg.connect(postgres_url) as zombie:
        holder.execute("INSERT INTO account (id, balance) VALUES (%s, 100)", (thing,))
        holder.commit()
        assert column.read(holder, "account", key, ["balance"], 6) == {"balance": 100}
        zombie.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            column.write(zombie, "account", key, {"balance": 0}, 5)
        zombie.rollback()
        column.write(holder, "account", key, {"balance": 90}, 6)
        holder.commit()
        with pytest.raises(StaleToken):
            column.write(zombie, "account", key, {"balance": 0}, 5)
        zombie.rollback()
        assert row(zombie, key) == (90, 6)


def overtaken(path: Path, during: str, token: int) -> Any:
    """A connection in no transaction, and a newer write that comes between its look at the row and its own write."""
    conn = sqlite3.connect(path, isolation_level=None)

    def trace(statement: str) -> None:
        if statement.startswith(during):
            conn.set_trace_callback(None)
            with closing(sqlite3.connect(path)) as other, other:
                column.write(other, "account", {"id": 42}, {"balance": 7}, token)

    conn.set_trace_callback(trace)
    return closing(conn)


@pytest.mark.parametrize("token", [3, 6], ids=["older", "newer"])
def test_a_write_that_meets_another_one_outside_a_transaction_is_judged_again(
    triggered: sqlite3.Connection, tmp_path: Path, token: int
) -> None:
    triggered.execute("ROLLBACK")
    told: list[Event] = []
    with overtaken(tmp_path / "app.sqlite3", "UPDATE", 5) as conn:

        def write() -> None:
            limit = Policy(max_jump=10, max_first=10)
            column.write(conn, "account", {"id": 42}, {"balance": 60}, token, hooks=[told.append], policy=limit)

        if token < 5:
            with pytest.raises(StaleToken) as caught:
                write()
            assert caught.value.seen == 5
        else:
            write()
    assert triggered.execute("SELECT balance FROM account WHERE id = 42").fetchone() == ((7 if token < 5 else 60),)
    assert [event.verdict for event in told] == ["stale" if token < 5 else "admit"]
