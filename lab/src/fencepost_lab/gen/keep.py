"""A process that keeps the leases of a seed alive, and the side of the one that wants it.

It is told on stdin how many of them to keep, and how often, in seconds, and answers each line with how it goes, as
JSON. It ends when stdin does: all its leases then have lost their holder.
"""

import json
import sys
import threading
import time
from queue import SimpleQueue
from subprocess import PIPE
from typing import NamedTuple, Self

from fencepost.address import parse
from fencepost.errors import FencepostError
from fencepost_lab.servers.processes import spawn


class Kept(NamedTuple):
    """How it went so far."""

    at: float
    """Seconds, on the clock of all processes."""
    leases: int
    answered: int
    """Keep-alives."""
    lost: int
    """Leases that etcd had ended before their keep-alive came."""
    late: float
    """Seconds since the next keep-alive was due."""
    streams: int
    """How often a stream was opened."""
    cpu: float
    """Seconds that the process has spent."""


class Keeping:
    """The process, while the block runs."""

    def __init__(self, url: str, *, seed: int, ttl: float) -> None:
        self._every = ttl / 3
        self._command = [sys.executable, "-P", "-m", __name__, url, str(seed), str(ttl)]

    def __enter__(self) -> Self:
        self._process = spawn(self._command, stdin=PIPE, stdout=PIPE)
        try:
            self.keep(0)  # it is there: leases that are granted from now on do not wait for it
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the process: its leases are kept no longer."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def keep(self, leases: int, *, every: float | None = None) -> Kept:
        """Keep so many leases, at least those that it keeps already, each every third of its ttl, or as often as told.

        FencepostError if the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{leases} {self._every if every is None else every}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it says why on stderr
        if not (line := self._process.stdout.readline()):
            raise FencepostError("the process that keeps leases alive has ended")
        return Kept(**json.loads(line))


def main(url: str, seed: str, ttl: str) -> None:
    """Keep leases alive until stdin ends."""
    from fencepost_lab.gen.etcd import Keeper

    keeper = Keeper(parse(url), int(seed), float(ttl))
    wanted: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            wanted.put(line)
        wanted.put("")

    threading.Thread(target=listen, daemon=True).start()
    while True:
        while not wanted.empty():
            if not (line := wanted.get()):
                return
            leases, every = line.split()
            keeper.every = float(every)
            keeper.keep(int(leases))
            kept = Kept(
                at=time.monotonic(),
                leases=keeper.kept,
                answered=keeper.answered,
                lost=len(keeper.lost),
                late=keeper.late,
                streams=keeper.streams,
                cpu=time.process_time(),
            )
            print(json.dumps(kept._asdict()), flush=True)
        keeper.turn()


if __name__ == "__main__":
    main(*sys.argv[1:])
