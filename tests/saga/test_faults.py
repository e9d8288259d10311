"""Sagas whose steps fail in ways that databases, encodings and locks of other things bring about."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fencepost
from fencepost.errors import ConfigError, LeaseLost, StaleToken
from fencepost.rule import Stamp
from fencepost.saga import Compensated, Saga, Step, Stuck, Task


@pytest.fixture(params=["sqlite", "postgres"])
def conn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = ("DROP TABLE IF EXISTS child", "DROP TABLE IF EXISTS parent", "CREATE TABLE parent (id int PRIMARY KEY)")
    child = "CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
    if request.param == "sqlite":
        opened: Any = sqlite3.connect(tmp_path / "app.sqlite3")
        opened.execute("PRAGMA foreign_keys = ON")
    else:
        opened = psycopg.connect(request.getfixturevalue("postgres_url"))
        opened.execute("DELETE FROM fencepost_saga")
    with closing(opened) as conn:
        for statement in (*made, child):
            conn.execute(statement)
        conn.commit()
        yield conn


@pytest.fixture
def locks() -> Iterator[Any]:
    with fencepost.connect("memory://") as locks:
        yield locks


def orphan(task: Task) -> None:
    task.conn.execute("INSERT INTO child VALUES (7)")


def interrupt(task: Task) -> None:
    raise KeyboardInterrupt


def nothing(task: Task) -> None: ...


def test_a_step_that_the_database_refuses_as_it_is_committed_has_failed(conn: Any, locks: Any) -> None:
    undone: list[str] = []
    saga = Saga("order", [Step("a", nothing, lambda task: undone.append("a")), Step("b", orphan)])
    with pytest.raises(Compensated, match=r"(?i)b: .*foreign key") as caught:
        saga.run(locks, conn, "1")
    assert undone == ["a"]
    assert type(caught.value.__cause__).__name__ in ("IntegrityError", "ForeignKeyViolation")
    assert conn.execute("SELECT count(*) FROM child").fetchone()[0] == 0


def test_an_undo_that_the_database_refuses_as_it_is_committed_is_stuck(conn: Any, locks: Any) -> None:
    saga = Saga("order", [Step("a", nothing, orphan), Step("b", orphan)])
    with pytest.raises(Stuck, match=r"(?i)cannot undo a: .*foreign key"):
        saga.run(locks, conn, "1")


def test_a_saga_that_cannot_be_committed_does_not_keep_others_from_going_on(conn: Any, locks: Any) -> None:
    for id in ("1", "2"):
        with pytest.raises(KeyboardInterrupt):
            Saga("order", [Step("a", nothing), Step("b", interrupt)]).run(locks, conn, id)
    saga = Saga("order", [Step("a", nothing), Step("b", lambda task: orphan(task) if task.id == "1" else None)])
    assert saga.resume(locks, conn) == {"1": "compensated", "2": "done"}


def test_a_step_that_hides_an_error_of_postgres_has_failed(postgres_url: str, locks: Any) -> None:
    def hide(task: Task) -> None:
        with pytest.raises(psycopg.Error):
            task.conn.execute("SELECT * FROM nowhere")

    with psycopg.connect(postgres_url) as conn:
        conn.execute("DELETE FROM fencepost_saga")
        conn.commit()
        saga = Saga("order", [Step("a", hide)])
        with pytest.raises(Compensated, match="aborted"):
            saga.run(locks, conn, "1")


@pytest.mark.parametrize("words", ["a lone \udcff surrogate", "a \0 byte"])
def test_what_no_database_keeps_as_text_is_kept_all_the_same(conn: Any, locks: Any, words: str) -> None:
    def fail(task: Task) -> None:
        raise LookupError(words)

    assert Saga("kept", [Step("a", lambda task: [task.args, words])]).run(locks, conn, "1", words) == {"a": [words] * 2}
    undone: list[str] = []
    saga = Saga("order", [Step("a", nothing, lambda task: undone.append(task.id)), Step("b", fail)])
    for _ in range(2):
        with pytest.raises(Compensated, match=r"a (lone|.x00 byte)"):
            saga.run(locks, conn, "1")
    assert undone == ["1"]


@pytest.mark.parametrize("kind", [LeaseLost, StaleToken])
def test_losing_the_lease_of_another_lock_fails_the_step_although_its_token_is_the_same(
    conn: Any, locks: Any, kind: type[Exception]
) -> None:
    def lose(task: Task) -> None:
        if kind is LeaseLost:
            raise LeaseLost("stock/1", task.lease.token, "it was evicted")
        raise StaleToken("stale", "stock/1", Stamp(task.lease.token, 1, "another"), None)

    undone: list[str] = []
    saga = Saga("order", [Step("a", nothing, lambda task: undone.append("a")), Step("b", lose)])
    with pytest.raises(Compensated):
        saga.run(locks, conn, "1")
    assert undone == ["a"]


def test_a_transaction_that_a_step_elsewhere_left_open_is_not_taken_for_the_saga_s_own(
    postgres_url: str, locks: Any
) -> None:
    """Psycopg would make savepoints of all that follows, and nobody would commit it."""
    with psycopg.connect(postgres_url) as conn:
        conn.execute("DELETE FROM fencepost_saga")
        conn.commit()
        saga = Saga("order", [Step("a", lambda task: conn.execute("SELECT 1").fetchone(), external=True)])
        with pytest.raises(ConfigError, match="in a transaction"):
            saga.run(locks, conn, "1")
        conn.rollback()
        record = saga.find(conn, "1")
        assert record is not None
        assert record.begun == "a"
        saga = Saga("order", [Step("a", nothing, external=True)])
        assert saga.run(locks, conn, "1") == {"a": None}
    with psycopg.connect(postgres_url) as conn:
        record = saga.find(conn, "1")
        assert record is not None
        assert record.state == "done"


def test_a_step_that_a_trigger_refuses_as_it_is_committed_has_failed(postgres_url: str, locks: Any) -> None:
    def write(task: Task) -> None:
        task.conn.execute("INSERT INTO refusing VALUES (1)")

    undone: list[str] = []
    saga = Saga("order", [Step("a", nothing, lambda task: undone.append("a")), Step("b", write)])
    with psycopg.connect(postgres_url) as conn:
        for statement in (
            "DELETE FROM fencepost_saga",
            "DROP TABLE IF EXISTS refusing",
            "CREATE TABLE refusing (x int)",
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'not today'; END $$",
            "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON refusing DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()",
        ):
            conn.execute(statement)
        conn.commit()
        with pytest.raises(Compensated, match="not today"):
            saga.run(locks, conn, "1")
    assert undone == ["a"]
