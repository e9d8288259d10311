"""The order of a run, and how to get a failure again.

Tests marked ``long`` come first: a worker that began one at the end would keep everybody waiting. Where there are
several workers, each begins with its part of them, and the modules are mixed, always in the same way: modules that wait
for clocks and modules that compute are neighbours by name, and one kind alone would leave the processor idle.
``--random-order-seed=N`` runs modules, and the tests in each, in the order drawn from N; ``random`` draws N. Every
worker draws the same. Not pytest-randomly: it also resets the global random generator before each test, so that what
tests and the product draw at random would be the same in every run.
``--results=FILE`` adds a JSON line for each test to FILE, for scripts/stress.
"""

from __future__ import annotations

import json
import random
import shlex
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

SEED = "random_order_seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fencepost")
    group.addoption(
        "--random-order-seed",
        metavar="N",
        help="run modules, and the tests in each, in the order drawn from N; 'random' draws N",
    )
    group.addoption("--results", metavar="FILE", type=Path, help="add a JSON line for each test to FILE")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes ten seconds or so, and is begun first")
    config.addinivalue_line(
        "markers", "experiment: long, from end to end; make experiments runs it, make test does not"
    )
    if getattr(config.option, SEED) == "random":
        drawn = str(random.SystemRandom().randrange(1_000_000))
        setattr(config.option, SEED, getattr(config, "workerinput", {}).get(SEED, drawn))
    if (path := config.option.results) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(path))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist what was drawn: it reads the command line again."""
    node.workerinput[SEED] = getattr(node.config.option, SEED)


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = getattr(config.option, SEED)
    return None if seed is None else f"order: --random-order-seed={seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := getattr(config.option, SEED)) is not None:
        items[:] = shuffled(items, seed)
        return
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if workers := getattr(config, "workerinput", {}).get("workercount"):
        items[:] = dealt(items, workers)


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """In the order in which xdist gives each worker one piece of the list, with the long ones at the front of each."""
    long = [item for item in items if item.get_closest_marker("long")]
    # What shares a browser comes next: a worker that has nothing left takes tests from the end of another's piece, and
    # would start a browser of its own for them.
    rest = iter(sorted(shuffled(items[len(long) :], "mixed"), key=lambda item: not _in_browser(item)))
    order: list[pytest.Item] = []
    for worker in range(workers):
        mine = long[worker::workers]
        size = (len(items) - len(order)) // (workers - worker)
        order += [*mine, *islice(rest, max(0, size - len(mine)))]
    return order


def _in_browser(item: pytest.Item) -> bool:
    return "chromium" in getattr(item, "fixturenames", ())


def shuffled(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """A module's tests stay together: many of them share a server of their own. So do all that share a browser."""
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault("browser" if _in_browser(item) else item.path, []).append(item)
    together = list(groups.values())
    chance = random.Random(seed)
    chance.shuffle(together)
    for group in together:
        chance.shuffle(group)
    return [item for group in together for item in group]


class Results:
    """Notes how each test went, where all reports arrive."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            fact = {"test": report.nodeid, "outcome": report.outcome, "when": report.when, "why": _why(report)}
            with self._path.open("a") as file:
                file.write(json.dumps(fact) + "\n")


def _why(report: pytest.TestReport) -> str:
    return report.longreprtext[-6000:] if report.failed else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    failed = [each.nodeid for kind in ("failed", "error") for each in terminalreporter.stats.get(kind, ())]
    if not failed:
        return
    terminalreporter.section("to see a failure again")
    for test in list(dict.fromkeys(failed))[:20]:
        terminalreporter.line(f"alone:   scripts/test {shlex.quote(test)}")
    terminalreporter.line(f"often:   scripts/stress -n 20 --load 2 {shlex.quote(failed[0])}")
    if seed := getattr(config.option, SEED):
        terminalreporter.line(f"the run: scripts/test --random-order-seed={seed}")
