"""A forked child uses nothing of its parent's: no connection, no file lock, no gate that a thread there holds."""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import fencepost
from fencepost.errors import ConfigError, LeaseLost
from fencepost.events import Event
from fencepost.guards import sqlite
from fencepost.guards.etcd import EtcdGuard
from fencepost.guards.file import FileGuard
from fencepost.guards.marks import Marks
from fencepost.guards.memory import MemoryGuard
from fencepost.guards.policy import Policy
from fencepost.hooks.otel import Telemetry
from fencepost.lease import Reason
from fencepost.rule import Stamp, Verdict
from fencepost.sql import fork
from tests.harness.child import Child
from tests.harness.isolated import in_fork, isolated
from tests.harness.leases import lease as lease_of
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, run, until

ROUNDS = 25


def forked(call: Callable[[], Any]) -> Any:
    """Start ``call`` in a forked child; what is returned waits for its answer."""

    async def job() -> Any:
        return call()

    answer = in_fork(job, PATIENCE)

    async def wait() -> Any:
        return await answer

    return lambda: run(wait())


def write_and_look(guard: EtcdGuard, name: str) -> list[str]:
    """What was wrong with the answers to one process's own writes."""
    wrong = []
    for number in range(1, ROUNDS + 1):
        value = f"{name} {number}".encode()
        made = guard.write(name, value, number)
        if not made or (seen := guard.peek(name)) != value:
            wrong.append(f"wrote {value!r} ({made}), then saw {seen!r}")
    return wrong


@isolated
def test_parent_and_child_do_not_read_each_other_s_answers_from_etcd(etcd_server: Endpoint, thing: str) -> None:
    guard = EtcdGuard(etcd_server.url.replace("etcd:", "http:"))
    guard.peek(thing)
    (idle,) = guard._idle
    port = idle.sock.getsockname()[1]
    child = forked(lambda: write_and_look(guard, f"{thing}/child"))
    assert write_and_look(guard, f"{thing}/parent") == []
    assert child() == []
    guard.peek(thing)
    assert [each.sock.getsockname()[1] for each in guard._idle] == [port], "the child left the parent's open"
    guard.close()


def write_marks(marks: Marks, names: str) -> None:
    for token in range(6, 16):
        for name in names:
            marks(name, token, "write")


@isolated
def test_marks_of_a_child_forked_during_a_request_of_the_parent_s(tmp_path: Path) -> None:
    fork._PATIENCE = PATIENCE  # on a busy machine a commit may take longer than a fork waits for it
    marks = Marks(tmp_path / "marks.sqlite3")
    inside, forking = threading.Event(), threading.Event()
    os.register_at_fork(before=forking.set)

    def meanwhile(event: object) -> None:
        inside.set()
        assert forking.wait(PATIENCE)

    request = background(lambda: marks("a", 5, "write", hooks=[meanwhile]))
    assert inside.wait(PATIENCE)
    child = forked(lambda: write_marks(marks, "bc"))
    write_marks(marks, "a")
    request.result()
    child()
    assert [_mark(marks, name) for name in "abc"] == [Stamp(15)] * 3
    marks.close()


@isolated
def test_no_connection_of_marks_is_open_in_a_child_forked_while_a_thread_waits_for_the_file(tmp_path: Path) -> None:
    fork._PATIENCE = PATIENCE  # on a busy machine one look at the file may take longer than a fork waits for it
    path = tmp_path / "marks.sqlite3"
    marks = Marks(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        request = background(lambda: marks("a", 5, "write"))
        until(lambda: marks._gate.held_up, "it waits for the file", watching=[request])
        child = forked(lambda: len(fork._leaked))
        other.execute("ROLLBACK")
    assert child() == 0
    request.result()
    assert _mark(marks, "a") == Stamp(5)
    marks.close()


def _mark(marks: Marks, name: str) -> Stamp | None:
    with marks._gate:
        return sqlite.mark(marks._open(), name)


@isolated
def test_a_child_forked_during_an_update_does_not_keep_the_file_locked(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    inside, go = threading.Event(), threading.Event()

    def change(before: bytes | None) -> bytes:
        inside.set()
        assert go.wait(PATIENCE)
        return b"1"

    update = background(lambda: guard.update("thing", change, 5))
    assert inside.wait(PATIENCE)
    reader, writer = os.pipe()
    stay = forked(lambda: os.read(reader, 1))
    go.set()
    update.result()
    background(lambda: guard.write("thing", b"2", 6)).result(PATIENCE / 2)  # while the child lives
    os.write(writer, b"!")
    assert stay() == b"!"
    assert guard.peek("thing") == b"2"


FORKS = """
import os, sys, threading
from fencepost.guards.file import FileGuard

inside = threading.Event()
def change(before):
    inside.set()
    threading.Event().wait()

threading.Thread(target=FileGuard(sys.argv[1]).update, args=("thing", change, 5), daemon=True).start()
inside.wait()
if child := os.fork():
    print(child, flush=True)
threading.Event().wait()
"""


def test_a_child_does_not_keep_the_file_locked_for_a_parent_that_was_killed(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    with Child.python("-c", FORKS, tmp_path) as parent:
        child = int(parent.line())
        parent.kill()
        background(lambda: guard.write("thing", b"2", 6)).result(PATIENCE / 2)
        os.kill(child, 0)  # it is still there
    assert guard.peek("thing") == b"2"


@isolated
def test_a_change_that_forks_is_made_by_the_parent_alone(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    children: list[int] = []

    def change(before: bytes | None) -> bytes:
        children.append(os.fork())
        return b"parent's" if children[0] else b"child's"

    try:
        guard.update("thing", change, 5)
    except ConfigError as error:
        os._exit(42 if children == [0] and "was forked" in str(error) else 1)
    assert children[0], "the child wrote"
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 42
    assert guard.peek("thing") == b"parent's"


@isolated
def test_a_child_does_not_wait_for_a_thread_of_its_parent_s(tmp_path: Path) -> None:
    held = lease_of("lock", "ann", 5)
    files, memory = FileGuard(tmp_path), MemoryGuard[bytes]()
    inside, go = threading.Semaphore(0), threading.Event()

    def change(before: bytes | None) -> bytes:
        inside.release()
        assert go.wait(PATIENCE)
        return b"1"

    updates = [background(partial(guard.update, "thing", change, held)) for guard in (files, memory)]
    for _ in updates:
        assert inside.acquire(timeout=PATIENCE)

    def write() -> list[bool]:
        own = lease_of("lock", "bob", 6)
        return [files.write("other", b"2", own), memory.write("other", b"2", own)]

    child = forked(write)
    assert child() == [True, True]
    go.set()
    for update in updates:
        update.result()


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except LeaseLost as error:
        return "belongs to the parent" in str(error)
    return False


@isolated
def test_a_child_cannot_write_under_its_parent_s_lease(tmp_path: Path) -> None:
    """Its stamps would be the parent's own, and its writes taken for retries of the parent's: made already."""
    path = tmp_path / "app.sqlite3"
    files, memory = FileGuard(tmp_path / "files"), MemoryGuard[bytes]()

    def admit(lease: Any) -> bool:
        with closing(sqlite3.connect(path, timeout=PATIENCE)) as conn, conn:
            return sqlite.admit(conn, "thing", lease, payload=b"10")

    with fencepost.connect("memory://") as locks, locks.lock("thing") as lease:
        over = lease_of("thing", "ann", 5)
        over._end(Reason.EXPIRED)
        access = lease.access()

        def attempts() -> list[bool]:
            calls: list[Callable[[], Any]] = [
                lambda: admit(lease),
                lambda: admit(over),
                lambda: files.write("thing", b"10", lease),
                lambda: files.write("thing", b"10"),
                lambda: files.read("thing", lease),
                lambda: memory.update("thing", lambda _: b"10", lease),
                lease.access,
            ]
            return [refused(call) for call in calls]

        child = forked(attempts)
        assert child() == [True] * 7
        child = forked(lambda: [admit(access), admit(access)])
        assert child() == [True, False], "an access that it was given is one of its own"
        assert admit(lease), "and the parent goes on"


@isolated
def test_a_child_s_own_lease_speaks_for_it(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    with fencepost.connect("memory://") as locks, locks.lock("account/42"):

        def write() -> bool:
            with locks.lock("account"):
                return guard.write("account/42/balance", b"x")

        assert forked(write)()


@isolated
def test_while_nothing_is_refused_the_parent_s_lease_counts_as_none(tmp_path: Path) -> None:
    told: list[Event] = []
    guards = [FileGuard(tmp_path, hooks=[told.append], policy=Policy(mode)) for mode in ("off", "passive", "shadow")]
    with fencepost.connect("memory://") as locks, locks.lock("thing") as lease:

        def write() -> tuple[list[bool], list[Any]]:
            return [guard.write("thing", b"x", lease) for guard in guards], [event.verdict for event in told]

        assert forked(write)() == ([True] * 3, [Verdict.MISSING] * 2)


@isolated
def test_a_child_ends_no_span_of_its_parent_s() -> None:
    hook = Telemetry()
    hook(Event(kind="acquired", name="thing", source="redis", token=7, holder="ann"))

    def release() -> int:
        before = len(hook._holds)
        hook(Event(kind="released", name="thing", source="redis", token=7, holder="ann"))
        return before

    with hook._gate:  # as a thread of the parent's would
        child = forked(release)
    assert child() == 0
    assert len(hook._holds) == 1
