"""Many processes that take one lock in turn, some of them killed while they hold it.

``python -m tests.programs.swarm URL NAME FILE TTL`` acquires and releases until its standard input ends, and
appends one line to FILE for each grant and one for each release: who, the token, and when, on this host's clock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import fencepost
from fencepost.errors import BackendError, LeaseLost
from tests.harness.child import Child
from tests.harness.waiting import until


class Note(NamedTuple):
    pid: int
    what: str
    token: int
    at: float


@dataclass
class Swarm:
    """``size`` processes at one lock. Use it as a context."""

    url: str
    name: str
    file: Path
    ttl: float
    size: int = 8
    seed: int = 7
    workers: list[Child] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    _notes: list[Note] = field(default_factory=list)
    _read: int = 0

    def spawn(self) -> None:
        self.workers.append(Child.python("-m", "tests.programs.swarm", self.url, self.name, self.file, self.ttl))

    def notes(self) -> list[Note]:
        with self.file.open() as lines:
            lines.seek(self._read)
            text = lines.read()
        whole, _, _ = text.rpartition("\n")
        self._read += len(whole) + 1 if whole else 0
        for pid, what, token, at in map(str.split, whole.splitlines()):
            self._notes.append(Note(int(pid), what, int(token), float(at)))
        return self._notes

    def grants(self) -> list[Note]:
        return sorted((note for note in self.notes() if note.what == "got"), key=lambda note: note.at)

    def reach(self, count: int, timeout: float) -> None:
        """Wait for that many grants in all; it must never stand still for good, nor lose any but the killed."""

        try:
            until(
                lambda: len(self.grants()) >= count,
                f"{count} grants",
                deadline=timeout,
                poll=0.05,
                watching=self.workers,
            )
        except AssertionError as error:
            error.add_note(f"{len(self.grants())} grants; {self._stacks()}")
            raise

    def _stacks(self) -> str:
        """Where everybody stands, and the end of what they had to say before."""
        for worker in self.workers:
            worker.signal(signal.SIGUSR1)
        with contextlib.suppress(AssertionError):
            until(lambda: all("most recent call" in worker.errors for worker in self.workers), "stacks", deadline=5)
        return "\n".join(worker.story for worker in self.workers)

    def kill_holder(self, timeout: float) -> None:
        """SIGKILL a process that holds the lock, and start another one for it."""
        pids = {worker.pid: worker for worker in self.workers}
        luck = random.Random(self.seed + len(self.killed))

        def holder() -> Child | None:
            last = self.notes()[-1]
            return pids.get(last.pid) if last.what == "got" else None

        deadline = time.monotonic() + timeout
        while True:
            assert time.monotonic() < deadline, "nobody was caught holding the lock"
            time.sleep(luck.uniform(0, 0.02))
            victim = holder()
            if victim is None:
                continue
            victim.kill()
            last = [note for note in self.notes() if note.pid == victim.pid][-1]
            self.workers.remove(victim)
            victim.close()
            self.spawn()
            if last.what == "got":
                self.killed.append(last.token)
                return

    def check(self) -> None:
        """Every token is larger than all that were granted before it."""
        tokens = [note.token for note in self.grants()]
        wrong = [(one, two) for one, two in pairwise(tokens) if one >= two]
        assert not wrong, f"{len(wrong)} of {len(tokens)} tokens did not grow: {wrong[:5]}"
        assert set(self.killed) <= set(tokens)

    def __enter__(self) -> Self:
        self.file.touch()
        for _ in range(self.size):
            self.spawn()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()


def work(url: str, name: str, file: str, ttl: float, going: Callable[[], bool]) -> None:
    luck = random.Random()
    with open(file, "a", buffering=1) as notes, fencepost.connect(url, ttl=ttl) as locks:

        def note(what: str, token: int) -> None:
            at = time.clock_gettime(time.CLOCK_BOOTTIME)
            notes.write(f"{os.getpid()} {what} {token} {at:.9f}\n")

        while going():
            with contextlib.suppress(BackendError, LeaseLost):
                lease = locks.acquire(name)
                note("got", lease.token)
                if luck.random() < 0.02:
                    time.sleep(0.1)  # long enough to be caught
                note("gave", lease.token)
                lease.release()


def main(url: str, name: str, file: str, ttl: str) -> None:
    faulthandler.register(signal.SIGUSR1)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    work(url, name, file, float(ttl), lambda: True)


if __name__ == "__main__":
    main(*sys.argv[1:])
