"""Code that interrupts a thread inside a gate, as a signal handler or ``__del__`` may, and comes to the same gate."""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import celery
import pytest

import fencepost
from fencepost import credentials, sync
from fencepost.compat import observed
from fencepost.contrib.celery import settings
from fencepost.credentials import Secret, Source, secret
from fencepost.driver import run
from fencepost.driver.threads import Blocking, ThreadSignal
from fencepost.errors import ConfigError
from fencepost.events import Event, Hook
from fencepost.hooks.audit import Audit, read
from fencepost.hooks.instruments import Classes
from fencepost.hooks.otel import Telemetry
from fencepost.hooks.page import Page
from tests.harness.descriptors import open_descriptors
from tests.harness.threads import background

PLAIN = {
    "backends/etcd/streams.py": "a sender goes on if it is taken; only the stream's own thread waits for it",
    "backends/redlock/broadcast.py": "each request has a gate of its own",
    "contrib/progress.py": "a write inside another one would be lost; no handler writes",
    "driver/gate.py": "it refuses a thread that is inside",
    "driver/threads.py": "not a gate: what one waiter waits for",
    "sql/fork.py": "taken while the process forks",
}
"""Where a lock of threading is not re-entrant, and why that hangs nobody."""


class Interrupted:
    """A gate in which something else happens once, to the thread that has just entered."""

    def __init__(self, gate: AbstractContextManager[object], interruption: Callable[[], object]) -> None:
        self._gate = gate
        self._interruption: Callable[[], object] | None = interruption

    def __enter__(self) -> None:
        self._gate.__enter__()
        if (interruption := self._interruption) is not None:
            self._interruption = None
            interruption()

    def __exit__(self, *about: Any) -> None:
        self._gate.__exit__(*about)

    @property
    def happened(self) -> bool:
        return self._interruption is None


def interrupt(owner: Any, call: Callable[[], object]) -> None:
    """Make a call that is interrupted, by the same call, inside the owner's gate."""
    gate = owner._gate = Interrupted(owner._gate, call)
    background(call).result()
    assert gate.happened


ACQUIRED = Event(kind="acquired", name="a", source="memory", token=1, holder="me", seconds=0.5)


def test_an_audit_log_has_both_events(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "log")
    interrupt(audit, lambda: audit(ACQUIRED))
    assert [line["token"] for line in read(tmp_path / "log")] == [1, 1]
    audit.close()


def test_an_audit_log_that_was_removed_is_opened_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interruption comes when the old file was closed, and the new one was opened."""
    path = tmp_path / "log"
    audit = Audit(path)
    path.unlink()
    close, closed = os.close, list[int]()

    def close_and_interrupt(file: int) -> None:
        close(file)
        closed.append(file)
        if len(closed) == 1:
            audit(ACQUIRED)

    monkeypatch.setattr("os.close", close_and_interrupt)
    background(lambda: audit(ACQUIRED)).result()
    monkeypatch.undo()
    assert len(closed) == 1
    assert [line["token"] for line in read(path)] == [1, 1]
    audit.close()


def refuse(number: int) -> Event:
    return Event(kind="decision", name="a", source="memory", token=number, enforced=True)


def at_the_first(monkeypatch: pytest.MonkeyPatch, name: str, interruption: Callable[[], object]) -> list[int]:
    """Interrupt the first call of a function of ``os``, before it does anything; the descriptors it is called with."""
    called, plain = list[int](), getattr(os, name)

    def interrupted(file: int, *args: Any) -> Any:
        called.append(file)
        if len(called) == 1:
            interruption()
        return plain(file, *args)

    monkeypatch.setattr(os, name, interrupted)
    return called


def test_an_audit_log_that_is_closed_meanwhile_has_the_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Audit(tmp_path / "log")
    before = open_descriptors()
    written = at_the_first(monkeypatch, "write", audit.close)
    background(lambda: audit(ACQUIRED)).result()
    assert len(written) == 1
    assert [line["token"] for line in read(tmp_path / "log")] == [1]
    assert len(open_descriptors()) == len(before) - 1, "it is closed now"


def test_a_torn_line_of_an_event_that_interrupts_another_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, write, lengths = Audit(tmp_path / "log", sync="never"), os.write, list[int]()

    def interrupted(file: int, text: bytes) -> int:
        lengths.append(len(text))
        if len(lengths) == 2:
            return write(file, text[:20])  # the disk is full
        written = write(file, text)
        if len(lengths) == 1:
            with pytest.raises(OSError, match="only 20 of"):
                audit(refuse(2))
        return written

    monkeypatch.setattr(os, "write", interrupted)
    for number in (1, 3):
        background(lambda number=number: audit(refuse(number))).result()  # type: ignore[misc]
    assert [line["token"] for line in read(tmp_path / "log")] == [1, 3]
    audit.close()


def test_an_event_is_on_disk_although_the_log_is_rotated_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    audit = Audit(path)
    files = list[int]()

    def rotate() -> None:
        files.append(path.stat().st_ino)
        path.unlink()
        audit(refuse(2))
        files.append(path.stat().st_ino)

    inodes, plain = list[int](), os.fsync

    def fsync(file: int) -> None:
        inodes.append(os.fstat(file).st_ino)
        plain(file)

    monkeypatch.setattr(os, "fsync", fsync)
    at_the_first(monkeypatch, "write", rotate)
    background(lambda: audit(refuse(1))).result()
    assert sorted(inodes) == sorted(files)
    audit.close()


def test_a_new_log_that_ends_in_a_torn_line_is_not_written_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    audit = Audit(path)
    path.unlink()
    path.write_bytes(b'{"tor')
    looked = at_the_first(monkeypatch, "lseek", lambda: audit(refuse(2)))
    background(lambda: audit(refuse(1))).result()
    assert len(looked) == 2
    assert [line["token"] for line in read(path)] == [2, 1]
    audit.close()


def test_credentials_are_told_to_code_that_interrupts_who_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[bool] = []

    class Noted(ThreadSignal):
        async def wait(self, timeout: float | None = None) -> bool:
            woken.append(await super().wait(timeout))
            return woken[-1]

    monkeypatch.setattr(credentials, "ThreadSignal", Noted)
    source = Source(lambda: "password", secret, Blocking(), scheme="redis", what="credentials=")
    told: list[Secret] = []
    gate = Interrupted(source._gate, lambda: told.append(run(source.get())))
    source._gate = gate  # type: ignore[assignment]
    told.append(background(lambda: run(source.get())).result())
    assert gate.happened
    assert told == [Secret(None, "password")] * 2
    assert woken == [True, True], "nobody waited for longer than the answer took"


def test_hooks_that_are_set_while_the_default_ones_are_made_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Event] = []
    made = Audit(tmp_path / "log")
    before = open_descriptors()

    def by_default() -> list[Hook]:
        observed.observe(seen.append)
        return [made]

    monkeypatch.setattr(observed, "_hooks", None)
    monkeypatch.setattr(observed, "_by_default", by_default)
    observed.tell("compat", "lost", "a")
    assert [event.kind for event in seen] == ["lost"]
    assert len(open_descriptors()) == len(before) - 1, "what is not used is closed"


def test_a_celery_app_has_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    app = celery.Celery("gates", set_as_current=False)
    connected: list[sync.Locks] = []

    def connect(app: celery.Celery) -> sync.Locks:
        locks = fencepost.connect("memory://")
        connected.append(locks)
        if len(connected) == 1:
            settings.locks_of(app)
        return locks

    monkeypatch.setattr(settings, "_connect", connect)
    assert settings.locks_of(app) is settings.locks_of(app) is connected[1]
    with pytest.raises(ConfigError, match="closed"):
        connected[0].acquire("a")
    connected[1].close()


def test_a_page_counts_both_events() -> None:
    page = Page()
    interrupt(page, lambda: page(ACQUIRED))
    counted = {name: count for name, _, count in page.data()["counters"]}
    assert counted["lock_acquire_success_total"] == 2


def test_classes_know_both_names() -> None:
    classes = Classes(lambda name: name)
    names = iter("ab")
    interrupt(classes, lambda: classes(next(names)))
    assert [classes(name) for name in "ab"] == ["a", "b"]


def test_spans_of_both_holds_are_kept() -> None:
    hook = Telemetry()
    holders = iter(("one", "two"))

    def acquired() -> None:
        hook(Event(kind="acquired", name="a", source="memory", token=1, holder=next(holders), seconds=0.5))

    interrupt(hook, acquired)
    assert set(hook._holds) == {"one", "two"}


def test_each_lock_that_is_not_reentrant_says_why() -> None:
    source = Path(fencepost.__file__).parent
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"threading\.Lock\(\)", path.read_text("utf-8"))
    }
    assert found == PLAIN.keys()
