"""A transaction that began here ends here, in each way in which a connection of sqlite3 can be opened."""

import io
import sqlite3
import sys
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.errors import ConfigError, StaleToken
from fencepost.guards import column, sqlite
from fencepost.guards.marks import Marks
from fencepost.once import once, purge
from fencepost.once.wsgi import Once
from fencepost.rule import Stamp
from fencepost.saga import Compensated, Saga, Step, Task
from tests.harness.interrupts import Interrupter
from tests.harness.isolated import isolated
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until

MODERN = sys.version_info >= (3, 12)
"""Whether sqlite3 has ``autocommit=``. Elsewhere the tests of it are left out: a complete run may skip none."""
MODES: dict[str, dict[str, Any]] = {"default": {}, "isolation_level=None": {"isolation_level": None}}
if MODERN:
    MODES["autocommit=True"] = {"autocommit": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, lock_epoch INTEGER)")
        conn.execute("INSERT INTO account VALUES (42, 100, 0)")
        conn.commit()
    return path


@pytest.fixture(params=MODES)
def conn(request: pytest.FixtureRequest, path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=0, **MODES[request.param])) as conn:
        yield conn


def pay(conn: sqlite3.Connection) -> None:
    conn.execute("UPDATE account SET balance = balance - 10")


def balance(path: Path) -> int:
    """The balance on disk; fails if another connection kept the database locked."""
    with closing(sqlite3.connect(path, timeout=0)) as conn, conn:
        conn.execute("UPDATE account SET id = id")
        value: int = conn.execute("SELECT balance FROM account").fetchone()[0]
    return value


def test_a_run_that_raises_leaves_no_transaction_for_the_next_one_to_get_lost_in(
    conn: sqlite3.Connection, path: Path
) -> None:
    def attempt() -> None:
        with once(conn, "job/1"):
            pay(conn)
            raise LookupError

    with pytest.raises(LookupError):
        attempt()
    assert not conn.in_transaction
    assert balance(path) == 100
    with once(conn, "job/2") as run:
        pay(conn)
        run.result = "paid"
    assert balance(path) == 90


def test_a_fenced_block_that_is_refused_leaves_none(conn: sqlite3.Connection, path: Path) -> None:
    with sqlite.fenced(conn, "account/42", 5):
        pay(conn)
    with pytest.raises(StaleToken), sqlite.fenced(conn, "account/42", 4):
        pytest.fail("it was replaced")
    assert not conn.in_transaction
    assert balance(path) == 90


def test_a_commit_that_fails_leaves_nothing_that_a_later_one_would_commit(conn: sqlite3.Connection, path: Path) -> None:
    def attempt() -> None:
        with sqlite.fenced(conn, "account/42", 5):
            pay(conn)

    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT balance FROM account").fetchall() == [(100,)]  # keeps the file from being changed
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            attempt()
    assert not conn.in_transaction
    with once(conn, "job"):
        pass
    assert balance(path) == 100


def test_a_saga_whose_step_fails_is_undone(conn: sqlite3.Connection, path: Path) -> None:
    def refuse(task: Task) -> None:
        raise LookupError("no van")

    def undo(task: Task) -> None:
        task.conn.execute("UPDATE account SET balance = 100")

    saga = Saga("order", [Step("pay", lambda task: pay(task.conn), undo), Step("ship", refuse)])
    with fencepost.connect("memory://") as locks, pytest.raises(Compensated, match="no van"):
        saga.run(locks, conn, "1")
    assert not conn.in_transaction
    assert balance(path) == 100


def test_a_block_that_was_made_before_a_transaction_of_the_caller_s_leaves_that_alone(
    conn: sqlite3.Connection, path: Path
) -> None:
    block = sqlite.fenced(conn, "account/42", 5)
    conn.execute("BEGIN")
    pay(conn)
    with pytest.raises(ConfigError, match="in a transaction already"), block:
        pytest.fail("it may have read before it was admitted")
    conn.execute("COMMIT")
    assert balance(path) == 90


if MODERN:

    @pytest.fixture
    def always(path: Path) -> Iterator[sqlite3.Connection]:
        """A connection that is in a transaction at all times."""
        with closing(sqlite3.connect(path, timeout=0, autocommit=False)) as conn:  # type: ignore[call-overload]
            yield conn

    def test_a_connection_that_is_in_a_transaction_at_all_times_is_refused_where_one_would_be_committed(
        always: sqlite3.Connection, path: Path
    ) -> None:
        """For nobody can tell whether something of the caller's is in it that is not to be committed yet."""
        saga = Saga("order", [Step("pay", lambda task: pay(task.conn))])
        always.execute("UPDATE account SET balance = 1")
        with fencepost.connect("memory://") as locks:
            attempts: list[Callable[[], Any]] = [
                lambda: once(always, "job").__enter__(),
                lambda: purge(always, timedelta(0)),
                lambda: sqlite.fenced(always, "account/42", 5).__enter__(),
                lambda: saga.run(locks, always, "1"),
                lambda: saga.find(always, "1"),
                lambda: saga.resume(locks, always),
            ]
            for attempt in attempts:
                with pytest.raises(ConfigError, match="autocommit=False"):
                    attempt()
        always.rollback()
        assert balance(path) == 100, "nothing of the caller's was committed"
        sqlite.admit(always, "account/42", 5)
        pay(always)
        always.commit()
        assert balance(path) == 90, "in a transaction of the caller's own it takes part"

    def test_a_web_service_on_such_a_connection_never_says_that_it_did_what_is_not_kept(path: Path) -> None:
        def service(environ: Any, start: Any) -> list[bytes]:
            pytest.fail("it must not be served")

        app = Once(service, open=lambda: closing(sqlite3.connect(path, autocommit=False)), key=lambda _: "key")  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="autocommit=False"):
            app({"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO()}, pytest.fail)


def admit_stale(conn: sqlite3.Connection) -> None:
    sqlite.admit(conn, "account/42", 4)


def enter_stale(conn: sqlite3.Connection) -> None:
    sqlite.enter(conn, "account/42", 4)


def admit_all_but_one(conn: sqlite3.Connection) -> None:
    sqlite.admit_all(conn, {"account/41": 9, "account/42": 4})


def lower_by_mistake(conn: sqlite3.Connection) -> None:
    sqlite.lower_mark(conn, "account/42", to=1, seen=9)


def write_stale(conn: sqlite3.Connection) -> None:
    column.write(conn, "account", {"id": 42}, {"balance": 0}, 4)


def read_stale(conn: sqlite3.Connection) -> None:
    column.read(conn, "account", {"id": 42}, ["balance"], 4)


@pytest.mark.parametrize(
    "attempt", [admit_stale, enter_stale, admit_all_but_one, lower_by_mistake, write_stale, read_stale]
)
def test_a_refusal_leaves_no_transaction_that_it_began_itself(
    attempt: Callable[[sqlite3.Connection], None], path: Path
) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as conn:
        with conn:
            sqlite.admit(conn, "account/42", 5)
            column.write(conn, "account", {"id": 42}, {"balance": 90}, 5)
        with pytest.raises((StaleToken, ConfigError)):
            attempt(conn)
        assert not conn.in_transaction
        assert balance(path) == 90
        pay(conn)
        with pytest.raises((StaleToken, ConfigError)):
            attempt(conn)
        conn.commit()
        assert balance(path) == 80, "one of the caller's goes on"


def paid(conn: sqlite3.Connection) -> None:
    with once(conn, "job"):
        pay(conn)


def fenced(conn: sqlite3.Connection) -> None:
    with sqlite.fenced(conn, "account/42", 5):
        pay(conn)


def admitted(conn: sqlite3.Connection) -> None:
    sqlite.admit(conn, "account/42", 5)
    pay(conn)
    conn.commit()


@isolated
@pytest.mark.parametrize("call", [paid, fenced, admitted])
def test_a_signal_handler_that_raises_during_the_wait_for_the_database_leaves_no_transaction(
    call: Callable[[sqlite3.Connection], None], path: Path
) -> None:
    """Python runs the handler once SQLite has answered: the lock was given then."""
    seen: list[str] = []  # whose append() runs no Python, in which the interrupt would come and be lost

    def interrupt() -> None:
        until(lambda: "BEGIN IMMEDIATE" in seen, "it waits")
        interrupt_main()
        hog.rollback()

    with (
        closing(sqlite3.connect(path, check_same_thread=False)) as hog,
        closing(sqlite3.connect(path, timeout=PATIENCE)) as conn,
    ):
        hog.execute("BEGIN IMMEDIATE")
        conn.set_trace_callback(seen.append)
        helper = background(interrupt)
        with pytest.raises(KeyboardInterrupt):
            call(conn)
        helper.result()
        assert not conn.in_transaction
        call(conn)
    assert balance(path) == 90


@isolated
@pytest.mark.slow
def test_marks_that_were_interrupted_go_on(path: Path) -> None:
    marks = Marks(path)
    for token in count(1):
        interrupter = Interrupter(token)
        with suppress(KeyboardInterrupt):
            interrupter.run(lambda: marks("thing", token, "write"))  # noqa: B023 - called at once
        conn = marks._open()
        assert not conn.in_transaction, f"interrupted at place {token}"
        if not interrupter.sent:
            break
    assert token > 50
    assert sqlite.mark(conn, "thing") == Stamp(token)
    marks.close()
