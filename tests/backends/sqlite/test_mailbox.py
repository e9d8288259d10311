"""What wakes a waiter on an SQLite file, and what waiting costs."""

import gc
import os
import shutil
import socket
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.sqlite import mailbox
from tests.conformance.worker import Worker
from tests.harness.child import Child
from tests.harness.isolated import in_fork, isolated
from tests.harness.threads import Background, background
from tests.harness.waiting import PATIENCE, run, until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def worker(url: str) -> Iterator[Worker]:
    worker = Worker("blocking", url)
    yield worker
    worker.close()


class Waiter(Background[None]):
    """A thread that acquires."""

    def __init__(self, locks: sync.Locks) -> None:
        self.locks = locks
        self.lease: sync.Lease | None = None
        super().__init__(self._acquire)

    def _acquire(self) -> None:
        self.lease = self.locks.acquire("a")

    def served(self) -> sync.Lease:
        self.result()
        assert self.lease is not None
        return self.lease


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_mailbox_that_could_not_be_bound_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """It fails in the last step, when its thread runs already."""

    class Owner:
        def leave(self, name: str, holder: str) -> None: ...

    owner, folder = Owner(), tmp_path / "wakes"
    (tmp_path / "locks.db").touch()
    box = mailbox.Mailbox(tmp_path / "locks.db", folder, owner.leave)
    before = set(threading.enumerate())
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: raising(error))
        with pytest.raises(error):
            box.open()
    until(lambda: set(threading.enumerate()) <= before, "its thread has ended")
    box.close()
    assert list(folder.iterdir()) == []
    assert box.open() in [path.name for path in folder.iterdir()]
    box.close()
    assert list(folder.iterdir()) == []


def raising(error: type[BaseException]) -> None:
    raise error


def queued(locks: sync.Locks, count: int, *waiters: Background[Any]) -> None:
    def line() -> bool:
        status = locks.status("a")
        return status is not None and len(status.waiters) == count

    until(line, f"{count} waiters", watching=waiters)


def test_waiting_reads_the_file_a_bounded_number_of_times(url: str) -> None:
    """A poller would read it again and again: here time passes, and nothing is asked."""
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(url, ttl=60) as there:
        holder = here.acquire("a")
        statements: list[str] = []
        there.status("a")
        file = there._core.backend._file  # type: ignore[attr-defined]  # SQLite's own
        file._connection.set_trace_callback(statements.append)
        waiters = [Waiter(there) for _ in range(5)]
        queued(here, 5, *waiters)
        until(lambda: _quiet(statements), "it stops asking")
        file._connection.set_trace_callback(None)
        assert holder.release()
        for _ in waiters:
            assert next(_served(waiters)).release()


def _quiet(statements: list[str]) -> bool:
    before = len(statements)
    time.sleep(0.5)
    return len(statements) == before


def _served(waiters: list[Waiter]) -> Iterator[sync.Lease]:
    until(lambda: any(w.lease and not w.lease.ended for w in waiters), "one is served", watching=waiters)
    yield from (w.lease for w in waiters if w.lease and not w.lease.ended)


def test_a_release_sends_one_wake_up_and_only_to_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    really = mailbox.Sender.wake

    def counted(sender: mailbox.Sender, wakes: mailbox.Wakes) -> None:
        sent.extend(holder for _, holder in wakes)
        really(sender, wakes)

    monkeypatch.setattr(mailbox.Sender, "wake", counted)
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(url, ttl=60) as there:
        lease = here.acquire("a")
        waiters = [Waiter(there) for _ in range(8)]
        queued(here, 8, *waiters)
        for turn in range(1, 9):
            assert lease.release()
            lease = next(_served(waiters))
            assert len(sent) == turn
            assert sent[-1] == lease._stored
        assert lease.release()


@pytest.mark.parametrize("depth", [1, 4])
def test_very_long_paths_still_wake_waiters(tmp_path: Path, depth: int) -> None:
    """A socket's address holds 108 bytes; folders may be far deeper."""
    path = tmp_path.joinpath(*["deep" * 20] * depth, "locks.db")
    assert len(str(path)) > 108
    with fencepost.connect(f"sqlite://{path}", ttl=60) as here, fencepost.connect(f"sqlite://{path}", ttl=60) as there:
        holder = here.acquire("a")
        waiter = Waiter(there)
        queued(here, 1, waiter)
        assert holder.release()
        assert waiter.served().release()


def test_a_file_behind_a_link_has_the_mailboxes_of_the_file(tmp_path: Path, url: str) -> None:
    (tmp_path / "release").mkdir()
    link = tmp_path / "release" / "locks.db"
    link.symlink_to(tmp_path / "locks.db")
    with fencepost.connect(url, ttl=300) as file, fencepost.connect(f"sqlite://{link}", ttl=300) as linked:
        for here, there in ((file, linked), (linked, file)):
            holder = here.acquire("a")
            waiter = Waiter(there)
            queued(here, 1, waiter)
            assert holder.release()
            assert waiter.served().release()


def test_a_dead_waiter_is_skipped_at_once_and_its_mailbox_removed(url: str, tmp_path: Path, worker: Worker) -> None:
    with fencepost.connect(url, ttl=60) as locks:
        holder = locks.acquire("a")
        worker.tell("acquire", "a", {"ttl": 60})
        queued(locks, 1)
        boxes = set((tmp_path / "locks.db.wake").iterdir())
        assert len(boxes) == 1
        behind = Waiter(locks)
        queued(locks, 2, behind)
        worker.kill()
        assert holder.release()
        assert behind.served().release(), "long before the dead one's ttl"
        assert not boxes & set((tmp_path / "locks.db.wake").iterdir())


WAITS_AND_FORKS = """
import os, sys, threading, fencepost

locks = fencepost.connect(sys.argv[1], ttl=600)
threading.Thread(target=locks.acquire, args=("a",), daemon=True).start()
sys.stdin.readline()
if os.fork():
    threading.Event().wait()
print("forked", flush=True)
sys.stdin.readline()
print("lives", flush=True)
"""


def test_a_killed_waiter_is_skipped_although_a_child_of_its_process_lives(url: str) -> None:
    with fencepost.connect(url, ttl=600) as locks:
        holder = locks.acquire("a")
        with Child.python("-c", WAITS_AND_FORKS, url) as process:
            until(lambda: len(locks.list()[0].waiters) == 1, "it waits", watching=[process])
            process.tell("fork")
            assert process.line() == "forked"
            behind = Waiter(locks)
            queued(locks, 2, behind)
            process.kill()
            assert holder.release()
            assert behind.served().release(), "long before the dead one's ttl"
            process.tell("are you there")
            assert process.line() == "lives"


def test_closing_removes_the_mailbox(url: str, tmp_path: Path) -> None:
    with fencepost.connect(url, ttl=60) as locks:
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()
        assert list((tmp_path / "locks.db.wake").iterdir())
    assert not list((tmp_path / "locks.db.wake").iterdir())


def test_a_lost_wake_up_delays_no_longer_than_the_holders_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox.Sender, "wake", lambda sender, wakes: None)
    with fencepost.connect(url, ttl=3) as here, fencepost.connect(url, ttl=60) as there:
        holder = here.acquire("a")
        waiter = Waiter(there)
        queued(here, 1, waiter)
        assert holder.release()
        assert waiter.served().release()


def test_a_full_queue_forgets_the_dead_before_it_refuses(url: str, worker: Worker) -> None:
    with fencepost.connect(url, ttl=60, queue_limit=1) as locks:
        holder = locks.acquire("a")
        worker.tell("acquire", "a", {"ttl": 60})
        queued(locks, 1)
        dead = locks.list()[0].waiters
        worker.kill()
        waiter = Waiter(locks)
        until(lambda: locks.list()[0].waiters != dead, "the dead one is forgotten", watching=[waiter])
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()


@pytest.mark.slow
@isolated
def test_locks_that_are_dropped_unclosed_leave_no_thread_and_no_mailbox(url: str, tmp_path: Path) -> None:
    """As by a function that connects each time it is called, and waits now and then."""

    def turn() -> None:
        locks = fencepost.connect(url, ttl=3)
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()
        assert listeners() > before

    before = listeners()
    for _ in range(3):
        turn()

    def gone() -> bool:
        gc.collect()
        return listeners() == before and not list(tmp_path.glob("locks.db.wake/*"))

    until(gone, "no thread and no mailbox")


def listeners() -> int:
    return sum(thread.name == "fencepost-wake" for thread in threading.enumerate())


@isolated
async def test_a_child_that_drops_its_parents_locks_leaves_them_their_mailbox(url: str, tmp_path: Path) -> None:
    # No lease before the fork: the child would keep the stack of the thread that renews, and with it the locks.
    mine: dict[str, sync.Locks] = {"locks": fencepost.connect(url, ttl=60)}
    assert mine["locks"].status("a") is None
    mine["locks"]._core.backend._mailbox.open()  # type: ignore[attr-defined]  # SQLite's own
    mailbox = weakref.ref(mine["locks"]._core.backend._mailbox)  # type: ignore[attr-defined]  # SQLite's own

    async def drop() -> bool:
        mine.clear()
        gc.collect()
        return mailbox() is None

    assert await in_fork(drop, PATIENCE), "the child has dropped them"
    assert len(list((tmp_path / "locks.db.wake").iterdir())) == 1
    with mine["locks"] as locks:
        holder = locks.acquire("a")
        waiter = Waiter(locks)
        queued(locks, 1, waiter)
        assert holder.release()
        assert waiter.served().release()


class Counted(socket.socket):
    """A socket that counts what it sent, and what it waited for without success."""

    sent: ClassVar[list[object]] = []
    gave_up: ClassVar[list[object]] = []

    def sendto(self, data: bytes, address: str) -> int:  # type: ignore[override]
        try:
            done = super().sendto(data, address)
        except TimeoutError:
            self.gave_up.append(address)
            raise
        self.sent.append(address)
        return done


@pytest.mark.parametrize("frozen", [1, 3])
def test_a_release_to_frozen_processes_waits_for_their_mailboxes_once(
    url: str, monkeypatch: pytest.MonkeyPatch, frozen: int
) -> None:
    """And not once for each of their waiters: meanwhile nothing else is renewed."""
    monkeypatch.setattr(socket, "socket", Counted)
    monkeypatch.setattr(Counted, "sent", [])
    monkeypatch.setattr(Counted, "gave_up", [])
    waiters = 40
    workers = [Worker("blocking", url) for _ in range(frozen)]
    try:
        with fencepost.connect(url, ttl=60) as locks:
            lease = locks.acquire("a")
            for at in range(waiters):
                workers[at % frozen].tell("share", "a", {"ttl": 60})
                queued(locks, at + 1)
            for worker in workers:
                worker.freeze()
            assert lease.release()
            status = locks.status("a")
            assert status is not None
            assert len(status.sharers) == waiters, "all of them were let in"
            assert len(Counted.sent) < waiters, "their mailboxes were full"
            assert len(Counted.gave_up) == 1
    finally:
        for worker in workers:
            worker.close()


def test_each_waiter_of_a_frozen_process_is_handed_the_lock_for_its_ttl(url: str, worker: Worker) -> None:
    """Its mailbox takes what is sent to it, so nothing shows that nobody reads it."""
    with fencepost.connect(url, ttl=60) as locks:
        lease = locks.acquire("a")
        for at in range(2):
            worker.tell("acquire", "a", {"ttl": 0.5})
            queued(locks, at + 1)
        waiter = Waiter(locks)
        queued(locks, 3, waiter)
        worker.freeze()
        assert lease.release()
        assert waiter.served().token == lease.token + 3, "two others came before"


def test_a_release_wakes_more_waiters_of_one_process_than_its_mailbox_holds(url: str) -> None:
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(url, ttl=60) as there:
        lease = here.acquire("a")
        waiters = [Background(lambda: there.shared("a").acquire()) for _ in range(60)]
        queued(here, len(waiters), *waiters)
        assert lease.release()
        for waiter in waiters:
            assert waiter.result().release()


def test_mailboxes_of_dead_processes_do_not_pile_up() -> None:
    """As those of processes that were killed when nobody else was in line."""
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        pile_up(Path(folder) / "locks.db")


def pile_up(path: Path) -> None:
    boxes, url = path.with_name("locks.db.wake"), f"sqlite://{path}"
    with fencepost.connect(url, ttl=60) as locks, fencepost.connect(url, ttl=60) as there:
        there._core.backend._mailbox.open()  # type: ignore[attr-defined]  # SQLite's own
        (alive,) = boxes.iterdir()
        for name in ("0123456789abcdef", "a socket of another kind", "00000000000000ff.new", "00000000000000fe.new"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
                left.bind(str(boxes / name))
        (boxes / "fedcba9876543210").write_text("no mailbox")
        for each in boxes.iterdir():
            if each.name != "00000000000000ff.new":
                os.utime(each, (0, 0))
        mine = locks._core.backend._mailbox.open()  # type: ignore[attr-defined]  # SQLite's own
        assert {each.name for each in boxes.iterdir()} == {
            alive.name,
            mine,
            "a socket of another kind",
            "fedcba9876543210",
            "00000000000000ff.new",  # made just now: its process may not be listening yet
        }


def enqueue(path: Path, mailbox: str, holder: str = "x") -> None:
    """Queue a waiter for the lock "a" as any user may who can write to the file."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("INSERT INTO waiter (name, holder, ttl, mailbox) VALUES ('a', ?, 60, ?)", (holder, mailbox))
    finally:
        db.close()


OUTSIDE = {
    "an absolute path": "{folder}/precious",
    "a path upwards": "../precious",
    "a file in the folder": "precious",
    "a file with the name of a mailbox": "0123456789abcdef",
    "nothing": "",
    "a path with a null byte": "../precious\0",
}


@pytest.mark.parametrize("address", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("end", ["release", "join"])
def test_no_row_of_the_file_can_have_another_file_deleted(url: str, tmp_path: Path, address: str, end: str) -> None:
    with fencepost.connect(url, ttl=60, queue_limit=1) as locks:
        lease = locks.acquire("a")
        (tmp_path / "locks.db.wake").mkdir(exist_ok=True)
        files = [
            tmp_path / "precious",
            *(tmp_path / "locks.db.wake" / each for each in ("precious", "0123456789abcdef")),
        ]
        for file in files:
            file.write_text("precious")
        enqueue(tmp_path / "locks.db", address.format(folder=tmp_path))
        queued(locks, 1)
        if end == "release":
            assert lease.release()
            assert locks.status("a") is None, "no process has that mailbox, so no one is waiting"
        else:
            with pytest.raises(fencepost.NotAcquired) as raised:
                locks.acquire("a", timeout=0.01)
            assert type(raised.value) is fencepost.NotAcquired, "the queue was full of a waiter that is none"
            assert lease.release()
        assert [file.exists() for file in files] == [True] * 3


@pytest.mark.parametrize("place", ["../elsewhere", "{folder}/elsewhere"])
def test_a_row_of_the_file_cannot_name_a_socket_elsewhere(short_folder: Path, place: str) -> None:
    url = f"sqlite://{short_folder}/locks.db"
    with fencepost.connect(url, ttl=60) as locks, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as elsewhere:
        lease = locks.acquire("a")
        (short_folder / "locks.db.wake").mkdir(exist_ok=True)
        elsewhere.bind(str(short_folder / "elsewhere"))
        elsewhere.setblocking(False)
        enqueue(short_folder / "locks.db", place.format(folder=short_folder))
        assert lease.release()
        with pytest.raises(BlockingIOError):
            elsewhere.recv(100)
        assert locks.status("a") is None


def import_all(home: str) -> None:
    """Import all that a waiter uses: another user may not read the files of a clone in, say, root's home."""
    with fencepost.connect(f"sqlite://{home}/other.db", ttl=60) as locks:
        lease = locks.acquire("a")
        waiting = background(lambda: locks.acquire("a"))
        queued(locks, 1, waiting)
        assert lease.release()
        assert waiting.result().release()


@isolated
def test_a_mailbox_that_may_not_be_removed_does_not_fail_the_release() -> None:
    """As one that a dead process of another user left."""
    with tempfile.TemporaryDirectory() as home:
        import_all(home)
        box = Path(home) / "locks.db.wake" / "0123456789abcdef"
        os.chmod(home, 0o777)
        if os.geteuid() == 0:
            os.seteuid(65534)  # for root, no mode forbids anything
        with fencepost.connect(f"sqlite://{home}/locks.db", ttl=60) as locks:
            lease = locks.acquire("a")
            box.parent.mkdir()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
                left.bind(str(box))
            box.parent.chmod(0o555)
            with pytest.raises(PermissionError):
                box.unlink()
            enqueue(Path(home) / "locks.db", box.name)
            assert lease.release()
            assert locks.status("a") is None
        box.parent.chmod(0o755)
        os.seteuid(os.getuid())


ANN, BOB = (65533, 65534) if os.geteuid() == 0 else (os.getuid(), os.getuid())


@isolated
def test_a_waiter_of_another_user_is_woken_at_once_where_both_may_write_to_the_file() -> None:
    """Not only when the holder's deadline has passed, which is ten minutes away."""
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as home:  # a socket's path is short
        import_all(home)
        os.chmod(home, 0o777)
        path = Path(home) / "locks.db"
        path.touch()
        path.chmod(0o666)

        async def wait() -> int:
            if ANN != BOB:
                os.seteuid(0)
                os.setgroups([])
                os.setgid(ANN)
                os.setuid(ANN)
            with fencepost.connect(f"sqlite://{path}", ttl=600) as locks:
                return locks.acquire("a").token

        os.seteuid(BOB)
        with fencepost.connect(f"sqlite://{path}", ttl=600) as locks:
            # The folder of the mailboxes is this user's, too: the other one needs it.
            locks._core.backend._mailbox.open()  # type: ignore[attr-defined]  # SQLite's own
            lease = locks.acquire("a")
            answer = in_fork(wait, PATIENCE)
            queued(locks, 1)
            assert lease.release()
            os.seteuid(os.getuid())  # to end the child
            assert run(_awaited(answer)) == lease.token + 1


async def _awaited(answer: Awaitable[int]) -> int:
    return await answer


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o660, 0o666])
@isolated
def test_who_may_write_to_the_file_may_write_to_its_mailboxes_and_nobody_else(mode: int) -> None:
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "locks.db"
        path.touch()
        path.chmod(mode)
        with fencepost.connect(f"sqlite://{path}", ttl=60) as locks:
            locks.acquire("a").release()
            box = locks._core.backend._mailbox.open()  # type: ignore[attr-defined]  # SQLite's own
            folder = path.with_name("locks.db.wake")
            assert (folder / box).stat().st_mode & 0o022 == mode & 0o022
            assert folder.stat().st_mode & 0o022 == mode & 0o022


@isolated
def test_a_mailbox_that_was_replaced_by_a_link_opens_no_other_file() -> None:
    """By somebody who may write to the folder, between two steps of the process that makes the mailbox."""
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as home:
        path, secret = Path(home) / "locks.db", Path(home) / "secret"
        for each, mode in ((path, 0o666), (secret, 0o600)):
            each.touch()
            each.chmod(mode)
        box = Path(home) / "0123456789abcdef"
        for replaced in (box.symlink_to, box.hardlink_to):
            replaced(secret)
            mailbox.permit(box, path)
            assert secret.stat().st_mode & 0o777 == 0o600
            box.unlink()


def test_a_waiter_with_a_strange_id_does_not_fail_the_release(url: str, tmp_path: Path) -> None:
    with fencepost.connect(url, ttl=60) as locks, fencepost.connect(url, ttl=60) as there:
        lease = locks.acquire("a")
        box = there._core.backend._mailbox.open()  # type: ignore[attr-defined]  # SQLite's own
        enqueue(tmp_path / "locks.db", box, "h\u00f6lder")
        assert lease.release()
        status = locks.status("a")
        assert status is not None
        assert status.holder == "h\u00f6lder"


def test_the_schema_of_the_file_is_not_trusted(url: str) -> None:
    """Another user may have made it: what its triggers and views may call is limited."""
    with fencepost.connect(url) as locks:
        locks.status("a")
        file = locks._core.backend._file  # type: ignore[attr-defined]  # SQLite's own
        assert file.read("PRAGMA trusted_schema") == [(0,)]


def test_a_mailbox_on_a_disk_that_stalls_is_read_all_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def stall(self: Path, target: Path) -> Path:
        time.sleep(0.3)  # several looks
        return rename(self, target)

    monkeypatch.setattr(mailbox, "LOOK", 0.05)
    monkeypatch.setattr(Path, "rename", stall)
    with fencepost.connect(url, ttl=300) as locks, fencepost.connect(url, ttl=300) as others:
        lease = others.acquire("a")
        waiter = Waiter(locks)
        queued(others, 1, waiter)
        assert lease.release()
        waiter.served()


def test_a_mailbox_that_somebody_removed_is_bound_again(tmp_path: Path, url: str) -> None:
    """As by ``rm -rf locks.db*``. Nobody else could wake its waiters, and all would take them for dead."""
    with fencepost.connect(url, ttl=10 * PATIENCE) as locks, fencepost.connect(url, ttl=10 * PATIENCE) as others:
        for remove in (True, False):
            holder = others.acquire("a")
            waiting = Background(lambda: locks.acquire("a"))
            until(lambda: (status := others.status("a")) is not None and len(status.waiters) == 1, "it waits")
            assert holder.release()
            assert waiting.result().release(), "long before the holder's deadline"
            if remove:
                [folder] = tmp_path.glob("*.wake")
                shutil.rmtree(folder)
