"""Draws faults from the seed, one after the other, and records when each began and ended, and that it happened."""

from __future__ import annotations

import itertools
import random
import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError, NotAcquired
from fencepost_lab.faults.record import Faults
from fencepost_lab.history.format import Line
from fencepost_lab.servers.redis_groups import Watched
from fencepost_lab.torture.crew import Crew
from fencepost_lab.torture.faults import CATALOGUE, Admitted, Fault, NotNow, Stage
from fencepost_lab.torture.plan import Plan
from fencepost_lab.torture.site import Site

_WEIGHTS = {"migration": 0.35, "starve": 0.35, "hostile": 0.6, "server-kill": 3.0, "partition": 2.0, "clock-jump": 1.5}
"""How often a fault is drawn, where others are 1; those above that come twice in the first round."""

_FAILURES = (OSError, HTTPException, sqlite3.Error, BackendError, NotAcquired)
"""How a fault fails whose own questions the store does not answer."""


@dataclass(frozen=True)
class Menu:
    """Which faults a slice may meet, and why not the others."""

    client: frozenset[str]
    drawn: tuple[Fault, ...]
    without: dict[str, str]
    fails_over: bool = False
    """Whether a server that is silent is replaced by one that may not have its last writes."""

    @property
    def loses(self) -> bool:
        silent = ("server", "network")
        return any(each.loses or (self.fails_over and each.group in silent) for each in self.drawn)

    @property
    def shifts(self) -> bool:
        return any(each.shifts for each in self.drawn)


def menu(plan: Plan, site: Site) -> Menu:
    """The faults of a slice. Of three slices, one loses state and one shifts clocks, so the others promise more."""
    if plan.faults is not None and (unknown := set(plan.faults) - set(CATALOGUE)):
        raise ConfigError(f"there is no fault {min(unknown)!r}; there are {', '.join(CATALOGUE)}")
    without: dict[str, str] = {}
    client, drawn = set(), []
    for name, fault in CATALOGUE.items():
        if plan.faults is not None and name not in plan.faults:
            continue
        if why := fault.unfit(site):
            without[name] = why
        elif plan.staging and fault.group != "client":
            without[name] = f"{plan.staging} is not ours: only our own processes are harmed"
        elif fault.group == "client":
            client.add(name)
        elif plan.faults is not None or plan.control or _in_turn(plan, fault):
            drawn.append(fault)
    if plan.control:
        drawn = [each for each in drawn if each.name in _CONTROLLED.get(plan.control, ())]
    return Menu(frozenset(client), tuple(drawn), without, isinstance(site.group, Watched))


_CONTROLLED = {
    "off": ("restore", "drop"),
    "writes": ("restore", "drop"),
    "noseq": ("values-cut", "duplicate", "answer-lost"),
    "noholder": ("flushall", "restore"),
}
"""What a control needs to show its violations: pauses are enough for most."""


def _in_turn(plan: Plan, fault: Fault) -> bool:
    if fault.name == "migration":  # it stops all work for a while, so not in every slice
        return plan.seed % 5 == 4
    return (not fault.loses or plan.seed % 3 == 0) and (not fault.shifts or plan.seed % 3 == 1)


@dataclass
class Nemesis:
    """Runs in a thread of its own until it is told to stop."""

    plan: Plan
    site: Site
    crew: Crew
    folder: Path
    record: Faults
    menu: Menu
    start: float
    counts: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    lines: list[Line] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.over = threading.Event()
        dice = random.Random(f"{self.plan.seed} nemesis")
        numbers = itertools.count()
        self.stage = Stage(self.plan, self.site, self.crew, self.folder, self.record, dice, self.over, numbers)
        self._thread = threading.Thread(target=self._run, name="nemesis")
        self.failed: BaseException | None = None

    def prepare(self) -> None:
        """The fault that comes before everything else."""
        high = next((each for each in self.menu.drawn if each.name == "high-tokens"), None)
        # Not where the store may forget them: it would be refused for a mark that no holder had.
        if high is not None and not self.menu.loses and (self.plan.seed % 4 == 2 or self.plan.faults is not None):
            self.do(high)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the fault that is under way, and draw no more."""
        self.over.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        drawn = [each for each in self.menu.drawn if each.name != "high-tokens"]
        weights = [_WEIGHTS.get(each.name, 1.0) for each in drawn]
        often = [each for each, weight in zip(drawn, weights, strict=True) if weight > 1]
        dice = self.stage.dice
        try:
            # Each once or twice in random order, then as the dice fall.
            order = iter(dice.sample([*drawn, *often], len(drawn) + len(often)))
            while drawn and not self.over.wait(self.plan.server_every * dice.uniform(0.3, 1.7)):
                self.do(next(order, None) or dice.choices(drawn, weights)[0])
        except BaseException as error:
            self.failed = error

    def do(self, fault: Fault) -> None:
        began = round(boottime() - self.start, 6)
        assert fault.do is not None
        try:
            proof: dict[str, Any] = fault.do(self.stage)
        except (NotNow, *_FAILURES) as why:
            # Whatever was begun was ended. A server that does not come back is another matter: that ends the run.
            self.missed[f"{fault.name}: {why}"[:120]] += 1
            return
        except Admitted as admitted:
            self.wrong.append(f"hostile: {admitted}")
            return
        ended = round(boottime() - self.start, 6)
        self.counts[fault.name] += 1
        if fault.name == "hostile" and proof["refused"] != proof["forged"]:
            self.wrong.append(f"hostile: {proof['forged']} forged writes, {proof['refused']} refused")
        who = proof.pop("who", "")
        self.lines.append({"t": ended, "ev": "fault", "do": fault.name, "who": who, "began": began, **proof})
