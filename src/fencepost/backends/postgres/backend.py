"""Locks in a Postgres database, for all its clients."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import psycopg

from fencepost import address
from fencepost.address import Address, seconds
from fencepost.backend import Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.backends.cleanups import Cleanups
from fencepost.backends.local_queue import LocalQueues
from fencepost.backends.margin import kept, remains
from fencepost.backends.postgres.connection import LIBPQ, OURS, Call, Target
from fencepost.backends.postgres.doctor import examine
from fencepost.backends.postgres.listener import Listener, Waiter
from fencepost.backends.postgres.pool import Links
from fencepost.backends.postgres.turns import Turns
from fencepost.driver import Driver
from fencepost.driver.backoff import Backoff
from fencepost.errors import BackendError, ConfigError, QueueFull
from fencepost.lease import Grant

_BUSY, _FULL, _NOT_LISTENING = -1, -2, -3
_TAKEN = r"\{-?\d+(,-?\d+,-?\d+)?\}"
_HELD = (str, str, int, float, list, list)
_ANY_QUEUE = 2**62
_RETRY = (0.05, 1.0)
_OWED = 300.0  # for how many seconds a clean-up is retried while the server cannot be reached

_log = logging.getLogger("fencepost")


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number <= 1000:
        raise ValueError("must lie between 1 and 1000")
    return number


def _identifier(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", text):
        raise ValueError("must be a plain lower-case identifier")
    return text


class Postgres(Backend):
    """``postgresql://user@host:5432/database``; also ``postgres://``, several hosts, and libpq's own options.

    ``schema=`` names the schema of the locks (default: fencepost), ``pool=`` is the most connections that are
    open, ``timeout=`` how long a statement may go unanswered. Behind a transaction pooler, ``listen=`` gives the
    URL of a direct connection for the one session that listens; without it waiters ask every ``poll=`` seconds.
    """

    scheme = "postgresql"
    credentials = True
    promises = Promises(
        reach="everybody who reaches the database",
        fair=True,
        consensus=False,
        failover="locks and tokens survive restart and crash; a standby that lags may lose the last grants, yet "
        "tokens go on, as they follow the clock",
        clock="the server's wall clock; the holder counts its own deadline on its own clock",
        token="one kept row per lock: the larger of the last token + 1 and the server's time in microseconds, read "
        "while the row is locked",
        wakeup="the answer to the release, if the next waiter is in the same process, or else NOTIFY to its session "
        "alone, which looks the grant up; besides, one waiter of each process asks whenever the holder's deadline "
        "passes",
        shared=True,
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        parsers: dict[str, Any] = dict.fromkeys(LIBPQ, str)
        address.check_given(LIBPQ - OURS)
        options = address.options(**parsers, schema=_identifier, pool=_count, timeout=seconds, poll=seconds, listen=str)
        self._schema: str = options.get("schema", "fencepost")
        self._patience: float = options.get("timeout", 10.0)
        self._poll: float = options.get("poll", 0.1)
        self._listen = _listen(options.get("listen"))
        self._turns = Turns(driver)
        self._take = Call.of(self._schema, "take", 5, _TAKEN)
        self._take_share = Call.of(self._schema, "take_share", 6, _TAKEN)
        self._release = Call.of(self._schema, "release", 3, "[tf]")
        self._hand_over = Call.of(self._schema, "hand_over", 4, r"[tf]( \S+ \d+ \d+ \d+)?")
        self._links = Links(
            Target(address, self._patience),
            driver,
            schema=self._schema,
            calls=(self._take, self._take_share, self._release, self._hand_over),
            limit=options.get("pool", 8),
            patience=self._patience,
        )
        self._begin()

    def _begin(self) -> None:
        self._queues = LocalQueues()
        self._listener = self._new_listener()
        self._cleanups: Cleanups[tuple[str, str]] = Cleanups(
            self.driver, self._clean, "fencepost-postgres-leave", pauses=(_RETRY[1], _RETRY[1]), lasting=_OWED
        )

    def _new_listener(self) -> Listener:
        way, listen = self._listen
        if way is not None and way.password is None:
            way = replace(way, login=self.address.login, given={"login_of": self.address.given.get("conninfo")})
        return Listener(
            Target(way or self.address, self._patience),
            schema=self._schema,
            patience=self._patience,
            poll=self._poll,
            listen=listen,
            now=self.driver.now,
            dropped=lambda waiter: self._queues.leave(waiter.name, waiter.holder),
        )

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        if queue is not None and self._listener.id is not None:
            return await self._come(Waiter(name, holder, self.driver.signal(), limit), ttl, queue)
        sent, answer = await self._ask(name, holder, ttl, limit, queue, None)
        if answer[0] == _BUSY:
            return None
        if answer[0] == _NOT_LISTENING:
            assert queue is not None, "one that does not queue need not hear"
            return await self._come(Waiter(name, holder, self.driver.signal(), limit), ttl, queue)
        return self._granted(answer, sent, ttl)

    async def _come(self, waiter: Waiter, ttl: float, queue: int) -> Grant | None:
        """Join the queue for the first time."""
        try:
            return await self._join(waiter, ttl, queue)
        except BackendError as error:
            if not error.ambiguous:  # it is not queued, so the caller will not call leave
                self._listener.forget(waiter.holder)
            raise

    async def _join(self, waiter: Waiter, ttl: float, queue: int) -> Grant | None:
        """Take the lock or join its queue; a waiter that is queued already keeps its entry."""
        while (process := self._listener.expect(waiter)) is None:
            await self._listener.open(self.driver)
        try:
            sent, answer = await self._ask(waiter.name, waiter.holder, ttl, waiter.limit, queue, process)
        except GeneratorExit:
            waiter.forsaken = True
            raise
        if answer[0] == 0:
            _, clock, expires = answer
            self._listener.clocks = sent, clock
            waiter.overdue = self.driver.now() + (expires - clock) / 1e6
            return None
        self._listener.forget(waiter.holder)
        if answer[0] == _FULL:
            raise QueueFull(waiter.name, queue)
        return self._granted(answer, sent, ttl)

    async def _ask(
        self, name: str, holder: str, ttl: float, limit: int | None, queue: int | None, process: int | None
    ) -> tuple[float, list[int]]:
        """When the request was sent, and its answer."""
        call = self._take if limit is None else self._take_share
        args = (
            *(name, holder, _kept(ttl)),
            *(() if limit is None else (str(limit),)),
            None if queue is None else str(queue),
            None if process is None else str(process),
        )
        if queue is None or limit is not None:
            sent, answer = self.driver.now(), await self._links.call(call, *args)
        else:
            turns, mine = self._turns, self.driver.signal()
            try:
                await turns.enter(name, mine)
                sent, answer = self.driver.now(), await self._links.call(call, *args)
            finally:
                turns.leave(name, mine)
        return sent, [int(part) for part in (answer or "")[1:-1].split(",")]

    def _granted(self, answer: list[int], sent: float, ttl: float) -> Grant:
        if len(answer) == 1:
            return Grant(answer[0], ttl, sent)
        token, clock, expires = answer
        return _earlier(token, sent, (expires - clock) / 1e6, ttl)

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        now = self.driver.now
        until = None if timeout is None else now() + timeout
        waiter = self._listener.find(holder) or Waiter(name, holder, self.driver.signal(), limit, doubtful=True)
        pause, pauses = 0.0, Backoff(*_RETRY)
        self._queues.await_turn(name, holder, waiter.signal)
        try:
            while True:
                waiter.signal.clear()
                if waiter.grant is not None:
                    self._listener.forget(holder)
                    return _earlier(*waiter.grant, ttl)
                first = self._queues.first(name, holder)
                if waiter.doubtful or (first and now() >= waiter.overdue):
                    try:
                        waiter.doubtful = False
                        if grant := await self._join(waiter, ttl, _ANY_QUEUE):
                            return grant
                        pause = 0.0
                        pauses.reset()
                    except BackendError as error:
                        if not _passing(error):
                            raise
                        waiter.doubtful = True
                        pause = pauses.next()
                nap = None if until is None else until - now()
                if nap is not None and nap <= 0:
                    return None
                if pause:
                    await self.driver.sleep(pause if nap is None else min(pause, nap))
                    continue
                if first:
                    # The first waiter of each process wakes at the present holder's deadline, for all of them.
                    overdue = max(waiter.overdue - now(), 0.001)
                    nap = overdue if nap is None else min(nap, overdue)
                await waiter.signal.wait(nap)
        except GeneratorExit:
            waiter.forsaken = True
            raise
        finally:
            self._queues.leave(name, holder)

    async def leave(self, name: str, holder: str) -> str | None:
        self._listener.forget(holder)
        try:
            return await self._leave(name, holder)
        except BackendError as error:
            if _passing(error):
                # An earlier request may still be executed when the server is back: undo it then.
                self._cleanups.add((name, holder))
            raise

    async def _leave(self, name: str, holder: str) -> str | None:
        # The subquery sees the lock as it was before leave() changed it.
        rows = await self._links.rows(
            f"SELECT {self._schema}.leave(%s, %s), (SELECT holder FROM {self._schema}.lock WHERE name = %s)",
            *(name, holder, name),
        )
        other = rows[0][1] if rows else None
        return other if other and other != holder else None

    async def _clean(self, left: tuple[str, str]) -> None:
        await self._leave(*left)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        names, holders, tokens, ttls = (list(column) for column in zip(*holds, strict=True))
        rows = await self._links.rows(
            f"SELECT {self._schema}.renew(%s, %s, %s::bigint[], %s)",
            *(names, holders, tokens, [*map(kept, ttls)]),
            kinds=(int,),
        )
        renewed = {index for (index,) in rows}
        return [Renewal.RENEWED if index in renewed else Renewal.LOST for index in range(1, len(holds) + 1)]

    async def release(self, name: str, holder: str, token: int) -> bool:
        process = self._listener.id
        if process is None or not self._queues.busy(name):
            return await self._links.call(self._release, name, holder, str(token)) == "t"
        sent = self.driver.now()
        try:
            answer = await self._links.call(self._hand_over, name, holder, str(token), str(process))
            held, *now_held = (answer or "").split()
            if now_held and self._listener.find(now_held[0]):  # else the server notifies the next holder's process
                next_holder, *numbers = now_held
                self._listener.deliver(sent, name, next_holder, *map(int, numbers))
        except BaseException:
            self._listener.doubt(name)  # a waiter of this process may hold the lock now, and is not notified
            raise
        return held == "t"

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        rows = await self._links.rows(f"SELECT * FROM {self._schema}.held(%s, %s)", name, prefix, kinds=_HELD)
        return [_status(row) for row in rows]

    async def break_lock(self, name: str) -> Status | None:
        rows = await self._links.rows(f"SELECT * FROM {self._schema}.break_lock(%s)", name, kinds=_HELD)
        return _status(rows[0]) if rows else None

    async def bump(self, name: str, above: int) -> None:
        await self._links.rows(f"SELECT {self._schema}.bump(%s, %s)", name, above)

    async def doctor(self) -> list[Finding]:
        return await examine(self._links, self._schema)

    async def close(self) -> None:
        self._cleanups.close()
        await self.driver.offload(self._listener.close)
        await self._links.close()

    def forked(self) -> None:
        self._links.forked()
        self._listener.forked()
        self._turns.forked()
        self._begin()


def _listen(option: str | None) -> tuple[Address | None, bool | None]:
    """The address to listen at, None for the main one; and whether to listen, None to find out."""
    if option in (None, ""):
        return None, None
    if option == "off":
        return None, False
    way = address.parse(option)
    if way.scheme not in ("postgresql", "postgres"):
        raise ConfigError("listen= of postgresql:// is 'off' or a postgresql:// URL, percent-encoded")
    way.options(**dict.fromkeys(LIBPQ, str))
    return way, True


def _status(row: tuple[str, str, int, float, list[str], list[str]]) -> Status:
    name, holder, token, remaining, waiters, sharers = row
    return Status(name, holder, token, remains(remaining), tuple(waiters), tuple(sharers))


@lru_cache(64)
def _kept(ttl: float) -> str:
    """For how many seconds the server keeps a lease. Cached: nearly all callers use the same ttl."""
    return repr(kept(ttl))


def _earlier(token: int, asked: float, left: float, ttl: float) -> Grant:
    """A grant that was made earlier; the server was asked at ``asked``, when ``left`` seconds of it were left."""
    return Grant(token, ttl, asked + min(remains(left) - ttl, 0.0))


def _passing(error: BackendError) -> bool:
    """Whether the server may be back soon: it is down, starting, switching over or cut off."""
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    return not isinstance(cause, psycopg.Error) or state is None or state[:2] in ("08", "25", "40", "53", "55", "57")
