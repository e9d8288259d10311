"""A worker of a fleet: it counts up the values of the partitions that it owns, each under the token of its lease.

What it tells are lines of a history, with instants on this host's boot-time clock. It never looks at a lease between
its read and its write: whatever it found, a pause or a partition can come right after it.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass

from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Event, Hook
from fencepost.fleet import Partition, Partitions
from fencepost.fleet.plan import member
from fencepost.lease import Access
from fencepost.sync import connect
from fencepost_lab.history.format import Line
from fencepost_lab.stage.client import Reply
from fencepost_lab.stage.target import REFUSED, Target, open_target

ORDERS = ("join", "hold", "go", "rest", "leave")
"""join: begin; hold: send no write, however long the job takes; go: send them; rest: begin no other job; leave."""

_PAUSE = 0.5  # seconds between two looks of one that rests
_PATIENCE = 600.0  # seconds to wait for the resource, also through a partition of the network


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What a worker joins, and how it works there."""

    backend: str | None
    group: str
    partitions: int
    resource: str
    name: str
    ttl: float
    work: float
    """A job takes so many seconds between its read and its write, on average."""
    fence: bool = True
    """Whether each access carries the lease's stamp."""


class Member:
    """Works until it is told to leave, and tells each thing it does; ``ordered``: it joins when it is told to."""

    def __init__(self, membership: Membership, tell: Callable[[Line], None], *, ordered: bool = False) -> None:
        self._of = membership
        self._tell = tell
        self._gate = threading.Lock()
        self._writing = threading.Event()
        self._writing.set()
        self._resting = threading.Event()
        self._joining = threading.Event()
        if not ordered:
            self._joining.set()
        self._partitions: Partitions | None = None
        self._leaving = False

    def run(self, hooks: Iterable[Hook] = ()) -> None:
        """Join, work, and return once it has left. Raises BackendError, ConfigError, NotAcquired."""
        of = self._of
        with closing(open_target(of.resource)), connect(of.backend, ttl=of.ttl, hooks=[self._hook, *hooks]) as locks:
            self._partitions = mine = Partitions(
                locks, of.group, of.partitions, assign=self._assigned, revoke=self._revoked, member=of.name
            )
            if not self._joining.is_set():
                self._note("ready")
                self._joining.wait()
            if self._leaving:
                return
            mine.run(self._work)

    def order(self, word: str) -> None:
        """Do as one of ``ORDERS`` says; ConfigError for any other word."""
        match word:
            case "join":
                self._joining.set()
            case "hold":
                self._writing.clear()
            case "go":
                self._writing.set()
            case "rest":
                self._resting.set()
            case "leave":
                self._leaving = True
                self._joining.set()
                self._writing.set()
                if self._partitions is not None:
                    self._partitions.stop()
            case _:
                raise ConfigError(f"there is no order {word!r}; there are {', '.join(ORDERS)}")

    def _say(self, ev: str, partition: Partition, access: Access | None = None, **facts: object) -> None:
        lease = partition.lease
        line: Line = {"t": boottime(), "ev": ev, "who": self._of.name, "lock": lease.name, "key": lease.name}
        line |= {"token": lease.token, "holder": lease.holder}
        if access is not None:
            line["seq"] = access.stamp.seq
        with self._gate:
            self._tell(line | facts)

    def _hook(self, event: Event) -> None:
        if event.kind == "acquired" and event.name == member(self._of.group, self._of.partitions, self._of.name):
            self._note("joined")

    def _note(self, text: str) -> None:
        with self._gate:
            self._tell({"t": boottime(), "ev": "note", "who": self._of.name, "text": text})

    def _assigned(self, partition: Partition) -> None:
        self._say("acquired", partition, asked=partition.lease.since, ttl=partition.lease.ttl)

    def _revoked(self, partition: Partition) -> None:
        if reason := partition.lease.reason:
            self._say("lost", partition, why=reason)
        else:
            self._say("releasing", partition)

    def _work(self, partition: Partition) -> None:
        with closing(open_target(self._of.resource, patience=_PATIENCE)) as target:
            while not partition.stop:
                if self._resting.is_set():
                    partition.stop.wait(_PAUSE)
                elif not self._count(target, partition):
                    partition.ended.wait()  # the resource has met a newer owner before this one knew
                    return

    def _count(self, target: Target, partition: Partition) -> bool:
        """Count the partition's value up once; False if that was refused."""
        access = self._access(partition)
        asked = boottime()
        self._say("sent", partition, access, do="read")
        try:
            reply = target.read(partition.name, access)
        except BackendError:
            self._say("read", partition, access, asked=asked, outcome="unknown")
            return True
        if reply.status == REFUSED:
            self._say("read", partition, access, asked=asked, **_refusal(reply))
            return False
        value = int(reply.body or b"0") if reply.status == 200 else 0
        # Nobody but the fleet writes here, and each write counts one up: the value is its own version.
        self._say("read", partition, access, asked=asked, value=value, version=value)
        time.sleep(self._of.work * random.uniform(0.5, 1.5))
        self._writing.wait()
        access = self._access(partition)
        asked = boottime()
        wrote = {"value": value + 1, "base": value}
        self._say("sent", partition, access, do="write", **wrote)
        try:
            target.send(partition.name, str(value + 1).encode(), access)
            reply = target.answer()
        except BackendError:
            self._say("wrote", partition, access, asked=asked, **wrote, outcome="unknown")
            return True
        if reply.status == REFUSED:
            self._say("wrote", partition, access, asked=asked, **wrote, **_refusal(reply))
            return False
        self._say("wrote", partition, access, asked=asked, **wrote, outcome="done")
        return True

    def _access(self, partition: Partition) -> Access | None:
        return partition.lease.access() if self._of.fence else None


def _refusal(reply: Reply) -> Line:
    seen = reply.facts.get("seen")
    return {"outcome": "refused", "verdict": reply.verdict} | ({} if seen is None else {"seen": int(seen)})
