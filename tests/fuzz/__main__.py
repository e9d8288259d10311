"""``make fuzz``: give anything to everything that reads bytes.

  make fuzz                                       1,000 cases of every target
  make fuzz ARGS="--cases 100000"                 so many of each
  make fuzz ARGS="redis history --seed 5000"      these targets, from case 5000 on
  make fuzz ARGS="redis --seed 5123 --cases 1"    one case again
  make fuzz ARGS="--guided --minutes 5 urls"      coverage-guided, with atheris (pip install atheris)

Prints for each target how many cases ended how. A finding prints its traceback and the command that repeats it. Exit
status: 0 if nothing was found, 1 if something was, 130 after Ctrl-C (the last line says where to go on).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NamedTuple

from tests.fuzz import etcd, histories, redis, service, texts

LIMIT = 30
"""Seconds for one case: what takes longer hangs."""

Case = Callable[[int], str]


class Target(NamedTuple):
    about: str
    case: Case | None
    """None: its cases need a server, and come from ``http()``."""
    guided: bool = False
    """Whether tests.fuzz.guided has it too."""


@contextmanager
def http() -> Iterator[Case]:
    """Cases against a service of their own; it must still run at the end, with what an honest client wrote."""
    from tests.harness.resource import Service

    with Service(args=["--ceiling", "off"]) as server:
        look = service.untouched(server.port)

        def case(seed: int) -> str:
            found = service.case(server.port, seed)
            if seed % 100 == 0:
                look()
            return found

        yield case
        look()


TARGETS = {
    "urls": Target("URLs of all stores: understood, or refused without repeating the password", texts.url_case, True),
    "tokens": Target(
        "names, durations, stamps in headers, keys in paths, marks kept with values", texts.token_case, True
    ),
    "redis": Target(
        "replies on one connection: each request gets the one of its place, or an error", redis.wire_case, True
    ),
    "redis-lies": Target("a Redis that says anything: leases or errors of fencepost, in time", redis.lies_case),
    "etcd": Target("frames of HTTP/2: no call gets another's answer, each ends once", etcd.frames_case, True),
    "etcd-messages": Target("protobuf: what is read is what protobuf itself reads", etcd.messages_case),
    "history": Target("history files: checked, or refused with a reason", histories.case, True),
    "http": Target("the service: each whole request gets its own answer, never a 500", None),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--cases", type=int, default=1000, help="of each target (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first case (default: 0)")
    parser.add_argument("--guided", action="store_true", help="let atheris look for inputs that reach new code")
    parser.add_argument("--minutes", type=float, default=1.0, help="of each target, with --guided (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the targets, run nothing")
    chosen = parser.parse_args()
    if unknown := set(chosen.targets) - set(TARGETS):
        parser.error(f"there is no target {min(unknown)!r}; there are {', '.join(TARGETS)}")
    names = chosen.targets or list(TARGETS)
    if chosen.list:
        for name in names:
            print(f"{name:14} {TARGETS[name].about}{' (also guided)' if TARGETS[name].guided else ''}")
        return 0
    if chosen.guided:
        return guided(names, chosen.minutes, chosen.seed)
    signal.signal(signal.SIGALRM, _hangs)
    return max(fuzz(name, chosen.seed, chosen.cases) for name in names)


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"this case takes more than {LIMIT} s")


def fuzz(name: str, first: int, count: int) -> int:
    """Run the cases of one target, until the first that finds something."""
    outcomes: Counter[str] = Counter()
    start, seed = time.monotonic(), first
    with ExitStack() as stack:
        case = TARGETS[name].case or stack.enter_context(http())
        try:
            for seed in range(first, first + count):
                signal.alarm(LIMIT)
                outcomes[case(seed)] += 1
        except KeyboardInterrupt:
            print(f'\n{name}: stopped; go on with make fuzz ARGS="{name} --seed {seed}"')
            return 130
        except BaseException:
            traceback.print_exc()
            print(f'{name}: FOUND in case {seed}; once more: make fuzz ARGS="{name} --seed {seed} --cases 1"')
            return 1
        finally:
            signal.alarm(0)
    seconds = time.monotonic() - start
    common = ", ".join(f"{outcome}: {number}" for outcome, number in outcomes.most_common(8))
    print(f"{name}: cases {first} to {first + count - 1}, nothing found, {seconds:.1f} s ({common})", flush=True)
    return 0


def guided(names: list[str], minutes: float, seed: int) -> int:
    """Each target in a process of its own, as atheris ends the process that it ran in."""
    if importlib.util.find_spec("atheris") is None:
        print("--guided needs atheris: uv pip install --python .venv/bin/python atheris", file=sys.stderr)
        return 2
    status = 0
    for name in names:
        if not TARGETS[name].guided:
            print(f"{name}: not guided; it runs in another process, or its cases are no bytes")
            continue
        command = [sys.executable, "-m", "tests.fuzz.guided", name, str(seed + 1), str(int(60 * minutes))]
        status = max(status, int(subprocess.run(command, env=os.environ, check=False).returncode != 0))
    return status


if __name__ == "__main__":
    sys.exit(main())
