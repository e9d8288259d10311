"""Out of room on the disk, of descriptors, of memory, at the n-th step: a guard changes nothing, and goes on later."""

import itertools
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import BackendError
from fencepost.guards import sqlite
from fencepost.guards.file import FileGuard
from fencepost.once import once
from fencepost.resource.ledger import Found
from fencepost.resource.store import Store, opener
from fencepost.rule import Stamp
from fencepost.saga import Saga, Step, Task
from tests.harness.descriptors import few_descriptors, open_descriptors
from tests.harness.disk import full_disk
from tests.harness.isolated import isolated
from tests.harness.memory import OutOfMemory
from tests.harness.threads import background

pytestmark = pytest.mark.slow

STEP = 512


@isolated
def test_a_file_that_finds_no_room_keeps_its_value_and_leaves_nothing(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"old", Stamp(1, 1, "ann"))
    files = sorted(tmp_path.iterdir())

    def write() -> None:
        guard.write("thing", b"new" * 1000, Stamp(2, 1, "bob"))

    def unchanged(error: Exception) -> None:
        assert isinstance(error, BackendError)
        assert not error.ambiguous
        assert sorted(tmp_path.iterdir()) == files
        assert (guard.peek("thing"), guard.mark("thing")) == (b"old", Stamp(1, 1, "ann"))

    until_there_is_room(write, unchanged)
    assert (guard.peek("thing"), guard.mark("thing")) == (b"new" * 1000, Stamp(2, 1, "bob"))


def until_there_is_room(attempt: Callable[[], object], unchanged: Callable[[Exception], None]) -> None:
    """Make an attempt with more room each time, until it succeeds; after each that fails nothing was changed."""
    size = 0
    while True:
        try:
            with full_disk(size):
                attempt()
        except (sqlite3.OperationalError, BackendError) as error:
            unchanged(error)
            size += STEP
        else:
            break
    assert size, "the disk was full"


@isolated
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_database_that_finds_no_room_keeps_its_mark_and_its_rows(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(path)) as conn, closing(sqlite3.connect(path)) as other:
        conn.execute(f"PRAGMA journal_mode = {journal}")
        conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance TEXT)")
        conn.execute("INSERT INTO account VALUES (1, 'old')")
        conn.commit()

        def write() -> None:
            with conn:
                sqlite.admit(conn, "account/1", Stamp(7))
                conn.execute("UPDATE account SET balance = ?", ("new" * 1000,))

        def unchanged(error: Exception) -> None:
            assert not conn.in_transaction
            assert sqlite.mark(other, "account/1") is None
            assert other.execute("SELECT balance FROM account").fetchone() == ("old",)

        until_there_is_room(write, unchanged)
        assert sqlite.mark(other, "account/1") == Stamp(7)

        def once_only() -> None:
            with once(conn, "run/1") as run:
                conn.execute("INSERT INTO account VALUES (2, ?)", ("new" * 1000,))
                run.result = 1

        def not_run(error: Exception) -> None:
            assert not conn.in_transaction
            assert other.execute("SELECT count(*) FROM account").fetchone() == (1,)

        until_there_is_room(once_only, not_run)
        with once(conn, "run/1") as run:
            assert run.done


@isolated
def test_a_saga_that_finds_no_room_stands_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"
    undone: list[str] = []

    def pay(task: Task) -> None:
        task.conn.execute("INSERT INTO payment VALUES (?)", ("x" * 5000,))

    saga = Saga("order", [Step("pay", pay, lambda task: undone.append("pay"))])
    with fencepost.connect("memory://") as locks, closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE payment (text)")
        conn.commit()

        def unchanged(error: Exception) -> None:
            assert not conn.in_transaction
            assert conn.execute("SELECT count(*) FROM payment").fetchone() == (0,)

        until_there_is_room(lambda: saga.run(locks, conn, "1"), unchanged)
        assert conn.execute("SELECT count(*) FROM payment").fetchone() == (1,)
        assert not undone


@isolated
async def test_a_service_that_finds_no_room_keeps_its_values(tmp_path: Path) -> None:
    store = Store(opener(tmp_path / "store.sqlite3"))
    try:
        await store.write("thing", b"old", Stamp(1))
        size = 0
        while True:
            try:
                with full_disk(size):
                    await store.write("thing", b"new" * 1000, Stamp(2))
            except BackendError:
                assert await store.read("thing") == Found(b"old", Stamp(1))
                size += STEP
            else:
                break
        assert size, "the disk was full"
        assert await store.read("thing") == Found(b"new" * 1000, Stamp(2))
        await store.check()
    finally:
        store.close()


@isolated
def test_a_file_guard_that_can_open_nothing_more_changes_nothing(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write("thing", b"old", Stamp(1, 1, "ann"))
    files, before, spare = sorted(tmp_path.iterdir()), open_descriptors(), 0

    def unchanged(error: BackendError) -> None:
        assert not error.ambiguous
        assert (guard.peek("thing"), guard.mark("thing")) == (b"old", Stamp(1, 1, "ann"))
        assert sorted(tmp_path.iterdir()) == files

    while True:
        try:
            with few_descriptors(spare):
                guard.write("thing", b"new", Stamp(2, 1, "bob"))
        except BackendError as error:
            unchanged(error)
            spare += 1
        else:
            break
    assert spare, "there was a shortage"
    assert open_descriptors() == before
    assert guard.peek("thing") == b"new"


@isolated
def test_a_file_guard_that_runs_out_of_memory_holds_nobody_up(tmp_path: Path) -> None:
    sys.unraisablehook = lambda lost: None  # Python tells what a destructor has no memory for, and goes on
    guard = FileGuard(tmp_path)
    for step in itertools.count(1):
        fault = OutOfMemory(step)
        fault.run(lambda: guard.write("thing", b"%d" % step, Stamp(2 * step, 1, "ann")))  # noqa: B023
        background(lambda: guard.write("thing", b"next", Stamp(2 * step + 1, 1, "bob"))).result()  # noqa: B023
        assert (guard.peek("thing"), guard.mark("thing")) == (b"next", Stamp(2 * step + 1, 1, "bob"))
        if not fault.raised:
            break
    assert step > 1
