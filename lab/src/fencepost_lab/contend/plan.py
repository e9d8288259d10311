"""What a contention run is asked to do, and each process's part of it."""

import dataclasses
import secrets
from dataclasses import dataclass, field
from typing import Any

from fencepost import check
from fencepost.errors import ConfigError

_MOST = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run: ``contenders`` in ``processes`` take, hold for ``work`` seconds and free one of ``keys`` locks.

    Without ``rate`` each contender comes again as soon as it was served: the closed model. With it, arrivals come on
    schedule, ``rate`` a second in all, however far behind the contenders are: the open model. They come at even
    distances, or, if ``random``, as independent users do (a Poisson process, fixed by ``seed``). Nothing is measured
    before ``warmup`` has passed; the run ends ``duration`` later, or after ``sections`` in all. With ``resource`` each
    section counts a value up there, with the lease's stamp if ``fence``. ``pause`` stops one process once, for so long,
    while it holds. Raises ConfigError for what cannot be meant.
    """

    backend: str | None = None
    client: str = "fencepost"
    contenders: int = 50
    processes: int = 2
    rate: float | None = None
    random: bool = False
    keys: int = 1
    key: str = field(default_factory=lambda: f"contend-{secrets.token_hex(4)}")
    ttl: float = 10.0
    work: float = 0.01
    warmup: float = 1.0
    duration: float = 10.0
    sections: int | None = None
    seed: int = 0
    resource: str | None = None
    fence: bool = True
    pause: float = 0.0
    history: bool = False
    metrics: bool = False

    def __post_init__(self) -> None:
        check.name(self.key, "key")
        check.ttl(self.ttl)
        for what in ("work", "warmup", "duration", "pause"):
            check.seconds(getattr(self, what), what)
        if not self.duration:
            raise ConfigError("duration must be greater than 0 seconds, for nothing would be measured")
        for what in ("contenders", "processes", "keys", "sections"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise ConfigError(f"{what} must be at least 1, not {value}")
        if self.processes > self.contenders:
            raise ConfigError(f"{self.contenders} contenders cannot fill {self.processes} processes; take fewer")
        if self.rate is not None and not 0 < self.rate < 1e9:
            raise ConfigError(f"rate is a number of arrivals per second above 0, not {self.rate:g}")
        if self.random and self.rate is None:
            raise ConfigError("random arrivals need a rate: without one each contender comes when it was served")
        if self.random and self.rate is not None and self.rate * (self.warmup + self.duration) > _MOST:
            raise ConfigError(f"random arrivals are drawn before the run, at most {_MOST} of them; take a lower rate")
        if self.pause and self.processes < 2:
            raise ConfigError("pause stops one of several processes, or nobody is left to see it; take more processes")

    def part(self, number: int) -> "Part":
        """What process ``number`` has to do: every ``processes``-th of the contenders, arrivals and sections.

        A contender is named by its process and its number: a0, b1, a2...
        """
        process = chr(ord("a") + number) if number < 26 else f"p{number}."
        names = tuple(f"{process}{each}" for each in range(number, self.contenders, self.processes))
        sections = self.sections
        if sections is not None:
            sections = len(range(number, sections, self.processes))
        return Part(plan=self, number=number, names=names, sections=sections)

    @property
    def names(self) -> list[str]:
        """Every contender."""
        return [name for number in range(self.processes) for name in self.part(number).names]

    def data(self) -> dict[str, Any]:
        """What ``Plan(**data)`` reads."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process's part of a plan."""

    plan: Plan
    number: int
    names: tuple[str, ...]
    sections: int | None

    @property
    def pauses(self) -> bool:
        """Whether this is the process that is stopped."""
        return bool(self.plan.pause) and self.number == 0
