"""Kills leader after leader: exactly one is admitted per epoch, epochs only grow, somebody leads again in time.

``python -m tests.programs.reign [etcd|zookeeper|redis|postgresql|consul|sqlite] --candidates 10 --kills 100``.
Candidates are processes; the leader of the moment is ended by SIGKILL, or by SIGTERM, upon which it resigns. Beside
fencepost runs, on the same server, the election that is customary there: ``etcdctl elect`` (whose ttl is fixed at 60 s)
or kazoo's.
"""

import argparse
import contextlib
import itertools
import json
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fencepost.backends.zookeeper.session import FRACTION
from fencepost_lab.servers import QUICK_ETCD, Consul, Etcd, Postgres, Redis, ZooKeeper
from fencepost_lab.servers.processes import program
from tests.harness.child import Child, ChildFailed
from tests.harness.threads import background
from tests.programs.reign_candidate import journal

LONGEST = 86400.0  # seconds that a candidate may wait for its election
Command = Callable[[str], list[str]]
"""What starts the candidate that goes by a label."""


class Candidate(Child):
    """A process, and when it said that it leads."""

    def __init__(self, command: list[str], heard: threading.Condition) -> None:
        self._heard = heard
        self.elected: list[float] = []
        self.ended = False
        super().__init__(command, stdin=subprocess.DEVNULL)
        self._listener = background(self._note)

    def _note(self) -> None:
        with contextlib.suppress(ChildFailed):
            while True:
                self.line(LONGEST)
                with self._heard:
                    self.elected.append(time.monotonic())
                    self._heard.notify_all()

    def end(self, *, kill: bool) -> float:
        """End it; when it was told to."""
        self.ended = True
        at = time.monotonic()
        self.signal(signal.SIGKILL if kill else signal.SIGTERM)
        return at

    def close(self) -> None:
        super().close()
        self._listener.result()


class Reign:
    """An election that always has so many candidates, whoever is ended."""

    def __init__(self, command: Command, candidates: int, patience: float) -> None:
        self._command = command
        self._patience = patience
        self._heard = threading.Condition()
        self._labels = itertools.count(1)
        self._candidates: list[Candidate] = []
        self._size = candidates

    def __enter__(self) -> "Reign":
        self._fill()
        return self

    def __exit__(self, *_: object) -> None:
        for candidate in self._candidates:
            candidate.close()

    def _fill(self) -> None:
        while len(self._candidates) < self._size:
            self._candidates.append(Candidate(self._command(f"candidate-{next(self._labels)}"), self._heard))

    def leader(self, since: float, after: Candidate | None = None) -> tuple[Candidate, float]:
        """Who else than the one ``after`` whom it comes said that it leads after ``since``, and when."""
        found: list[tuple[float, Candidate]] = []

        def elected() -> bool:
            found[:] = [
                (at, each)
                for each in self._candidates
                for at in each.elected
                if at > since and each is not after and each.running
            ]
            return bool(found)

        deadline = time.monotonic() + self._patience
        with self._heard:
            while not self._heard.wait_for(elected, 0.5):
                for each in self._candidates:
                    if not each.ended:
                        each.check()
                assert time.monotonic() < deadline, f"nobody led within {self._patience:g} s"
        # The first may have lost its term since, and say nothing more.
        at, _ = min(found, key=lambda each: each[0])
        _, candidate = max(found, key=lambda each: each[0])
        return candidate, at

    def depose(self, times: int, *, kill: bool) -> list[float]:
        """End the leader, again and again; seconds until the next one said that it leads."""
        gaps = []
        leader, _ = self.leader(0.0)
        for _ in range(times):
            told = leader.end(kill=kill)
            successor, at = self.leader(told, leader)  # its own last words may be heard only now
            gaps.append(at - told)
            self._candidates.remove(leader)
            leader.close()
            self._fill()
            leader = successor
        return gaps


@dataclass(frozen=True)
class Verdict:
    """What the guarded resource admitted."""

    epochs: int
    writes: int
    two_leaders_in_one_epoch: int
    epochs_that_fell: int

    @property
    def good(self) -> bool:
        return not self.two_leaders_in_one_epoch and not self.epochs_that_fell


def judge(path: Path) -> Verdict:
    """Read the journal: it is in the order in which the guard admitted."""
    with contextlib.closing(journal(str(path))) as conn:
        rows = conn.execute("SELECT epoch, holder FROM reign ORDER BY n").fetchall()
    holders: dict[int, set[str]] = {}
    for epoch, holder in rows:
        holders.setdefault(epoch, set()).add(holder)
    fell = sum(later[0] < earlier[0] for earlier, later in itertools.pairwise(rows))
    return Verdict(len(holders), len(rows), sum(len(each) > 1 for each in holders.values()), fell)


def fencepost(url: str, name: str, ttl: float, path: Path) -> Command:
    module = [sys.executable, "-m", "tests.programs.reign_candidate"]
    return lambda label: [*module, url, name, str(ttl), label, str(path)]


def kazoo(url: str, name: str, ttl: float) -> Command:
    module = [sys.executable, "-m", "tests.programs.reign_candidate", "kazoo", url.partition("://")[2]]
    return lambda label: [*module, f"/{name}", str(ttl / FRACTION), label]


def etcdctl(url: str, name: str) -> Command:
    return lambda label: [program("ETCDCTL"), "--endpoints", url.partition("://")[2], "elect", name, label]


@contextlib.contextmanager
def server(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh store."""
    if kind == "sqlite":
        yield f"sqlite://{folder}/locks.db"
        return
    kinds: dict[str, Callable[[], Any]] = {
        "etcd": lambda: Etcd(args=QUICK_ETCD),
        "zookeeper": ZooKeeper,
        "redis": Redis,
        "postgresql": Postgres,
        "consul": lambda: Consul(args=["-hcl", 'session_ttl_min = "500ms"']),
    }
    with kinds[kind]() as started:
        yield started.url + ("?session_ttl_min=500ms" if kind == "consul" else "")


def told(gaps: list[float]) -> dict[str, float]:
    """Seconds without a leader."""
    return {"times": len(gaps), "median": round(statistics.median(gaps), 3), "longest": round(max(gaps), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.reign", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("store", nargs="?", default="etcd")
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--resigns", type=int, default=20)
    parser.add_argument("--ttl", type=float, default=1.0)
    parser.add_argument("--peer-kills", type=int, default=1, help="how often the customary election's leader is killed")
    asked = parser.parse_args()
    name = f"reign-{secrets.token_hex(4)}"
    facts: dict[str, Any] = {"store": asked.store, "ttl": asked.ttl, "candidates": asked.candidates}
    with tempfile.TemporaryDirectory() as place, server(asked.store, Path(place)) as url:
        path = Path(place, "journal.db")
        with Reign(fencepost(url, name, asked.ttl, path), asked.candidates, 120) as reign:
            facts["fencepost killed"] = told(reign.depose(asked.kills, kill=True))
            facts["fencepost resigned"] = told(reign.depose(asked.resigns, kill=False))
        verdict = judge(path)
        facts |= asdict(verdict)
        peers = {"etcd": ("etcdctl elect", etcdctl(url, f"{name}-peer"))}
        peers["zookeeper"] = "kazoo Election", kazoo(url, f"{name}-peer", asked.ttl)
        if asked.store in peers:
            peer, command = peers[asked.store]
            with Reign(command, asked.candidates, 120) as reign:
                reign.leader(0.0)
                facts[f"{peer} resigned"] = told(reign.depose(asked.resigns, kill=False))
                if asked.peer_kills:
                    facts[f"{peer} killed"] = told(reign.depose(asked.peer_kills, kill=True))
    print(json.dumps(facts, indent=2))
    return 0 if verdict.good and verdict.epochs > asked.kills else 1


if __name__ == "__main__":
    sys.exit(main())
