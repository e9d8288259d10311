"""Many acquisitions by many processes, some of which are killed while they hold: every token is larger than the last.

    python -m tests.programs.token_run URL [--processes 8] [--acquisitions 10000] [--kills 100] [--ttl 0.5]

Each process notes every token it was granted in a file of its own, before it releases. Tokens are checked in the
order of the grants: one that was had before another was asked for must have the smaller token.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import fencepost
from fencepost import sync
from fencepost.errors import BackendError, NotAcquired
from tests.harness.child import Child

DAWDLE = 0.02  # the share of holds that last long enough for their holder to be killed


@dataclass(frozen=True)
class Found:
    """What came of a run."""

    acquired: int
    killed_holders: int
    restarts: int
    violations: tuple[str, ...]


def work(url: str, name: str, ttl: float, path: Path) -> None:
    """Acquire, note, release, for ever."""
    with path.open("a", buffering=1) as notes:
        while True:
            with fencepost.connect(url, ttl=ttl) as locks:
                try:
                    while True:
                        begun = time.clock_gettime(time.CLOCK_MONOTONIC)
                        lease = locks.acquire(name, timeout=60)
                        had = time.clock_gettime(time.CLOCK_MONOTONIC)
                        notes.write(f"{begun!r} {had!r} {lease.token} {lease.holder}\n")
                        if random.random() < DAWDLE:
                            time.sleep(0.1)
                        lease.release()
                except (BackendError, NotAcquired):
                    time.sleep(0.05)


def violations(paths: Sequence[Path]) -> tuple[int, list[str]]:
    """How many grants were noted, and where one that began after another's end has no larger token."""
    grants = []
    for path in paths:
        for line in path.read_text().splitlines():
            asked, got, number, _ = line.split()
            grants.append((float(asked), float(got), int(number)))
    wrong = []
    if len({token for *_, token in grants}) < len(grants):
        wrong.append("a token was granted twice")
    ended, best = sorted((had, token) for _, had, token in grants), 0
    at = 0
    for begun, _, token in sorted(grants):
        while at < len(ended) and ended[at][0] < begun:
            best = max(best, ended[at][1])
            at += 1
        if token <= best:
            wrong.append(f"token {token} was granted after {best}")
    return len(grants), wrong


def run(
    url: str,
    *,
    processes: int = 8,
    acquisitions: int = 10_000,
    kills: int = 100,
    ttl: float = 0.5,
    restart: Callable[[], object] | None = None,
    restarts: int = 0,
) -> Found:
    """Have the processes acquire until there are enough grants, while some are killed and the server is restarted."""
    name = f"tokens-{random.Random().getrandbits(64):x}"
    with tempfile.TemporaryDirectory(prefix="fencepost-tokens-") as folder:
        paths = [Path(folder) / f"{number}.txt" for number in range(processes)]

        def start(path: Path) -> Child:
            path.touch()
            return Child.python("-m", "tests.programs.token_run", "--work", path, url, name, ttl)

        def noted() -> int:
            return sum(path.read_bytes().count(b"\n") for path in paths)

        crowd = {path: start(path) for path in paths}
        killed = restarted = 0
        try:
            with fencepost.connect(url) as locks:
                while (done := noted()) < acquisitions or killed < kills:
                    for child in crowd.values():
                        child.check()
                    if restart and restarted < restarts and done >= acquisitions * (restarted + 1) / (restarts + 1):
                        restart()
                        restarted += 1
                    if killed < kills and done >= acquisitions * killed / kills and (holder := holding(locks, name)):
                        for path in paths:
                            if path.read_text().endswith(f"{holder}\n"):
                                crowd[path].close()
                                killed += holding(locks, name) == holder
                                crowd[path] = start(path)
                    time.sleep(0.005)
        finally:
            for child in crowd.values():
                child.close()
        count, wrong = violations(paths)
    return Found(count, killed, restarted, tuple(wrong))


def holding(locks: sync.Locks, name: str) -> str:
    """Who holds the lock just now, as far as can be told."""
    try:
        status = locks.status(name)
        return status.holder if status else ""
    except BackendError:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.token_run", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--acquisitions", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ttl", type=float, default=0.5)
    options = parser.parse_args()
    found = run(**vars(options))
    print(found)
    return int(bool(found.violations))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        path, url, name, ttl = sys.argv[2:]
        work(url, name, float(ttl), Path(path))
    sys.exit(main())
