"""The SQLite guard inside the caller's own transaction: what the matrix of all guards cannot ask."""

import logging
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fencepost.errors import BackendError, ConfigError, ReplayMismatch, StaleToken, TokenClash
from fencepost.events import Event
from fencepost.guards import sqlite
from fencepost.rule import Stamp, Verdict
from tests.harness.leases import lease as lease_of
from tests.harness.logs import logged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.sqlite3"


@pytest.fixture
def conn(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=0)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        conn.execute("INSERT INTO account VALUES (42, 100)")
        conn.commit()
        yield conn


def balance(conn: sqlite3.Connection) -> int:
    value: int = conn.execute("SELECT balance FROM account").fetchone()[0]
    return value


def test_mark_and_write_commit_together(conn: sqlite3.Connection, path: Path) -> None:
    lease = lease_of("lock", "ann", 5)
    with conn:
        sqlite.admit(conn, "account/42", lease)
        conn.execute("UPDATE account SET balance = 50")
    with closing(sqlite3.connect(path)) as other:
        assert balance(other) == 50
        assert sqlite.mark(other, "account/42") == Stamp(5, 1, "ann")


def test_rolling_back_restores_the_mark(conn: sqlite3.Connection) -> None:
    with conn:
        sqlite.admit(conn, "account/42", Stamp(5, 1, "ann"), payload=b"50")
    sqlite.admit(conn, "account/42", Stamp(9, 1, "bob"))
    assert sqlite.mark(conn, "account/42") == Stamp(9, 1, "bob")
    conn.rollback()
    assert sqlite.mark(conn, "account/42") == Stamp(5, 1, "ann")
    with conn:
        assert sqlite.admit(conn, "account/42", Stamp(5, 1, "ann"), payload=b"50") is False
        assert sqlite.admit(conn, "account/42", Stamp(6, 1, "cy"), payload=b"60") is True


def test_a_connection_that_dies_between_judging_and_committing_leaves_neither(
    conn: sqlite3.Connection, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as dying:
        sqlite.admit(dying, "account/42", Stamp(9, 1, "bob"))
        dying.execute("UPDATE account SET balance = 0")
    assert balance(conn) == 100
    assert sqlite.mark(conn, "account/42") is None


def test_a_refusal_leaves_the_caller_s_transaction_usable(conn: sqlite3.Connection) -> None:
    with conn:
        sqlite.admit(conn, "account/42", 5)
    with conn:
        conn.execute("UPDATE account SET balance = 70")
        with pytest.raises(StaleToken):
            sqlite.admit(conn, "account/42", 4)
    assert balance(conn) == 70
    assert sqlite.mark(conn, "account/42") == Stamp(5)


def test_without_a_payload_a_repeated_stamp_is_never_waved_through(conn: sqlite3.Connection) -> None:
    offer = Stamp(5, 1, "ann")
    with conn:
        sqlite.admit(conn, "a", offer)
        sqlite.admit(conn, "b", offer, payload=b"x")
        for resource in ("a", "b"):
            with pytest.raises(ReplayMismatch):
                sqlite.admit(conn, resource, offer)
        with pytest.raises(ReplayMismatch):
            sqlite.admit(conn, "a", offer, payload=b"x")


def test_outside_a_transaction_it_names_the_next_step(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        for call in (sqlite.admit, sqlite.enter):
            with pytest.raises(ConfigError, match="BEGIN IMMEDIATE"):
                call(conn, "thing", 5)
        conn.execute("BEGIN IMMEDIATE")
        sqlite.admit(conn, "thing", 5)
        conn.execute("COMMIT")
        assert sqlite.mark(conn, "thing") == Stamp(5)


def test_the_write_lock_is_held_until_the_caller_commits(conn: sqlite3.Connection, path: Path) -> None:
    sqlite.enter(conn, "account/42", Stamp(5, 1, "ann"))
    with closing(sqlite3.connect(path, timeout=0)) as other:
        with pytest.raises(BackendError, match="write lock") as caught:
            sqlite.admit(other, "account/42", 9)
        assert caught.value.ambiguous is False
        conn.commit()
        with other:
            sqlite.admit(other, "account/42", 9)


def test_a_transaction_that_read_an_older_state_is_told_to_start_again(conn: sqlite3.Connection, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert balance(other) == 100
        with conn:
            sqlite.admit(conn, "account/42", 5)
            conn.execute("UPDATE account SET balance = 50")
        for call in (sqlite.admit, sqlite.enter):
            with pytest.raises(BackendError, match="roll it back and run it again"):
                call(other, "account/42", 6)
        other.execute("ROLLBACK")
        other.execute("BEGIN")
        sqlite.enter(other, "account/42", 6)
        assert balance(other) == 50
        other.execute("COMMIT")


def test_entering_again_changes_nothing_but_still_takes_the_write_lock(conn: sqlite3.Connection, path: Path) -> None:
    with conn:
        sqlite.enter(conn, "account/42", Stamp(5, 1, "ann"))
    conn.execute("BEGIN")
    sqlite.enter(conn, "account/42", Stamp(5, 1, "ann"))
    with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(BackendError):
        sqlite.admit(other, "account/42", 9)
    conn.rollback()


def test_the_caller_s_factories_do_not_matter(conn: sqlite3.Connection) -> None:
    conn.row_factory = lambda cursor, row: {"not": "a tuple"}
    conn.text_factory = bytes
    with conn:
        sqlite.admit(conn, "thing", Stamp(5, 1, "änn"))
        sqlite.admit(conn, "thing", Stamp(5, 2, "änn"))
    assert sqlite.mark(conn, "thing") == Stamp(5, 2, "änn")


def test_a_database_without_marks_has_none(conn: sqlite3.Connection) -> None:
    assert sqlite.mark(conn, "thing") is None
    assert conn.execute("SELECT count(*) FROM sqlite_master WHERE name = 'fencepost_mark'").fetchone() == (0,)


def test_every_decision_is_told_and_a_clash_is_logged_loudly(
    conn: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []
    name = secrets.token_hex(8)  # clashes of one resource are logged once a minute
    with conn, caplog.at_level(logging.ERROR, "fencepost"):
        sqlite.enter(conn, name, Stamp(5, 1, "ann"), hooks=[told.append])
        sqlite.admit(conn, name, Stamp(5, 2, "ann"), payload=b"x", hooks=[told.append])
        sqlite.admit(conn, name, Stamp(5, 2, "ann"), payload=b"x", hooks=[told.append])
        assert logged(caplog) == []
        with pytest.raises(TokenClash):
            sqlite.admit(conn, name, Stamp(5, 1, "bob"), hooks=[told.append])
    assert "token clash" in caplog.text
    assert [(event.verdict, event.enforced, event.action, event.seen) for event in told] == [
        (Verdict.ADMIT, None, "enter", None),
        (Verdict.ADMIT, None, "write", 5),
        (Verdict.REPLAY, None, "write", 5),
        (Verdict.CLASH, True, "write", 5),
    ]
    assert {(event.kind, event.name, event.source, event.token) for event in told} == {("decision", name, "sqlite", 5)}


def test_clashes_of_a_resource_are_logged_once_a_minute(
    conn: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    with conn, caplog.at_level(logging.ERROR, "fencepost"):
        for name in (first, second):
            sqlite.admit(conn, name, Stamp(5, 1, "ann"))
        for number in range(50):
            for name in (first, second):
                with pytest.raises(TokenClash):
                    sqlite.admit(conn, name, Stamp(5, 1, f"bob{number}"))
    assert [first in line or second in line for line in caplog.text.splitlines()] == [True, True]


def test_a_reset_refuses_the_token_it_names_whoever_has_it(conn: sqlite3.Connection) -> None:
    with conn:
        sqlite.admit(conn, "thing", Stamp(5, 1, "ann"))
        assert sqlite.raise_mark(conn, "thing", to=5) == Stamp(5)
        assert sqlite.raise_mark(conn, "thing", to=4) == Stamp(5), "never lowered"
        with pytest.raises(TokenClash):
            sqlite.admit(conn, "thing", Stamp(5, 2, "ann"))
        sqlite.admit(conn, "thing", Stamp(6, 1, "bob"))


def test_a_fenced_block_is_entered_once(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as conn:
        conn.execute("CREATE TABLE t (n)")
        conn.commit()
        fenced = sqlite.fenced(conn, "thing", 5)
        with fenced:
            conn.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(ConfigError, match="has a block already"), fenced:
                raise AssertionError("the body must not run")
        assert conn.execute("SELECT n FROM t").fetchall() == [(1,)]
