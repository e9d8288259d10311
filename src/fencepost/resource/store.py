"""Values behind their marks, for many requests at once: an answered write and its mark survive a power loss."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from fencepost.address import masked, parse
from fencepost.errors import ConfigError
from fencepost.events import Hook, Hooks
from fencepost.guards.judgement import Judgement
from fencepost.guards.policy import Policy
from fencepost.registry import find
from fencepost.resource.commits import GROUP, Writer
from fencepost.resource.ledger import Found, Ledger, Opener, SqliteLedger
from fencepost.rule import Stamp


class Written(NamedTuple):
    """A write that is on disk; ``replay`` if an earlier request had put it there."""

    replay: bool
    mark: Stamp | None


def opener(place: str | Path) -> Opener:
    """What opens a connection to the store at ``place``: a postgresql:// URL, or the path of an SQLite file."""
    if not isinstance(place, Path) and place.startswith(("postgresql://", "postgres://")):
        address = parse(place)
        find("postgresql")  # names the pip command if psycopg is missing
        from fencepost.resource.ledger_postgres import PostgresLedger

        return lambda: PostgresLedger(address)
    if not isinstance(place, Path) and "://" in place:
        raise ConfigError(f"no store in {masked(place)!r}; it is the path of an SQLite file, or postgresql://...")
    return lambda: SqliteLedger(Path(place))


class Store:
    """The values of one service, each behind its mark.

    With ``fence`` off every access passes, and what the rule says about it is only told to the hooks;
    the mark remains the largest stamp the rule admits. Raises ConfigError if the store cannot be used.
    The coroutines raise the Refused of the verdict, and BackendError if the store failed. ``group`` is how many
    accesses share a commit at most.
    """

    def __init__(self, open: Opener, *, fence: bool = True, hooks: Iterable[Hook] = (), group: int = GROUP) -> None:
        self._hooks = Hooks(hooks)
        self._policy = None if fence else Policy("shadow")
        ledger = open()
        self._view = open()
        self.name = ledger.name
        self._writer = Writer(ledger, self._hooks, group=group)
        self._reader = ThreadPoolExecutor(1, "fencepost-reader")

    def require(self, key: str, offer: Stamp | None) -> None:
        """Return if a write with this offer is worth looking at; MissingToken if it carries none."""
        if self._policy is None and offer is None:
            self._bare(key, self._hooks)

    async def write(self, key: str, data: bytes, offer: Stamp | None) -> Written:
        """Keep ``data`` under ``key``; returns once it and its mark are on disk."""

        def access(ledger: Ledger, hook: Hook) -> Written:
            if offer is None:
                self._bare(key, hook)
                fresh = True
            else:
                fresh = ledger.admit(key, offer, data, hook, self._policy)
            if fresh:
                ledger.keep(key, data)
            # Enforced, what passed is the mark now; else the mark may be larger.
            return Written(not fresh, offer if self._policy is None else ledger.find(key).mark)

        return await self._writer.run(key, access)

    async def enter(self, key: str, offer: Stamp) -> Found:
        """Enter ``key``, and read it in the same transaction."""

        def access(ledger: Ledger, hook: Hook) -> Found:
            ledger.enter(key, offer, hook, self._policy)
            return ledger.find(key)

        return await self._writer.run(key, access)

    async def read(self, key: str) -> Found:
        """Read ``key`` as it is, without entering."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._find, key)

    def close(self) -> None:
        """Finish what was asked before, then disconnect."""
        self._reader.shutdown()
        self._view.close()
        self._writer.close()

    def _bare(self, key: str, hook: Hook) -> None:
        Judgement(self.name, key, None, "write", (hook,), self._policy)

    def _find(self, key: str) -> Found:
        try:
            return self._view.find(key)
        except Exception as error:
            raise self._view.failure(error) or error from error
