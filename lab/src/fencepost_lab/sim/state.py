"""What a simulated store knows, and so can lose."""

from copy import copy
from dataclasses import dataclass, field


@dataclass(slots=True)
class Waiter:
    """One entry of a queue; a client that stopped asking for it is skipped."""

    client: str
    ttl: float
    until: float


@dataclass(slots=True)
class LockState:
    """A lock as the store sees it."""

    holder: str
    token: int
    ttl: float
    expires: float
    agreed: bool = True
    """The token stands; one node of a quorum alone cannot know."""


@dataclass(slots=True)
class State:
    """Everything the store could lose."""

    counter: int = 0
    grants: int = 0
    """How many were made before: a replica that missed the last one knows one less."""
    locks: dict[str, LockState] = field(default_factory=dict)
    queues: dict[str, dict[str, Waiter]] = field(default_factory=dict)
    gone: dict[str, None] = field(default_factory=dict)
    """Holders that left: what they asked for earlier must not take effect any more."""

    def copy(self) -> "State":
        """The same state, apart."""
        locks = {name: copy(lock) for name, lock in self.locks.items()}
        queues = {
            name: {holder: copy(waiter) for holder, waiter in queue.items()} for name, queue in self.queues.items()
        }
        return State(self.counter, self.grants, locks, queues, self.gone.copy())
