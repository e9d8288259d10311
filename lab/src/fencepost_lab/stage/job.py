"""What a worker is asked to do."""

from dataclasses import dataclass
from enum import StrEnum

from fencepost import check
from fencepost.errors import ConfigError


class PauseMode(StrEnum):
    """``stop`` freezes the whole process with SIGSTOP, renewals included; ``sleep`` only the working thread."""

    STOP = "stop"
    SLEEP = "sleep"


class PauseAt(StrEnum):
    """Where, between acquiring and the answer to the first write, a round pauses."""

    BEFORE_READ = "before-read"
    BEFORE_WRITE = "before-write"
    AFTER_SEND = "after-send"


class Edit(StrEnum):
    """What a write does to the value that was read: count it up by one, or append a line."""

    COUNT = "count"
    APPEND = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One worker's orders: ``iterations`` rounds of acquire, read, work, write and release.

    A round makes ``writes`` writes, each after a read of its own; it pauses at its first. ``fence``
    sends the lease's stamp with each write, and with ``enter`` with each read too. The lock has the
    name of the key. With ``margin`` it looks at its lease before each write, and stops while fewer seconds than that
    are left; without, it never looks. It waits ``patience`` for an answer of the resource: without one, it reads and
    writes once more. Raises ConfigError for what cannot be meant.
    """

    resource: str
    backend: str | None = None
    key: str = "demo"
    name: str = "worker"
    ttl: float = 2.0
    timeout: float | None = None
    renew: bool = True
    fence: bool = True
    enter: bool = True
    edit: Edit = Edit.COUNT
    writes: int = 1
    iterations: int = 1
    work: float = 0.0
    margin: float | None = None
    patience: float = 60.0
    pause: float = 0.0
    pause_mode: PauseMode = PauseMode.STOP
    pause_at: PauseAt = PauseAt.BEFORE_WRITE

    def __post_init__(self) -> None:
        check.name(self.key, "key")
        check.ttl(self.ttl)
        for what in ("work", "pause", "patience"):
            check.seconds(getattr(self, what), what)
        if self.resource.startswith("column+") and self.fence and self.enter:
            raise ConfigError("a row that carries its epoch is entered by its write alone; say --no-enter")
        if not self.patience:
            raise ConfigError("patience must be greater than 0 seconds, or no answer could come in time")
        if self.margin is not None and not 0 <= self.margin < self.ttl * 2 / 3:
            raise ConfigError(
                f"margin must be shorter than two thirds of the ttl of {self.ttl:g} s, not {self.margin:g} s"
            )
        for what in ("writes", "iterations"):
            if getattr(self, what) < 1:
                raise ConfigError(f"{what} must be at least 1, not {getattr(self, what)}")
