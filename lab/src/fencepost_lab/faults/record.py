"""What was done to a run: a record of every fault, made when it has really happened."""

from typing import Any, TypeAlias

from fencepost.driver import boottime
from fencepost_lab.history.format import Line

Fault: TypeAlias = dict[str, Any]
"""``do`` names it as a history does, ``who`` met it, ``at`` is the instant on this host's boot-time clock."""


class Faults(list[Fault]):
    """The faults of one run, in the order in which they happened."""

    def note(self, do: str, who: str, **facts: Any) -> Fault:
        """Record one that has just happened."""
        fault = {"do": do, "who": who, "at": boottime(), **facts}
        self.append(fault)
        return fault

    def of(self, do: str, who: str | None = None) -> list[Fault]:
        """Those of one kind, of anybody or of one."""
        return [each for each in self if each["do"] == do and who in (None, each["who"])]

    def lines(self, start: float) -> list[Line]:
        """The same as lines of a history that began at ``start``."""
        return [
            {"t": each["at"] - start, "ev": "fault"} | {key: value for key, value in each.items() if key != "at"}
            for each in self
        ]
