"""One process's part of a history, in the order of its instants; and all parts as one."""

import heapq
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fencepost.driver import boottime
from fencepost_lab.contend.plan import Plan
from fencepost_lab.history.format import FORMAT, Line, encode, lines

TOLD = ("renewed", "unrenewed", "at_risk", "recovered", "lost")
"""The events of a held lease that a history has."""


class Diary:
    """Notes what happens, if there is a file to note it in; ``t`` counts from ``start``.

    With ``each_line``, a process that is killed has left every line that it wrote.
    """

    def __init__(self, path: Path | None, start: float, *, each_line: bool = False) -> None:
        buffering = 1 if each_line else -1
        self._file: IO[str] | None = None if path is None else path.open("w", buffering, encoding="utf-8")
        self._gate = threading.Lock()  # its lines are in the order of their instants, whichever thread writes them
        self._start = start

    def now(self) -> float:
        """Seconds since the run began, as precise as a history has them."""
        return round(boottime() - self._start, 6)

    def write(self, ev: str, **facts: Any) -> float:
        """Note that this happened now; the instant."""
        if self._file is None:
            return self.now()
        text = encode(facts)[1:]
        with self._gate:
            t = self.now()
            self._file.write(f'{{"t":{t:.6f},"ev":"{ev}",{text}\n')
        return t

    def instant(self, moment: float) -> float:
        """A moment of the boot-time clock as seconds since the run began."""
        return round(moment - self._start, 6)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def promises(plan: Plan, tokens: bool) -> list[str]:
    """What must hold of a run's history: a client without tokens can be held to much less."""
    data = ["data", *(["inside"] if plan.fence else [])] if plan.resource and tokens else []
    return [*data, *(["order", "deadline"] if tokens else []), "exclusion"]


def merge(parts: Iterable[Path], plan: Plan, tokens: bool, path: Path, values: Mapping[str, int]) -> None:
    """Write the history of a whole run, its lines in order; ``values`` are what the resource has at the end."""
    head: Line = {
        "t": 0,
        "ev": "run",
        "format": FORMAT,
        "source": "contend",
        "client": plan.client,
        "lock": plan.key,
        "key": plan.key,
        "clients": plan.names,
        "promises": promises(plan, tokens),
    }
    if plan.resource:
        head |= {"fence": plan.fence, "journal": False, "counter": True}
    with path.open("w", encoding="utf-8") as file:
        file.write(lines([head]))
        last, count = 0.0, 1
        for t, text in heapq.merge(*map(_stamped, parts), key=lambda pair: pair[0]):
            file.write(text)
            last, count = t, count + 1
        ends: list[Line] = [{"key": key, "value": value, "version": value} for key, value in values.items()] or [{}]
        for number, end in enumerate(ends):
            file.write(lines([{"t": last, "ev": "end", **end, "lines": count + number}]))


def _stamped(path: Path) -> Iterator[tuple[float, str]]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            yield float(text[5 : text.index(",")]), text
