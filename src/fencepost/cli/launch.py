"""Becomes a command, run as a program of its own: launch.py PARENT TERMINAL REPORT COMMAND...

It takes the terminal, unless TERMINAL is -1, asks the kernel to kill it when PARENT dies, because then nobody renews
the lease any more, and executes the command. If it cannot, it writes the errno to REPORT. The kernel drops the request
to kill if the command is a program that runs as another user.

A preexec_fn would need less code, but it runs Python in a fork of a process with running threads, which may hang there.
"""

import ctypes
import errno
import os
import shutil
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, terminal: int, report: int, command: list[str]) -> None:
    """Returns if the command cannot be run."""
    os.set_inheritable(report, False)
    if terminal >= 0:
        os.tcsetpgrp(terminal, os.getpid())
        os.close(terminal)
    for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # ignored by the parent, the last two also by this interpreter
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except (OSError, ValueError) as error:  # ValueError: the command's name is empty
        code = getattr(error, "errno", errno.ENOENT)
        if code == errno.EACCES and "/" not in command[0] and shutil.which(command[0], os.F_OK) is None:
            code = errno.ENOENT  # EACCES was only for a folder of PATH that we may not search
        os.write(report, str(code).encode())


if __name__ == "__main__":
    parent, terminal, report = map(int, sys.argv[1:4])
    main(parent, terminal, report, sys.argv[4:])
