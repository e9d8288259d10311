"""Values behind their marks, for many requests at once: an answered write and its mark survive a power loss."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from fencepost.address import masked, parse
from fencepost.errors import ConfigError
from fencepost.events import Hook, Hooks
from fencepost.guards.judgement import Judgement
from fencepost.guards.policy import Policy
from fencepost.lease import Access
from fencepost.registry import find
from fencepost.resource.ledger import Found, Ledger, Opener, SqliteLedger
from fencepost.resource.workers import GROUP, QUEUE, Reader, Writer, never
from fencepost.rule import Stamp
from fencepost.signing import Keys

_DELETED = b"\0fencepost: deleted\0"  # what a delete's stamp stands for, so that its retry is known


class Written(NamedTuple):
    """A write that is on disk; ``replay`` if an earlier request had put it there."""

    replay: bool
    mark: Stamp | None


def opener(where: str | Path) -> Opener:
    """What opens a connection to the store ``where``: a postgresql:// URL, or the path of an SQLite file."""
    if not isinstance(where, Path) and where.startswith(("postgresql://", "postgres://")):
        address = parse(where)
        find("postgresql")  # names the pip command if psycopg is missing
        from fencepost.resource.ledger_postgres import PostgresLedger

        return lambda: PostgresLedger(address)
    if not isinstance(where, Path) and "://" in where:
        raise ConfigError(f"no store in {masked(where)!r}; it is the path of an SQLite file, or postgresql://...")
    return lambda: SqliteLedger(Path(where))


class Store:
    """The values of one service, each behind its mark.

    With ``fence`` off every access passes, and what the rule says about it is only told to the hooks;
    the mark remains the largest stamp the rule admits. With ``ceiling`` off a token may be as high as it likes;
    ``max_jump`` and ``max_first`` are the Policy's. With ``keys`` an access without a good signature is refused.
    Raises ConfigError if the store cannot be used.
    The coroutines raise the Refused of the verdict, and BackendError if the store failed. ``group`` is how many
    accesses share a commit at most, ``queue`` how many may wait for it. What ``gone()`` is not run when its turn comes.
    """

    def __init__(
        self,
        open: Opener,
        *,
        fence: bool = True,
        ceiling: bool = True,
        max_jump: int | None = None,
        max_first: int | None = None,
        keys: Keys | None = None,
        hooks: Iterable[Hook] = (),
        group: int = GROUP,
        queue: int = QUEUE,
    ) -> None:
        self._hooks = Hooks(hooks)
        self._fenced = fence
        self._policy = Policy(
            "strict" if fence else "shadow",
            ceiling="on" if ceiling else "off",
            max_jump=max_jump,
            max_first=max_first,
            keys=keys,
        )
        ledger, view = open(), open()
        self.name = ledger.name
        self._writer = Writer(ledger, self._hooks, group=group, limit=queue)
        self._reader = Reader(view, limit=queue)
        self._checking: asyncio.Task[None] | None = None

    def require(self, key: str, offer: Stamp | Access | None) -> None:
        """Return if a write with this offer is worth looking at; MissingToken if it carries none."""
        if self._fenced and offer is None:
            self._bare(key, self._hooks)

    async def write(
        self, key: str, data: bytes | None, offer: Stamp | Access | None, *, gone: Callable[[], bool] = never
    ) -> Written:
        """Keep ``data`` under ``key``, or nothing if it is None; returns once that and its mark are on disk."""
        payload = _DELETED if data is None else data

        def access(ledger: Ledger, hook: Hook) -> Written:
            if offer is None:
                self._bare(key, hook)
                fresh = True
            else:
                fresh = ledger.admit(key, offer, payload, hook, self._policy)
            if fresh:
                ledger.keep(key, data)
            # Enforced, what passed is the mark now; else the mark may be larger.
            stamp = offer.stamp if isinstance(offer, Access) else offer
            return Written(not fresh, stamp if self._fenced else ledger.find(key).mark)

        return await self._writer.run(key, access, gone)

    async def enter(self, key: str, offer: Stamp | Access, *, gone: Callable[[], bool] = never) -> Found:
        """Enter ``key``, and read it in the same transaction."""

        def access(ledger: Ledger, hook: Hook) -> Found:
            ledger.enter(key, offer, hook, self._policy)
            return ledger.find(key)

        return await self._writer.run(key, access, gone, reads=True)

    async def read(self, key: str, *, gone: Callable[[], bool] = never) -> Found:
        """Read ``key`` as it is, without entering."""
        return await self._reader.run(key, lambda ledger, hook: ledger.find(key), gone)

    async def check(self) -> None:
        """Return if the store can be read and written. Those that ask at the same time share one look at it."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._look())
            self._checking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._checking)

    def close(self) -> None:
        """Finish what was asked before, then disconnect."""
        self._reader.close()
        self._writer.close()

    def _bare(self, key: str, hook: Hook) -> None:
        Judgement(self.name, key, None, "write", (hook,), self._policy)

    async def _look(self) -> None:
        await self.read("healthz")
        await self._writer.run("", lambda ledger, hook: ledger.check())
