"""The process that workers are forked from: everything is imported once, so a new worker costs milliseconds.

Orders come as JSON lines on stdin; what it and its workers have to say goes to stdout. It runs no thread, so that a
fork is safe. When it ends, for whatever reason, the kernel kills its workers, also stopped ones.
"""

import ctypes
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from fencepost_lab.torture import worker

_PDEATHSIG = 1  # of prctl(2)


def _preload(config: dict[str, Any]) -> None:
    """Import what workers will need."""
    from fencepost.driver.threads import Blocking
    from fencepost.registry import connect

    for url in config["urls"]:
        connect(url, Blocking())
    for name in config["imports"]:
        __import__(name)


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    _preload(config)
    libc = ctypes.CDLL(None)
    ours = os.getpid()
    names: dict[int, str] = {}
    worker.say({"ev": "ready"})
    buffer = b""
    while True:
        ready = select.select([0], [], [], 0.01)[0]
        if ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the crew, which ends us in order
                    libc.prctl(_PDEATHSIG, signal.SIGKILL)
                    if os.getppid() != ours:
                        os._exit(1)
                    code = worker.run(config, order["who"], order["slot"], order["life"])
                    sys.stderr.flush()
                    os._exit(code)
                names[pid] = order["who"]
        while names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            worker.say({"ev": "ended", "who": names.pop(pid), "code": os.waitstatus_to_exitcode(status)})
    for pid in names:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
