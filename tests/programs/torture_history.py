"""What a torture run's workers said, and what must be true of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Fact = dict[str, Any]

ACTS = ("read", "sent", "accepted", "refused")
"""What a worker does, or is answered, while it believes that it holds the lock."""


@dataclass(eq=False)
class Life:
    """One worker process from its start to its end: the facts it told, in order."""

    worker: int
    facts: list[Fact] = field(default_factory=list)
    killed: bool = False
    acknowledged: int = 0

    def hear(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.facts.append(fact)
            self.acknowledged += fact["event"] == "accepted"

    def of(self, event: str) -> Iterator[Fact]:
        return (fact for fact in self.facts if fact["event"] == event)

    @property
    def unanswered(self) -> int | None:
        """The value of a write that may have been accepted although the worker never heard of it.

        A worker killed after its read may have sent the write before it could say so.
        """
        if not self.killed or not self.facts:
            return None
        last = self.facts[-1]
        if last["event"] == "sent":
            return int(last["value"])
        return int(last["value"] or 0) + 1 if last["event"] == "read" else None


@dataclass(frozen=True)
class Count:
    """A run in numbers; `accepted` and `final` are the resource's own word."""

    final: int
    accepted: int
    acknowledged: int
    unanswered: int
    grants: int
    stops_past_ttl: int
    kills: int
    overlapping_beliefs: int
    refused_writes: int
    refused_reads: int

    @property
    def lost_updates(self) -> int:
        return self.accepted - self.final

    def unstressed(self, stops: int, kills: int) -> list[str]:
        """Which stress this run was to meet and did not; most of what was planned must have happened."""
        needed = {"stops_past_ttl": (stops + 1) // 2, "kills": (kills + 1) // 2, "overlapping_beliefs": 1}
        return [
            f"{name.replace('_', ' ')} {getattr(self, name)}, needed {least}"
            for name, least in needed.items()
            if getattr(self, name) < least
        ]


def overlaps(lives: Iterable[Life]) -> int:
    """How many leases their holders still acted under after a newer one was acquired."""
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    for life in lives:
        for fact in life.facts:
            if fact["event"] == "acquired":
                start[fact["token"]] = fact["at"]
            elif fact["event"] in ACTS:
                end[fact["token"]] = fact["at"]
    return sum(end.get(older, 0.0) > start[newer] for older, newer in pairwise(sorted(start)))


def count(lives: list[Life], *, final: int, accepted: int, stops: int) -> Count:
    refused = [fact for life in lives for fact in life.of("refused") if fact["verdict"] == "stale"]
    return Count(
        final=final,
        accepted=accepted,
        acknowledged=sum(life.acknowledged for life in lives),
        unanswered=sum(life.unanswered is not None for life in lives),
        grants=sum(1 for life in lives for _ in life.of("acquired")),
        stops_past_ttl=stops,
        kills=sum(life.killed for life in lives),
        overlapping_beliefs=overlaps(lives),
        refused_writes=sum(fact["step"] == "write" for fact in refused),
        refused_reads=sum(fact["step"] == "read" for fact in refused),
    )


def tokens_out_of_order(lives: Iterable[Life]) -> list[str]:
    """Each grant whose token is not larger than that of the grant before it.

    The instant of a grant is taken inside the store's own transaction, on the one clock of this host.
    """
    grants = sorted((fact["since"], fact["token"]) for life in lives for fact in life.of("acquired"))
    return [
        f"token {newer} was granted after token {older}"
        for (_, older), (_, newer) in pairwise(grants)
        if newer <= older
    ]


def unexplained_values(lives: Iterable[Life], final: int) -> list[str]:
    """Each value up to the final one that was not written exactly once, as far as anybody can know."""
    lives = list(lives)
    written = Counter(int(fact["value"]) for life in lives for fact in life.of("accepted"))
    unheard = Counter(value for life in lives if (value := life.unanswered) is not None)
    wrong = []
    for value in range(1, max(final, *written, 0) + 1):
        if value > final or written[value] > 1:
            wrong.append(f"{value} was accepted {written[value]} times, and the final value is {final}")
        elif not written[value] and not unheard[value]:
            wrong.append(f"{value} was written by nobody")
    return wrong


def violations(lives: list[Life], counted: Count) -> list[str]:
    """Everything that must not happen with the fence on, and did."""
    found = []
    if counted.lost_updates:
        found.append(f"{counted.accepted} writes were accepted, but the value is {counted.final}")
    if not counted.refused_writes:
        found.append("not stressed: no stale write was refused")
    return found + tokens_out_of_order(lives) + unexplained_values(lives, counted.final)
