"""The blocking face."""

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeAlias, TypeVar, overload

from fencepost import ambient, election, holders, registry
from fencepost.backend import Status
from fencepost.driver import call, call_or_undo
from fencepost.driver.interrupts import Again, on_main_thread, protected, see_through
from fencepost.driver.scope import Closed
from fencepost.driver.threads import Blocking
from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from fencepost.events import Hook
from fencepost.lease import BaseAtRisk, BaseEnded, BaseLease
from fencepost.locks import EVERYBODY, HINTS, INSIDE, Busy, Core, awaited, bare, left, skipped, yields
from fencepost.naming import Name, from_arguments
from fencepost.signing import Keys

__all__ = ["AtRisk", "Election", "Ended", "Lease", "Lock", "Locks", "Term", "connect"]


if TYPE_CHECKING:
    from fencepost.clients.kinds import Client

P = ParamSpec("P")
R = TypeVar("R")

Credentials: TypeAlias = Callable[[], str | bytes | tuple[str, str]]
"""Returns the password or token for a new connection, or user and password."""

_AWAITED = "lock with fencepost.aio, or inside its body"


def _outlives(call: Callable[..., object], instead: str) -> ConfigError:
    what = getattr(call, "__qualname__", call)
    return ConfigError(f"{what} would outlive a blocking lock taken around its call; {instead}")


def _check_work(work: Callable[..., object]) -> None:
    """ConfigError for what a lock cannot be held around."""
    if not callable(work):
        raise ConfigError(f"{work!r} cannot be called; @classmethod, @property and the like go above the lock")
    if yields(work):
        raise _outlives(work, INSIDE)
    if awaited(work):
        raise _outlives(work, _AWAITED)


def _check_result(work: Callable[..., object], result: object) -> None:
    """ConfigError if the result is a coroutine: its work would begin only after the lock was released."""
    if inspect.iscoroutine(result):  # of a plain function that calls a coroutine function: not known before the call
        result.close()
        raise _outlives(work, _AWAITED)


class Ended(BaseEnded):
    """Set once the lease is over, however it ended: test it, or wait for it, like an event."""

    __slots__ = ()

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until the lease is over, or ``timeout`` seconds have passed; say whether it is over."""
        return call(self._lease._until_over, timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)


class AtRisk(BaseAtRisk):
    """Set while the lease holds, although its renewal failed or is overdue: test it, or wait for it, like an event.

    A renewal that is due has a tenth of the ttl to be answered. After that the lease is at risk until a renewal
    succeeds or the lease is over. Meanwhile, stop what a replaced holder must not do; go on when the lease is renewed.

        for row in rows:
            if lease.at_risk and not lease.at_risk.wait_clear(5):
                break
            write(row)
    """

    __slots__ = ()

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until the lease is at risk; False if it was over, or ``timeout`` seconds had passed, before that."""
        return call(self._lease._until_risky, True, timeout)

    def wait_clear(self, timeout: float | timedelta | None = None) -> bool:
        """Block until the lease is out of risk; False if it was over, or ``timeout`` seconds had passed, before."""
        return call(self._lease._until_risky, False, timeout)

    def changes(self) -> Generator[bool, None, None]:
        """Yield True each time the lease is put at risk, and False when it is renewed again; ends with the lease.

        If the lease is at risk already, the first True comes at once.
        """
        lease = self._lease
        seen = lease._turns // 2 * 2
        while call(lease._until_turn, lambda: lease._turns > seen):  # noqa: B023 - it is called before seen changes
            seen += 1
            yield seen % 2 == 1


class Lease(BaseLease):
    """A lease held by blocking code. ``with lease:`` releases it at the end; it can be entered once.

    Leaving the block raises LeaseLost if the lease was lost during it and the block itself raised nothing.

        with locks.acquire("account/42", ttl=15) as lease:
            for row in rows:
                lease.check(margin=2)
                work(row)
    """

    __slots__ = ()

    @property
    def ended(self) -> Ended:
        """Set once the lease is over, however it ended; ``reason`` says how."""
        return Ended(self)

    @property
    def at_risk(self) -> AtRisk:
        """Set while the lease holds although its renewal failed or is overdue; it may be renewed yet, or lost."""
        return AtRisk(self)

    def renew(self) -> None:
        """Extend the lease by its ttl, keeping its token; LeaseLost if it is lost already."""
        call(self._core.renew, self)

    def release(self) -> bool:
        """Give the lock back; False, and nothing changed, if it was no longer this holder's."""
        try:
            return call(self._core.release, self)
        except BaseException:
            if self._reason is None:  # interrupted before it began
                call(self._core.release, self)
            raise

    def __enter__(self) -> Self:
        try:
            return protected(self._enter, lambda _: self._leave([]))
        except (ConfigError, LeaseLost):
            raise
        except BaseException:
            if not self._begun:  # interrupted before it began: nobody else would release it
                protected(functools.partial(self._leave, []))
            raise

    def _enter(self) -> Self:
        self._begin_block()
        ambient.push(self)
        self._entered_by = weakref.ref(threading.current_thread())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        lost = see_through(self._leave)
        if lost and error is None:
            raise lost
        return None

    def _leave(self, begun: list[bool]) -> LeaseLost | None:
        begun.append(True)
        ambient.pop(self)
        return call(self._core.finish, self)


class Lock:
    """A lock to be held for a block or a call: ``with lock as lease`` or ``@lock``. Use it as often as you like."""

    def __init__(self, locks: "Locks", name: str, options: dict[str, Any], reentrant: bool = False) -> None:
        self._locks = locks
        self._options = options
        self._reentrant = reentrant
        # Many threads may use one Lock at once. By thread object, not by its ident, which a later thread may reuse.
        self._held: dict[threading.Thread, list[Lease]] = {}
        self.name = name

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in HINTS:
                raise AttributeError(f"a Lock has no {name}(): {HINTS[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @bare
    def acquire(self) -> Lease:
        """The plain form: a new lease that you release yourself. Raises as ``Locks.acquire`` does.

        It never re-enters, even if the lock is re-entrant: a thread that holds the lock already would wait for itself.
        """
        core = self._locks._core
        # Not call_or_undo(..., **options): after such a call Python 3.11 runs signal handlers before it returns, and if
        # one raises, nothing releases the lease.
        ask = functools.partial(core.acquire_or_raise, self.name, threading.current_thread, **self._options)
        return call_or_undo(core.give_up, ask)

    @bare
    def try_acquire(self) -> Lease | None:
        """A lease if the lock is free at this moment, else None."""
        core, options = self._locks._core, self._options | {"timeout": 0}
        return call_or_undo(core.give_up, functools.partial(core.acquire, self.name, **options))

    def __enter__(self) -> Lease:
        return protected(self._enter, lambda _: self._leave([]))

    def _enter(self) -> Lease:
        thread, reentrant = threading.current_thread(), self._locks._core.reentrant
        lease = reentrant.again(thread, self.name) if self._reentrant else None
        if lease is None:
            lease = self.acquire()
        try:
            if not lease._begun:
                lease._begun = True
                if self._reentrant:
                    reentrant.first(thread, lease)
            ambient.push(lease)
            lease._entered_by = weakref.ref(thread)
            self._held.setdefault(thread, []).append(lease)
        except BaseException:  # for example, out of memory: nobody would leave the block
            ambient.pop(lease)
            call(self._locks._core.finish, lease)
            raise
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = see_through(self._leave)
        if lost and error is None:
            raise lost

    def _leave(self, begun: list[bool]) -> LeaseLost | None:
        thread = left(self._held, threading.current_thread(), self.name)
        mine = self._held[thread]
        lease = mine.pop()
        begun.append(True)
        try:
            if not mine:
                del self._held[thread]
            ambient.pop(lease)
        finally:
            lost = call(self._locks._core.finish, lease)
        return lost

    def __call__(self, work: Callable[P, R]) -> Callable[P, R]:
        _check_work(work)

        @functools.wraps(work)
        def held(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                result = work(*args, **kwargs)
            _check_result(work, result)
            return result

        return held


class Locks:
    """The locks of one store. Share it between threads; after a fork, parent and child each have their own.

    For example::

        locks = fencepost.connect("redis://localhost:6379/0")
        with locks.lock("account/42"):
            ...
        print(locks.status("account/42"))
        locks.close()
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
        """A lock for ``with`` blocks and decorators; see ``acquire`` for the options.

        Leaving the block raises LeaseLost if the lease was lost during it and the block itself
        raised nothing. With ``reentrant`` a thread that holds the lock already, in a block that is re-entrant too,
        enters again under the same lease; the outermost block decides its options, and releases it.
        With ``at_least`` a block that ends sooner leaves the lock taken until so many seconds after it was acquired.
        The lock then expires in the store: the block does not wait for it. ``release()`` still frees it at once.
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
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
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
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
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
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Decorate a function so that each call holds the lock that its arguments name.

            @locks.holding("report/{account_id}", busy="skip")
            def report(account_id, day): ...

        The fields are parameters of the function; their values are text without "/", whole numbers or UUIDs. ``name``
        may also be a function of the call's arguments. While the lock is held elsewhere, ``busy`` decides: "wait" waits
        for at most ``timeout`` seconds, then raises NotAcquired; "raise" raises NotAcquired, and "skip" skips the call,
        which returns None, both at once unless there is a ``timeout``. See ``acquire`` and ``lock`` for the other
        options. ConfigError for a name that cannot be made, when the function is decorated or called.
        """
        options = {"ttl": ttl, "renew": renew, "max_hold": max_hold, "at_least": at_least}
        options["timeout"] = self._core.patience(busy, timeout)
        self._core.check_options(ttl, max_hold, at_least)

        def decorate(work: Callable[P, R]) -> Callable[P, R | None]:
            _check_work(work)
            named = from_arguments(name, work)

            @functools.wraps(work)
            def held(*args: P.args, **kwargs: P.kwargs) -> R | None:
                lock, entered = Lock(self, named(args, kwargs), options, reentrant), False
                try:
                    with lock:
                        entered = True
                        result = work(*args, **kwargs)
                except NotAcquired as error:
                    if entered or busy != "skip":
                        raise
                    skipped(work, error)
                    return None
                _check_result(work, result)
                return result

            return held

        return decorate

    def acquire(
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
        BackendError, ConfigError; whatever it raises, it leaves neither a lock nor a queue entry.
        """
        core, who = self._core, threading.current_thread
        return call_or_undo(core.give_up, core.acquire_or_raise, name, who, ttl, timeout, renew, max_hold)

    def try_acquire(
        self,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        renew: bool = True,
        max_hold: float | timedelta | None = None,
    ) -> Lease | None:
        """A lease if the lock is free at this moment, else None."""
        core = self._core
        return call_or_undo(core.give_up, core.acquire, name, ttl=ttl, timeout=0, renew=renew, max_hold=max_hold)

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

    def status(self, name: str) -> Status | None:
        """Who holds ``name``, under which token, for how long, and who waits; None if nobody holds it."""
        return call(self._core.status, name)

    def list(self, prefix: str = "") -> list[Status]:
        """The locks held right now whose names begin with ``prefix``."""
        return call(self._core.list, prefix)

    def break_lock(self, name: str) -> Status | None:
        """Take a lock from its holder by force; the hold that was ended, None if nobody held it."""
        return call(self._core.break_lock, name)

    def bump(self, name: str, *, above: int, force: bool = False) -> None:
        """Make every later token of ``name`` larger than ``above``: for an issuer that lost its history.

        ConfigError for a token that no issuer can have reached by now, unless ``force``.
        """
        call(self._core.bump, name, above, force)

    def close(self) -> None:
        """Release what is still held and disconnect."""
        call(self._core.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    client: "Client",
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
    source: "str | Client | None" = None,
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

    Or behind a client that you have: a redis-py client, an SQLAlchemy engine, a psycopg pool, Django's
    ``connections["default"]``, a kazoo client. Its addresses, TLS settings and credentials are copied, and the
    connections are fencepost's own: closing either leaves the other open. ``options`` are then what a URL has after
    its ``?``, such as ``{"prefix": "jobs:"}``.

    ``credentials`` is called before each new connection, and returns a password or token, or a tuple of user and
    password. ``ttl`` is the default of all leases; ``queue_limit`` bounds how many may wait for one lock; with ``keys``
    leases carry signed tokens. ``label`` describes this process to others while it holds or waits. By default it is
    $FENCEPOST_LABEL, or else command, pid, user and host; an empty label tells nothing. No server is contacted before
    the first lock. Raises ConfigError for a URL that is empty or invalid, and for a client that cannot be copied.

        with fencepost.connect("redis://localhost:6379/0") as locks:
            with locks.lock("account/42", ttl=15, timeout=5) as lease:
                print(lease.token)
    """
    driver = Blocking()
    lease = Lease if keys is None else keys.signing(Lease)
    backend = registry.connect(source, driver, credentials, options)
    return Locks(Core(backend, driver, lease, ttl=ttl, queue_limit=queue_limit, hooks=hooks, label=label), keys)


class Term(Lease):
    """A lease held for leadership; its token is the epoch, for every write that is made in it.

    Guards find the term inside ``with term:``, and the end of that block resigns. Losing the term is no error there,
    even before the block begins, nor is a LeaseLost of this term that the block raises: the next election follows.
    """

    __slots__ = ()

    @property
    def metadata(self) -> str:
        """The metadata of this candidate."""
        return holders.split(self.holder)[1]

    def resign(self) -> bool:
        """Step down; False if it had been replaced already."""
        return self.release()

    def _begin_block(self) -> None:
        self._begin_once()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool:
        see_through(self._leave)
        return isinstance(error, LeaseLost) and (error.name, error.token) == (self.name, self.token)


class Election:
    """A lock that decides who leads: ``for term in election`` runs in it, one term after the other.

    Each loop is a candidate of its own. It resigns at the end of the loop's body, and when the loop is left.
    ``with election:`` resigns at its end, and ends every loop over it.
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

    def __iter__(self) -> Generator[Term, None, None]:
        """Term after term, each with a larger epoch; leaving the loop resigns."""
        candidate = self._candidate()
        self._candidates.add(candidate)
        interrupted: list[Again] = []
        try:
            while True:
                yield call(candidate.elect)
        except Closed:
            return  # the election was closed
        except GeneratorExit:
            try:
                call(candidate.resign)
            except BaseException as error:
                if not on_main_thread():
                    raise
                interrupted.append(Again(error))  # the garbage collector ends most loops, and would drop it
            raise
        finally:
            self._candidates.discard(candidate)
            call(candidate.resign)

    def leader(self) -> election.Leader | None:
        """Who leads now; None while nobody does."""
        return call(election.leader, self._core, self.name)

    def changes(self) -> Generator[election.Leader | None, None, None]:
        """Who leads now, then each leader that follows; None while nobody leads. Ends when the election is closed."""
        known = self.leader()
        while True:
            yield known
            try:
                known = call(election.successor, self._core, self.name, known, self._scope)
            except Closed:
                return

    def close(self) -> None:
        """Resign, and end every loop over this election, in any thread."""
        call(election.close, self._core, self._scope, list(self._candidates))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
