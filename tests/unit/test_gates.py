"""Code that interrupts a thread inside a gate, as a signal handler or ``__del__`` may, and comes to the same gate."""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.events import Event
from fencepost.hooks.audit import Audit, read
from fencepost.hooks.instruments import Classes
from fencepost.hooks.otel import Telemetry
from fencepost.hooks.page import Page
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
