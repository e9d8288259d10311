"""Values behind their marks, for many requests at once: an answered write and its mark survive a power loss."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from fencepost.address import masked, parse
from fencepost.driver.tasks import joined, shared
from fencepost.errors import ConfigError, Refused
from fencepost.events import Event, Hook, Hooks
from fencepost.guards.judgement import Judgement
from fencepost.guards.policy import Policy
from fencepost.lease import Access
from fencepost.registry import find
from fencepost.resource.census import Census
from fencepost.resource.ledger import Found, Ledger, Opener, SqliteLedger
from fencepost.resource.workers import GROUP, QUEUE, Reader, Writer, never
from fencepost.rule import Stamp, Verdict

MAX_KEYS = 1_000_000

_DELETED = b"\0fencepost: deleted\0"  # the payload of a delete, so that its retry is recognised


class Written(NamedTuple):
    """A write that is on disk; ``replay`` if an earlier request had put it there."""

    replay: bool
    mark: Stamp | None


def opener(where: str | Path) -> Opener:
    """A function that opens a connection to the store ``where``: a postgresql:// URL, or the path of an SQLite file."""
    if not isinstance(where, Path) and where.startswith(("postgresql://", "postgres://")):
        address = parse(where)
        find("postgresql")  # names the pip command if psycopg is missing
        from fencepost.resource.ledger_postgres import PostgresLedger

        return lambda: PostgresLedger(address)
    if not isinstance(where, Path) and "://" in where:
        raise ConfigError(f"no store in {masked(where)!r}; it is the path of an SQLite file, or postgresql://...")
    return lambda: SqliteLedger(Path(where))


class _Decision:
    """A hook that passes the guard's decision on, and notes what it means for the mark."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self.admitted = False
        """Whether the rule admitted the access, so that its stamp is the mark."""
        self.marked = False
        """Whether the access has set the first mark of its key."""

    def __call__(self, event: Event) -> None:
        self.admitted = event.verdict is Verdict.ADMIT
        self.marked = self.admitted and event.seen is None
        self._hook(event)


class Store:
    """The values of one service, each behind its mark.

    ``policy`` says how far its guard goes, strict unless given; its mode may change at any time. If an access passes
    against the rule, the mark remains the largest stamp that the rule admitted.
    Raises ConfigError if the store cannot be used.
    The coroutines raise the Refused of the verdict, BackendError if the store failed, and NoRoom for a new key beyond
    ``max_keys``. ``group`` is how many accesses share a commit at most, ``queue`` how many may wait for it. An access
    is skipped if its ``gone()`` is true when its turn comes.
    """

    def __init__(
        self,
        open: Opener,
        *,
        policy: Policy | None = None,
        hooks: Iterable[Hook] = (),
        group: int = GROUP,
        queue: int = QUEUE,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self._hooks = Hooks(hooks)
        self.policy = policy or Policy("strict")
        self.census = Census(max_keys)
        self.queue = queue
        ledger, view = open(), open()
        self.name = ledger.name
        self._writer = Writer(ledger, self._hooks, group=group, limit=queue)
        self._reader = Reader(view, limit=queue)
        self.workers = {"writer": self._writer, "reader": self._reader}
        self._checking: asyncio.Task[None] | None = None

    def require(self, key: str, offer: Stamp | Access | None) -> None:
        """Raise MissingToken for a write without a token if the policy refuses it, before its body is read."""
        if offer is None:
            told: list[Event] = []
            try:
                self._bare(key, told.append)
            except Refused:
                for event in told:
                    self._hooks(event)
                raise  # if it passes, the write itself tells the hooks

    async def write(
        self, key: str, data: bytes | None, offer: Stamp | Access | None, *, gone: Callable[[], bool] = never
    ) -> Written:
        """Keep ``data`` under ``key``, or delete the value if None; returns once that and its mark are on disk."""
        payload = _DELETED if data is None else data

        def access(ledger: Ledger, hook: Hook) -> Written:
            self.census.require(ledger, key)
            decision = _Decision(hook)
            if offer is None:
                self._bare(key, decision)
                fresh = True
            else:
                fresh = ledger.admit(key, offer, payload, decision, self.policy)
            new = decision.marked if decision.admitted else not ledger.knows(key)
            if fresh:
                ledger.keep(key, data)
            if new:
                self.census.added(ledger)
            # A stamp that the rule admitted is the mark now. One that passed against the rule, or unjudged, may not be.
            stamp = offer.stamp if isinstance(offer, Access) else offer
            return Written(not fresh, stamp if decision.admitted else ledger.find(key).mark)

        return await self._writer.run(key, access, gone)

    async def enter(self, key: str, offer: Stamp | Access, *, gone: Callable[[], bool] = never) -> Found:
        """Enter ``key``, and read it in the same transaction."""

        def access(ledger: Ledger, hook: Hook) -> Found:
            self.census.require(ledger, key)
            decision = _Decision(hook)
            ledger.enter(key, offer, decision, self.policy)
            if decision.marked:
                self.census.added(ledger)
            return ledger.find(key)

        return await self._writer.run(key, access, gone, reads=True)

    async def read(self, key: str, *, gone: Callable[[], bool] = never) -> Found:
        """Read ``key`` as it is, without entering."""
        return await self._reader.run(key, lambda ledger, hook: ledger.find(key), gone)

    async def check(self) -> None:
        """Return if the store can be read and written. Callers that ask at the same time share one check."""
        if self._checking is None or self._checking.done():
            self._checking = shared(self._look(), "fencepost-resource-check")
        await joined(self._checking)

    def close(self) -> None:
        """Finish what was asked before, then disconnect."""
        self._reader.close()
        self._writer.close()

    def _bare(self, key: str, hook: Hook) -> None:
        Judgement(self.name, key, None, "write", (hook,), self.policy)

    async def _look(self) -> None:
        await self.read("healthz")
        await self._writer.run("", lambda ledger, hook: ledger.check())
