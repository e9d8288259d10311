"""Guarded increments under pauses and kills: no update may be lost, and no token may repeat.

python -m tests.programs.torture [--processes 8] [--increments 2000] [--seed N] [--fence off] [--json]

Each process counts one value up under one lock, through the sqlite backend and the resource service, while
workers are stopped past their ttl and killed, at points of the run that the seed chooses. With the fence off,
the same run must lose updates; else it has proved nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from fencepost_lab.servers.processes import dying_with_us, state_of, wait_until
from tests.harness.resource import Service
from tests.programs.torture_history import Count, Life, count, violations

KEY = "counter"
# 0, and what a worker ends with when it was refused or found its lease lost.
ENDS = (0, 76, 77)
INSIDE = ("acquired", "read")
"""What a worker last said that holds the lock, and has not sent its write."""
_FIRST = 4  # stops that come between a read and its write


class Failed(Exception):
    """The run broke, or showed what must not be."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    processes: int = 8
    increments: int = 2000
    seed: int = 0
    ttl: float = 0.5
    work: float = 0.001
    stops: int = 120
    kills: int = 40
    fence: bool = True

    @property
    def total(self) -> int:
        return self.processes * self.increments

    @property
    def command(self) -> str:
        """How to run exactly this again."""
        fence = "on" if self.fence else "off"
        numbers = {name: value for name, value in dataclasses.asdict(self).items() if name != "fence"}
        options = " ".join(f"--{name} {value}" for name, value in numbers.items())
        return f"python -m tests.programs.torture {options} --fence {fence}"


class Fault(NamedTuple):
    """A signal to somebody, once so many increments are done."""

    after: int
    signal: signal.Signals
    at: tuple[str, ...]
    """What its victim last said that it did; empty: anything."""

    def suits(self, life: Life) -> bool:
        return bool(life.facts) and (not self.at or life.facts[-1]["event"] in self.at)


@dataclass(eq=False)
class Process:
    """A running worker."""

    life: Life
    handle: subprocess.Popen[bytes]
    pipe: IO[bytes]
    rest: bytes = b""
    over: bool = False

    def drain(self) -> None:
        """Take in all that it has said so far."""
        while True:
            try:
                data = os.read(self.pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.over = True
                return
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.life.hear(map(json.loads, lines))

    def signal(self, number: signal.Signals) -> None:
        self.handle.send_signal(number)


@dataclass(eq=False)
class Torture:
    """One run."""

    plan: Plan
    service: Service
    folder: Path
    progress: Callable[[int], None]
    lives: list[Life] = field(default_factory=list)
    running: dict[int, Process] = field(default_factory=dict)
    stops: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.plan.seed)
        self.selector = selectors.DefaultSelector()
        plan = self.plan
        # Faults come at points of the work, not of the clock, so a slow machine meets as many as a fast one.
        points = sorted(self.random.randrange(plan.total * 9 // 10) for _ in range(plan.stops + plan.kills))
        kinds = [signal.SIGSTOP] * plan.stops + [signal.SIGKILL] * plan.kills
        self.random.shuffle(kinds)
        # Most faults hit the process inside, the first stops between its read and its write: that is where it hurts.
        self.faults = []
        for number, (point, kind) in enumerate(zip(points, kinds, strict=True)):
            first = kind is signal.SIGSTOP and kinds[:number].count(kind) < _FIRST
            self.faults.append(Fault(point, kind, ("read",) if first else INSIDE if number % 5 != 4 else ()))
        self.stopped: list[tuple[float, float, Process]] = []

    def run(self) -> Count:
        try:
            for worker in range(self.plan.processes):
                self.start(worker)
            while self.running:
                self.turn()
        finally:
            for process in self.running.values():
                process.handle.kill()
            for process in self.running.values():
                process.handle.wait()
                process.pipe.close()
            self.selector.close()
        return count(
            self.lives,
            final=int(self.service.get(KEY).body or 0),
            accepted=int(self.service.metric("fencepost_resource_writes_accepted_total")),
            stops=self.stops,
        )

    def done(self, worker: int) -> int:
        return sum(life.acknowledged for life in self.lives if life.worker == worker)

    def start(self, worker: int) -> None:
        rounds = self.plan.increments - self.done(worker)
        if rounds <= 0:
            return
        with (self.folder / "stderr").open("ab") as errors:
            handle = subprocess.Popen(
                dying_with_us(
                    [
                        *(
                            sys.executable,
                            "-m",
                            "fencepost",
                            "worker",
                            "--json",
                            "--metrics",
                            "off",
                            "--name",
                            f"w{worker}",
                        ),
                        *("--backend", f"sqlite://{self.folder / 'locks.db'}", "--resource", self.service.url),
                        *(
                            "--key",
                            KEY,
                            "--ttl",
                            f"{self.plan.ttl}s",
                            "--work",
                            f"{self.plan.work}s",
                            "--iterations",
                            str(rounds),
                        ),
                    ]
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert handle.stdout is not None
        os.set_blocking(handle.stdout.fileno(), False)
        process = self.running[worker] = Process(Life(worker), handle, handle.stdout)
        self.lives.append(process.life)
        self.selector.register(handle.stdout, selectors.EVENT_READ, process)

    def turn(self) -> None:
        """Hear what is said, restart who ended, and do what harm is due."""
        patience = min((due for due, _, _ in self.stopped), default=0.1 + time.monotonic()) - time.monotonic()
        for ready, _ in self.selector.select(max(patience, 0)):
            process: Process = ready.data
            process.drain()
            if process.over:
                self.bury(process)
        self.wake()
        acknowledged = sum(life.acknowledged for life in self.lives)
        self.progress(acknowledged)
        if self.faults and acknowledged >= self.faults[0].after and self.harm(self.faults[0]):
            del self.faults[0]

    def bury(self, process: Process) -> None:
        self.selector.unregister(process.pipe)
        process.pipe.close()
        code = process.handle.wait()
        self.stopped = [entry for entry in self.stopped if entry[2] is not process]
        del self.running[process.life.worker]
        if code not in ENDS and not process.life.killed:
            raise Failed(f"a worker ended with {code}: {(self.folder / 'stderr').read_text()[-2000:]}")
        self.start(process.life.worker)

    def harm(self, fault: Fault) -> bool:
        """Stop or kill somebody; False if nobody suitable was there."""
        free = [process for process in self.running.values() if all(process is not entry[2] for entry in self.stopped)]
        victims = [process for process in free if fault.suits(process.life)]
        if not victims:
            return False
        victim = self.random.choice(victims)
        if fault.signal is signal.SIGKILL:
            victim.life.killed = True
            victim.signal(signal.SIGKILL)
            return True
        victim.signal(signal.SIGSTOP)
        if not wait_until(lambda: state_of(victim.handle.pid) in "TZ", timeout=10, poll=0.0005):
            raise Failed("a worker did not stop on SIGSTOP")
        victim.drain()
        if victim.over or not fault.suits(victim.life):
            victim.signal(signal.SIGCONT)  # too late: it was through before the signal came
            return False
        now = time.monotonic()
        self.stopped.append((now + self.plan.ttl * self.random.uniform(1.2, 2.0), now, victim))
        return True

    def wake(self) -> None:
        """Let go whoever was stopped for long enough."""
        now = time.monotonic()
        for entry in [entry for entry in self.stopped if entry[0] <= now]:
            _, since, process = entry
            self.stopped.remove(entry)
            self.stops += state_of(process.handle.pid) == "T" and now - since > self.plan.ttl
            process.signal(signal.SIGCONT)


def torture(plan: Plan, progress: Callable[[int], None] = lambda done: None) -> Count:
    """Run the plan. Raises Failed, with the command that repeats it, if it shows what must not be."""
    fence = "on" if plan.fence else "off"
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-torture-") as folder,
        Service(args=["--fence", fence]) as service,
    ):
        run = Torture(plan, service, Path(folder), progress)
        try:
            counted = run.run()
        except Failed as failed:
            raise Failed(f"{failed}\nrun it again: {plan.command}") from None
    wrong = [f"not stressed: {what}" for what in counted.unstressed(plan.stops, plan.kills)]
    if plan.fence:
        wrong += violations(run.lives, counted)
    elif counted.lost_updates <= 0:
        wrong.append("with the fence off no update was lost: this run cannot tell a fence from none")
    if wrong:
        listed = "\n".join(wrong[:20])
        raise Failed(f"{listed}\n{len(wrong)} violations in {counted}\nrun it again: {plan.command}")
    return counted


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.torture", description=(__doc__ or "").partition("\n")[0]
    )
    for option in dataclasses.fields(Plan):
        if option.name not in ("seed", "fence"):
            kind = float if option.name in ("ttl", "work") else int
            parser.add_argument(f"--{option.name}", type=kind, default=option.default)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--fence", choices=["on", "off"], default="on")
    parser.add_argument("--json", action="store_true")
    asked = vars(parser.parse_args())
    as_json, fence = asked.pop("json"), asked.pop("fence") == "on"
    plan = Plan(**asked, fence=fence)
    shown = -1 if sys.stderr.isatty() else plan.total

    def progress(done: int) -> None:
        nonlocal shown
        if (percent := done * 100 // plan.total) > shown:
            shown = percent
            print(f"\r{done}/{plan.total} increments", end="", file=sys.stderr, flush=True)

    start = time.monotonic()
    try:
        counted = torture(plan, progress)
    except Failed as failed:
        print(f"\nFAILED: {failed}", file=sys.stderr)
        return 1
    facts = {"command": plan.command} | dataclasses.asdict(counted)
    facts |= {"lost_updates": counted.lost_updates, "seconds": round(time.monotonic() - start, 1)}
    if as_json:
        print(json.dumps(facts))
    else:
        print("\r" + "\n".join(f"{name.replace('_', ' '):>20} {value}" for name, value in facts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
