"""An audit log of JSON lines, as a hook: ``connect(..., hooks=[Audit("audit.jsonl")])``.

Each line is one event: what happened, to which lock or resource, with which token, and what was decided.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fencepost.driver.fork import in_child
from fencepost.errors import ConfigError
from fencepost.events import Event, Kind

__all__ = ["Audit", "read"]

Sync: TypeAlias = Literal["never", "refusals", "always"]

_BY_HAND: tuple[Kind, ...] = ("override", "raise_mark", "lower_mark")
_KINDS: tuple[Kind, ...] = ("acquired", "released", "at_risk", "recovered", "lost", "not_owner", "decision", *_BY_HAND)


class Audit:
    """Appends events to a file, which many threads and processes may share, and which may be rotated at any time.

    ``sync`` says which lines are on disk, safe from a power loss, before the hook returns: "refusals" are accesses that
    were refused or passed against the rule, overrides, and marks changed by hand; "always" is all of them; "never" is
    none. Killing the process loses no line. ``kinds`` chooses what is written. Raises ConfigError if the file cannot be
    written. If a line cannot be written later, that is logged, like every failure of a hook.

        locks = fencepost.connect("redis://localhost", hooks=[Audit("audit.jsonl")])
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sync: Sync = "refusals", kinds: Iterable[Kind] = _KINDS
    ) -> None:
        if sync not in ("never", "refusals", "always"):
            raise ConfigError(f"an audit log is synced never, refusals or always, not {sync!r}")
        self._path = Path(path).absolute()
        self._sync = sync
        self._kinds = frozenset(kinds)
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._file = -1
        self._torn = False
        self._turn: object = None
        """The event that was written last."""
        self._inside = 0
        """How many events are being written: more than one if one interrupts another."""
        self._closing: list[int] = []
        """Files to be closed once no event is being written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"the audit log {str(self._path)!r} cannot be written: {why}; name another") from error
        in_child(self, Audit._forked)

    def __call__(self, event: Event) -> None:
        if event.kind not in self._kinds:
            return
        line = json.dumps(event.facts(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        with self._gate:
            self._inside += 1
            try:
                self._write(line, self._sync == "always" or (self._sync == "refusals" and _matters(event)))
            finally:
                self._inside = max(self._inside - 1, 0)
                self._close()

    def close(self) -> None:
        """Close the file; an event that comes later opens it again."""
        with self._gate:
            self._use(-1)

    def _forked(self) -> None:
        # A thread of the parent may have been inside, and is not here to leave.
        self._gate = threading.RLock()
        self._inside = 0

    def _write(self, line: bytes, sync: bool) -> None:
        file = self._current()
        if file < 0:
            file = self._open()
        # After a torn line, which a full disk or a power loss leaves, begin a new line for the next event.
        text = b"\n" + line if self._torn else line
        turn = self._turn = object()
        self._torn = True
        # One write to a file opened for appending: lines of several processes never mix.
        written = os.write(file, text)
        if written < len(text):
            raise OSError(f"only {written} of {len(text)} bytes fit into the audit log {str(self._path)!r}")
        if self._turn is turn:  # else the line of an event that interrupted this one is the last, and may be torn
            self._torn = False
        if sync:
            os.fsync(file)

    def _use(self, file: int) -> None:
        before, self._file = self._file, file
        if before >= 0:
            self._closing.append(before)
            self._close()

    def _close(self) -> None:
        """Close what is used no longer, unless this interrupts an event that is being written to it."""
        while not self._inside and self._closing:
            os.close(self._closing.pop())

    def _current(self) -> int:
        """The open file, if it is still the one of that name, else -1; a rotation renames or removes it."""
        file = self._file
        with contextlib.suppress(FileNotFoundError):
            if file >= 0 and os.path.samestat(os.stat(self._path), os.fstat(file)):
                return file
        return -1

    def _open(self) -> int:
        # O_BINARY exists, and is needed, only on Windows. Python has the file closed on exec, where there is exec.
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o640)
        # Before the file is used: an event that interrupts this one must not be written behind a torn line.
        self._torn = os.fstat(file).st_size > 0 and os.lseek(file, -1, os.SEEK_END) >= 0 and os.read(file, 1) != b"\n"
        self._use(file)
        return file


def read(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The facts of each line, in order; torn lines, such as a crash leaves, are passed over.

    For example::

        refused = [line for line in read("audit.jsonl") if line.get("enforced")]
    """
    with open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                facts = json.loads(line)
                if isinstance(facts, dict):
                    yield facts


def _matters(event: Event) -> bool:
    return event.enforced is not None or event.kind in _BY_HAND
