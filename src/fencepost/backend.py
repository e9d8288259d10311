"""The contract of a backend: where locks live and tokens are minted.

A backend is written once, as ``async def``. Under the Blocking driver nothing in it may suspend: it
calls blocking clients, or hands calls to ``driver.offload``; it waits with ``driver.signal()`` and
``driver.sleep``, and reads local time from ``driver.now()`` alone. It connects on first use.

Closing the locks ends every ``wait``: signals and sleeps in it raise ``driver.scope.Closed``, as a cancellation would.
A backend that waits for anything else must use ``woken`` (driver/scope.py) to notice.

A request waits for its store no longer than ``patience(its own time-out)`` seconds, because an acquire must end soon
after its timeout. asyncio code is cancelled then; blocking code must limit itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Literal, NamedTuple

from fencepost.address import Address
from fencepost.driver import Driver, Signal
from fencepost.driver.scope import patience, woken
from fencepost.errors import BackendError
from fencepost.lease import Grant

__all__ = [
    "Address",
    "Backend",
    "Driver",
    "Finding",
    "Grant",
    "Hold",
    "Promises",
    "Renewal",
    "Signal",
    "Status",
    "patience",
    "woken",
]


LOOK = 0.5
"""Seconds between two looks at a lock whose store does not report changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What a backend promises, as data; ``fencepost backends`` and the docs print it."""

    reach: str
    """Who can use the same lock: one process, one host, all clients that reach the server."""
    fair: bool
    """Live waiters are served in the order they came."""
    consensus: bool
    """Grants are agreed on by a majority."""
    failover: str
    """What happens to locks and tokens when the store restarts or fails over."""
    clock: str
    """Whose clock decides that a lease has expired."""
    token: str
    """Where the token comes from."""
    wakeup: str
    """What wakes a waiter, and what waiting costs."""
    observe: str = f"asks every {LOOK:g} s"
    """How a client that does not wait for the lock learns that its holder, or the leader, has changed."""
    shared: bool = False
    """There are shared locks and semaphores: first come, first served, among sharers and others alike."""
    keeps: Literal["any", "ttl", "no"] = "any"
    """For how long a lock stays taken after its block (``at_least=``): any time, at most its ttl, or not at all."""
    min_ttl: float = 0.001
    max_ttl: float = 1e9


class Hold(NamedTuple):
    """A hold to renew: it is renewed only if it is still this holder's, under this token."""

    name: str
    holder: str
    token: int
    ttl: float


class Renewal(Enum):
    """A store's answer to a renewal."""

    RENEWED = "renewed"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Status:
    """A lock as its store sees it, for people and scripts."""

    name: str
    holder: str
    token: int
    remaining: float
    waiters: tuple[str, ...]
    sharers: tuple[str, ...] = ()
    """The holders of a shared lock, in the order they came; empty if one holder has it alone. Of a shared lock,
    ``holder`` is the first of them, ``token`` the newest token, ``remaining`` that of the last to expire."""
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The labels of these holders' processes, by holder, such as ``report.py[4711] deploy@web-1``."""


class Finding(NamedTuple):
    """One thing that ``doctor`` found out about a store: what it is, and what it means for locks, in plain words."""

    level: Literal["ok", "warn", "risk"]
    what: str
    means: str


class Backend(ABC):
    """One store. All threads or tasks of a ``Locks`` share it.

    Raises BackendError when the store fails, ``ambiguous`` if what was asked may have happened.

        class Mine(Backend):
            promises = Promises(...)

            async def take(self, name, holder, ttl, queue, limit=None): ...
    """

    scheme: ClassVar[str]
    credentials: ClassVar[bool] = False
    """Whether it logs in, and calls ``address.login.get()`` for user and password before each new connection."""
    promises: Promises
    """The class's, unless this very store is known to promise something else."""

    report: Callable[[str, str], None]
    """Set by the core: ``report(holder, why)`` tells it, from any thread, that a hold is gone for good."""

    def __init__(self, address: Address, driver: Driver) -> None:
        self.address = address
        self.driver = driver

    @abstractmethod
    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        """Grant the lock, or join its queue and return None.

        With ``queue`` None the holder never joins: None then means that nothing was changed. Raises
        QueueFull when ``queue`` waiters are there already. On a fair backend a lock with live
        waiters is not granted past them.

        With a ``limit`` a share is asked for: it is granted while fewer than ``limit`` others are held, and not past
        live waiters. Only where ``promises.shared``; shares are renewed, released and left like any hold.
        """

    @abstractmethod
    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        """Wait in the queue joined by ``take``; None once ``timeout`` has passed, still queued.

        A waiter that finds its entry gone joins again by itself.
        """

    @abstractmethod
    async def leave(self, name: str, holder: str) -> str | None:
        """Make sure that ``holder`` neither holds nor waits, whatever happened to its earlier requests.

        It is called after a cancelled or failed ``take`` or ``wait``: a request of theirs that is
        still in flight must not take effect after this returns. What it held goes to the next waiter.
        Return the holder of the lock, if it is another and the store tells it in the same step; else None.
        """

    def home(self, name: str) -> Hashable:
        """The server that has a lock, as far as that is known.

        Holds with different homes are renewed separately: no lease is lost because another lease's server hangs.
        """
        return None

    @abstractmethod
    async def renew(self, holds: Sequence[Hold]) -> Sequence[Renewal]:
        """Extend each hold by its ttl from now, atomically conditional on holder and token.

        Never brings back a lock that vanished. Answers in the order of ``holds``; BackendError means
        UNKNOWN for all of them.
        """

    @abstractmethod
    async def release(self, name: str, holder: str, token: int) -> bool:
        """Free the lock if it is still this holder's under this token, and hand it to the next waiter.

        False, and nothing changed, if it was not.
        """

    async def release_all(self, holds: Sequence[Hold]) -> Sequence[bool | BackendError | None]:
        """Release many, when locks are closed: for each what ``release`` says or raises, in the order of ``holds``.

        None for holds that the store was not asked to release, because it had failed before. Override this where many
        can be released in one round trip.
        """
        answers: list[bool | BackendError | None] = []
        for hold in holds:
            try:
                answers.append(await self.release(hold.name, hold.holder, hold.token))
            except BackendError as error:
                answers.append(error)
                break
        return answers + [None] * (len(holds) - len(answers))

    async def keep(self, name: str, holder: str, token: int, seconds: float) -> bool:
        """Have the lock expire so many seconds from now, without renewals, even if its holder closes or ends.

        False, and nothing changed, if it is no longer this holder's under this token. Only where ``promises.keeps``
        allows it; where that is "ttl", ``seconds`` is never more than the ttl of the hold.
        """
        [answer] = await self.renew([Hold(name, holder, token, seconds)])
        if answer is Renewal.UNKNOWN:
            raise BackendError("the store did not say whether the lock is kept", backend=self.scheme, ambiguous=True)
        return answer is Renewal.RENEWED

    @abstractmethod
    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        """The lock called ``name`` if it is held, or all held locks under ``prefix``, by name."""

    async def changed(self, name: str, token: int | None) -> None:
        """Return once the lock may no longer be held under ``token``; None: once it may be held at all.

        It may return early: the caller looks again. By default it just sleeps, for stores that do not report changes.
        """
        await self.driver.sleep(LOOK)

    @abstractmethod
    async def break_lock(self, name: str) -> Status | None:
        """Take the lock from its holder by force and hand it on; the hold that was ended, if any."""

    @abstractmethod
    async def bump(self, name: str, above: int) -> None:
        """Make every later token of ``name`` larger than ``above``, also those of present waiters; never lower them.

        The present holder keeps its token. Where tokens are the store's own numbers, ``backends.base`` has the rule.
        """

    async def doctor(self) -> list[Finding]:
        """Connect, and report version, topology, ttl limits, persistence and risks in plain words."""
        return []

    async def close(self) -> None:  # noqa: B027 - a backend without connections has nothing to close
        """Free connections and threads. Leases were released before, as far as that was possible."""

    def forked(self) -> None:  # noqa: B027 - a backend without connections has nothing to forget
        """Forget, in a forked child, connections and locks that belong to the parent; close nothing."""
