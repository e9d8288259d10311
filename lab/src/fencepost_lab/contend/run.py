"""A whole contention run: processes started, begun at one instant, listened to, and added up."""

import json
import queue
import subprocess
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fencepost import errors
from fencepost.address import parse as parse_url
from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError
from fencepost.registry import find
from fencepost_lab.contend import clients, diary, server
from fencepost_lab.contend.order import Turn
from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.process import TICK
from fencepost_lab.contend.recorder import Recorder, parse
from fencepost_lab.servers.processes import dying_with_us
from fencepost_lab.stage.client import Client

_COMMAND = [sys.executable, "-m", "fencepost_lab.contend.process"]
_HEAD_START = 0.1
_PARTING = 60.0  # seconds that a process may take to end after its time, before it is ended


@dataclass(slots=True)
class Result:
    """What a run met, over all its processes; ``elapsed`` is how long it was measured."""

    plan: Plan
    waits: Recorder = field(default_factory=Recorder)
    acquires: Recorder = field(default_factory=Recorder)
    releases: Recorder = field(default_factory=Recorder)
    works: Recorder = field(default_factory=Recorder)
    turns: list[Turn] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    unserved: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    alone: dict[str, float] = field(default_factory=dict)
    backlog: list[tuple[float, int]] = field(default_factory=list)
    waiting: int = 0
    longest: float = 0.0
    elapsed: float = 0.0
    server: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False


Progress = Callable[[float, int, int], None]
"""Called now and then with the seconds since the beginning, all sections so far and the backlog."""


def contend(
    plan: Plan,
    *,
    history: Path | None = None,
    metrics: Callable[[int, dict[str, Any]], None] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run it, and add up. Ctrl-C ends it early, with what there is so far; a second one at once.

    Raises ConfigError for what cannot be meant, BackendError if the store or the resource cannot be reached.
    """
    kind = clients.find(plan.client, plan.backend)
    if plan.pause and not kind.tasks:
        raise ConfigError(f"client {plan.client!r} runs threads, and pause needs one that runs tasks")
    if plan.processes > 1 and plan.backend and find(parse_url(plan.backend).scheme).promises.reach == "one process":
        raise ConfigError(f"{plan.backend} is for one process; say --processes 1")
    if plan.resource:
        if plan.fence and not kind.events:
            raise ConfigError(f"client {plan.client!r} has no tokens to send to a resource; say --fence off")
        with Client(plan.resource) as client:
            client.read(plan.key)  # before anything else: is it there?
    if history is not None:
        try:
            history.touch()
        except OSError as error:
            raise ConfigError(f"cannot write {str(history)!r}: {error.strerror}") from error
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fencepost-contend-")))
        processes = stack.enter_context(Processes(plan, folder, metrics, progress))
        result = processes.run()
        for number in range(plan.processes):
            result.turns += _turns(folder / f"turns-{number}.bin", processes.done[number]["turns"])
        if history is not None:
            parts = [folder / f"history-{number}.jsonl" for number in range(plan.processes)]
            diary.merge(parts, plan, kind.events, history, _values(plan))
    return result


def _values(plan: Plan) -> dict[str, int]:
    """What the resource has counted to, by key, now that everybody is done."""
    if not plan.resource:
        return {}
    names = [plan.key] if plan.keys == 1 else [f"{plan.key}/{number}" for number in range(plan.keys)]
    with Client(plan.resource) as client:
        replies = {name: client.read(name) for name in names}
    return {name: int(reply.body) for name, reply in replies.items() if reply.status == 200}


def _turns(path: Path, count: int) -> Iterator[Turn]:
    columns: tuple[array[Any], ...] = array("L"), array("d"), array("d")
    with path.open("rb") as file:
        for column in columns:
            column.fromfile(file, count)
    return zip(*columns, strict=True)


class Processes:
    """The processes of one run, which end with it."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        metrics: Callable[[int, dict[str, Any]], None] | None,
        progress: Progress | None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._metrics = metrics
        self._progress = progress
        self._said: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []
        self._listeners: list[threading.Thread] = []
        self._ticks: list[dict[int, tuple[int, int]]] = [{} for _ in range(plan.processes)]
        self.done: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> "Processes":
        for number in range(self._plan.processes):
            process = subprocess.Popen(
                dying_with_us(_COMMAND),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
            self._processes.append(process)
            listener = threading.Thread(target=self._listen, args=(number, process), daemon=True)
            listener.start()
            self._listeners.append(listener)
            self._order(number, {"plan": self._plan.data(), "number": number, "folder": str(self._folder)})
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        for listener in self._listeners:
            listener.join()

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                try:
                    self._said.put((number, json.loads(line)))
                except ValueError:
                    break  # it was killed in the middle of a line
        self._said.put((number, None))

    def _order(self, number: int, order: dict[str, Any]) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(order) + "\n")
            pipe.flush()
        except BrokenPipeError:
            pass  # it says itself why it ended, or its silence does

    def _stop(self) -> None:
        for number in range(len(self._processes)):
            self._order(number, {"stop": True})

    def _hear(self, timeout: float) -> tuple[int, dict[str, Any]] | None:
        """The next thing that a process says; None if nobody says anything for so long."""
        try:
            number, fact = self._said.get(timeout=timeout)
        except queue.Empty:
            return None
        if fact is None:
            if number in self.done:
                return number, {}
            raise BackendError(
                f"process {number} of the run ended without a word (exit code {self._processes[number].wait()})",
                backend=self._plan.client,
                ambiguous=True,
            )
        if "error" in fact:
            if fact["kind"] in ("", "BackendError"):
                raise BackendError(fact["error"], backend=self._plan.client, ambiguous=True)
            raise ConfigError(fact["error"]) if fact["kind"] == "ConfigError" else errors.FencepostError(fact["error"])
        return number, fact

    def run(self) -> Result:
        plan = self._plan
        result = Result(plan)
        ready = 0
        while ready < plan.processes:
            said = self._hear(60.0)
            if said is None:
                raise BackendError("the processes of the run did not get ready", backend=plan.client, ambiguous=True)
            _, fact = said
            ready += "ready" in fact
            # The fastest process is the most likely to have been alone: others were being started meanwhile.
            result.alone = min((result.alone or fact["ready"], fact["ready"]), key=lambda each: sum(each.values()))
        before = server.figures(plan.backend)
        start = boottime() + _HEAD_START
        for number in range(plan.processes):
            self._order(number, {"start": start})
        until = start + plan.warmup + plan.duration + plan.pause + plan.work + _PARTING
        while len(self.done) < plan.processes:
            try:
                said = self._hear(0.5)
                if said is not None:
                    self._take(*said, result)
                elif boottime() > until:
                    raise BackendError("a process of the run does not end", backend=plan.client, ambiguous=True)
            except KeyboardInterrupt:
                if result.interrupted:
                    raise
                result.interrupted = True
                self._stop()
        result.server = server.spent(before, server.figures(plan.backend), result.counts["acquired"])
        result.elapsed = max(0.0, self._end() - plan.warmup)
        result.backlog = self._backlog()
        return result

    def _end(self) -> float:
        """When the measured time was over: for a number of sections, with the last of them."""
        whole = self._plan.sections is not None and not any(done["waiting"] for done in self.done.values())
        return max(float(done["last"] if whole else done["stopped"]) for done in self.done.values())

    def _take(self, number: int, fact: dict[str, Any], result: Result) -> None:
        if "tick" in fact:
            self._ticks[number][fact["tick"]] = fact["backlog"], fact["acquired"]
            if self._metrics is not None and fact.get("metrics"):
                self._metrics(number, fact["metrics"])
            if self._progress is not None and number == self._plan.processes - 1:
                last = [max(ticks.items())[1] for ticks in self._ticks if ticks]
                self._progress(fact["tick"] * TICK, sum(each[1] for each in last), sum(each[0] for each in last))
        if "done" not in fact:
            return
        done = self.done[number] = fact["done"]
        for name, data in done["recorders"].items():
            getattr(result, name).merge(parse(data))
        result.served |= done["served"]
        result.unserved += done["unserved"]
        for name in ("counts", "failures", "writes"):
            getattr(result, name).update(done[name])
        result.pauses += done["pauses"]
        result.waiting += done["waiting"]
        result.longest = max(result.longest, done["longest"])
        if self._metrics is not None and done["metrics"]:
            self._metrics(number, done["metrics"])

    def _backlog(self) -> list[tuple[float, int]]:
        """Over time; a process that was stopped keeps what it last had."""
        ticks = sorted(set().union(*self._ticks))
        last = [0] * len(self._ticks)
        found = []
        for tick in ticks:
            for number, own in enumerate(self._ticks):
                if tick in own:
                    last[number] = own[tick][0]
            found.append((tick * TICK, sum(last)))
        return found
