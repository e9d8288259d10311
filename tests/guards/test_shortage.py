"""Out of room on the disk, of descriptors, of memory, at the n-th step: a guard changes nothing, and goes on later."""

import gc
import itertools
import os
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fencepost
from fencepost.errors import BackendError, ReplayMismatch, StaleToken
from fencepost.guards import postgres, sqlite
from fencepost.guards.cas import Guard
from fencepost.guards.etcd import EtcdGuard
from fencepost.guards.file import FileGuard
from fencepost.guards.marks import Marks
from fencepost.guards.s3 import S3Guard
from fencepost.lease import Fence
from fencepost.once import once
from fencepost.resource.ledger import Found
from fencepost.resource.store import Store, opener
from fencepost.rule import Stamp
from fencepost.saga import Saga, Step, Task
from fencepost.sql.connections import opened
from tests.conformance.guards import GUARDS, Guarded
from tests.harness.descriptors import few_descriptors, open_descriptors
from tests.harness.disk import full_disk
from tests.harness.isolated import isolated
from tests.harness.leases import lease as lease_of
from tests.harness.memory import OutOfMemory
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE

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
    forgive()
    guard = FileGuard(tmp_path)
    for step in itertools.count(1):
        fault = OutOfMemory(step)
        fault.run(lambda: guard.write("thing", b"%d" % step, Stamp(2 * step, 1, "ann")))  # noqa: B023
        background(lambda: guard.write("thing", b"next", Stamp(2 * step + 1, 1, "bob"))).result()  # noqa: B023
        assert (guard.peek("thing"), guard.mark("thing")) == (b"next", Stamp(2 * step + 1, 1, "bob"))
        if not fault.raised:
            break
    assert step > 1


ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "postgres": (psycopg.OperationalError, OSError),
    "sqlite": (sqlite3.OperationalError,),
}
"""What comes through from the caller's own connection, where there is one, that can open nothing."""


@pytest.fixture
def address(guard: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        yield GUARDS[guard].place(request.getfixturevalue, stack)


class Attempts:
    """Writes to things of their own, each of which may fail, and what another guard with its own connection sees."""

    def __init__(self, guard: str, address: str, stack: ExitStack) -> None:
        self._open: Callable[[], Guarded] = lambda: GUARDS[guard].open(address, stack, None)
        self._keeps_connections = guard in ("redis", "etcd")
        self._error = ERRORS.get(guard, (BackendError,))
        self._made: list[tuple[Guarded, str]] = []
        self._other = self._open()

    def fail(self, spare: int) -> bool:
        """Write with so many descriptors to spare, over a new connection and over an open one: whether one failed."""
        failed = False
        for connected in (False, True):
            thing, guarded = f"thing/{spare}/{connected}", self._open()
            write = partial(guarded.write, thing, b"new", Stamp(7, 1, "ann"))
            if connected:
                guarded.peek(thing)
            with few_descriptors(spare):
                try:
                    assert write() if connected else background(write).result()  # a new thread has no connection yet
                except self._error:
                    assert not (connected and self._keeps_connections)
                    failed = True
            assert self._other.peek(thing) in [(None, None), (b"new", 7)]
            self._made.append((guarded, thing))
        return failed

    def repeat(self) -> None:
        """Make every attempt again, under its own stamp: each is made once, and has its mark."""
        for guarded, thing in self._made:
            before, _ = self._other.peek(thing)
            assert guarded.write(thing, b"new", Stamp(7, 1, "ann")) == (before is None)
            assert self._other.peek(thing) == (b"new", 7)
            with pytest.raises(StaleToken):
                self._other.write(thing, b"zombie", Stamp(6, 1, "bob"))


@isolated
@pytest.mark.parametrize(
    ("guard", "journal"),
    [("sqlite", "wal"), ("sqlite", "delete"), ("postgres", ""), ("redis", ""), ("etcd", ""), ("s3", "")],
    ids=["sqlite-wal", "sqlite-delete", "postgres", "redis", "etcd", "s3"],
)
def test_a_guard_that_can_open_nothing_more_says_so_and_goes_on(guard: str, journal: str, address: str) -> None:
    if journal:
        with closing(sqlite3.connect(address)) as conn:
            conn.execute(f"PRAGMA journal_mode = {journal}")
    before, spare = open_descriptors(), 0
    with ExitStack() as stack:
        attempts = Attempts(guard, address, stack)
        while attempts.fail(spare):  # nothing is made again meanwhile: what the first success loads, it loads here
            spare += 1
        assert spare, "there was a shortage"
        attempts.repeat()
    del attempts
    gc.collect()
    assert open_descriptors() == before


@isolated
@pytest.mark.parametrize("client", ["boto3", "https"])
def test_files_that_a_client_cannot_open_before_it_connects_fail_as_the_store_does(tmp_path: Path, client: str) -> None:
    file = tmp_path / "file"
    file.write_text("token")
    guard: Guard
    if client == "boto3":
        import boto3  # slow, and every pytest worker imports this module

        # As in a pod: the credentials come from a token in a file.
        os.environ.update(AWS_WEB_IDENTITY_TOKEN_FILE=str(file), AWS_ROLE_ARN="arn:aws:iam::1:role/a")
        own = boto3.client("s3", endpoint_url="http://127.0.0.1:1", region_name="us-east-1")
        guard = S3Guard(own, "bucket", probe=False)
    else:
        os.environ["SSLKEYLOGFILE"] = str(file)
        guard = EtcdGuard("https://127.0.0.1:1")
    with few_descriptors(0), pytest.raises(BackendError) as caught:
        guard.write("thing", b"new", Stamp(1))
    assert not caught.value.ambiguous
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.filename == str(file)


@isolated
def test_marks_that_can_open_nothing_more_say_so_and_go_on(tmp_path: Path) -> None:
    before, path = open_descriptors(), tmp_path / "marks.sqlite3"
    for spare in itertools.count():
        marks, failed = None, False
        try:
            with few_descriptors(spare):
                marks = Marks(path)
                marks("thing", Stamp(spare + 2), "write")
        except sqlite3.OperationalError:
            failed = True
        with closing(marks or Marks(path)) as marks:
            with closing(sqlite3.connect(path)) as conn:
                made = sqlite.mark(conn, "thing") == Stamp(spare + 2)
            assert made == (not failed)
            if failed:
                marks("thing", Stamp(spare + 2), "write")
            with pytest.raises(StaleToken):
                marks("thing", Stamp(spare + 1), "write")
        assert open_descriptors() == before
        if not failed:
            break
    assert spare, "there was a shortage"


class Forgetful:
    """Writes to one thing that run out of memory, each under a token larger than the last."""

    def __init__(self, guard: str, address: str, stack: ExitStack) -> None:
        self._guarded = GUARDS[guard].open(address, stack, None)
        # MemoryGuard has no connections: its second one is itself.
        self._other = self._guarded if guard == "memory" else GUARDS[guard].open(address, stack, None)
        self._apart = stack.enter_context(ThreadPoolExecutor(1))  # one thread: each has a connection of its own
        self._guarded.write("thing", b"old", Stamp(1))

    def at_every_step(self, offer: Callable[[int], Fence], first: int) -> int:
        """Write at every step of a write without memory for it; the last token."""
        for token in itertools.count(first):
            fault = OutOfMemory(token - first + 1)
            self._write(token, offer(token), fault)
            if not fault.raised:
                assert token > first
                return token
        raise AssertionError("unreachable")

    def _write(self, token: int, offer: Fence, fault: OutOfMemory) -> None:
        new, (before, last) = b"%d" % token, self._other.peek("thing")
        fault.run(lambda: self._guarded.write("thing", new, offer))
        seen = self._other.peek("thing")
        assert seen in [(before, last), (new, token)]
        with pytest.raises(StaleToken):
            self._other.write("thing", b"zombie", Stamp(token - 2))
        again = self._apart.submit(self._guarded.write, "thing", new, offer).result(PATIENCE)
        assert again == (seen != (new, token) or not isinstance(offer, Stamp))
        assert self._other.peek("thing") == (new, token)


def forgive() -> None:
    """Python tells what a destructor has no memory for, and goes on; and a coroutine whose very await failed."""
    sys.unraisablehook = lambda lost: None
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited")


@isolated
@pytest.mark.parametrize("guard", ["memory", "sqlite", "postgres", "redis", "etcd", "s3"])
def test_a_guard_that_runs_out_of_memory_writes_with_its_mark_or_not_at_all(guard: str, address: str) -> None:
    forgive()
    before = open_descriptors()
    with ExitStack() as stack:
        forgetful = Forgetful(guard, address, stack)
        last = forgetful.at_every_step(lambda token: Stamp(token, 1, "ann"), 3)
        if guard != "s3":  # slow, and the code that takes turns is etcd's too
            forgetful.at_every_step(lambda token: lease_of("lock", f"holder {token}", token), last + 2)
    del forgetful
    gc.collect()
    assert open_descriptors() == before


@isolated
@pytest.mark.parametrize("guard", ["sqlite", "postgres"])
def test_a_fenced_transaction_that_runs_out_of_memory_is_not_left_open(guard: str, address: str) -> None:
    forgive()
    module: Any = {"sqlite": sqlite, "postgres": postgres}[guard]
    insert = {"sqlite": "INSERT INTO thing VALUES (?, ?)", "postgres": "INSERT INTO thing VALUES (%s, %s)"}[guard]
    with ExitStack() as stack:
        other = GUARDS[guard].open(address, stack, None)
        conn: Any = sqlite3.connect(address) if guard == "sqlite" else psycopg.connect(address, autocommit=True)
        stack.callback(conn.close)

        def write(thing: str, stamp: Stamp) -> None:
            with module.fenced(conn, thing, stamp):
                conn.execute(insert, (thing, b"new"))

        for step in itertools.count(1):
            thing, fault = f"thing/{step}", OutOfMemory(step)
            fault.run(partial(write, thing, Stamp(7, 1, "ann")))
            assert not opened(conn)
            seen = other.peek(thing)
            assert seen in [(None, None), (b"new", 7)]
            with nullcontext() if seen == (None, None) else pytest.raises(ReplayMismatch):
                write(thing, Stamp(7, 1, "ann"))
            with pytest.raises(StaleToken):
                write(thing, Stamp(6, 1, "bob"))
            assert other.write(thing, b"next", Stamp(8, 1, "cat")), "nobody holds it up"
            if not fault.raised:
                break
        assert step > 1


@isolated
def test_marks_that_run_out_of_memory_hold_nobody_up(tmp_path: Path) -> None:
    forgive()
    path = tmp_path / "marks.sqlite3"
    with closing(Marks(path)) as marks, closing(sqlite3.connect(path)) as conn:
        for step in itertools.count(1):
            fault = OutOfMemory(step)
            before, ours, next = sqlite.mark(conn, "thing"), Stamp(2 * step, 1, "ann"), Stamp(2 * step + 1, 1, "bob")
            fault.run(partial(marks, "thing", ours, "write"))
            assert sqlite.mark(conn, "thing") in (before, ours)
            background(partial(marks, "thing", next, "write")).result()
            with pytest.raises(StaleToken):
                marks("thing", ours, "write")
            if not fault.raised:
                break
    assert step > 1
