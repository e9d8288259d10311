"""A forked child uses nothing of its parent's: no connection, no file lock, no gate that a thread of the parent holds."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fencepost.guards.etcd import EtcdGuard
from fencepost.guards.marks import Marks
from fencepost.rule import Stamp
from tests.harness.isolated import in_fork, isolated
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, run

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


@isolated
def test_marks_of_a_child_forked_during_a_request_of_the_parent_s(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks.sqlite3")
    inside, forking = threading.Event(), threading.Event()
    os.register_at_fork(before=forking.set)

    def meanwhile(event: object) -> None:
        inside.set()
        assert forking.wait(PATIENCE)

    request = background(lambda: marks("a", 5, "write", hooks=[meanwhile]))
    assert inside.wait(PATIENCE)
    child = forked(lambda: [marks(name, token, "write") for token in range(6, 16) for name in ("b", "c")])
    for token in range(6, 16):
        marks("a", token, "write")
    request.result()
    child()
    assert [_mark(marks, name) for name in "abc"] == [Stamp(15)] * 3
    marks.close()


def _mark(marks: Marks, name: str) -> Stamp | None:
    from fencepost.guards import sqlite

    with marks._gate:
        return sqlite.mark(marks._open(), name)
