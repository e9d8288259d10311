"""A fleet of which half still has the old locks: the halves exclude each other, and neither starves.

python -m tests.programs.mixed [--new native] [--old redis] [--each 4] [--seconds 60] [--section 0.005]
                                [--pause 0.02] [--json]

Each process takes one lock on one Redis again and again, with a pause of up to twice ``--pause`` in between. Inside it
creates a file that nobody else may have, so that two who are inside at once are found without asking Redis. The old
ones have redis-py's Lock, or python-redis-lock's (``--old redis_lock``). The new ones have the compat lock of that name
(``--new compat``), or fencepost's own, which share the key by ``?prefix=`` and leave gaps by ``?pollers=`` (``--new
native``; ``--pollers ''`` shows what happens without).

``--new original`` is a fleet of old ones only, to compare with: without a pause, redis-py's own locks starve each
other, for one that releases and asks at once is there before those that sleep.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fencepost_lab.servers import Redis
from tests.harness.child import Child

NAME = "mixed"


class Side(NamedTuple):
    """One half of the fleet: what its processes did."""

    sections: list[int]
    longest: float
    """Seconds that one of them waited for one section, at most; also at the end, for one that it did not get."""

    @property
    def total(self) -> int:
        return sum(self.sections)


class Outcome(NamedTuple):
    old: Side
    new: Side
    overlaps: int

    def failures(self, patience: float) -> list[str]:
        found = [f"{self.overlaps} times two were inside at once"] if self.overlaps else []
        for name, side in (("old", self.old), ("new", self.new)):
            if min(side.sections) == 0:
                found.append(f"one with the {name} lock got no section")
            if side.longest > patience:
                found.append(f"one with the {name} lock waited for {side.longest:.1f} s")
        return found

    def told(self) -> dict[str, Any]:
        return {
            name: {"sections": side.sections, "total": side.total, "longest wait": round(side.longest, 2)}
            for name, side in (("old", self.old), ("new", self.new))
        } | {"overlaps": self.overlaps}


def run(
    *,
    old: str = "redis",
    new: str = "native",
    each: int = 4,
    seconds: float = 60.0,
    section: float = 0.005,
    pause: float = 0.02,
    pollers: str = "100ms",
    enough: int = 0,
) -> Outcome:
    """Let both halves run for so long, or until each process has had ``enough`` sections."""
    with (
        tempfile.TemporaryDirectory(prefix="mixed-") as folder,
        Redis(args=["--save", ""]) as server,
        ExitStack() as ends,
    ):
        inside = str(Path(folder) / "inside")
        fixed = [str(server.port), inside, str(section), str(pause), str(seconds), str(enough), pollers]
        workers = [
            ends.enter_context(Child.python("-m", "tests.programs.mixed", "worker", kind, *fixed))
            for kind in [f"{old}.original", f"{old}.{new}"]
            for _ in range(each)
        ]
        for worker in workers:
            worker.heard("ready")
        for worker in workers:
            worker.tell("go")
        if enough:
            for worker in workers:
                worker.heard("enough", seconds)
            for worker in workers:
                worker.tell("end")
        facts = [worker.event("done", seconds + 60) for worker in workers]
    old_half, new_half = (
        Side([fact["sections"] for fact in half], max(fact["longest"] for fact in half))
        for half in (facts[:each], facts[each:])
    )
    return Outcome(old_half, new_half, sum(fact["overlaps"] for fact in facts))


def lock(kind: str, port: int, pollers: str) -> Callable[[], AbstractContextManager[Any]]:
    """A function that makes a lock to be held by ``with``."""
    import redis

    client = redis.Redis(port=port)
    match kind:
        case "redis.original":
            from redis.lock import Lock

            return lambda: Lock(client, NAME, timeout=30)
        case "redis.compat":
            from fencepost.compat.redis import Lock as Compat

            return lambda: Compat(client, NAME, timeout=30)
        case "redis_lock.original":
            import redis_lock

            return lambda: redis_lock.Lock(client, NAME, expire=30)
        case "redis_lock.compat":
            from fencepost.compat import redis_lock as compat

            return lambda: compat.Lock(client, NAME, expire=30)
        case "redis.native":
            import fencepost

            option = f"&pollers={pollers}" if pollers else ""
            locks = fencepost.connect(f"redis://localhost:{port}?prefix={option}", ttl=30)
            return lambda: locks.lock(NAME)
    raise SystemExit(f"no lock {kind!r}")


def work(
    kind: str, port: int, inside: str, section: float, pause: float, seconds: float, enough: int, pollers: str
) -> None:
    """One process of the fleet."""
    make = lock(kind, port, pollers)
    with make():  # connected, and everything imported
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    ended: list[bool] = []
    if enough:
        import threading

        threading.Thread(target=lambda: ended.append(bool(sys.stdin.readline())), daemon=True).start()
    end = time.monotonic() + seconds
    sections = overlaps = 0
    longest = 0.0
    while not ended and time.monotonic() < end:
        asked = time.monotonic()
        with make():
            longest = max(longest, time.monotonic() - asked)
            try:
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                time.sleep(section)
                os.unlink(inside)
            except (FileExistsError, FileNotFoundError):
                overlaps += 1
        sections += 1
        if sections == enough:
            print("enough", flush=True)
        time.sleep(random.uniform(0, 2 * pause))
    fact = {"event": "done", "sections": sections, "overlaps": overlaps, "longest": longest}
    print(json.dumps(fact), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", choices=("redis", "redis_lock"), default="redis")
    parser.add_argument("--new", choices=("native", "compat", "original"), default="native")
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--section", type=float, default=0.005)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--pollers", default="100ms")
    parser.add_argument("--patience", type=float, default=10.0, help="the longest wait that is no starvation")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    outcome = run(
        old=given.old,
        new=given.new,
        each=given.each,
        seconds=given.seconds,
        section=given.section,
        pause=given.pause,
        pollers=given.pollers,
    )
    failures = outcome.failures(given.patience)
    if given.json:
        print(json.dumps(outcome.told() | {"failures": failures}))
    else:
        for name, side in (("old", outcome.old), ("new", outcome.new)):
            each = ", ".join(map(str, side.sections))
            print(f"{name}: {side.total} sections ({each}), longest wait {side.longest:.2f} s")
        print(f"two inside at once: {outcome.overlaps}")
        for failure in failures:
            print(f"FAILED: {failure}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        kind, port, inside, section, pause, seconds, enough, pollers = sys.argv[2:]
        with contextlib.suppress(KeyboardInterrupt):
            work(kind, int(port), inside, float(section), float(pause), float(seconds), int(enough), pollers)
    else:
        main()
