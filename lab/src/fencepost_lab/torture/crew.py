"""The workers of a slice, as the run sees them: it starts them, gives them orders, wakes them, and counts."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import IO, Any

from fencepost.driver import boottime
from fencepost.errors import FencepostError
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers.processes import spawn, state_of, wait_until
from fencepost_lab.torture.board import At, Board, Do, Order
from fencepost_lab.torture.plan import LINGER, Plan
from fencepost_lab.torture.site import Site

_WHERE = {
    Do.PAUSE: ((At.GRANTED, 3), (At.READ, 4), (At.WRITING, 3)),
    Do.KILL: ((At.ASKING, 1), (At.GRANTED, 2), (At.READ, 3), (At.WRITING, 3), (At.WROTE, 1)),
    Do.FORK: ((At.GRANTED, 1), (At.READ, 1)),
}
_STUCK = 90.0  # seconds without a word from anybody: something is wrong with the run itself


class Broken(FencepostError):
    """The run itself failed, so it shows nothing; the message says why."""


class Life:
    """One worker process, from its start to its end."""

    def __init__(self, who: str, slot: int) -> None:
        self.who = who
        self.slot = slot
        self.pid = 0
        self.store = 0
        self.ordered: Do | None = None
        self.since = boottime()


class Crew:
    """Starts workers and keeps their number: one that is killed is replaced. ``pump`` hears what they say."""

    def __init__(
        self, plan: Plan, site: Site, folder: Path, start: float, faults: Faults, kinds: frozenset[str]
    ) -> None:
        self.plan = plan
        self.site = site
        self.folder = folder
        self.start = start
        self.faults = faults
        self.kinds = kinds
        self.board = Board(folder / "board", plan.workers)
        self.counts: Counter[str] = Counter()
        self.left: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self.running: dict[str, Life] = {}
        self.uses: dict[str, list[tuple[float, int, int, int]]] = {}
        """Of each worker, over time: resident bytes, descriptors and threads."""
        self.board_store = 0
        """Which of the stores was in use at the end."""
        self.harmless = threading.Event()
        """Set: no more orders."""
        self._dice = random.Random(f"{plan.seed} crew")
        self._numbers = itertools.count(1)
        self._lives = itertools.count(1)
        self._wake: list[tuple[float, str, int]] = []
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._heard = boottime()
        self._nursery: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Crew:
        config = {
            "plan": self.plan.data(),
            "urls": [self.site.url, *([self.site.other] if self.site.other else [])],
            "guard": self.site.guard,
            "folder": str(self.folder),
            "start": self.start,
            "imports": _imports(self.site.guard),
        }
        path = self.folder / "config.json"
        path.touch(0o600)  # a URL may have a password
        path.write_text(json.dumps(config))
        command = self.site.command([sys.executable, "-m", "fencepost_lab.torture.nursery", str(path)])
        with (self.folder / "errors").open("ab") as errors:
            self._nursery = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert self._nursery.stdout is not None
        self._reader = threading.Thread(target=self._listen, args=(self._nursery.stdout,), daemon=True)
        self._reader.start()
        if self._next(60.0, {"ready"}) is None:
            raise Broken(f"the workers' nursery did not start: {self.errors()}")
        for slot in range(self.plan.workers):
            self._spawn(slot)
        return self

    def __exit__(self, *_: object) -> None:
        if self._nursery is not None:
            self._nursery.kill()  # the kernel kills its workers
            self._nursery.wait()
            assert self._nursery.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._nursery.stdin.close()
        if self._reader is not None:
            self._reader.join()
        wait_until(lambda: all(state_of(life.pid) == "gone" for life in self.running.values() if life.pid), timeout=10)
        self.board_store = self.board.store
        self.board.close()

    def errors(self) -> str:
        """The end of what the workers complained about."""
        return (self.folder / "errors").read_text("utf-8", "replace")[-2000:]

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                with contextlib.suppress(ValueError):
                    self._said.put(json.loads(line))
        self._said.put(None)

    def _spawn(self, slot: int) -> None:
        life = next(self._lives)
        who = f"w{slot}.{life}"
        self.running[who] = Life(who, slot)
        assert self._nursery is not None
        assert self._nursery.stdin is not None
        order = {"who": who, "slot": slot, "life": life}
        try:
            self._nursery.stdin.write((json.dumps(order) + "\n").encode())
            self._nursery.stdin.flush()
        except BrokenPipeError:
            raise Broken(f"the workers' nursery died: {self.errors()}") from None

    def _next(self, timeout: float, wanted: set[str]) -> dict[str, Any] | None:
        end = boottime() + timeout
        while (left := end - boottime()) > 0:
            try:
                fact = self._said.get(timeout=left)
            except queue.Empty:
                return None
            if fact is None:
                return None
            if fact["ev"] in wanted:
                return fact
        return None

    @property
    def operations(self) -> int:
        """Acquires, reads, writes and releases so far."""
        return sum(self.counts[each] for each in ("acquire", "read", "write", "release"))

    @property
    def stopped(self) -> int:
        return len(self._wake)

    def pump(self, patience: float = 0.05) -> None:
        """Hear what was said, wake those that slept long enough, and give new orders."""
        now = boottime()
        if self._wake:
            patience = max(0.0, min(patience, self._wake[0][0] - now))
        with contextlib.suppress(queue.Empty):
            fact = self._said.get(timeout=patience) if patience > 0 else self._said.get_nowait()
            while True:
                if fact is None:
                    raise Broken(f"the workers' nursery ended: {self.errors()}")
                self._heard = boottime()
                self._take(fact)
                fact = self._said.get_nowait()
        self._wake_up()
        if not self.harmless.is_set():
            self._order()
        if boottime() - self._heard > _STUCK:
            raise Broken(f"no worker said anything for {_STUCK:g} s: {self.errors()}")

    def _take(self, fact: dict[str, Any]) -> None:
        life = self.running.get(fact.get("who", ""))
        self.counts.update(fact.get("counts", {}))
        match fact["ev"]:
            case "started" if life:
                life.pid = fact["pid"]
            case "store" if life:
                life.store = fact["store"]
            case "tally" if life:
                self.uses.setdefault(life.who, []).append((boottime() - self.start, *fact["uses"]))
            case "stopping" if life:
                self._sleeps(life, fact)
            case "resumed":
                self.counts["pauses"] += 1
                self.counts["pauses that outlived the lease"] += fact["outlived"] is True
                if life:
                    life.ordered = None
            case "dying":
                self.counts["dying"] += 1
                self.counts["killed holders"] += fact["held"]
                self.counts[f"kill:{fact['at']}"] += 1
            case "forked":
                self.counts["forks"] += 1
                if life:
                    life.ordered = None
                if not fact["refused"]:
                    self.wrong.append(f"a forked child of {fact['who']} could stamp an access of its parent's lease")
            case "over":
                self.left.append({name: fact[name] for name in ("who", "threads", "sockets", "files")})
            case "broke":
                self.wrong.append(f"worker {fact['who']} broke: {fact['why']}")
            case "ended" if life:
                self._ended(life, fact["code"])

    def _sleeps(self, life: Life, fact: dict[str, Any]) -> None:
        if not wait_until(lambda: state_of(life.pid) in "TZ", timeout=20, poll=0.0005):
            raise Broken(f"worker {life.who} sent itself SIGSTOP and still runs")
        self.counts[f"pause:{fact['at']}"] += 1
        now = boottime()
        until = fact["deadline"] or now
        longer = self.plan.ttl * self._dice.uniform(*LINGER.get(self.site.store, (0.05, 0.8)))
        heapq.heappush(self._wake, (max(now, until) + longer, life.who, life.pid))

    def _wake_up(self) -> None:
        while self._wake and self._wake[0][0] <= boottime():
            _, _, pid = heapq.heappop(self._wake)
            if state_of(pid) == "T":
                os.kill(pid, signal.SIGCONT)

    def _ended(self, life: Life, code: int) -> None:
        del self.running[life.who]
        if code == -signal.SIGKILL:
            self.counts["kills"] += 1
        elif code:
            self.wrong.append(f"worker {life.who} ended with {code}: {self.errors()}")
        if not self.board.over:
            self._spawn(life.slot)

    def _order(self) -> None:
        """Keep as many orders open as the plan wants: most are pauses, some are deaths, a few are forks."""
        free = [each for each in self.running.values() if each.ordered is None and each.pid]
        wanted = max(1, round(self.plan.workers * self.plan.pauses))
        while free and self.plan.workers - len(free) < wanted:
            weights = {Do.PAUSE: 16 if "pause" in self.kinds else 0, Do.KILL: 3 if "kill" in self.kinds else 0}
            weights[Do.FORK] = 1 if "fork" in self.kinds and not self.plan.control else 0
            if not any(weights.values()):
                return
            do = self._dice.choices(list(weights), list(weights.values()))[0]
            places = _WHERE[do]
            at = self._dice.choices([place for place, _ in places], [weight for _, weight in places])[0]
            life = free.pop(self._dice.randrange(len(free)))
            life.ordered = do
            self.board.give(life.slot, Order(next(self._numbers), do, at))

    def calm(self) -> None:
        """Give no more orders, and take back those that were not carried out yet."""
        self.harmless.set()
        for slot in range(self.plan.workers):
            self.board.withdraw(slot)

    def switch(self, store: int, timeout: float = 30.0) -> bool:
        """Have the workers use another of the stores; whether all that are awake have done so in time."""
        self.board.store = store
        asleep = {who for _, who, _ in list(self._wake)}
        names = [who for who in list(self.running) if who not in asleep]

        def switched() -> bool:
            return all(self.running[who].store == store for who in names if who in self.running)

        return wait_until(switched, timeout=timeout)

    def finish(self, timeout: float = 90.0) -> None:
        """Let everybody finish what it does, and end."""
        self.calm()
        self.board.end()
        end = boottime() + timeout
        while self.running:
            self.pump()
            if boottime() > end:
                raise Broken(f"workers {', '.join(self.running)} did not end within {timeout:g} s: {self.errors()}")


def _imports(guard: str) -> list[str]:
    """What the workers will import, so that the nursery does it once."""
    kinds = {"redis": ["redis", "fencepost.guards.redis"], "postgres": ["psycopg", "fencepost.guards.postgres"]}
    return [*kinds.get(guard.partition(":")[0], []), "fencepost.guards.sqlite", "fencepost.election"]
