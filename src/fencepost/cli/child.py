"""A command that runs under a lease: its signals, its terminal, and its end when the lease is lost."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from fencepost.cli import launch
from fencepost.cli.exits import SIGNALLED

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Those that end the wait for the lock as well."""
Still: TypeAlias = Callable[[], AbstractContextManager[object]]
"""What keeps our threads from what holds others up: SQLite's, for a transaction that is stopped locks the file."""


class Child:
    """One command in a process group of its own; where we have the terminal, it gets it.

    ``may_go_on`` is asked when a stopped job is continued; ``still`` is for ``stop``.
    """

    def __init__(
        self,
        command: Sequence[str],
        extra: dict[str, str],
        *,
        may_go_on: Callable[[], bool],
        still: Still,
    ) -> None:
        self._may_go_on = may_go_on
        self._still = still
        self._terminal = sys.stdin.fileno() if _have_terminal() else None
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._changed.set)
        loop.add_signal_handler(signal.SIGCONT, self._continued)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # taking the terminal back must not stop us
        try:
            self._process = _launch(command, {**os.environ, **extra}, self._terminal)
        except OSError:
            self._give_terminal(os.getpgrp())  # launch.py may have taken it
            raise
        self.group = self._process.pid
        self._give_terminal(self.group)

    def send(self, number: int) -> bool:
        """Send a signal to the command and to what it has started; False if we may not, for it is another user's."""
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        return True

    async def wait(self) -> int:
        """The exit code of the command, 128 + n for signal n. Stops us too when the user stops it (Ctrl-Z)."""
        while True:
            self._changed.clear()
            pid, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED)
            if not pid:
                await self._changed.wait()
            elif not os.WIFSTOPPED(status):
                self._give_terminal(os.getpgrp())
                code = os.waitstatus_to_exitcode(status)
                self._process.returncode = code  # reaped here: Popen need not look for it
                return code if code >= 0 else SIGNALLED - code
            elif self._terminal is not None:
                self._give_terminal(os.getpgrp())
                stop(self._still)

    def _continued(self) -> None:
        if self._may_go_on():
            if self._terminal is not None and _have_terminal():
                self._give_terminal(self.group)
            self.send(signal.SIGCONT)

    async def end(self, grace: float) -> bool:
        """Have the command end: SIGTERM now, SIGKILL after ``grace`` seconds to whatever is left of it.

        False if something is left that we may not signal.
        """
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        now = asyncio.get_running_loop().time
        until = now() + grace
        while self._lives() and now() < until:  # noqa: ASYNC110 - nobody tells when a whole group is gone
            await asyncio.sleep(0.02)
        return not self._lives() or self.send(signal.SIGKILL)

    def _lives(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it is another user's
        return True

    def _give_terminal(self, group: int) -> None:
        if self._terminal is not None:
            try:
                os.tcsetpgrp(self._terminal, group)
            except OSError:
                self._terminal = None  # hung up, or the command is gone already


def stop(still: Still, number: signal.Signals = signal.SIGSTOP) -> None:
    """Stop this process until it is continued, as a signal does by default.

    It stops inside of ``still``, where none of our threads is in the middle of something that holds others up.
    """
    with still():
        if number is signal.SIGSTOP:
            os.kill(os.getpid(), number)
            return
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, handler)
        signal.siginterrupt(number, False)  # as asyncio has it


def _have_terminal() -> bool:
    """Whether the terminal's input goes to us."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def _launch(command: Sequence[str], env: dict[str, str], terminal: int | None) -> subprocess.Popen[bytes]:
    """The command, begun; OSError if it cannot be."""
    reader, report = os.pipe()
    with open(reader, "rb") as said:
        try:
            begun = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", launch.__file__),
                    *(str(os.getpid()), str(-1 if terminal is None else terminal), str(report)),
                    *command,
                ],
                env=env,
                process_group=0,
                pass_fds=[report, *([] if terminal is None else [terminal])],
            )
        finally:
            os.close(report)
        if failure := said.read():
            begun.wait()
            raise OSError(int(failure), os.strerror(int(failure)))
    return begun
