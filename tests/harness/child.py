"""A process of the test's own: it is talked to, frozen, signalled and killed, and never outlives the test.

A failure shows the child's side: its exit status, what it printed last, and its traceback.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fencepost_lab.servers.processes import STILL, spawn, state_of
from tests import ROOT
from tests.harness.waiting import PATIENCE, until

CLOSED = object()
# As ``unhurried`` does in the process of the tests.
_UNHURRIED = f"from fencepost import cli, locks; locks._ANSWER = {PATIENCE}; cli.main()"


def _free(file: str) -> bool:
    """Whether no process is inside a transaction that writes to an SQLite file."""
    with contextlib.closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
        return True


class ChildFailed(AssertionError):
    """The child ended, or stayed silent, when it should not have; the message has its side of it."""


class Child:
    """One process. Its output is collected as it comes; ``errors`` is what it wrote to standard error."""

    def __init__(
        self,
        command: Sequence[object],
        *,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        stdin: Any = subprocess.PIPE,
        merged: bool = False,
    ) -> None:
        self.command = [str(part) for part in command]
        self.lines: list[str] = []
        self.errors = ""
        self._read = 0
        self._news = threading.Condition()
        # Reset every signal to the system's default: under nohup, or in a shell's background job, some are ignored.
        self.process = spawn(
            ["env", "--default-signal", *self.command],
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        )
        self._readers = [threading.Thread(target=self._listen, daemon=True)]
        if not merged:
            self._readers.append(threading.Thread(target=self._listen_to_errors, daemon=True))
        for reader in self._readers:
            reader.start()

    @classmethod
    def python(cls, *arguments: object, **options: Any) -> Self:
        """An interpreter: ``Child.python("-m", "tests.programs.x", ...)`` or ``Child.python("-c", source)``."""
        return cls([sys.executable, "-X", "faulthandler", *arguments], **options)

    @classmethod
    def fencepost(cls, *arguments: object, **options: Any) -> Self:
        """The command line program."""
        return cls.python("-m", "fencepost", *arguments, **options)

    @classmethod
    def unhurried(cls, *arguments: object, **options: Any) -> Self:
        """The same, where an acquire whose timeout is over waits for the store's answer: NotAcquired in any case."""
        return cls.python("-c", _UNHURRIED, *arguments, **options)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self.lines.append(CLOSED)  # type: ignore[arg-type]  # taken out again by the readers below
            self._news.notify_all()

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line.decode(errors="replace")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> list[str]:
        """Every line printed so far."""
        return [line for line in self.lines if line is not CLOSED]

    @property
    def story(self) -> str:
        """The child's side, for a failure's message."""
        status = self.process.poll()
        state = "still runs" if status is None else f"ended with status {status}"
        said = ["--- its last output:", *self.output[-20:], "--- its errors:", self.errors[-6000:]]
        return "\n".join([f"{' '.join(self.command[:6])} {state}", *said])

    def tell(self, line: str) -> None:
        """Write one line to its standard input."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.wait(PATIENCE)
            self._join()
            raise ChildFailed(f"could not tell it {line!r}: {self.story}") from None

    def tell_json(self, fact: Any) -> None:
        self.tell(json.dumps(fact))

    def line(self, deadline: float = PATIENCE) -> str:
        """The next line that was not read yet; ChildFailed if it ends, or says nothing for so long."""
        end = time.monotonic() + deadline
        with self._news:
            while len(self.lines) <= self._read:
                if not self._news.wait(min(end - time.monotonic(), threading.TIMEOUT_MAX)) and time.monotonic() >= end:
                    raise ChildFailed(f"said nothing for {deadline:g} s: {self.story}")
            line = self.lines[self._read]
            if line is not CLOSED:
                self._read += 1
                return line
        self.process.wait(PATIENCE)
        self._join()
        raise ChildFailed(self.story)

    def json(self, deadline: float = PATIENCE) -> Any:
        """The next line, decoded."""
        return json.loads(self.line(deadline))

    def heard(self, wanted: str | Callable[[str], bool], deadline: float = PATIENCE) -> str:
        """Read on until a line that contains ``wanted``, or for which it is true, and return that line."""
        end = time.monotonic() + deadline
        while True:
            line = self.line(end - time.monotonic())
            if wanted in line if isinstance(wanted, str) else wanted(line):
                return line

    def event(self, name: str, deadline: float = PATIENCE) -> dict[str, Any]:
        """Read on until the JSON line whose ``event`` is ``name``, and return it."""
        line = self.heard(lambda line: json.loads(line)["event"] == name, deadline)
        fact: dict[str, Any] = json.loads(line)
        return fact

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def freeze(self, store: str = "") -> None:
        """SIGSTOP it; returns when it has stopped.

        With a ``store`` in SQLite, between two transactions: inside one, it would lock everybody out of the file.
        """
        scheme, _, rest = store.partition(":")
        file = rest.removeprefix("//").partition("?")[0] if scheme == "sqlite" else ""
        for _ in range(1000):
            self.signal(signal.SIGSTOP)
            until(lambda: state_of(self.pid) in STILL, f"process {self.pid} stops", poll=0.002)
            assert self.running, self.story
            if not file or _free(file):
                return
            self.thaw()
            time.sleep(0.001)
        raise AssertionError(f"process {self.pid} is always inside a transaction")

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self.process.kill()
        self.process.wait()

    def wait(self, deadline: float = PATIENCE) -> int:
        """Its exit status; everything it said has been read then."""
        try:
            status = self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"still runs after {deadline:g} s: {self.story}") from None
        self._join()
        return status

    def finish(self, deadline: float = PATIENCE) -> int:
        """Close its standard input and wait for its end."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.wait(deadline)

    def succeed(self, deadline: float = PATIENCE) -> list[str]:
        """Wait for its end with status 0; what it printed."""
        if self.wait(deadline) != 0:
            raise ChildFailed(self.story)
        return self.output

    def check(self) -> None:
        """Raise ChildFailed if it ended by itself with an error."""
        if self.process.poll() not in (None, 0):
            self._join()
            raise ChildFailed(self.story)

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, ChildFailed):
            error.add_note(self.story)
        self.close()

    def close(self) -> None:
        """Kill it and what it has started, if they still run, and close its pipes."""
        if self.running or any(reader.is_alive() for reader in self._readers):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # it leads a session of its own
        self.kill()
        self._join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # what it never read
