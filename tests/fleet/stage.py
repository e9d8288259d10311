"""The workers of a run, as processes that are started, stopped, killed, and watched."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import secrets
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import fencepost
from fencepost.driver import boottime
from fencepost.fleet.plan import prefix, view
from fencepost_lab.history.checks import Report, check
from fencepost_lab.history.format import FORMAT, Line
from fencepost_lab.servers.processes import state_of
from fencepost_lab.sim.ownership import Watch
from tests.fleet.resource import Resource
from tests.harness.child import Child
from tests.harness.threads import on_thread
from tests.harness.waiting import until_async


class Failed(AssertionError):
    """The run broke, or showed what must not be."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    backend: str = "redis"
    workers: int = 12
    partitions: int = 64
    seconds: float = 300.0
    ttl: float = 3.0
    work: float = 0.4
    every: float = 4.0
    """A fault comes about this often."""
    bound: float = 2.0
    """So many ttl may a partition be without an owner that runs."""
    seed: int = 0

    @property
    def command(self) -> str:
        """How to run this again."""
        options = " ".join(f"--{name} {value}" for name, value in dataclasses.asdict(self).items())
        return f"python -m tests.fleet.run {options}"


@dataclass(eq=False)
class Process:
    """A worker; ``hit`` since when it is stopped or dead."""

    name: str
    child: Child
    hit: float | None = None
    leaving: bool = False

    @property
    def fit(self) -> bool:
        return self.hit is None and not self.leaving

    def check(self) -> None:
        """Raise Failed, with the worker's traceback, if it has ended unasked."""
        self.child.check() if self.leaving else None
        if self.fit and not self.child.running:
            self.child.wait()
            raise Failed(f"{self.name}: {self.child.story}")

    def told(self) -> list[Line]:
        """What it has said; one that was killed may have been cut short."""
        lines = self.child.output
        if lines and self.hit is not None and not lines[-1].endswith("}"):
            del lines[-1]
        return [json.loads(line) for line in lines]


@dataclass(eq=False)
class Fleet:
    """The workers of one run, what they said, and what was done to them."""

    url: str
    plan: Plan
    group: str = field(default_factory=lambda: f"orders-{secrets.token_hex(4)}")
    history: list[Line] = field(default_factory=list)
    workers: dict[str, Process] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.plan.seed)
        self.watch = Watch(self.plan.partitions)
        self.resource = Resource(self.history)
        self.locks = fencepost.aio.connect(self.url, ttl=self.plan.ttl)

    async def __aenter__(self) -> Fleet:
        await self.resource.__aenter__()
        self._eyes = asyncio.create_task(self._looking())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._eyes.cancel()
        for worker in self.workers.values():
            worker.child.close()
        await asyncio.wait([self._eyes])
        await self.resource.__aexit__(None, None, None)
        await self.locks.close()

    @property
    def fit(self) -> list[Process]:
        return [worker for worker in self.workers.values() if worker.fit]

    async def join(self) -> Process:
        """Start a worker."""
        name = f"w{len(self.workers)}"
        options = {
            "url": self.url,
            "group": self.group,
            "count": self.plan.partitions,
            "ttl": self.plan.ttl,
            "name": name,
            "face": "sync" if len(self.workers) % 2 else "aio",
            "resource": self.resource.address,
            "work": self.plan.work,
        }
        child = Child.python("-m", "tests.fleet.worker", json.dumps(options))
        worker = self.workers[name] = Process(name, child)
        self._note("join", worker)
        return worker

    def leave(self, worker: Process) -> None:
        """Ask a worker to leave."""
        worker.leaving = True
        self._note("leave", worker)
        worker.child.signal(signal.SIGTERM)

    def kill(self, worker: Process) -> None:
        """SIGKILL a worker."""
        worker.child.kill()
        worker.hit = boottime()
        self._note("kill", worker)

    async def freeze(self, worker: Process, seconds: float | None = None) -> None:
        """SIGSTOP a worker for so long, else past its ttl until the others own all; it was stopped all the time."""
        worker.hit = since = boottime()
        await on_thread(worker.child.freeze, self.url)
        self._note("pause", worker)
        await asyncio.sleep(self.plan.ttl * 1.05 if seconds is None else seconds)
        if seconds is None:
            await self.settle()
        self.faults["paused past the ttl"] += state_of(worker.child.pid) in "Tt" and boottime() - since > self.plan.ttl
        worker.child.thaw()
        worker.hit = None
        self._note("resume", worker)

    async def until(self, done: Callable[[], bool], what: str) -> None:
        """Return once it is so; at once, with its traceback, if a worker has ended unasked."""
        await until_async(done, what, poll=0.02, watching=[self._eyes, *self.workers.values()])

    async def settle(self) -> None:
        """Return once every partition is owned, in balance, by the workers that run."""
        await self.until(lambda: self.watch.balanced, f"balance among {[worker.name for worker in self.fit]}")

    def _note(self, do: str, worker: Process) -> None:
        now = boottime()
        self.faults[do] += 1
        self.history.append({"t": now, "ev": "fault", "do": do, "who": worker.name})
        self.watch.changed(now)

    async def _looking(self) -> None:
        while True:
            try:
                found = view(self.group, await self.locks.list(prefix(self.group)))
            except fencepost.BackendError:
                continue
            self.watch.look(boottime(), found, self.workers)
            await asyncio.sleep(min(0.1, self.plan.ttl / 20))

    def report(self) -> Report:
        """The history, held to its promises."""
        said = self.history + [line for worker in self.workers.values() for line in worker.told()]
        start = min(line["t"] for line in said)
        told = [line | {"t": round(line["t"] - start, 6)} for line in sorted(said, key=lambda line: line["t"])]
        for line in told:
            if "asked" in line:
                line["asked"] = round(line["asked"] - start, 6)
        run = {"t": 0.0, "ev": "run", "format": FORMAT, "source": "fleet", "promises": ["data", "order"]}
        self.told = [run, *told]
        return check(self.told)
