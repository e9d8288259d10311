"""Guarded counters that keep a history: what a fleet writes to, simulated or real."""

from collections.abc import Callable
from typing import Any

from fencepost.errors import Refused
from fencepost.guards.memory import MemoryGuard
from fencepost.rule import Stamp, Verdict


class Counters:
    """One counter for each key, behind the memory guard; ``tell`` gets each access with its verdict."""

    def __init__(self, tell: Callable[..., object]) -> None:
        self._tell = tell
        self._guard: MemoryGuard[int] = MemoryGuard()
        self._values: dict[str, tuple[int, int]] = {}

    def judge(self, access: dict[str, Any]) -> dict[str, Any]:
        """Make one access, or refuse it, in one step; the answer.

        An access is an enter or a write (``do``) of ``who`` to ``key``, with token, seq and holder; a write
        has the ``value`` to keep and the version it was computed from, its ``base``.
        """
        key, stamp = access["key"], Stamp(access["token"], access["seq"], access["holder"])
        value, version = self._values.get(key, (0, 0))
        made: dict[str, Any] = {}
        try:
            if access["do"] == "enter":
                self._guard.enter(key, stamp)
                verdict = Verdict.ADMIT
            elif self._guard.write(key, access["value"], stamp):
                verdict = Verdict.ADMIT
                value, version = self._values[key] = access["value"], version + 1
                made = {"version": version}
            else:
                verdict = Verdict.REPLAY
        except Refused as refused:
            verdict = refused.verdict
        mark = self._guard.mark(key)
        seen = mark.token if mark else None
        self._tell("access", lock=key, **access, **made, verdict=verdict.value, mark=seen)
        return {"verdict": verdict.value, "value": value, "version": version, "seen": seen}
