"""One process of a contention run, as ``run`` starts it: orders on stdin, what it met on stdout, as JSON lines.

It first takes and frees a lock alone, says that it is ready, begins when it is told to, and reports when it is done,
was told to stop, or its parent is gone.
"""

import asyncio
import json
import os
import signal
import statistics
import sys
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from fencepost.driver import Driver, boottime, run
from fencepost.errors import ConfigError, FencepostError
from fencepost.events import Event
from fencepost.hooks.page import Page
from fencepost_lab.contend.clients import Client, open_client
from fencepost_lab.contend.diary import Diary
from fencepost_lab.contend.load import Load
from fencepost_lab.contend.plan import Part, Plan

TICK = 0.25
"""Seconds between two looks at the backlog."""
_ALONE = 40
_PARTING = 5.0  # seconds that blocked threads get to notice that the run is over


class Process:
    """Runs one part, with tasks or threads."""

    def __init__(self, part: Part, folder: Path) -> None:
        self._part = part
        self._folder = folder
        self._load: Load | None = None
        self._count = Page() if part.plan.metrics else None
        self._over = threading.Event()

    def main(self) -> None:
        plan = self._part.plan
        client = open_client(plan.client, plan.backend, plan.ttl, [self._heard])
        driver = type(client).driver()
        if client.tasks:
            asyncio.run(self._tasks(client, driver))
        else:
            self._threads(client, driver)

    def _heard(self, event: Event) -> None:
        if self._load is None:
            return  # what is measured alone is no part of the run
        self._load.heard(event)
        if self._count is not None:
            self._count(event)

    async def _alone(self, client: Client) -> dict[str, float]:
        """What acquiring and releasing cost when nobody else wants the lock; connects, too."""
        name = f"{self._part.plan.key}/alone-{self._part.number}"
        acquires, releases = [], []
        for _ in range(_ALONE if self._part.number == 0 else 1):
            begun = boottime()
            held = await client.acquire(name, inf if client.tasks else 30.0)
            if held is None:
                raise ConfigError(f"{name!r} is held by somebody else")
            had = boottime()
            await client.release(held)
            acquires.append(had - begun)
            releases.append(boottime() - had)
        return {"acquire": statistics.median(acquires), "release": statistics.median(releases)}

    def _begin(self, client: Client, driver: Driver, start: float) -> Load:
        path = self._folder / f"history-{self._part.number}.jsonl" if self._part.plan.history else None
        self._load = Load(self._part, client, driver, Diary(path, start), self._count)
        threading.Thread(target=self._tick, args=(self._load, start), daemon=True).start()
        return self._load

    def _tick(self, load: Load, start: float) -> None:
        number = 0
        while not self._over.wait(max(0.0, start + number * TICK - boottime())):
            fact: dict[str, Any] = {"tick": number, "backlog": load.backlog(), "acquired": load.counts["acquired"]}
            if self._count is not None and number % 4 == 0:
                fact["metrics"] = self._count.data()
            say(fact)
            # A process that was stopped goes on with the present.
            number = max(number + 1, int((boottime() - start) / TICK))

    async def _tasks(self, client: Client, driver: Driver) -> None:
        loop = asyncio.get_running_loop()
        try:
            say({"ready": await self._alone(client)})
            start = await loop.run_in_executor(None, _started)
            load = self._begin(client, driver, start)
            await asyncio.sleep(max(0.0, start - boottime()))
            asked = asyncio.Event()
            tasks = {who: asyncio.create_task(load.contender(who)) for who in self._part.names}
            for task in tasks.values():
                task.add_done_callback(lambda task: None if task.cancelled() or not task.exception() else asked.set())
            _listen(lambda: loop.call_soon_threadsafe(asked.set))
            listener = asyncio.create_task(asked.wait())
            everybody = asyncio.create_task(asyncio.wait(tasks.values()))
            left = start + load.end - boottime()
            await asyncio.wait([everybody, listener], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            listener.cancel()
            load.stopped = True
            stopped = load.diary.now()
            for who, task in tasks.items():
                if who not in load.holding:
                    task.cancel()
            results = await asyncio.gather(*tasks.values(), return_exceptions=True)
            for error in results:
                if isinstance(error, Exception):
                    raise error
            self._report(load, stopped)
        finally:
            await client.close()

    def _threads(self, client: Client, driver: Driver) -> None:
        say({"ready": run(self._alone(client))})
        start = _started()
        load = self._begin(client, driver, start)
        errors: list[Exception] = []

        def contend(who: str) -> None:
            try:
                run(load.contender(who))
            except Exception as error:
                errors.append(error)

        threading.Event().wait(max(0.0, start - boottime()))
        threading.stack_size(256 << 10)
        threads = [threading.Thread(target=contend, args=(who,), daemon=True) for who in self._part.names]
        for thread in threads:
            thread.start()
        asked = threading.Event()
        _listen(asked.set)
        until = start + load.end
        while any(thread.is_alive() for thread in threads) and not asked.is_set() and boottime() < until:
            asked.wait(min(0.05, max(0.0, until - boottime())))
        load.stopped = True
        stopped = load.diary.now()
        parting = boottime() + _PARTING + self._part.plan.work
        for thread in threads:
            thread.join(max(0.0, parting - boottime()))
        if errors:
            raise errors[0]
        self._report(load, stopped)
        if not any(thread.is_alive() for thread in threads):
            run(client.close())

    def _report(self, load: Load, stopped: float) -> None:
        self._over.set()
        load.diary.close()
        waiting, end = load.backlog(), load.end
        longest = load.finish(stopped)
        with (self._folder / f"turns-{self._part.number}.bin").open("wb") as file:
            for column in load.turns:
                column.tofile(file)
        say(
            {
                "done": {
                    "recorders": {
                        name: getattr(load, name).data() for name in ("waits", "acquires", "releases", "works")
                    },
                    "turns": len(load.turns[0]),
                    "served": load.served,
                    "unserved": len(load.unserved),
                    "counts": load.counts,
                    "failures": load.failures,
                    "writes": load.counting.outcomes if load.counting else {},
                    "pauses": load.pauses,
                    "waiting": waiting,
                    "longest": longest,
                    "stopped": min(stopped, end),
                    "last": load.last,
                    "metrics": None if self._count is None else self._count.data(),
                }
            }
        )


_gate = threading.Lock()


def say(fact: dict[str, Any]) -> None:
    text = json.dumps(fact, separators=(",", ":")) + "\n"
    with _gate:
        sys.stdout.write(text)
        sys.stdout.flush()


def _started() -> float:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(1)
    return float(json.loads(line)["start"])


def _listen(stop: Callable[[], object]) -> None:
    """Call ``stop`` on the next order, or when the parent is gone."""

    def listen() -> None:
        sys.stdin.readline()
        try:
            stop()
        except RuntimeError:
            pass  # the loop is closed: it was over already

    threading.Thread(target=listen, daemon=True).start()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us says when to stop
    orders = json.loads(sys.stdin.readline())
    try:
        Process(Plan(**orders["plan"]).part(orders["number"]), Path(orders["folder"])).main()
    except Exception as error:
        kind = type(error).__name__ if isinstance(error, FencepostError) else ""
        say({"error": str(error) if kind else f"{type(error).__name__}: {error}", "kind": kind})
    # A daemon thread may hold stdin's lock, which the interpreter would wait for.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
