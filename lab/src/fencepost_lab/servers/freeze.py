"""Freezing a process for real: SIGSTOP, and somebody else to send SIGCONT."""

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fencepost.driver import boottime

# It counts from when we have stopped: a busy machine may take its time until then, and a SIGCONT that came first would
# be lost. The pipe tells it if we die, so it never sends a signal to a stranger with our number.
_WATCHDOG = """\
import os, select, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
parent = os.getppid()
def stopped():
    try:
        with open(f"/proc/{parent}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:  # there is no /proc here, so it counts from now
        return True
print(flush=True)
while not stopped():
    if select.select([0], [], [], 0.002)[0]:
        sys.exit()
if not select.select([0], [], [], float(sys.argv[1]))[0]:
    os.kill(os.getppid(), signal.SIGCONT)
"""


def freeze(seconds: float, idle: AbstractContextManager[object] | None = None) -> float:
    """Stop this whole process, all its threads, for ``seconds``; how long it really was.

    It stops while ``idle`` is held: a process that is stopped inside a transaction of SQLite locks everybody out.

    A child process wakes it. Call it from the main thread. In an interactive shell the job goes to
    the background, as with Ctrl-Z.
    """
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with watchdog:
        assert watchdog.stdout is not None
        watchdog.stdout.readline()
        start = boottime()
        with idle or nullcontext():
            os.kill(os.getpid(), signal.SIGSTOP)
        return boottime() - start


def is_stopped(pid: int) -> bool:
    """Whether the kernel has stopped this process."""
    return state(pid) in ("T", "t")


def state(pid: int) -> str:
    """The kernel's letter for a process's state, such as T for stopped; empty if there is none."""
    if not Path("/proc/self/stat").exists():
        said = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True)
        return said.stdout.strip()[:1]
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
