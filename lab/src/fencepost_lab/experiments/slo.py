"""The service levels that the lab's specification asks for; experiments fill in what they measured."""

from collections.abc import Iterable
from typing import NamedTuple

from fencepost_lab.experiments.runs import Result


class Level(NamedTuple):
    """One row: what is measured, and what is wanted of it."""

    metric: str
    target: str


LEVELS = {
    "uncontended-p99": Level("Acquire, uncontended, Redis: p99", "below 3 ms"),
    "hot-p99-200": Level("Acquire, one hot key, 200 contenders: p99", "report it, and what bounds it"),
    "violations": Level("Safety violations with the guard (two accepted writers on one key)", "0"),
    "stale-refused": Level("A stale write after a pause longer than the ttl", "refused by the resource"),
    "throughput": Level(
        "Critical sections per second on the hot key", "against its bound 1 / (work + acquire + release)"
    ),
    "fairness": Level("Fairness: acquisition order against arrival order", "report it, and the tail wait"),
    "safe-release": Level("Safe release: locks of others that a release deleted", "0"),
}


def rows(results: Iterable[Result]) -> list[tuple[str, str, str, str]]:
    """Metric, target, what was measured and the command that measured it; several rows if several did."""
    found = []
    results = list(results)
    for key, level in LEVELS.items():
        measured = [(str(each["slo"][key]), f"`{each['command']}`") for each in results if key in each["slo"]]
        for said, command in measured or [("not measured yet", "")]:
            found.append((*level, said, command))
    return found
