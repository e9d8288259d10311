"""The asyncio face: the same names, awaited."""

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeAlias, TypeVar, overload

from fencepost import ambient, election, holders, registry
from fencepost.backend import Status
from fencepost.driver.scope import Closed
from fencepost.driver.tasks import Asyncio
from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from fencepost.events import Hook
from fencepost.lease import BaseAtRisk, BaseEnded, BaseLease
from fencepost.locks import EVERYBODY, HINTS, INSIDE, Busy, Core, awaited, bare, left, skipped, yields
from fencepost.naming import Name, from_arguments
from fencepost.signing import Keys

__all__ = ["AtRisk", "Election", "Ended", "Lease", "Lock", "Locks", "Term", "connect"]


if TYPE_CHECKING:
    from fencepost.clients.kinds import AsyncClient

P = ParamSpec("P")
R = TypeVar("R")

Secret: TypeAlias = str | bytes | tuple[str, str]
Credentials: TypeAlias = Callable[[], Secret | Awaitable[Secret]]
"""Returns the password or token for a new connection, or user and password; or an awaitable of them."""


def _check_work(work: Callable[..., object]) -> None:
    """ConfigError for what a lock cannot be held around."""
    what = getattr(work, "__qualname__", work)
    if yields(work):
        raise ConfigError(f"{what} would outlive a lock taken around its call; {INSIDE}")
    if not awaited(work):
        raise ConfigError(f"{what} is not a coroutine function; lock it with fencepost.connect()")


class Ended(BaseEnded):
    """Set once the lease is over, however it ended: test it, or wait for it, like an event."""

    __slots__ = ()

    async def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the lease is over, or ``timeout`` seconds have passed; say whether it is over."""
        return await self._lease._until_over(timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)


class AtRisk(BaseAtRisk):
    """Set while the lease holds, although its renewal failed or is overdue: test it, or wait for it, like an event.

    A renewal that is due has a tenth of the ttl to be answered. After that the lease is at risk until a renewal
    succeeds or the lease is over. Meanwhile, stop what a replaced holder must not do; go on when the lease is renewed.

        async for risk in lease.at_risk.changes():
            print("stop writing" if risk else "go on")
    """

    __slots__ = ()

    async def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the lease is at risk; False if it was over, or ``timeout`` seconds had passed, before that."""
        return await self._lease._until_risky(True, timeout)

    async def wait_clear(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the lease is out of risk; False if it was over, or ``timeout`` seconds had passed, before."""
        return await self._lease._until_risky(False, timeout)

    async def changes(self) -> AsyncGenerator[bool, None]:
        """Yield True each time the lease is put at risk, and False when it is renewed again; ends with the lease.

        If the lease is at risk already, the first True comes at once.
        """
        lease = self._lease
        seen = lease._turns // 2 * 2
        while await lease._until_turn(lambda: lease._turns > seen):  # noqa: B023 - it is called before seen changes
            seen += 1
            yield seen % 2 == 1


class Lease(BaseLease):
    """A lease held by asyncio code. ``async with lease:`` releases it at the end; it can be entered once.

    Losing the lease cancels the block, which then raises LeaseLost unless it raised something else itself.

        async with await locks.acquire("account/42", ttl=15) as lease:
            await work(lease.token)
    """

    __slots__ = ()

    _body: "Body | None"

    @property
    def ended(self) -> Ended:
        """Set once the lease is over, however it ended; ``reason`` says how."""
        return Ended(self)

    @property
    def at_risk(self) -> AtRisk:
        """Set while the lease holds although its renewal failed or is overdue; it may be renewed yet, or lost."""
        return AtRisk(self)

    async def renew(self) -> None:
        """Extend the lease by its ttl, keeping its token; LeaseLost if it is lost already."""
        await self._core.renew(self)

    async def release(self) -> bool:
        """Give the lock back; False, and nothing changed, if it was no longer this holder's."""
        return await self._core.release(self)

    async def __aenter__(self) -> Self:
        self._begin_block()
        Body(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        assert self._body is not None, "the block was entered"
        await self._body.leave(error)
        return None


class Body:
    """The body of one ``async with``, which losing the lease cancels. Modelled on asyncio.Timeout."""

    __slots__ = ("_around", "_cancelled", "_late", "_pending", "lease", "task")

    def __init__(self, lease: Lease) -> None:
        task = asyncio.current_task()
        assert task is not None, "an asyncio lock is held by a task"
        self.lease = lease
        self.task = task
        self._pending = task.cancelling()
        self._cancelled = False
        self._late: asyncio.CancelledError | None = None
        self._around = lease._body  # that of the enclosing block, if it holds the same lease
        lease._body = self
        lease._entered_by = weakref.ref(task)
        ambient.push(lease)

    def cancel(self) -> None:
        """Cancel the block, once: its lease is lost. A second cancellation would cut its clean-up short."""
        if not self._cancelled:
            self._cancelled = True
            self.task.cancel("the lease is lost")

    def cancel_from_elsewhere(self) -> None:
        """As ``cancel``, unless the block's own task ended the lease."""
        if asyncio.current_task() is not self.task:
            self.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """Release; LeaseLost if the lease was lost, unless the body raised ``error`` for another reason.

        Returns whether ``error`` is our own cancellation alone.
        """
        ambient.pop(self.lease)
        cancelled_elsewhere = await self._uncancel()
        lost = await self.lease._core.finish(self.lease)
        if cancelled_elsewhere and self._late:
            raise self._late
        ours = self._cancelled and not cancelled_elsewhere and isinstance(error, asyncio.CancelledError)
        if lost is not None and not cancelled_elsewhere and (error is None or ours):
            raise lost from error
        return ours

    async def _uncancel(self) -> bool:
        """Undo our own cancellation; return whether the task was cancelled for another reason as well."""
        self.lease._body = self._around
        if not self._cancelled:
            return False
        try:
            await asyncio.sleep(0)  # if the body ended before its next await, our cancellation is still pending
        except asyncio.CancelledError as error:
            self._late = error
        return self.task.uncancel() > self._pending


class Lock:
    """A lock to be held for a block or a call: ``async with lock as lease`` or ``@lock``."""

    def __init__(self, locks: "Locks", name: str, options: dict[str, Any], reentrant: bool = False) -> None:
        self._locks = locks
        self._options = options
        self._reentrant = reentrant
        self._bodies: dict[asyncio.Task[Any], list[Body]] = {}
        self.name = name

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in HINTS:
                raise AttributeError(f"a Lock has no {name}(): {HINTS[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @bare
    async def acquire(self) -> Lease:
        """The plain form: a new lease that you release yourself. Raises as ``Locks.acquire`` does.

        It never re-enters, even if the lock is re-entrant: a task that holds the lock already would wait for itself.
        """
        return await self._locks._core.acquire_or_raise(self.name, asyncio.current_task, **self._options)

    @bare
    async def try_acquire(self) -> Lease | None:
        """A lease if the lock is free at this moment, else None."""
        return await self._locks._core.acquire(self.name, **self._options | {"timeout": 0})

    async def __aenter__(self) -> Lease:
        task, reentrant = asyncio.current_task(), self._locks._core.reentrant
        lease = reentrant.again(task, self.name) if self._reentrant else None
        if lease is None:
            lease = await self.acquire()
        try:
            if not lease._begun:
                lease._begun = True
                if self._reentrant:
                    reentrant.first(task, lease)
            body = Body(lease)
            self._bodies.setdefault(body.task, []).append(body)
        except BaseException:  # for example, out of memory: nobody would leave the block
            ambient.pop(lease)
            await self._locks._core.finish(lease)
            raise
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "an asyncio lock is held by a task"
        task = left(self._bodies, task, self.name)
        mine = self._bodies[task]
        body = mine.pop()
        if not mine:
            del self._bodies[task]
        await body.leave(error)

    def __call__(self, call: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R]]:
        _check_work(call)

        @functools.wraps(call)
        async def held(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await call(*args, **kwargs)

        return held


class Locks:
    """The locks of one store, for the tasks of one event loop.

    For example::

        locks = fencepost.aio.connect("redis://localhost:6379/0")
        async with locks.lock("account/42"):
            ...
        print(await locks.status("account/42"))
        await locks.close()
    """

    def __init__(self, core: Core[Lease], keys: Keys | None = None) -> None:
        self._core = core
        self._keys = keys

    def lock(
        self,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
        reentrant: bool = False,
        at_least: float | timedelta | None = None,
    ) -> Lock:
        """A lock for ``async with`` blocks and decorators; see ``acquire`` for the options.

        Losing the lease cancels the block, which then raises LeaseLost unless it raised something
        else itself. With ``reentrant`` a task that holds the lock already, in a block that is re-entrant too, enters
        again under the same lease; the outermost block decides its options, and releases it. With ``at_least`` a block
        that ends sooner leaves the lock taken until so many seconds after it was acquired. The lock then expires in the
        store: the block does not wait for it. ``release()`` still frees it at once.
        """
        options = {"ttl": ttl, "timeout": timeout, "renew": renew, "max_hold": max_hold, "at_least": at_least}
        return Lock(self, name, options, reentrant)

    @overload
    def holding(
        self,
        name: Name,
        *,
        busy: Literal["wait", "raise"] = "wait",
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
        reentrant: bool = False,
        at_least: float | timedelta | None = None,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def holding(
        self,
        name: Name,
        *,
        busy: Literal["skip"],
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
        reentrant: bool = False,
        at_least: float | timedelta | None = None,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | None]]]: ...
    def holding(
        self,
        name: Name,
        *,
        busy: Busy = "wait",
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
        reentrant: bool = False,
        at_least: float | timedelta | None = None,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | None]]]:
        """Decorate a coroutine function so that each call holds the lock that its arguments name.

            @locks.holding("report/{account_id}", busy="skip")
            async def report(account_id, day): ...

        The fields are parameters of the function; their values are text without "/", whole numbers or UUIDs. ``name``
        may also be a function of the call's arguments. While the lock is held elsewhere, ``busy`` decides: "wait" waits
        for at most ``timeout`` seconds, then raises NotAcquired; "raise" raises NotAcquired, and "skip" skips the call,
        which returns None, both at once unless there is a ``timeout``. See ``acquire`` and ``lock`` for the other
        options. ConfigError for a name that cannot be made, when the function is decorated or called.
        """
        options = {"ttl": ttl, "renew": renew, "max_hold": max_hold, "at_least": at_least}
        options["timeout"] = self._core.patience(busy, timeout)
        self._core.check_options(ttl, max_hold, at_least)

        def decorate(
            work: Callable[P, Coroutine[Any, Any, R]],
        ) -> Callable[P, Coroutine[Any, Any, R | None]]:
            _check_work(work)
            named = from_arguments(name, work)

            @functools.wraps(work)
            async def held(*args: P.args, **kwargs: P.kwargs) -> R | None:
                lock, entered = Lock(self, named(args, kwargs), options, reentrant), False
                try:
                    async with lock:
                        entered = True
                        return await work(*args, **kwargs)
                except NotAcquired as error:
                    if entered or busy != "skip":
                        raise
                    skipped(work, error)
                    return None

            return held

        return decorate

    async def acquire(
        self,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
    ) -> Lease:
        """Wait for the lock, first come, first served where the store is fair, for at most ``timeout`` seconds.

        The lease is renewed in the background for as long as you keep it, or ``max_hold`` seconds
        at most; with ``renew=False`` it ends after its ttl. Raises NotAcquired, QueueFull,
        BackendError, ConfigError; whatever it raises, and when it is cancelled, it leaves neither a
        lock nor a queue entry.
        """
        return await self._core.acquire_or_raise(name, asyncio.current_task, ttl, timeout, renew, max_hold)

    async def try_acquire(
        self,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
    ) -> Lease | None:
        """A lease if the lock is free at this moment, else None."""
        return await self._core.acquire(name, ttl=ttl, timeout=0, renew=renew, max_hold=max_hold)

    def shared(
        self,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
    ) -> Lock:
        """The lock called ``name``, held together with others that share it; ``lock(name)`` excludes them all.

        First come, first served: sharers that come later do not overtake a client that waits for ``lock(name)``.
        ConfigError where the backend cannot promise it.
        """
        return self.semaphore(name, EVERYBODY, ttl=ttl, timeout=timeout, renew=renew, max_hold=max_hold)

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
    ) -> Lock:
        """The lock called ``name``, held by at most ``permits`` at once, first come, first served.

        All clients must give the same number. ConfigError where the backend cannot promise it.
        """
        limit = self._core.limit(permits)
        options = {"ttl": ttl, "timeout": timeout, "renew": renew, "max_hold": max_hold, "limit": limit}
        return Lock(self, name, options)

    def election(self, name: str, *, ttl: float | timedelta | None = None, metadata: str = "") -> "Election":
        """The election of a leader of ``name``; clients that ask who leads see ``metadata``, such as an address."""
        return Election(self, name, ttl, metadata)

    async def status(self, name: str) -> Status | None:
        """Who holds ``name``, under which token, for how long, and who waits; None if nobody holds it."""
        return await self._core.status(name)

    async def list(self, prefix: str = "") -> list[Status]:
        """The locks held right now whose names begin with ``prefix``."""
        return await self._core.list(prefix)

    async def break_lock(self, name: str) -> Status | None:
        """Take a lock from its holder by force; the hold that was ended, None if nobody held it."""
        return await self._core.break_lock(name)

    async def bump(self, name: str, *, above: int, force: bool = False) -> None:
        """Make every later token of ``name`` larger than ``above``: for an issuer that lost its history.

        ConfigError for a token that no issuer can have reached by now, unless ``force``.
        """
        await self._core.bump(name, above, force)

    async def close(self) -> None:
        """Release what is still held and disconnect."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@overload
def connect(
    url: str | None = None,
    /,
    *,
    credentials: Credentials | None = None,
    ttl: float | timedelta = 15.0,
    queue_limit: int = 10_000,
    hooks: Iterable[Hook] = (),
    keys: Keys | None = None,
    label: str | None = None,
) -> Locks: ...
@overload
def connect(
    client: "AsyncClient",
    /,
    *,
    options: Mapping[str, str | int | float | bool] | None = None,
    ttl: float | timedelta = 15.0,
    queue_limit: int = 10_000,
    hooks: Iterable[Hook] = (),
    keys: Keys | None = None,
    label: str | None = None,
) -> Locks: ...
def connect(
    source: "str | AsyncClient | None" = None,
    /,
    *,
    credentials: Credentials | None = None,
    options: Mapping[str, str | int | float | bool] | None = None,
    ttl: float | timedelta = 15.0,
    queue_limit: int = 10_000,
    hooks: Iterable[Hook] = (),
    keys: Keys | None = None,
    label: str | None = None,
) -> Locks:
    """The locks behind a URL; without one, behind $FENCEPOST_URL, else in this user's SQLite file, with a WARNING.

    Or behind a client that you have: a client of redis.asyncio, an SQLAlchemy AsyncEngine, psycopg's
    AsyncConnectionPool, Django's ``connections["default"]``, a kazoo client. Its addresses, TLS settings and
    credentials are copied, and the connections are fencepost's own: closing either leaves the other open. ``options``
    are then what a URL has after its ``?``, such as ``{"prefix": "jobs:"}``.

    ``credentials`` is called before each new connection, and returns a password or token, or a tuple of user and
    password; a coroutine function is awaited, and any other runs on a thread. ``ttl`` is the default of all leases;
    ``queue_limit`` bounds how many may wait for one lock; with ``keys`` leases carry signed tokens. ``label`` describes
    this process to others while it holds or waits. By default it is $FENCEPOST_LABEL, or else command, pid, user and
    host; an empty label tells nothing. No server is contacted before the first lock. Raises ConfigError for a URL that
    is empty or invalid, and for a client that cannot be copied.

        async with fencepost.aio.connect("redis://localhost:6379/0") as locks:
            async with locks.lock("account/42", ttl=15, timeout=5) as lease:
                print(lease.token)
    """
    driver = Asyncio()
    lease = Lease if keys is None else keys.signing(Lease)
    backend = registry.connect(source, driver, credentials, options)
    return Locks(Core(backend, driver, lease, ttl=ttl, queue_limit=queue_limit, hooks=hooks, label=label), keys)


class Term(Lease):
    """A lease held for leadership; its token is the epoch, for every write that is made in it.

    A loop cannot cancel its own body; ``async with term:`` can: losing the term cancels the block at once,
    which ends without an error, and the next election follows. Guards find the term inside the block.
    """

    __slots__ = ()

    @property
    def metadata(self) -> str:
        """The metadata of this candidate."""
        return holders.split(self.holder)[1]

    async def resign(self) -> bool:
        """Step down; False if it had been replaced already."""
        return await self.release()

    async def __aenter__(self) -> Self:
        self._begin_once()
        body = Body(self)
        if self.reason is not None:  # it ended on the way here, when there was no block to cancel
            body.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool:
        assert self._body is not None, "the block was entered"
        try:
            if await self._body.leave(error):
                return True
        except LeaseLost as lost:
            return (lost.name, lost.token) == (self.name, self.token)
        return isinstance(error, LeaseLost) and (error.name, error.token) == (self.name, self.token)


class Election:
    """A lock that decides who leads: ``async for term in election`` runs in it, one term after the other.

    Each loop is a candidate of its own. It resigns at the end of the loop's body, and when the loop is left.
    ``async with election:`` resigns at its end, and ends every loop over it. Inside ``async with term`` losing the term
    cancels the block.
    """

    def __init__(self, locks: Locks, name: str, ttl: float | timedelta | None, metadata: str) -> None:
        self._core = locks._core
        self._make = Term if locks._keys is None else locks._keys.signing(Term)
        self._ttl = ttl
        self._metadata = metadata
        self._scope = self._core.scope()
        self._candidates: set[election.Candidate[Term]] = set()
        self.name = name
        self._candidate()  # checks the arguments now

    def _candidate(self) -> election.Candidate[Term]:
        return election.Candidate(
            self._core, self._make, self.name, ttl=self._ttl, metadata=self._metadata, scope=self._scope
        )

    async def __aiter__(self) -> AsyncGenerator[Term, None]:
        """Term after term, each with a larger epoch; leaving the loop resigns."""
        candidate = self._candidate()
        self._candidates.add(candidate)
        try:
            while True:
                yield await candidate.elect()
        except Closed:
            return  # the election was closed
        finally:
            self._candidates.discard(candidate)
            await candidate.resign()

    async def leader(self) -> election.Leader | None:
        """Who leads now; None while nobody does."""
        return await election.leader(self._core, self.name)

    async def changes(self) -> AsyncGenerator[election.Leader | None, None]:
        """Who leads now, then each leader that follows; None while nobody leads. Ends when the election is closed."""
        known = await self.leader()
        while True:
            yield known
            try:
                known = await election.successor(self._core, self.name, known, self._scope)
            except Closed:
                return

    async def close(self) -> None:
        """Resign, and end every loop over this election, in any task."""
        await election.close(self._core, self._scope, list(self._candidates))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
