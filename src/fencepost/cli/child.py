"""A command that runs under a lease: its signals, its terminal, and its end when the lease is lost."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
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
"""The signals that also end the wait for the lock."""
_WANTS_TERMINAL = frozenset({signal.SIGTTIN, signal.SIGTTOU})
"""The signals that stop a process group which uses the terminal from the background."""
Still: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Opens a block in which none of our threads blocks others. For SQLite: a stopped transaction would lock the file."""


class Child:
    """One command in a process group of its own; if we have the terminal, the command gets it.

    In a pipeline other programs need the terminal too (``| less``): there the command gets it only when it uses it.
    ``may_go_on`` is called when a stopped job is continued; ``still`` is for ``stop``.
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
        self._terminal = _controlling_terminal()
        self._alone = os.isatty(0) and os.isatty(1)  # not in a pipeline
        self._lent = self._alone and self._in_foreground()
        self.group = -1
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._changed.set)
        loop.add_signal_handler(signal.SIGCONT, self._continued)
        # While the command has the terminal we are in the background. Taking the terminal back must not stop us, nor
        # must another process of our group that reads from it: then nobody would renew the lease.
        for number in _WANTS_TERMINAL:
            signal.signal(number, signal.SIG_IGN)
        try:
            self._process = _launch(command, {**os.environ, **extra}, self._terminal if self._lent else None)
        except OSError:
            self._leave_terminal()  # launch.py may have taken it
            raise
        self.group = self._process.pid

    def send(self, number: int) -> bool:
        """Send a signal to the command and to what it has started; False if it is another user's, and we may not."""
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        return True

    def forward(self, number: signal.Signals) -> bool:
        """Pass on a signal that came to us. If it should end the command, continue that too: it may be stopped."""
        sent = self.send(number)
        if number in ENDING:
            self.send(signal.SIGCONT)
        return sent

    async def wait(self) -> int:
        """The exit code of the command, 128 + n for signal n. Stops us too when the user stops it (Ctrl-Z)."""
        while True:
            self._changed.clear()
            pid, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED)
            if not pid:
                await self._changed.wait()
            elif os.WIFSTOPPED(status):
                self._stopped(signal.Signals(os.WSTOPSIG(status)))
            else:
                self._leave_terminal()
                code = os.waitstatus_to_exitcode(status)
                self._process.returncode = code  # reaped here: Popen need not look for it
                return code if code >= 0 else SIGNALLED - code

    def _stopped(self, number: signal.Signals) -> None:
        """Stop our job as well, or continue the command if all it needs is the terminal."""
        if number in _WANTS_TERMINAL:
            if self._lend_terminal():
                self.send(signal.SIGCONT)
            elif self._terminal is not None:
                self._stop(number, group=True)  # like a background job: fg continues us
        elif self._lent:
            self._take_terminal()
            self._stop(group=True)  # the terminal has signalled only the command's group
            self._continued()  # also if we were not stopped, because nobody could continue us
        elif self._in_foreground():
            self._stop(group=False)  # the terminal has signalled our whole group
            self._continued()

    def _stop(self, number: signal.Signals = signal.SIGTSTP, *, group: bool) -> None:
        self.send(signal.SIGSTOP)  # no process can ignore it: nobody renews the lease while we are stopped
        stop(self._still, number, group=group)

    def _continued(self) -> None:
        if self._may_go_on():
            if self._alone:
                self._lend_terminal()
            self.send(signal.SIGCONT)

    async def end(self, grace: float) -> bool:
        """End the command: SIGTERM now, SIGKILL after ``grace`` seconds to whatever is left of it.

        False if something is left that we may not signal.
        """
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        now = asyncio.get_running_loop().time
        until = now() + grace
        while _lives(self.group) and now() < until:  # noqa: ASYNC110 - no event tells when a whole group is gone
            await asyncio.sleep(0.02)
        return not _lives(self.group) or self.send(signal.SIGKILL)

    def _in_foreground(self) -> bool:
        """Whether the terminal's input goes to our process group."""
        try:
            return self._terminal is not None and os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return False  # hung up

    def _lend_terminal(self) -> bool:
        """Give the terminal to the command if it is ours; False if it is not."""
        if self._terminal is None or not self._in_foreground():
            return False
        try:
            os.tcsetpgrp(self._terminal, self.group)
        except OSError:
            return False  # hung up, or the command is gone already
        self._lent = True
        return True

    def _take_terminal(self) -> None:
        """Take the terminal back from the command, unless our shell did so already."""
        if self._lent and self._terminal is not None:
            self._lent = False
            with suppress(OSError):  # hung up
                front = os.tcgetpgrp(self._terminal)
                if front == self.group or not _lives(front):
                    os.tcsetpgrp(self._terminal, os.getpgrp())
                    os.killpg(0, signal.SIGCONT)  # continue those of our group that were stopped when they used it

    def _leave_terminal(self) -> None:
        """Take the terminal back, for the last time."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCONT)  # there is nothing to continue any more
        self._take_terminal()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


def stop(still: Still, number: signal.Signals = signal.SIGTSTP, *, group: bool = False) -> None:
    """Stop this process, or its process group, until it is continued, as a signal does by default.

    The kernel ignores it where nobody could continue us. We stop inside ``still``, where none of our threads is in the
    middle of something that blocks others.
    """
    with still():
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(0 if group else os.getpid(), number)
        signal.signal(number, handler)
        signal.siginterrupt(number, False)  # as asyncio has it


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def _controlling_terminal() -> int | None:
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None


def _launch(command: Sequence[str], env: dict[str, str], terminal: int | None) -> subprocess.Popen[bytes]:
    """Start the command; OSError if that fails."""
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
