"""The contenders of one process: they come, wait, work and go, and everything they meet is counted."""

import asyncio
import itertools
import random
from array import array
from bisect import bisect_right
from collections import Counter
from math import inf
from typing import Any

from fencepost.driver import Driver
from fencepost.errors import ConfigError
from fencepost.events import Event, Hook, Kind
from fencepost_lab.contend.clients import Client, Held
from fencepost_lab.contend.counting import Counting
from fencepost_lab.contend.diary import TOLD, Diary
from fencepost_lab.contend.plan import Part
from fencepost_lab.contend.recorder import Recorder
from fencepost_lab.servers.freeze import freeze

_BACKOFF = 0.05


class Load:
    """One process's contenders. Instants are seconds since the run began, on a clock that all processes share.

    In the open model a wait begins when the arrival was due, not when a contender got round to asking: a stalled
    store delays those who come after, and their delay counts.
    """

    def __init__(self, part: Part, client: Client, driver: Driver, diary: Diary, hook: Hook | None) -> None:
        plan = part.plan
        self.part = part
        self.client = client
        self.driver = driver
        self.diary = diary
        self._hook = None if client.events else hook
        self.counting = Counting(plan.resource, plan.fence, driver, diary) if plan.resource else None
        self.waits, self.acquires, self.releases, self.works = Recorder(), Recorder(), Recorder(), Recorder()
        self.turns: tuple[array[int], array[float], array[float]] = array("L"), array("d"), array("d")
        self.served = dict.fromkeys(part.names, 0)
        self.unserved = set(part.names)
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.pauses: list[float] = []
        self.waiting: dict[str, tuple[float, int, float]] = {}
        self.holding: set[str] = set()
        self.leases: dict[str, tuple[str, str, Held]] = {}
        self.stopped = False
        self.last = 0.0
        self.begin = plan.warmup
        self.end = plan.warmup + plan.duration
        self._arrivals = itertools.count()
        self._taken = itertools.count()
        self._random = random.Random(f"{plan.seed} {part.number}")
        self._schedule = Schedule(part, self.end)

    def _next(self) -> float | None:
        """When the next arrival is due, None if there is none."""
        plan, sections = self.part.plan, self.part.sections
        if self.stopped or (sections is not None and next(self._taken) >= sections):
            return None
        due = self.diary.now() if plan.rate is None else self._schedule.due(next(self._arrivals))
        return due if due < self.end else None

    def backlog(self) -> int:
        """How many have come and were not served yet, also those that no contender was free to take."""
        plan = self.part.plan
        if plan.rate is None:
            return len(self.waiting)
        come = self._schedule.come(min(self.diary.now(), self.end))
        if self.part.sections is not None:
            come = min(come, self.part.sections)
        return max(0, come - self.counts["acquired"] - self.counts["gave_up"] - self.counts["failed"])

    def _name(self) -> tuple[int, str]:
        plan = self.part.plan
        if plan.keys == 1:
            return 0, plan.key
        number = self._random.randrange(plan.keys)
        return number, f"{plan.key}/{number}"

    async def contender(self, who: str) -> None:
        """Take one arrival after the other until there are no more."""
        while (due := self._next()) is not None:
            number, name = self._name()
            if (left := due - self.diary.now()) > 0:
                # If the run ends before it goes on from here, it counts among those who still wait.
                self.waiting[who] = due, number, due
                await self.driver.sleep(left)
            if self.stopped:
                return
            asked = self.diary.write("asked", who=who, lock=name)
            self.waiting[who] = due, number, asked
            self._tell("attempt", name)
            held = await self._acquire(who, name, asked)
            if held is None:
                continue
            try:
                await self._turn(who, number, name, held, due, asked)
            finally:
                self.holding.discard(who)

    async def _acquire(self, who: str, name: str, asked: float) -> Held | None:
        patience = inf if self.client.tasks else max(0.001, self.end - self.diary.now())
        try:
            held = await self.client.acquire(name, patience)
        except asyncio.CancelledError:
            self.diary.write("timeout", who=who, lock=name, asked=asked)
            raise
        except ConfigError:
            raise
        except Exception as error:
            self.waiting.pop(who, None)
            self.counts["failed"] += 1
            self._failed(error)
            self.diary.write("failed", who=who, lock=name, asked=asked, why=type(error).__name__)
            await self.driver.sleep(_BACKOFF)
            return None
        if held is None:
            self.counts["gave_up"] += 1
            self.diary.write("timeout", who=who, lock=name, asked=asked)
            self._tell("timeout", name)
            return None
        self.holding.add(who)
        self.waiting.pop(who, None)
        return held

    def _failed(self, error: Exception) -> None:
        self.failures[f"{type(error).__name__}: {error}"[:200]] += 1

    async def _turn(self, who: str, number: int, name: str, held: Held, due: float, asked: float) -> None:
        self.leases[held.holder] = who, name, held
        facts = {"who": who, "token": held.token, "holder": held.holder, "lock": name}
        until = None if held.until is None else self.diary.instant(held.until)
        t = self.diary.write("acquired", **facts, ttl=held.ttl, asked=asked, until=until)
        measured = self.begin <= due and t <= self.end
        self.counts["acquired"] += 1
        self.unserved.discard(who)
        self._tell("acquired", name, seconds=t - asked)
        if measured:
            self.served[who] += 1
            self.acquires.add(t - asked)
            self._served(number, due, asked, t)
        elif self.begin <= due:
            self._served(number, due, asked, t, inf)  # after the end: its wait counts, its turn does not
        try:
            await self._work(who, name, held)
        except ConfigError:
            raise
        except Exception as error:
            self._failed(error)
        await self._release(name, held, t, facts, measured)

    def _served(self, number: int, due: float, asked: float, t: float, turn: float | None = None) -> None:
        self.waits.add(t - due)
        numbers, arrivals, services = self.turns
        numbers.append(number)
        arrivals.append(asked)
        services.append(t if turn is None else turn)

    def finish(self, stopped: float) -> float:
        """Count those who still wait, with the wait they have had: who is not served is not left out.

        The longest of these waits. Call it last.
        """
        left = list(self.waiting.values())
        # In the open model also those whom no contender was free to take. Nobody is due after the end of the plan,
        # however late this process noticed it.
        self.stopped, self.end = False, min(self.end, stopped)
        while self.part.plan.rate is not None and (due := self._next()) is not None:
            left.append((due, 0, due))
        longest = 0.0
        for due, number, asked in left:
            if self.begin <= due < self.end:
                self._served(number, due, asked, stopped, inf)
                longest = max(longest, stopped - due)
        return longest

    async def _work(self, who: str, name: str, held: Held) -> None:
        plan = self.part.plan
        base = await self.counting.read(who, name, held) if self.counting else None
        if plan.work:
            await self.driver.sleep(plan.work)
        if self.part.pauses and not self.pauses and self._half_way():
            self.pauses.append(0.0)
            self._pause()
        if self.counting and base is not None:
            await self.counting.write(who, name, held, base)

    def _half_way(self) -> bool:
        sections = self.part.sections
        if sections is not None and self.counts["acquired"] >= (sections + 1) // 2:
            return True
        return self.diary.now() >= (self.begin + self.end) / 2

    def _pause(self) -> None:
        """Stop the whole process for real: everybody in it."""
        for name in self.part.names:
            self.diary.write("fault", do="pause", who=name)
        self.diary.flush()
        self.pauses[-1] = freeze(self.part.plan.pause)
        for name in self.part.names:
            self.diary.write("fault", do="resume", who=name)

    async def _release(self, name: str, held: Held, since: float, facts: dict[str, Any], measured: bool) -> None:
        begun = self.diary.write("releasing", **facts)
        try:
            ok: bool | None = await self.client.release(held)
        except Exception as error:
            self._failed(error)
            ok = None
        self.last = self.diary.write("released", **facts, asked=begun, ok=ok)
        self.leases.pop(held.holder, None)
        self.counts["not_owner"] += ok is False
        self._tell("released" if ok else "not_owner", name, seconds=self.last - since)
        if self.begin <= self.last <= self.end:
            self.counts["sections"] += 1
        if measured:
            self.works.add(begun - since)
            self.releases.add(self.last - begun)

    def _tell(self, kind: Kind, name: str, **facts: Any) -> None:
        if self._hook is not None:
            self._hook(Event(kind=kind, name=name, source=self.part.plan.client, **facts))

    def heard(self, event: Event) -> None:
        """A hook: renewals and losses of the leases that are held."""
        if event.kind not in TOLD or event.holder not in self.leases:
            return
        self.counts[event.kind] += 1
        who, name, held = self.leases[event.holder]
        facts = {"who": who, "token": held.token, "holder": held.holder, "lock": name}
        if event.kind == "lost":
            self.diary.write("lost", **facts, why=event.detail)
        else:
            self.diary.write(event.kind, **facts, until=self.diary.instant(held.lease.deadline))


class Schedule:
    """When the arrivals of one process are due in the open model."""

    def __init__(self, part: Part, end: float) -> None:
        plan = part.plan
        self._rate = plan.rate or 0.0
        self._first, self._step = part.number, plan.processes
        self._random: array[float] | None = None
        if plan.random:
            # Each process takes its part of the rate: together they are as random as one would be.
            chance, t = random.Random(f"arrivals {plan.seed} {part.number}"), 0.0
            self._random = array("d")
            while (t := t + chance.expovariate(self._rate / plan.processes)) < end:
                self._random.append(t)

    def due(self, number: int) -> float:
        """When this process's arrival ``number`` is due; inf if it is after the end."""
        if self._random is None:
            return (self._first + number * self._step) / self._rate
        return self._random[number] if number < len(self._random) else inf

    def come(self, t: float) -> int:
        """How many are due by then."""
        if self._random is not None:
            return bisect_right(self._random, t)
        due = (t * self._rate - self._first) / self._step
        return int(due) + 1 if due >= 0 else 0
