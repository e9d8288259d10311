"""A program at a pseudo-terminal of its own, in a session of its own: the test types, and reads the screen."""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from fencepost_lab.servers.processes import kill_all, spawn
from tests import ROOT
from tests.harness.waiting import PATIENCE, until

# A session leader that opens a terminal gets it as its controlling terminal.
_AT_TERMINAL = 'exec 0<>"$0" 1>&0 2>&0; exec "$@"'


_SIZE = ("COLUMNS", "LINES")  # pytest's workers have them, and programs believe them before they ask the terminal


class Terminal:
    """One program whose input, output and controlling terminal is a new pseudo-terminal.

    It works wherever the tests run: in the background, without a terminal, with signals ignored by the parent.
    """

    def __init__(self, command: Sequence[object], *, env: Mapping[str, str] | None = None) -> None:
        self._ours, self._theirs = pty.openpty()  # theirs stays open: without it, a read before the start would fail
        os.set_blocking(self._ours, False)
        inherited = {name: value for name, value in os.environ.items() if name not in _SIZE}
        self.command = [str(part) for part in command]
        self.process = spawn(
            ["sh", "-c", _AT_TERMINAL, os.ttyname(self._theirs), *self.command],
            cwd=ROOT,
            env={**inherited, "TERM": "xterm-256color", **(env or {})},
        )
        self.screen = ""
        self._shown = 0

    def shows(self, text: str, deadline: float = PATIENCE) -> None:
        """Wait until the text is on the screen, after the text of the last wait."""
        __tracebackhide__ = True

        def shown() -> bool:
            ended = self._read()
            if text not in self.screen[self._shown :]:
                assert ended is None, f"{self.command[:6]} ended with status {ended}, and showed no {text!r}"
                return False
            self._shown = self.screen.index(text, self._shown) + len(text)
            return True

        try:
            until(shown, f"{text!r} on the screen", deadline=deadline)
        except AssertionError as error:
            error.add_note(f"--- the screen:\n{self.screen}\n---")
            raise

    def ends(self, deadline: float = PATIENCE) -> int:
        """Wait for the end of the program; its exit status. Until then it may go on to write to the screen.

        Nobody else reads that: a program that draws until it sees a key would fill the terminal, and see no key.
        """
        until(lambda: self._read() is not None, f"the end of {self.command[:6]}", deadline=deadline)
        return self.process.wait()

    def _read(self) -> int | None:
        """Read what there is; the exit status of the program if it had ended before."""
        ended = self.process.poll()
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self._ours, 65536):
                self.screen += said.decode(errors="replace")
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: builtins.type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the program and everything it has started."""
        if self.process.poll() is None:
            kill_all(self.process.pid)
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def type(self, text: str) -> None:
        """Press the keys; ``\x03`` is Ctrl-C."""
        os.write(self._ours, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal; its programs get a signal."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def echoes(self) -> bool:
        """Whether it shows what is typed, and takes whole lines, as a shell needs it."""
        flags = termios.tcgetattr(self._theirs)[3]
        return bool(flags & termios.ECHO) and bool(flags & termios.ICANON)
