"""The SQLite file: what it keeps through crashes, whose file it is, and what it says when it cannot be opened."""

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import aio, sync
from fencepost.backends.sqlite import file as sqlite_file
from fencepost.backends.sqlite.backend import SQLite
from fencepost.backends.sqlite.queue import Queue
from fencepost.driver import interrupts
from fencepost.driver import run as driver_run
from fencepost.driver.gate import Gate
from fencepost.errors import BackendError, ConfigError
from fencepost.lease import Grant, Reason
from fencepost.sql import sqlite as sql_sqlite
from tests.conformance.faces import FACES, Client
from tests.harness.child import Child
from tests.harness.isolated import in_fork, isolated
from tests.harness.leases import renew_soon
from tests.harness.threads import Background, background, on_thread
from tests.harness.waiting import PATIENCE, run, until, until_async


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def locks(path: Path) -> Iterator[sync.Locks]:
    with fencepost.connect(f"sqlite://{path}", ttl=60) as locks:
        yield locks


def tokens(path: Path, count: int = 1) -> list[int]:
    """The next tokens of the file, by clients that connect anew."""
    taken = []
    with fencepost.connect(f"sqlite://{path}", ttl=60) as locks:
        for _ in range(count):
            lease = locks.acquire("counted", timeout=PATIENCE)
            taken.append(lease.token)
            lease.release()
    return taken


TAKE_FOR_EVER = """
import sys, fencepost
locks = fencepost.connect("sqlite://" + sys.argv[1], ttl=60)
while True:
    lease = locks.acquire(sys.argv[2])
    print(lease.token, flush=True)
    lease.release()
"""


@pytest.mark.slow
def test_tokens_survive_the_kill_of_every_process(path: Path) -> None:
    seen: list[int] = []
    for turn in range(2):
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(Child.python("-c", TAKE_FOR_EVER, path, f"lock-{turn}-{each}")) for each in range(3)
            ]
            for worker in workers:
                for _ in range(20):
                    worker.line()
            for worker in workers:
                worker.kill()
        for worker in workers:
            seen += map(int, worker.output)
        seen += tokens(path)
        assert seen[-1] == max(seen)
    assert len(set(seen)) == len(seen)


def looks_of(locks: sync.Locks, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The holders of these locks that wait, each time that one has looked at the file."""
    backend = locks._core.backend
    assert isinstance(backend, SQLite)
    look, looked = backend._look, list[str]()

    def look_and_note(name: str, holder: str, ttl: float, limit: int | None) -> Grant | float:
        try:
            return look(name, holder, ttl, limit)
        finally:
            looked.append(holder)

    monkeypatch.setattr(backend, "_look", look_and_note)
    return looked


def _acquire_until_closed(locks: sync.Locks, name: str) -> None:
    with pytest.raises(ConfigError, match="closed"):
        locks.acquire(name)


def test_a_reboot_frees_every_lock_and_keeps_the_tokens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fencepost.connect(f"sqlite://{path}", ttl=60) as before:
        lease = before.acquire("held")
        looks = looks_of(before, monkeypatch)
        waiter = background(lambda: _acquire_until_closed(before, "held"))
        until(lambda: looks, "a waiter that has looked, and sleeps", watching=[waiter])
        monkeypatch.setattr(sqlite_file, "boot_id", lambda: "another boot")
        with fencepost.connect(f"sqlite://{path}", ttl=60) as after:
            assert after.status("held") is None
            new = after.try_acquire("held")
            assert new is not None
            assert new.token > lease.token
            before.close()  # while it is held: a waiter of before the reboot would get it otherwise
            waiter.result()


HOLD_ONE_LOOK_AT_ANOTHER = """
import sys, fencepost
with fencepost.connect(f"sqlite://{sys.argv[1]}", ttl=600) as locks:
    print(locks.status("theirs").remaining, flush=True)
    with locks.lock("mine"):
        print(open("/proc/self/timens_offsets").read().split()[4], flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [100_000, -30])
def test_a_container_with_a_clock_of_its_own_agrees_with_the_host_about_deadlines(path: Path, ahead: int) -> None:
    """A time namespace sets the boot clock off: locks seemed to have expired, or to be held for a day."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    inside = ["unshare", *as_root, "--time", "--boottime", ahead, "--fork", sys.executable, "-c"]
    with (
        fencepost.connect(f"sqlite://{path}", ttl=600) as locks,
        locks.lock("theirs"),
        Child([*inside, HOLD_ONE_LOOK_AT_ANOTHER, path]) as child,
    ):
        assert 0 < float(child.line()) <= 600
        assert int(child.line()) == ahead, "its clock is set off"
        held = locks.status("mine")
        assert held is not None
        assert 0 < held.remaining <= 600
        child.tell("done")


def test_a_reboot_frees_every_seat_of_a_semaphore(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fencepost.connect(f"sqlite://{path}", ttl=60) as before:
        gone = [before.semaphore("seats", 2).acquire() for _ in range(2)]
        monkeypatch.setattr(sqlite_file, "boot_id", lambda: "another boot")
        with fencepost.connect(f"sqlite://{path}", ttl=60) as after:
            seats = [after.semaphore("seats", 2).try_acquire() for _ in range(3)]
            assert [seat is not None for seat in seats] == [True, True, False]
            status = after.status("seats")
            assert status is not None
            assert status.sharers == tuple(seat.holder for seat in seats if seat is not None)
            assert min(seat.token for seat in seats if seat is not None) > max(lease.token for lease in gone)


def test_a_power_loss_brings_no_token_back(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was not synced is gone: restore the file as of its last fsync, which is what reserves tokens."""
    synced: list[Path] = []
    cover = sqlite_file.File.cover

    def watched(self: sqlite_file.File, token: int) -> None:
        before = self._reserved
        cover(self, token)
        if self._reserved != before:
            copy = tmp_path / f"synced-{len(synced)}"
            copy.mkdir()
            for part in path.parent.glob("locks.db*"):
                if part.is_file():
                    shutil.copy(part, copy)
            synced.append(copy / "locks.db")

    monkeypatch.setattr(sqlite_file.File, "cover", watched)
    monkeypatch.setattr(sqlite_file, "_BLOCK", 7)
    seen = tokens(path, 30)
    assert len(synced) >= 3, "the stress really happened"
    monkeypatch.setattr(sqlite_file, "boot_id", lambda: "after the power came back")
    last = synced[-1]
    assert tokens(last)[0] > max(seen)


def durable(locks: sync.Locks, call: Callable[[], object], statement: str) -> bool:
    """Whether ``call`` executes this statement in a transaction that waits for the disk, and the next one does not."""
    assert locks.acquire("warm").release()
    seen: list[str] = []
    connection = locks._core.backend._file._connection  # type: ignore[attr-defined]  # SQLite's own
    connection.set_trace_callback(seen.append)
    call()
    connection.set_trace_callback(None)
    at = next(at for at, each in enumerate(seen) if each.startswith(statement))
    before, after = (
        [each for each in part if each.startswith(("PRAGMA", "BEGIN", "COMMIT"))] for part in (seen[:at], seen[at:])
    )
    return before[-2:] == ["PRAGMA synchronous = FULL", "BEGIN IMMEDIATE"] and after[:2] == [
        "COMMIT",
        "PRAGMA synchronous = NORMAL",
    ]


def test_a_bump_survives_a_power_loss(locks: sync.Locks) -> None:
    assert durable(locks, lambda: locks.bump("a", above=1_000_000), "UPDATE lock")


def test_tokens_are_reserved_in_a_transaction_that_waits_for_the_disk(
    locks: sync.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_BLOCK", 0)
    assert durable(locks, lambda: locks.acquire("a"), "UPDATE issuer")


@pytest.mark.parametrize("shared", [False, True])
def test_the_token_that_a_waiter_is_handed_is_reserved_too(
    path: Path, locks: sync.Locks, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(sqlite_file, "_BLOCK", 0)
    holder = locks.acquire("a")
    waiter = background((locks.shared if shared else locks.lock)("a").acquire)
    until(lambda: (s := locks.status("a")) and s.waiters, "a waiter", watching=[waiter])
    assert holder.release()
    lease = waiter.result()
    with contextlib.closing(sqlite3.connect(path)) as db:
        ((reserved,),) = db.execute("SELECT reserved FROM issuer")
    assert reserved >= lease.token > holder.token


ROUNDS = 10
RACE = """
import sys, fencepost
print("ready", flush=True)
for path in sys.argv[1:]:
    sys.stdin.readline()
    with fencepost.connect("sqlite://" + path, ttl=60) as locks:
        lease = locks.acquire("first")
        lease.release()
        print(lease.token, flush=True)
"""


def test_processes_that_open_a_new_file_at_the_same_moment_agree(tmp_path: Path) -> None:
    paths = [tmp_path / f"new-{each}" / "deep" / "locks.db" for each in range(ROUNDS)]
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(Child.python("-c", RACE, *paths)) for _ in range(3)]
        for racer in racers:
            assert racer.line() == "ready"
        for _ in paths:
            for racer in racers:
                racer.tell("go")
            assert sorted(racer.line() for racer in racers) == ["1", "2", "3"]


@pytest.mark.parametrize("version", [0, 1, 77])
def test_another_programs_database_is_refused_and_left_as_it_is(path: Path, version: int) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (id INTEGER)")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()
    before = path.read_bytes()
    with fencepost.connect(f"sqlite://{path}") as locks, pytest.raises(ConfigError, match="somebody else's"):
        locks.acquire("a")
    assert path.read_bytes() == before
    assert [part.name for part in path.parent.iterdir()] == ["locks.db"]


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text("Dear diary, " * 200)
    before = path.read_bytes()
    with fencepost.connect(f"sqlite://{path}") as locks, pytest.raises(BackendError, match=r"locks\.db"):
        locks.acquire("a")
    assert path.read_bytes() == before


def test_an_older_schema_is_brought_up_to_date_and_keeps_its_tokens(path: Path) -> None:
    last = max(tokens(path))
    db = sqlite3.connect(path)
    db.executescript("DROP TABLE share; ALTER TABLE waiter DROP COLUMN share; PRAGMA user_version = 1;")
    db.close()
    with fencepost.connect(f"sqlite://{path}") as locks, locks.shared("name") as lease:
        assert lease.token > last


def test_a_newer_schema_is_refused(path: Path) -> None:
    tokens(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 3")
    db.close()
    with fencepost.connect(f"sqlite://{path}") as locks, pytest.raises(ConfigError, match="schema 3"):
        locks.acquire("a")


@pytest.mark.parametrize("folder", ["/proc/fencepost", "file/below"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / folder / "locks.db"
    with fencepost.connect(f"sqlite://{path}") as locks, pytest.raises(BackendError) as raised:
        locks.acquire("a")
    assert str(path) in str(raised.value)


def test_an_interrupt_just_after_begin_leaves_no_transaction_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an interrupt that came during BEGIN is raised."""
    begin = sqlite_file.File._begin
    armed = [True]

    def interrupted(self: sqlite_file.File, durable: bool) -> sqlite3.Connection:
        db = begin(self, durable)
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        return db

    with fencepost.connect(f"sqlite://{path}", ttl=60) as locks:
        locks.acquire("warm").release()
        monkeypatch.setattr(sqlite_file.File, "_begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            locks.acquire("a")
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        other.close()
        assert locks.status("a") is None
        assert locks.acquire("a", timeout=PATIENCE).release()


def _in_use(file: sqlite_file.File) -> bool:
    if file._gate.hold(0):
        file._gate.let_go()
        return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody is inside a transaction."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def _interrupt(heard: Callable[[], object]) -> Background[None]:
    """Interrupt the main thread once it waits."""

    def meanwhile() -> None:
        until(heard, "it waits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    return background(meanwhile)


@isolated
def test_an_interrupt_while_the_file_is_busy_is_heard_at_once(path: Path) -> None:
    with fencepost.connect(f"sqlite://{path}?busy=1h", ttl=60) as locks:
        locks.acquire("warm").release()
        file = locks._core.backend._file  # type: ignore[attr-defined]  # SQLite's own
        with locked(path):
            helper = _interrupt(lambda: file._gate.held_up)
            with pytest.raises(KeyboardInterrupt):
                locks.acquire("a")
            helper.result()
        assert locks.status("a") is None


@isolated
def test_an_interrupt_while_another_thread_has_the_file_is_heard(path: Path) -> None:
    waits, done = threading.Event(), threading.Event()
    really = Gate._wait

    def watched(gate: Gate, limit: float) -> float:
        waits.set()
        return really(gate, limit)

    with fencepost.connect(f"sqlite://{path}", ttl=60) as locks, pytest.MonkeyPatch.context() as patched:
        locks.acquire("warm").release()
        file = locks._core.backend._file  # type: ignore[attr-defined]  # SQLite's own

        def occupy() -> None:
            with file.idle():
                assert done.wait(PATIENCE)

        occupying = background(occupy)
        until(lambda: _in_use(file), "another thread is inside", watching=[occupying])
        patched.setattr(Gate, "_wait", watched)
        helper = _interrupt(waits.is_set)
        with pytest.raises(KeyboardInterrupt):
            locks.acquire("a")
        helper.result()
        done.set()
        occupying.result()
        assert locks.status("a") is None


HOLD_FOR_A_LINE = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("BEGIN IMMEDIATE")
print("inside", flush=True)
sys.stdin.readline()
conn.execute("ROLLBACK")
conn.close()
"""


@isolated
def test_a_child_forked_while_a_thread_waits_for_the_file_has_locks_of_its_own_on_it(path: Path) -> None:
    """A connection that is open during the fork makes SQLite believe in the child that the parent's locks are its own.

    Here the parent is the last to close the file, so it takes the log away that a child without locks still writes to.
    """
    locks = fencepost.connect(f"sqlite://{path}?busy=1h", ttl=600)
    locks.acquire("warm").release()
    gate = locks._core.backend._file._gate  # type: ignore[attr-defined]  # SQLite's own
    steps, answers = os.pipe(), os.pipe()

    async def child() -> int:
        said = [locks.try_acquire("first")]
        os.write(answers[1], b"!")
        os.read(steps[0], 1)
        said.append(locks.try_acquire("second"))
        os.write(answers[1], b"!")
        os.read(steps[0], 1)
        return sum(lease is not None for lease in said)

    with Child.python("-c", HOLD_FOR_A_LINE, path) as other:
        assert other.line() == "inside"
        waiting = background(lambda: locks.acquire("a"))
        until(lambda: gate.held_up, "it waits for the file", watching=[waiting])
        answer = in_fork(child, PATIENCE)
        assert not waiting.done
        other.tell("end")
        assert other.finish() == 0
    assert waiting.result().release()
    assert os.read(answers[0], 1)
    locks.close()
    os.write(steps[1], b"!")
    assert os.read(answers[0], 1)
    with fencepost.connect(f"sqlite://{path}", ttl=600) as again:
        held = [again.try_acquire(name) is None for name in ("first", "second")]
    os.write(steps[1], b"!")

    async def ended() -> int:
        return await answer

    assert run(ended()) == 2
    assert held == [True, True], "what the child holds, others see"


def test_a_thread_behind_one_that_waits_for_the_file_waits_no_longer_than_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for as long again as each before it, and never past ``busy=`` for one that gets no further."""
    go_on = threading.Event()

    def stuck(seconds: float) -> None:
        assert go_on.wait(PATIENCE)

    monkeypatch.setattr(sqlite_file, "nap", stuck)
    with fencepost.connect(f"sqlite://{path}?busy=300ms", ttl=60) as locks:
        locks.acquire("warm").release()
        # Straight to the nap: on a busy machine, the attempts before it can take all of busy=.
        monkeypatch.setattr(sql_sqlite, "_AT_ONCE", 0)
        file = locks._core.backend._file  # type: ignore[attr-defined]  # SQLite's own
        with locked(path):
            first = background(lambda: locks.acquire("a"))
            until(lambda: file._gate.held_up, "it waits for the file", watching=[first])
            behind = [background(lambda: locks.acquire("b")) for _ in range(3)]
            for each in behind:
                with pytest.raises(BackendError, match="stopped inside a transaction") as raised:
                    each.result()
                assert not raised.value.ambiguous, "nothing was begun, so nothing is to be cleaned up"
            assert not first.done
            go_on.set()
            with pytest.raises(BackendError, match="stopped inside a transaction"):
                first.result()
        assert locks.acquire("b", timeout=PATIENCE).release()


def test_a_thread_that_waited_for_another_one_has_only_the_rest_of_its_time_for_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    file = sqlite_file.File(path, 300.0)
    with contextlib.closing(file):
        file.read("SELECT 1")
        monkeypatch.setattr(sqlite_file, "nap", naps.append)
        with locked(path), pytest.raises(BackendError, match="stopped"):
            file._patiently(lambda: file._begin(durable=False), waited=301.0)
        assert naps == [], "it has tried once"


def test_one_that_waits_for_another_thread_at_work_does_not_give_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: it gets further."""
    with fencepost.connect(f"sqlite://{path}?busy=1ms", ttl=60) as locks:
        locks.acquire("warm").release()
        steps: list[float] = []
        with locks._core.backend.idle():  # type: ignore[attr-defined]  # SQLite's own
            monkeypatch.setattr(interrupts, "check", lambda: steps.append(0))
            waiting = background(lambda: locks.acquire("a"))
            until(lambda: len(steps) > 2, "it has waited for longer than busy=", watching=[waiting])
        assert waiting.result().release()


def test_one_that_wants_to_be_still_waits_for_a_transaction_and_for_nothing_else(path: Path) -> None:
    with fencepost.connect(f"sqlite://{path}", ttl=60) as locks:
        assert locks.status("a") is None
        backend: Any = locks._core.backend
        inside, go = threading.Event(), threading.Event()

        def transact() -> None:
            with backend._file.writing():
                inside.set()
                assert go.wait(PATIENCE)

        transaction = background(transact)
        assert inside.wait(PATIENCE)
        with backend.still():
            assert not transaction.done, "it has waited for a second, and goes on"
        go.set()
        transaction.result()
        with locked(path):
            waiting = background(lambda: locks.acquire("a", timeout=PATIENCE))
            until(lambda: bool(backend._file._gate.held_up), "it waits for the file", watching=[waiting])
            with backend.still():
                assert not backend._file._gate._work.acquire(False), "it stays where it is"
        assert waiting.result().release()


async def test_closing_does_not_block_the_event_loop(path: Path) -> None:
    """Not even while another thread is inside a transaction, where it may wait for the file for seconds."""
    locks = aio.connect(f"sqlite://{path}", ttl=60)
    assert await locks.status("a") is None
    inside, ticked = threading.Event(), threading.Event()
    file = locks._core.backend._file  # type: ignore[attr-defined]  # SQLite's own

    def occupy() -> bool:
        with file.idle():
            inside.set()
            return ticked.wait(PATIENCE)

    occupying = background(occupy)
    assert await on_thread(inside.wait, PATIENCE)
    closing = asyncio.create_task(locks.close())
    for _ in range(10):
        await asyncio.sleep(0)
    ticked.set()
    assert await on_thread(occupying.result), "the loop went on while the file was in use"
    await closing


@pytest.mark.silence
@pytest.mark.parametrize("face", FACES)
async def test_a_file_that_stays_busy_does_not_outlast_an_acquires_timeout(path: Path, face: str) -> None:
    tokens(path)
    client = Client(face, f"sqlite://{path}?busy=1h", ttl=60)
    assert await client.status("a") is None
    with locked(path):
        tries = [asyncio.create_task(client.acquire("a", timeout=0.05)) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            said = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(each) for each in said] == [BackendError] * 3

    async def works() -> bool:
        lease = await client.try_acquire("a")
        return lease is not None and await lease.release()

    await until_async(works, "the clean-up ends, and nobody holds or waits")
    assert await client.status("a") is None
    await client.close()


def test_a_process_frozen_inside_a_transaction_is_reported_as_such(path: Path) -> None:
    tokens(path)
    with (
        locked(path),
        fencepost.connect(f"sqlite://{path}?busy=50ms") as locks,
        pytest.raises(BackendError, match="stopped inside a transaction") as raised,
    ):
        locks.acquire("a")
    assert str(path) in str(raised.value)


def test_while_it_is_idle_no_thread_has_the_file(path: Path, locks: sync.Locks) -> None:
    """So that the lab can stop a holder whose renewals go on in the background."""
    locks.acquire("a").release()
    backend = locks._core.backend
    with backend.idle():  # type: ignore[attr-defined]  # SQLite's own
        busy = background(lambda: locks.acquire("b"))
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            for _ in range(20):
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
        assert not busy.done
    assert busy.result().release()


def test_the_embedded_default_lives_in_the_users_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with fencepost.connect() as locks:
        locks.acquire("a").release()
    assert (tmp_path / "state" / "fencepost" / "locks.db").exists()
    assert os.stat(tmp_path / "state" / "fencepost").st_mode & 0o077 == 0


def test_a_relative_file_is_found_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fencepost.connect("sqlite:locks.db") as here:
        lease = here.acquire("a")
        monkeypatch.chdir("/")
        with fencepost.connect(f"sqlite://{tmp_path}/locks.db") as absolute:
            assert absolute.try_acquire("a") is None
        assert lease.release()


def test_a_relative_file_is_that_of_where_it_was_named_although_it_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon connects, forks, and goes to the root folder: it must not be alone in a file of its own."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    with fencepost.connect("sqlite:locks.db") as daemon, fencepost.connect("sqlite:locks.db") as other:
        other.acquire("a")
        monkeypatch.chdir(elsewhere)
        assert daemon.try_acquire("a") is None
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_who_holds_in_a_file_that_was_removed_or_replaced_loses_it(path: Path, replaced: bool) -> None:
    """Whoever comes later takes the lock in the file that has the name now: two would hold it, and not know."""
    with fencepost.connect(f"sqlite://{path}", ttl=300) as early:
        lease = early.acquire("a")
        for part in path.parent.glob("locks.db*"):
            if part.is_file():
                part.rename(part.with_name("old-" + part.name))
        with fencepost.connect(f"sqlite://{path}", ttl=60) as late:
            theirs = late.acquire("a") if replaced else None
            renew_soon(early, lease)
            assert lease.ended.wait(PATIENCE)
            assert lease.reason is Reason.GONE
            mine = early.try_acquire("a")
            assert (mine is None) == replaced
            if theirs is not None:
                theirs.check()
                assert theirs.release()
        assert early.acquire("a", timeout=PATIENCE) if replaced else mine


def test_tokens_of_a_file_that_took_the_place_of_another_are_reserved_there_too(path: Path, locks: sync.Locks) -> None:
    assert locks.acquire("a").release()
    for part in path.parent.glob("locks.db*"):
        if part.is_file():
            part.unlink()
    lease = locks.acquire("b")
    assert lease.token == 1, "the new file knows nothing of the old one"
    with sqlite3.connect(path) as db:
        ((reserved,),) = db.execute("SELECT reserved FROM issuer")
    db.close()
    assert reserved >= lease.token


def test_renewing_all_sharers_of_a_lock_settles_it_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each settling reads all of them: for each of them, it would be the square."""
    settled: list[str] = []
    settle = Queue.settle

    def counted(queue: Queue, db: sqlite3.Connection, name: str) -> None:
        settled.append(name)
        settle(queue, db, name)

    with fencepost.connect(f"sqlite://{path}", ttl=600) as locks:
        leases = [locks.shared(name, renew=False).acquire() for name in ("a", "b") for _ in range(10)]
        before = [lease.deadline for lease in leases]
        with monkeypatch.context() as patch:
            patch.setattr(Queue, "settle", counted)
            driver_run(locks._core._renewals.renew(leases))
        assert all(lease.deadline > was for lease, was in zip(leases, before, strict=True))
    assert sorted(settled) == ["a", "b"]


def test_letting_in_all_who_wait_to_share_counts_them_once(path: Path) -> None:
    with (
        fencepost.connect(f"sqlite://{path}", ttl=600) as here,
        fencepost.connect(f"sqlite://{path}", ttl=600) as there,
    ):
        held = here.acquire("a")
        waiting = [background(lambda: there.shared("a").acquire()) for _ in range(10)]
        until(lambda: len(((found := here.status("a")) and found.waiters) or ()) == 10, "they wait", watching=waiting)
        statements: list[str] = []
        file = here._core.backend._file  # type: ignore[attr-defined]  # SQLite's own
        file._connection.set_trace_callback(statements.append)
        assert held.release()
        file._connection.set_trace_callback(None)
        for each in waiting:
            assert each.result().shared
    assert len([each for each in statements if "INSERT INTO share" in each]) == 10, "this let all of them in"
    assert len([each for each in statements if "count(*)" in each or "min(expires)" in each]) <= 2
