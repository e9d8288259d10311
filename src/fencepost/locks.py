"""The core: acquiring, waiting for, holding and releasing leases, over any backend.

Written once, as ``async def``; sync.py and aio.py are its two faces.
"""

import functools
import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any, Generic, Literal, TypeVar, cast
from weakref import WeakValueDictionary

from fencepost import ambient, check, registry
from fencepost.backend import Backend, Hold, Status
from fencepost.driver import Driver
from fencepost.driver.fork import at_fork, look_for_silent_forks
from fencepost.driver.scope import Closed, Scope, Visit
from fencepost.errors import BackendError, ConfigError, FencepostError, LeaseLost, NotAcquired, QueueFull
from fencepost.events import Event, Hook, Hooks, Kind
from fencepost.holders import own_label, random_holder, suffix, unlabelled
from fencepost.lease import BaseLease, Grant, Reason
from fencepost.logs import logger
from fencepost.renewals import Renewals
from fencepost.rule import MAX_TOKEN

L = TypeVar("L", bound=BaseLease)


class ReentrantLeases(Generic[L]):
    """The leases of one connection's re-entrant locks, by the lock's name and the thread or task that took it.

    Threads and tasks that it starts do not hold the lease, because they may outlive its block.
    """

    def __init__(self) -> None:
        self._leases: WeakValueDictionary[tuple[str, Hashable], L] = WeakValueDictionary()

    def first(self, who: Hashable, lease: L) -> None:
        """Note that the thread or task ``who`` took ``lease``."""
        self._leases[lease.name, who] = lease

    def again(self, who: Hashable, name: str) -> L | None:
        """Enter the lock again: return the lease under which ``who`` holds it, or None if ``who`` does not hold it.

        LeaseLost if that lease is lost: the inner block would run unprotected, and to wait for the lock would be to
        wait for the outer block.
        """
        lease = self._leases.get((name, who))
        if lease is None or not lease._holds:
            return None
        lease.check()
        lease._holds += 1
        return lease


_OVER = (Reason.RELEASED, Reason.CLOSED, Reason.FORKED)
EVERYBODY = 2**31 - 1
"""The limit of a lock that any number of holders may share."""
# A cancelled acquire, release or close waits this long for its clean-up, which then goes on in the background.
GRACE = 0.5
# close() waits this long for waiters to leave their queues, and as long again for a store that fails to release.
PARTING = 2.0
# An acquire that may wait ends at most _OVERTIME seconds after its timeout, whatever the store does. The store may
# answer until _ANSWER; the rest is for the clean-up.
_ANSWER, _OVERTIME = 0.7, 0.9
_BATCH = 200  # leases that closing releases in one go

HINTS = {
    "release": "what acquire() returned is a lease, and lease.release() gives it back; 'with lock:' does both",
    "locked": "ask locks.status(name), which is None while nobody holds it",
    "owned": "ask the lease: lease.check() raises once it is lost",
    "extend": "a lease is renewed in the background; lease.renew() does it now",
    "reacquire": "a lease is renewed in the background; lease.renew() does it now",
}
"""Methods that users of other libraries look for on a lock, and what to use here instead."""
_OPTIONS = (
    "{}() of a Lock takes no arguments: give them where you make it, as in locks.lock(name, timeout=5, ttl=30): "
    "timeout= is how long to wait, ttl= how long a lease lasts unless it is renewed; try_acquire() does not wait"
)

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


def bare(method: M) -> M:
    """Decorate a method of Lock that takes no arguments: given any, its TypeError says where they belong."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def checked(self: Any, *args: object, **options: object) -> Any:
            if args or options:
                raise TypeError(_OPTIONS.format(method.__name__))
            return await method(self)

        return cast(M, checked)

    @functools.wraps(method)
    def checked_too(self: Any, *args: object, **options: object) -> Any:
        if args or options:
            raise TypeError(_OPTIONS.format(method.__name__))
        return method(self)

    return cast(M, checked_too)


INSIDE = "take the lock inside its body"
"""The advice for a generator function, which runs after the call has returned."""


def yields(work: object) -> bool:
    """Whether a call of ``work`` returns a generator, which does its work later."""
    return _is_one(work, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def awaited(work: object) -> bool:
    """Whether what a call of ``work`` returns has to be awaited."""
    return _is_one(work, inspect.iscoroutinefunction)


def _is_one(work: object, *kinds: Callable[[Any], bool]) -> bool:
    return any(kind(work) or kind(getattr(work, "__call__", None)) for kind in kinds)  # noqa: B004


Busy = Literal["wait", "skip", "raise"]
"""What a decorated call does while its lock is held elsewhere."""


def skipped(work: object, error: NotAcquired) -> None:
    """Log that a call was not made, because its lock is held elsewhere."""
    logger().info("%s is skipped: lock %r is busy", getattr(work, "__qualname__", work), error.name)


def left(blocks: Mapping[T, object], who: T, name: str) -> T:
    """Return the thread or task that entered the block of a lock that ``who`` is leaving.

    Usually that is ``who``. But frameworks may run the two halves of a generator, such as a fixture, in different ones.
    """
    if who in blocks:
        return who
    others = list(blocks)
    if len(others) != 1:
        raise ConfigError(
            f"nobody can tell which of {len(others)} blocks of lock {name!r} is left: another thread or task entered "
            f"it; make a lock for each block, or acquire() and release()"
        )
    return others[0]


def _nested(own: BaseLease, limit: int | None, blocking: bool) -> str:
    """The error text for a thread or task that waits for its own block, with advice."""
    who = "thread" if blocking else "task"
    if own.shared and limit is not None:
        return (
            f"this {who} holds all {limit} permits of {own.name!r} already, in blocks around: leave one of those "
            f"blocks first, or give the semaphore more permits"
        )
    what = "a share of lock" if own.shared else "lock"
    advice = (
        "leave that block first: a share cannot become the lock itself"
        if own.shared
        else "make both re-entrant, as in locks.lock(name, reentrant=True), or use the lease of the block around"
    )
    return f"this {who} holds {what} {own.name!r} already, in a block around: {advice}"


def _legible(status: Status) -> Status:
    """A status whose holders are named as in their leases, without labels; the labels are in a field of their own."""
    labels: dict[str, str] = {}

    def bare(holder: str) -> str:
        identity, label = unlabelled(holder)
        if label:
            labels[identity] = label
        return identity

    return replace(
        status,
        holder=bare(status.holder),
        waiters=tuple(map(bare, status.waiters)),
        sharers=tuple(map(bare, status.sharers)),
        labels=labels,
    )


def _closed() -> ConfigError:
    return ConfigError("these locks are closed; connect again")


class Core(Generic[L]):
    """All leases of one connection to one backend."""

    def __init__(
        self,
        backend: Backend,
        driver: Driver,
        lease: Callable[["Core[L]", str, str, Grant, bool, float | None, bool], L],
        *,
        ttl: float | timedelta,
        queue_limit: int,
        hooks: Iterable[Hook],
        holders: Callable[[], str] = random_holder,
        label: str | None = "",
    ) -> None:
        self.backend = backend
        self.driver = driver
        self.hooks = Hooks(hooks)
        self._hooked = bool(self.hooks)  # asked on every acquire and release, and rarely true
        self.ttl = self._ttl(ttl)
        if queue_limit < 0:
            raise ConfigError(f"queue_limit must not be negative, not {queue_limit}")
        self.queue_limit = queue_limit
        self._lease = lease
        self._holders = holders
        self._own_label = label is None  # the default label contains the pid, so a forked child needs another
        self._suffix = None if label is None else suffix(label)
        self._closed = False
        self._unsure: list[L] = []
        """Leases whose release was interrupted while these locks were being closed."""
        self._waits = Scope()
        self._scopes: weakref.WeakSet[Scope] = weakref.WeakSet()
        self._renewals: Renewals[L] = Renewals(backend, driver, self.emit)
        self.reentrant: ReentrantLeases[L] = ReentrantLeases()
        _cores.add(self)
        logger()  # imports logging now: when there is an error to log, the import could fail
        look_for_silent_forks()

    def _ttl(self, ttl: float | timedelta) -> float:
        seconds = check.ttl(ttl)
        promises = self.backend.promises
        if not promises.min_ttl <= seconds <= promises.max_ttl:
            raise ConfigError(
                f"{self.backend.scheme}:// takes a ttl from {promises.min_ttl:g} to {promises.max_ttl:g} s, "
                f"not {seconds:g} s"
            )
        return seconds

    def limit(self, permits: int) -> int:
        """Return ``permits`` if it is valid; ConfigError if not, or if the backend has no shared locks."""
        if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= EVERYBODY:
            raise ConfigError(f"permits is a number from 1 to 2^31-1, not {permits!r}")
        if not self.backend.promises.shared:
            raise ConfigError(
                f"{self.backend.scheme}:// cannot promise shared locks and semaphores; "
                f"{', '.join(f'{scheme}://' for scheme in registry.sharing())} can"
            )
        return permits

    def patience(self, busy: Busy, timeout: float | timedelta | None) -> float | timedelta | None:
        """The timeout of a decorated call. Unless given, "wait" waits without end; "skip" and "raise" do not wait."""
        if busy not in ("wait", "skip", "raise"):
            raise ConfigError(f"busy is 'wait', 'skip' or 'raise', not {busy!r}")
        check.wait(timeout, "timeout")
        return 0.0 if timeout is None and busy != "wait" else timeout

    def check_options(
        self,
        ttl: float | timedelta | None,
        max_hold: float | timedelta | None,
        at_least: float | timedelta | None,
    ) -> None:
        """ConfigError for options with which no lock can be acquired."""
        if ttl is not None:
            self._ttl(ttl)
        if max_hold is not None:
            check.wait(max_hold, "max_hold")
        if at_least is not None:
            self.at_least(at_least, ttl)

    def at_least(self, value: float | timedelta, ttl: float | timedelta | None) -> float:
        """Return ``at_least`` in seconds; ConfigError if it is invalid, or the backend cannot keep a lock that long."""
        seconds = check.seconds(value, "at_least")
        keeps, most = self.backend.promises.keeps, self.ttl if ttl is None else self._ttl(ttl)
        if keeps == "no":
            raise ConfigError(
                f"{self.backend.scheme}:// cannot keep a lock after its block, so there is no at_least= there; take "
                f"another store for it, or remember the run with fencepost.once"
            )
        if keeps == "ttl" and seconds > most:
            raise ConfigError(
                f"{self.backend.scheme}:// keeps a lock for its ttl of {most:g} s at most, and not for "
                f"at_least={seconds:g} s; give a ttl= as long as that"
            )
        if seconds > self.backend.promises.max_ttl:
            raise ConfigError(f"at_least={seconds:g} s is longer than any lease of {self.backend.scheme}:// lasts")
        return seconds

    def emit(self, kind: Kind, name: str, **facts: Any) -> None:
        if self._hooked:
            self.hooks(Event(kind=kind, name=name, source=self.backend.scheme, **facts))

    async def acquire(
        self,
        name: str,
        *,
        ttl: float | timedelta | None,
        timeout: float | timedelta | None,
        renew: bool,
        max_hold: float | timedelta | None,
        holders: Callable[[], str] | None = None,
        make: "Callable[[Core[L], str, str, Grant, bool, float | None, bool], L] | None" = None,
        limit: int | None = None,
        at_least: float | timedelta | None = None,
        more: Callable[[], float] | None = None,
        scope: Scope | None = None,
        in_the_way: list[str] | None = None,
    ) -> L | None:
        """A lease on ``name``, or None once ``timeout`` has passed; 0 asks once and never queues.

        ``holders`` makes the holder's id, for callers that must recognise it; ``make`` makes another class of lease.
        With a ``limit`` the lease is a share: at most ``limit`` holders have one at once. With ``at_least`` the end of
        the block does not free the lock, which expires so many seconds after it was acquired. ``more`` is called
        whenever the time is up, and returns how many more seconds to stay in the queue. Ending ``scope`` ends the wait,
        which then raises Closed. ``in_the_way`` receives the holder, as the store names it, that had the lock when the
        time was up, if the store tells that without an extra request.
        """
        check.name(name)
        seconds = self.ttl if ttl is None else self._ttl(ttl)
        stay = None if at_least is None else self.at_least(at_least, seconds)
        patience = check.wait(timeout, "timeout")
        hold = None if max_hold is None else check.wait(max_hold, "max_hold")
        if self._closed:
            raise _closed()
        start = self.driver.now()
        if self._hooked:
            self.emit("attempt", name)
        while True:
            holder = (holders or self._holders)()
            stored = self._stored(holder)
            grant = await self._obtain(
                name, stored, seconds, start + patience, patience > 0, limit, more, scope, in_the_way
            )
            if grant is None:
                self.emit("timeout", name, seconds=self.driver.now() - start)
                return None
            try:
                lease = (make or self._lease)(self, name, holder, grant, renew, hold, limit is not None)
                lease._stored = stored
                over = lease.reason is not None
            except BaseException:  # for example, out of memory: nobody would release it
                await self._leave(name, stored)
                raise
            if not over:
                break
            # The lease expired before it got here, for example because this process was suspended: it is useless.
            await self._leave(name, stored)
            if self.driver.now() >= start + patience:  # where every answer comes that late, asking again never ends
                self.emit("timeout", name, seconds=self.driver.now() - start)
                return None
        try:
            if self._hooked:  # first: once the lease is watched, hooks may be told that it is lost
                self.emit("acquired", name, token=lease.token, holder=holder, seconds=self.driver.now() - start)
            if stay is not None:
                lease._kept_until = self.driver.now() + stay
            self._renewals.watch(lease)
        except BaseException:  # for example, no thread can be started to renew it
            await self._release_quietly(lease)
            raise
        if self._closed:  # just now: close() may not have seen this lease
            await self._release_quietly(lease, Reason.CLOSED)
            raise _closed()
        return lease

    def _stored(self, holder: str) -> str:
        """A holder as the store gets it: a bare id with the label of this process."""
        if self._suffix is None:
            self._suffix = suffix(own_label())
        return holder + self._suffix if len(holder) == 32 else holder

    async def acquire_or_raise(
        self,
        name: str,
        who: Callable[[], Hashable],
        ttl: float | timedelta | None,
        timeout: float | timedelta | None,
        renew: bool,
        max_hold: float | timedelta | None,
        limit: int | None = None,
        at_least: float | timedelta | None = None,
    ) -> L:
        """As ``acquire``, but NotAcquired once ``timeout`` has passed. The error names the holder, if it is known.

        ``who`` returns the calling thread or task: ConfigError if it would wait for its own block without end.
        """
        # Not by **options: this is called for every lock, and dictionaries take longer than the rest of it.
        own = self._own_blocks(name, who(), limit) if ambient.blocks() else []
        if own and check.wait(timeout, "timeout") == inf:
            # Our own block may have lost the lock already: then the lock is free, or another client holds it.
            at_once = self.acquire(
                name, ttl=ttl, timeout=0, renew=renew, max_hold=max_hold, limit=limit, at_least=at_least
            )
            if (lease := await at_once) is not None:
                return lease
            status = await self.status(name)
            if status is not None and {each.holder for each in own} <= {status.holder, *status.sharers}:
                raise ConfigError(f"{_nested(own[0], limit, self.driver.blocking)}; this wait would have no end")
        in_the_way: list[str] = []
        lease = await self.acquire(
            name,
            ttl=ttl,
            timeout=timeout,
            renew=renew,
            max_hold=max_hold,
            limit=limit,
            at_least=at_least,
            in_the_way=in_the_way,
        )
        if lease is not None:
            return lease
        holder, label = unlabelled(in_the_way[0]) if in_the_way else ("", "")
        nested = own and own[0].reason is None and holder in ("", *(each.holder for each in own))
        why = _nested(own[0], limit, self.driver.blocking) if nested else ""
        raise NotAcquired(name, check.wait(timeout, "timeout"), holder=holder, label=label, why=why)

    def _own_blocks(self, name: str, who: Hashable, limit: int | None) -> list[BaseLease]:
        """The leases of enclosing blocks that ``who`` entered, if they keep it from the lock; else none.

        One such lease is enough, and is returned alone. But its shares keep ``who`` from another share only if they are
        all the permits. Other leases do not count: one that another thread or task entered, or that has no block, may
        be released elsewhere, and one that is not renewed without end expires.
        """
        blocks = [
            lease
            for lease in ambient.blocks()
            if lease.name == name
            and lease._core is self
            and lease._entered_by is not None
            and lease._entered_by() is who
            and lease._renew_until == inf
            and lease.reason is None
        ]
        if limit is None or any(not lease.shared for lease in blocks):
            return blocks[:1]
        return blocks if len(blocks) >= limit else []  # ``who`` has all permits

    async def _obtain(
        self,
        name: str,
        holder: str,
        ttl: float,
        until: float,
        queue: bool,
        limit: int | None,
        more: Callable[[], float] | None,
        scope: Scope | None,
        in_the_way: list[str] | None,
    ) -> Grant | None:
        backend = self.backend
        waits = scope or self._waits
        visit: Visit | None = None
        try:
            most = self.queue_limit if queue else None
            asked = backend.take(name, holder, ttl, most, limit)
            # An acquire with a timeout of 0 sends one request, and waits for it as long as the backend does.
            grant = await (self._in_time(asked, until) if queue and until < inf else asked)
            if grant is None and queue:
                visit = waits.join()
            while grant is None and queue:
                left = until - self.driver.now()
                if left <= 0 and more is not None:
                    left = more()
                    until = self.driver.now() + left
                if left <= 0:
                    other = await self._in_time(backend.leave(name, holder), until)
                    if other and in_the_way is not None:
                        in_the_way.append(other)
                    return None
                patience = None if left == inf else left
                with waits.inside():
                    wait = backend.wait(name, holder, ttl, patience, limit)
                    grant = await (wait if patience is None else self._in_time(wait, until))
            return grant
        except (ConfigError, QueueFull, GeneratorExit):
            raise
        except BaseException as error:
            # Keep the error in no variable: it and its traceback would keep each other alive, and what is open there.
            failed = isinstance(error, BackendError)
            if not isinstance(error, BackendError) or error.ambiguous or visit is not None:
                # Cancelled, interrupted or failed: the store may have granted the lock or queued the holder anyway.
                grace = min(GRACE, max(until + _OVERTIME - self.driver.now(), 0.1)) if failed and queue else GRACE
                job = self._part(name, holder, waits, visit or waits.join())
                visit = None
                try:
                    await self.driver.apart(job, grace)
                finally:  # also if it is cancelled once more
                    self.emit("abandoned", name, holder=holder)
            if self._closed and (failed or isinstance(error, Closed)):
                raise _closed() from (error if failed else None)
            raise
        finally:
            if visit is not None:
                waits.leave(visit)

    async def _in_time(self, request: Coroutine[Any, Any, T], until: float) -> T:
        """Await a request to the store; BackendError if there is no answer until soon after the acquire's timeout."""
        try:
            return await self.driver.within(until + _ANSWER - self.driver.now(), request)
        except TimeoutError as error:
            if isinstance(error, FencepostError):  # NotAcquired is one too
                raise
            raise BackendError(
                "the store did not answer before the timeout", backend=self.backend.scheme, ambiguous=True
            ) from None

    async def _part(self, name: str, holder: str, waits: Scope, visit: Visit) -> None:
        """Leave the queue, and then the scope: closing waits for it, also if the acquire no longer does."""
        try:
            await self._leave(name, holder)
        finally:
            waits.leave(visit)

    async def _leave(self, name: str, holder: str) -> None:
        try:
            await self.backend.leave(name, holder)
        except (BackendError, ConfigError) as error:  # ConfigError: a server that has become part of a cluster
            logger().warning("could not clean up after an acquire of %r; its ttl will: %s", name, error)

    async def renew(self, lease: L) -> None:
        """Renew now; LeaseLost if it is lost, BackendError if the store did not say."""
        lease.check()
        await self._renewals.renew([lease], strict=True)
        lease.check()

    async def release(self, lease: L, reason: Reason = Reason.RELEASED, keep: float = 0.0) -> bool:
        """Give the lease back; False, and nothing changed, if it was no longer this holder's.

        With ``keep`` its lock is not freed: it expires so many seconds from now.
        """
        lease._holds = 0
        claim = self._renewals, threading.get_ident()
        known = lease._claim_release(reason, claim)
        if known is not None and known in _OVER:
            if not await self._released_beside(lease):
                return False
            known = lease._reason
        lease._releasing = claim
        try:
            lease._wake()
            released = await self._released(lease, known, reason, keep)
        finally:
            if lease._releasing is claim:  # for example, out of memory: the next release() must not wait for this one
                if known is None:
                    lease._reason = Reason.UNCONFIRMED
                self._done_releasing(lease)
        if released:
            if self._hooked:
                self._tell_release(lease)
        elif known is None:
            self._tell_replaced(lease)
        elif known is not Reason.UNCONFIRMED:  # else the first attempt may have released it
            self.emit("not_owner", lease.name, token=lease.token, holder=lease.holder)
        return released

    def _tell_release(self, lease: L) -> None:
        if self._hooked:
            held = self.driver.now() - lease.since
            self.emit("released", lease.name, token=lease.token, holder=lease.holder, seconds=held)

    def _tell_replaced(self, lease: L) -> None:
        """Tell hooks and the lease's block that the lease was lost before it was released."""
        self.emit("not_owner", lease.name, token=lease.token, holder=lease.holder)
        self._renewals.lost(lease)

    async def _released(self, lease: L, known: Reason | None, reason: Reason, keep: float) -> bool:
        """Release the lease in the store, and return its answer.

        ``known`` is how the lease had ended before, if it had; else it ends now, for ``reason``.
        """
        try:
            self._renewals.forget(lease)
            if keep:
                await self._renewals.settled(lease)  # a renewal that arrives later would undo keep()
                released = await self.backend.keep(lease.name, lease._stored, lease.token, keep)
            else:
                released = await self.backend.release(lease.name, lease._stored, lease.token)
        except GeneratorExit:
            self._done_releasing(lease)
            raise
        except BaseException as error:
            self._settle(lease, known, Reason.UNCONFIRMED if reason is Reason.RELEASED else reason)
            if not isinstance(error, BackendError):
                # Cancelled or interrupted: finish where the cancellation does not reach.
                again = self._keep(lease, keep) if keep else self._leave(lease.name, lease._stored)
                await self.driver.apart(again, GRACE)
            raise
        self._settle(lease, known, reason if released else Reason.REPLACED)
        return released

    async def _keep(self, lease: L, seconds: float) -> None:
        try:
            await self._renewals.settled(lease)
            await self.backend.keep(lease.name, lease._stored, lease.token, seconds)
        except BackendError as error:
            logger().warning("could not keep %r for %g s more; its ttl frees it: %s", lease.name, seconds, error)

    async def _released_beside(self, lease: L) -> bool:
        """Wait for a release of the same lease by another thread or task; say whether it failed."""
        beside = lease._releasing
        if beside is None or (self.driver.blocking and beside[1] == threading.get_ident()):
            return False  # no release is under way, or this is a signal handler that interrupted it
        signal = lease._waitable()
        while lease._releasing is beside and beside[0] is self._renewals:  # else the parent began it before a fork
            await signal.wait()
        return lease._reason is Reason.UNCONFIRMED

    def _settle(self, lease: L, known: Reason | None, reason: Reason) -> None:
        """Note how the lease ended, unless that was known before; a second release can confirm the first."""
        if known is None:
            if lease._reason is not Reason.EXPIRED:
                lease._reason = reason
        elif known is Reason.UNCONFIRMED and reason is not Reason.REPLACED:
            lease._reason = reason
        self._done_releasing(lease)

    def _done_releasing(self, lease: L) -> None:
        lease._releasing = None
        if lease._signal is not None:
            lease._signal.set()

    async def finish(self, lease: L) -> LeaseLost | None:
        """Release at the end of a block; return the error that the block must raise, unless it raised one itself."""
        before = lease.reason
        why = lease._why if before else ""
        if lease._holds > 1:  # the enclosing block goes on: do not release, but report a loss
            lease._holds -= 1
            return LeaseLost(lease.name, lease.token, why) if why else None
        if before is Reason.RELEASED:
            return None
        keep = 0.0
        if before is None and lease._kept_until is not None:
            keep = max(0.0, lease._kept_until - self.driver.now())
        await self._release_quietly(lease, keep=keep)
        if before is Reason.UNCONFIRMED or (before is None and lease.released):
            return None
        return LeaseLost(lease.name, lease.token, why or lease._why)

    async def give_up(self, lease: L) -> None:
        """Release a lease that the caller never gets, because a signal handler raised before acquire returned it."""
        await self.driver.apart(self._release_quietly(lease), GRACE)

    async def _release_quietly(self, lease: L, reason: Reason = Reason.RELEASED, keep: float = 0.0) -> bool:
        try:
            return await self.release(lease, reason, keep)
        except BackendError as error:
            logger().warning("release of %r failed; its ttl will free it: %s", lease.name, error)
            return True

    async def waiting(self, wait: Coroutine[Any, Any, T], scope: Scope | None = None) -> T:
        """Wait for something other than a lock; ConfigError once these locks are closed, Closed once ``scope`` is."""
        waits = scope or self._waits
        visit = waits.join()
        try:
            with waits.inside():
                return await wait
        except (Closed, BackendError) as error:
            if self._closed:
                raise _closed() from (error if isinstance(error, BackendError) else None)
            raise
        finally:
            wait.close()  # it may never have begun
            waits.leave(visit)

    def scope(self) -> Scope:
        """A scope for waits that end with these locks, or before."""
        made = Scope()
        self._scopes.add(made)
        return made

    def check_open(self) -> None:
        """ConfigError once these locks are closed."""
        if self._closed:
            raise _closed()

    @property
    def _open(self) -> Backend:
        """The store; ConfigError once these locks are closed."""
        self.check_open()
        return self.backend

    async def status(self, name: str) -> Status | None:
        """The lock as its store sees it; None if nobody holds it."""
        found = await self._open.status(check.name(name))
        return _legible(found[0]) if found else None

    async def list(self, prefix: str) -> list[Status]:
        """The held locks whose names begin with ``prefix``."""
        return [_legible(each) for each in await self._open.status(prefix=prefix and check.name(prefix, "prefix"))]

    async def break_lock(self, name: str) -> Status | None:
        """Take the lock from its holder; the hold that was ended."""
        ended = await self._open.break_lock(check.name(name))
        return _legible(ended) if ended else None

    async def bump(self, name: str, above: int, force: bool) -> None:
        """Make every later token of ``name`` larger than ``above``."""
        if check.token(above) == MAX_TOKEN:
            raise ConfigError(f"no token is larger than {MAX_TOKEN}")
        if above > check.highest_token() and not force:
            raise ConfigError(
                f"no issuer can have come to token {above} by now; raised that far, this one may have no tokens for "
                f"other locks, and guards refuse what it gives out. If a guard's mark is that high, lower the mark; or "
                f"give force=True (--force)"
            )
        await self._open.bump(check.name(name), above)

    async def close(self) -> None:
        """End all waits, release what is still held and disconnect; the leases' holders learn that they are over."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._shut()
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            # Cancelled or interrupted: finish where the cancellation does not reach.
            await self.driver.apart(self._shut(), GRACE)
            raise

    async def _shut(self) -> None:
        until = self.driver.now() + PARTING
        scopes = (self._waits, *self._scopes)
        for scope in scopes:  # all clean-ups begin now: one after another, they would have less time each
            await scope.end(self.driver, 0.0)
        for scope in scopes:
            await scope.end(self.driver, max(until - self.driver.now(), 0.0))
        try:
            await self._release_all([*self._renewals])
        except Exception:
            await self.driver.apart(self._leave_unsure(), GRACE)
            raise
        await self._leave_unsure()
        self._renewals.close()
        await self.backend.close()
        self.driver.close()

    async def _release_all(self, leases: Iterable[L]) -> None:
        """Release all leases, server by server. What failing servers left is tried once more, for PARTING seconds."""
        homes: dict[Hashable, deque[L]] = {}
        for lease in leases:
            homes.setdefault(self.backend.home(lease.name), deque()).append(lease)
        left: deque[L] = deque()
        for rest in homes.values():
            while rest and await self._release_some(rest):
                pass
            left += rest
        if not left:
            return
        await self.driver.apart(self._release_rest(deque(left)), PARTING)
        for lease in left:
            if self._closing(lease):
                self._settle(lease, None, Reason.CLOSED)
            elif not lease._end(Reason.CLOSED):
                continue
            logger().warning("%r was not released before closing; its ttl will free it", lease.name)
            self._cancel_body(lease)

    async def _release_rest(self, rest: deque[L]) -> None:
        while rest:
            if rest[0]._reason is None or self._closing(rest[0]):
                await self._release_some(rest)
            else:  # _release_all stopped waiting, and has ended this lease
                rest.popleft()

    async def _release_some(self, rest: deque[L]) -> bool:
        """Release one batch of ``rest``, and put back those that the store was not asked for; False if all failed."""
        batch = [rest.popleft() for _ in range(min(_BATCH, len(rest)))]
        works, unasked = await self._close_leases(batch)
        rest.extendleft(reversed(unasked))
        return works

    def _closing(self, lease: L) -> bool:
        """Whether close() has begun to release this lease, and has no answer yet."""
        return lease._reason is Reason.CLOSED and lease._releasing is not None

    async def _close_leases(self, leases: Sequence[L]) -> tuple[bool, Sequence[L]]:
        """Release leases and cancel their bodies; return whether the store answered any, and those it was not asked."""
        claim = self._renewals, threading.get_ident()
        mine: list[L] = []
        for lease in leases:
            lease._holds = 0
            if self._closing(lease) or (known := lease._claim_release(Reason.CLOSED, claim)) is None:
                self._renewals.forget(lease)
                mine.append(lease)
            elif known is not Reason.CLOSED:  # lost or released just now, by another thread or task
                await self._release_quietly(lease, Reason.CLOSED)
                self._cancel_body(lease)
        if not mine:
            return True, []
        try:
            for lease in mine:
                lease._wake()
            answers = await self.backend.release_all(
                [Hold(lease.name, lease._stored, lease.token, lease.ttl) for lease in mine]
            )
        except BaseException as error:
            for lease in mine:
                self._settle(lease, None, Reason.CLOSED)
                if not isinstance(error, GeneratorExit):  # else the event loop is gone, and the body with it
                    self._cancel_body(lease)
            self._unsure += mine
            raise
        works, unasked = False, list[L]()
        for lease, answer in zip(mine, answers, strict=True):
            if answer is None:
                unasked.append(lease)
                continue
            if isinstance(answer, BackendError):
                logger().warning("release of %r failed; its ttl will free it: %s", lease.name, answer)
            else:
                works = True
            self._settle(lease, None, Reason.CLOSED if answer else Reason.REPLACED)
            if answer is True:
                self._tell_release(lease)
            elif answer is False:
                self._tell_replaced(lease)
            self._cancel_body(lease)
        return works, unasked

    async def _leave_unsure(self) -> None:
        """Make sure that the leases whose release was interrupted are held no longer."""
        while self._unsure:
            lease = self._unsure[-1]
            await self._leave(lease.name, lease._stored)
            self._unsure.pop()

    def _cancel_body(self, lease: L) -> None:
        if lease._body is not None:
            lease._body.cancel_from_elsewhere()

    def forked(self) -> None:
        """In a forked child: the leases are the parent's, to renew and to release."""
        for lease in self._renewals:
            lease._reason, lease._signal, lease._turned = Reason.FORKED, None, None
        for scope in (self._waits, *self._scopes):
            scope.forked()
        self._renewals = Renewals(self.backend, self.driver, self.emit)
        self.reentrant = ReentrantLeases()
        if self._own_label:
            self._suffix = None
        self.backend.forked()


_cores: "weakref.WeakSet[Core[Any]]" = weakref.WeakSet()


def _after_fork() -> None:
    for core in list(_cores):
        core.forked()


at_fork(after_in_child=_after_fork)
