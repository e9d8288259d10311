"""Counts one value up through a guard: read, wait to be told, write; in a process that a test freezes.

``python -m tests.guards.counter`` takes one job per line of its standard input, a Job as JSON, and plays it. In a job
that is watched it says when it is inside, between its read and its write, and goes on when it is told to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import fencepost
from fencepost.errors import Refused
from fencepost.guards.policy import Policy
from tests.conformance.guards import GUARDS
from tests.harness.child import Child

SHORT, LONG = 0.2, 300.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker does: ``rounds`` increments of ``name``, each under its lock."""

    guard: str
    address: str
    locks: str
    name: str
    mode: str
    enters: bool
    rounds: int = 1
    ttl: float = LONG
    watched: bool = False


@dataclass
class Tally:
    """How a run ended. ``zombies`` are those that were frozen past their ttl, and what became of their writes."""

    final: int
    outcomes: list[str]
    zombies: list[str]

    @property
    def admitted(self) -> int:
        return self.outcomes.count("admitted")


class Crew:
    """Worker processes that take one job after another. After a failure none of them is used again."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[Child] = []

    @contextmanager
    def at_work(self) -> Iterator[list[Child]]:
        """The whole crew, each ready for a job."""
        while len(self._workers) < self._size:
            self._workers.append(Child.python("-m", "tests.guards.counter"))
        try:
            yield self._workers
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._workers:
            self._workers.pop().close()


def play(workers: list[Child], job: Job, *, stops: int) -> Tally:
    """Count up in all workers at once; ``stops`` times freeze the first of them inside, past its ttl.

    It wakes when its successor is inside itself: by turns before that one writes, and after. Only the frozen ones have
    a short ttl, so that no other is refused on a slow machine.
    """
    outcomes: list[str] = []
    zombies: list[str] = []
    zombie, successor, *others = workers
    alone = replace(job, rounds=1, watched=True)

    def write(worker: Child) -> str:
        worker.tell("go")
        outcomes.append(worker.event("done")["outcome"])
        worker.event("over")
        return outcomes[-1]

    for stop in range(stops):
        zombie.tell_json(asdict(replace(alone, ttl=SHORT)))
        zombie.event("inside")
        zombie.freeze()
        successor.tell_json(asdict(alone))
        successor.event("inside")  # only the expired lease let it in; both have read the same value
        for other in others:
            other.tell_json(asdict(job))
        if stop % 2:
            write(successor)
        zombie.thaw()
        zombies.append(write(zombie))
        if not stop % 2:
            write(successor)
        for other in others:
            outcomes += [other.event("done")["outcome"] for _ in range(job.rounds)]
            other.event("over")
    with ExitStack() as stack:
        final = GUARDS[job.guard].open(job.address, stack, None).peek(job.name)[0]
    return Tally(int(final or 0), outcomes, zombies)


def work(job: Job, say: Callable[..., None], wait: Callable[[], str]) -> None:
    with ExitStack() as stack:
        guard = GUARDS[job.guard].open(job.address, stack, Policy(job.mode))
        locks = stack.enter_context(fencepost.connect(job.locks))
        for _ in range(job.rounds):
            lease = locks.acquire(job.name, ttl=job.ttl, renew=False)
            try:
                before = guard.read(job.name, lease) if job.enters else guard.peek(job.name)[0]
                if job.watched:
                    say("inside", token=lease.token)
                    wait()
                guard.write(job.name, b"%d" % (int(before or 0) + 1), lease)
                outcome = "admitted"
            except Refused as error:
                outcome = error.verdict.value
            lease.release()
            say("done", token=lease.token, outcome=outcome)
    say("over")


def main() -> None:
    def say(event: str, **facts: Any) -> None:
        print(json.dumps({"event": event, **facts}), flush=True)

    for line in sys.stdin:
        work(Job(**json.loads(line)), say, sys.stdin.readline)


if __name__ == "__main__":
    main()
