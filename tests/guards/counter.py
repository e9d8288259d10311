"""Counts one value up through a guard: read, wait to be told, write; in a process that a test freezes.

``python -m tests.guards.counter`` takes one job per line of its standard input, a Job as JSON, and plays it.
It says when it is inside, between its read and its write, and goes on when it is told to.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from queue import Queue
from typing import Any

import fencepost
from fencepost.errors import Refused
from fencepost.guards.policy import Policy
from fencepost.lab.servers.processes import STILL, dying_with_us, state_of, wait_until
from tests import ROOT
from tests.conformance.guards import GUARDS


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every worker does: ``rounds`` increments of ``name``, each under its lock."""

    guard: str
    address: str
    locks: str
    name: str
    mode: str
    enters: bool
    rounds: int
    ttl: float


class Worker:
    """The test's end of one process; what it says goes to ``told``, with itself."""

    def __init__(self, told: Queue[tuple[Worker, dict[str, Any]]]) -> None:
        self.process = subprocess.Popen(
            dying_with_us([sys.executable, "-m", "tests.guards.counter"]),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._told = told
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put((self, json.loads(line)))
        self._told.put((self, {"event": "ended"}))

    def tell(self, word: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(word) + "\n")

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        assert wait_until(lambda: state_of(self.process.pid) in STILL, timeout=10, poll=0.002)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Tally:
    """How a run ended. ``zombies`` are those that were frozen past their ttl, and what became of their writes."""

    final: int
    admitted: int
    zombies: list[str]


def play(workers: list[Worker], told: Queue[tuple[Worker, dict[str, Any]]], job: Job, *, stops: int) -> Tally:
    """Run the job in all workers at once, and freeze ``stops`` of them inside, past their ttl.

    Each wakes when the next holder is inside itself: by turns before that one writes, and after.
    """
    for worker in workers:
        worker.tell(asdict(job))
    running, admitted, frozen = len(workers), 0, 0
    zombie: Worker | None = None
    zombies: list[str] = []

    def until_done(who: Worker) -> str:
        nonlocal admitted
        others: list[tuple[Worker, dict[str, Any]]] = []
        while True:
            worker, fact = told.get(timeout=60)
            if worker is who and fact["event"] == "done":
                admitted += fact["outcome"] == "admitted"
                for each in others:
                    told.put(each)
                return str(fact["outcome"])
            others.append((worker, fact))

    while running or zombie:
        worker, fact = told.get(timeout=60)
        assert fact["event"] != "ended", f"a worker ended with status {worker.process.wait()}"
        if fact["event"] == "over":
            running -= 1
        elif fact["event"] == "done":
            admitted += fact["outcome"] == "admitted"
        elif zombie is None and frozen < stops:
            worker.freeze()
            zombie, frozen = worker, frozen + 1
        elif zombie is not None and zombie is not worker:
            # Only its expired lease let this one in. Both read the same value; now both write.
            for each in [zombie, worker] if frozen % 2 else [worker, zombie]:
                if each is zombie:
                    each.thaw()
                each.tell("go")
                outcome = until_done(each)
                if each is zombie:
                    zombies.append(outcome)
            zombie = None
        else:
            worker.tell("go")
    with ExitStack() as stack:
        final = GUARDS[job.guard].open(job.address, stack, None).peek(job.name)[0]
    return Tally(int(final or 0), admitted, zombies)


def work(job: Job, say: Callable[..., None], wait: Callable[[], str]) -> None:
    with ExitStack() as stack:
        guard = GUARDS[job.guard].open(job.address, stack, Policy(job.mode))
        locks = stack.enter_context(fencepost.connect(job.locks))
        for _ in range(job.rounds):
            lease = locks.acquire(job.name, ttl=job.ttl, renew=False)
            try:
                before = guard.read(job.name, lease) if job.enters else guard.peek(job.name)[0]
                say("inside", token=lease.token)
                wait()
                guard.write(job.name, b"%d" % (int(before or 0) + 1), lease)
                outcome = "admitted"
            except Refused as error:
                outcome = error.verdict.value
            say("done", token=lease.token, outcome=outcome)
            lease.release()
    say("over")


def main() -> None:
    def say(event: str, **facts: Any) -> None:
        print(json.dumps({"event": event, **facts}), flush=True)

    for line in sys.stdin:
        work(Job(**json.loads(line)), say, sys.stdin.readline)


if __name__ == "__main__":
    main()
