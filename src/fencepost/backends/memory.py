"""Locks of one process, in its memory: for tests, and for programs that run alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fencepost.address import Address
from fencepost.backend import LOOK, Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.driver import Driver, Signal, abandoned, wait_until
from fencepost.driver.gate import Gate
from fencepost.errors import BackendError, ConfigError, QueueFull
from fencepost.lease import Grant
from fencepost.rule import MAX_TOKEN

_CROWD = 1000

SHARED = ""
"""The holder of a lock that sharers hold."""


@dataclass(slots=True)
class Waiter:
    ttl: float
    signal: Signal
    limit: int | None = None
    """How many sharers may hold the lock, this one included; None: it wants the lock for itself."""
    forsaken: bool = False
    """Its coroutine was closed, so it cannot leave the queue itself."""

    @property
    def gone(self) -> bool:
        """Whether this waiter can no longer be woken."""
        return self.forsaken or abandoned(self.signal)


@dataclass(slots=True)
class Share:
    token: int
    expires: float


@dataclass(slots=True)
class Lock:
    holder: str
    token: int
    expires: float
    """Of a shared lock: when the first of its sharers expires."""
    waiters: dict[str, Waiter] = field(default_factory=dict)  # by holder, in the order they came
    sharers: dict[str, Share] = field(default_factory=dict)


class Store:
    """Every method is called with the gate held."""

    def __init__(self) -> None:
        self.gate = Gate("memory")
        self.locks: dict[str, Lock] = {}
        self.observers: dict[str, list[Signal]] = {}
        self.token = 0
        self.crowd = _CROWD
        """From this number of locks on, a new lock first makes the store remove those that have expired unnoticed."""

    def mint(self) -> int:
        if self.token == MAX_TOKEN:
            raise BackendError("no token is left", backend="memory", ambiguous=False)
        self.token += 1
        return self.token

    def grant(self, name: str, holder: str, ttl: float, now: float) -> Grant:
        token = self.mint()
        lock = self.locks.get(name)
        if lock is None:
            if len(self.locks) >= self.crowd:
                self.tidy(now)
            self.locks[name] = Lock(holder, token, now + ttl)
        else:
            lock.holder, lock.token, lock.expires = holder, token, now + ttl
        if self.observers:
            self.tell(name)
        return Grant(token, ttl, now)

    def share(self, name: str, holder: str, ttl: float, limit: int, now: float) -> Grant | None:
        """Grant a share, unless the lock is held exclusively, has waiters, or has ``limit`` sharers already."""
        lock = self.locks.get(name)
        if lock is not None and holder in lock.sharers:
            mine = lock.sharers[holder]
            return Grant(mine.token, ttl, mine.expires - ttl)
        if lock is not None and (lock.holder != SHARED or lock.waiters or len(lock.sharers) >= limit):
            return None
        token = self.mint()
        if lock is None:
            if len(self.locks) >= self.crowd:
                self.tidy(now)
            lock = self.locks[name] = Lock(SHARED, token, now + ttl)
        lock.sharers[holder] = Share(token, now + ttl)
        lock.token, lock.expires = token, min(lock.expires, now + ttl)
        if self.observers:
            self.tell(name)
        return Grant(token, ttl, now)

    def settle(self, name: str, lock: Lock) -> None:
        """Set the token and the expiry of a shared lock after its sharers have changed."""
        lock.token = max(share.token for share in lock.sharers.values())
        lock.expires = min(share.expires for share in lock.sharers.values())
        if self.observers:
            self.tell(name)

    def hand_over(self, name: str, now: float) -> None:
        """Grant a lock that has become free to its first waiter, and to those that may share with it; or forget it."""
        lock = self.locks[name]
        lock.sharers.clear()
        self.skip_gone(lock)
        if not lock.waiters:
            del self.locks[name]
            if self.observers:
                self.tell(name)
            return
        holder, waiter = next(iter(lock.waiters.items()))
        if waiter.limit is not None:
            lock.holder = SHARED
            self.admit(name, now)
            return
        del lock.waiters[holder]
        self.grant(name, holder, waiter.ttl, now)
        waiter.signal.set()
        self.rouse(lock)

    def admit(self, name: str, now: float) -> None:
        """Grant shares to waiters from the head of the queue, for as long as there is room."""
        lock = self.locks[name]
        for holder, waiter in list(lock.waiters.items()):
            if waiter.gone:
                del lock.waiters[holder]
                continue
            if waiter.limit is None or len(lock.sharers) >= waiter.limit:
                break
            del lock.waiters[holder]
            lock.sharers[holder] = Share(self.mint(), now + waiter.ttl)
            waiter.signal.set()
        if not lock.sharers:  # the first waiter is gone since the caller looked
            self.hand_over(name, now)
            return
        self.settle(name, lock)
        self.rouse(lock)

    def leave(self, name: str, holder: str, now: float) -> None:
        """Make sure that the holder neither holds nor waits."""
        lock = self.locks.get(name)
        if lock is None:
            return
        if lock.holder == holder:
            self.hand_over(name, now)
        elif lock.sharers.pop(holder, None) or (lock.waiters.pop(holder, None) and lock.holder == SHARED):
            self.part(name, now)
        else:
            self.rouse(lock)

    def part(self, name: str, now: float) -> None:
        """Let in the next waiters after a sharer, or a waiter that blocked others, has left."""
        if self.locks[name].sharers:
            self.admit(name, now)
        else:
            self.hand_over(name, now)

    def skip_gone(self, lock: Lock) -> bool:
        """Remove the waiters that are gone from the head of the queue; return whether there were any."""
        found = False
        while lock.waiters and next(iter(lock.waiters.values())).gone:
            del lock.waiters[next(iter(lock.waiters))]
            found = True
        return found

    def rouse(self, lock: Lock) -> None:
        """Wake the first waiter: it waits for the holder's deadline, which may have changed."""
        for waiter in lock.waiters.values():
            waiter.signal.set()
            break

    def tell(self, name: str) -> None:
        """Wake the observers of the lock."""
        for signal in self.observers.pop(name, ()):
            signal.set()

    def tidy(self, now: float) -> None:
        """Hand over every lock that has expired: perhaps no client asks for those names again."""
        for name in [name for name, lock in self.locks.items() if now >= lock.expires]:
            self.sweep(name, now)
        self.crowd = max(_CROWD, 2 * len(self.locks))

    def sweep(self, name: str, now: float) -> None:
        """Hand over the lock if it has expired; remove waiters that are gone, so that no other waits behind them."""
        lock = self.locks.get(name)
        if lock is None:
            return
        skipped = self.skip_gone(lock)
        if now < lock.expires:
            if skipped and lock.holder == SHARED:
                self.admit(name, now)
            elif skipped:
                self.rouse(lock)
            return
        if lock.holder == SHARED:
            lock.sharers = {holder: share for holder, share in lock.sharers.items() if now < share.expires}
            self.part(name, now)
        else:
            self.hand_over(name, now)


_stores: dict[str, Store] = {}


class Memory(Backend):
    """``memory://`` or ``memory://name``: all code in this process that uses the same name shares its locks."""

    scheme = "memory"
    promises = Promises(
        reach="one process",
        fair=True,
        consensus=False,
        failover="everything ends with the process; so do its holders",
        clock="this host's boot-time clock",
        token="one counter for all locks",
        wakeup="the releasing thread wakes the next waiter; the first waiter also wakes at the holder's deadline",
        shared=True,
        observe="each change of the lock wakes its observers",
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        address.options()
        if address.path.strip("/") or len(address.hosts) > 1 or address.user:
            raise ConfigError("a memory URL is memory:// or memory://name")
        self._name = address.hosts[0][0] if address.hosts else ""
        self._store = _stores.setdefault(self._name, Store())

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        store = self._store
        with store.gate:
            now = self.driver.now()
            store.sweep(name, now)
            if limit is not None:
                grant = store.share(name, holder, ttl, limit, now)
            else:
                grant = None if name in store.locks else store.grant(name, holder, ttl, now)
            if grant is None and queue is not None:
                lock = store.locks[name]
                if len(lock.waiters) >= queue:
                    lock.waiters = {each: waits for each, waits in lock.waiters.items() if not waits.gone}
                if len(lock.waiters) >= queue:
                    raise QueueFull(name, queue)
                lock.waiters[holder] = Waiter(ttl, self.driver.signal(), limit)
            return grant

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        try:
            return await self._granted(name, holder, ttl, timeout, limit)
        except GeneratorExit:
            self._forsake(name, holder)
            raise

    async def _granted(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None
    ) -> Grant | None:
        store = self._store
        until = None if timeout is None else self.driver.now() + timeout
        while True:
            with store.gate:
                now = self.driver.now()
                store.sweep(name, now)
                lock = store.locks.get(name)
                if lock is not None and lock.holder == holder:
                    return Grant(lock.token, ttl, lock.expires - ttl)
                if limit is not None and (grant := store.share(name, holder, ttl, limit, now)):
                    return grant
                if lock is None:
                    return store.grant(name, holder, ttl, now)
                waiter = lock.waiters.setdefault(holder, Waiter(ttl, self.driver.signal(), limit))
                if until is not None and now >= until:
                    return None
                first, expires = next(iter(lock.waiters)) == holder, lock.expires
                waiter.signal.clear()
            if first:
                await wait_until(self.driver, waiter.signal, expires if until is None else min(expires, until))
            else:
                # The first waiter wakes at the holder's deadline. This one wakes a little later, in case the event loop
                # of the first was stopped or closed.
                late = expires + LOOK - now
                await waiter.signal.wait(late if until is None else min(late, until - now))

    def _forsake(self, name: str, holder: str) -> None:
        store = self._store
        if (lock := store.locks.get(name)) and (waiter := lock.waiters.get(holder)):
            waiter.forsaken = True
        try:
            with store.gate:
                store.leave(name, holder, self.driver.now())
        except BackendError:
            pass  # the garbage collector closed it inside another request of this thread: the next hand-over skips it

    async def leave(self, name: str, holder: str) -> str | None:
        store = self._store
        with store.gate:
            store.leave(name, holder, self.driver.now())
            return store.locks[name].holder or None if name in store.locks else None

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        store = self._store
        answers, shared = [], dict[str, Lock]()
        with store.gate:
            now = self.driver.now()
            for name, holder, token, ttl in holds:
                lock = store.locks.get(name)
                held: Lock | Share | None = lock
                if lock and lock.holder != holder:
                    held = lock.sharers.get(holder)
                if held and held.token == token and now < held.expires:
                    held.expires = now + ttl
                    if lock and held is not lock:
                        shared[name] = lock
                    answers.append(Renewal.RENEWED)
                else:
                    answers.append(Renewal.LOST)
            for lock in shared.values():  # once, however many sharers were renewed
                lock.expires = min(share.expires for share in lock.sharers.values())
        return answers

    async def release(self, name: str, holder: str, token: int) -> bool:
        store = self._store
        with store.gate:
            now = self.driver.now()
            lock = store.locks.get(name)
            if lock is not None and lock.holder == holder and lock.token == token:
                held = now < lock.expires
                store.hand_over(name, now)
                return held
            share = lock.sharers.get(holder) if lock else None
            if lock is None or share is None or share.token != token:
                return False
            del lock.sharers[holder]
            store.part(name, now)
            return now < share.expires

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        store = self._store
        with store.gate:
            now = self.driver.now()
            return [
                status
                for key, lock in sorted(store.locks.items())
                if (key == name if name is not None else key.startswith(prefix))
                and (status := _status(key, lock, now)).remaining > 0
            ]

    async def changed(self, name: str, token: int | None) -> None:
        store, signal = self._store, self.driver.signal()
        with store.gate:
            now = self.driver.now()
            store.sweep(name, now)
            lock = store.locks.get(name)
            if (lock.token if lock else None) != token:
                return
            left = lock.expires - now if lock else None
            store.observers.setdefault(name, []).append(signal)
        try:
            await signal.wait(left)
        finally:
            with store.gate:
                watching = store.observers.get(name, [])
                if signal in watching:
                    watching.remove(signal)
                if not watching:
                    store.observers.pop(name, None)

    async def break_lock(self, name: str) -> Status | None:
        found = await self.status(name)
        store = self._store
        with store.gate:
            lock = store.locks.get(name)
            if not found or lock is None or lock.token != found[0].token:
                return None
            store.hand_over(name, self.driver.now())
        return found[0]

    async def bump(self, name: str, above: int) -> None:
        with self._store.gate:
            self._store.token = max(self._store.token, above)

    async def doctor(self) -> list[Finding]:
        held = len(await self.status())
        return [
            Finding(
                "warn",
                f"locks in this process's memory, {held} held",
                "they exclude the threads and tasks of this process from each other, and nobody else",
            )
        ]

    def forked(self) -> None:
        # The child's copy of the locks excludes no other process. So the child starts without locks, and continues
        # after the parent's tokens.
        if _stores[self._name] is self._store:
            _stores[self._name] = Store()
            _stores[self._name].token = self._store.token
        self._store = _stores[self._name]


def _status(name: str, lock: Lock, now: float) -> Status:
    waiters = tuple(holder for holder, waiter in lock.waiters.items() if not waiter.gone)
    if lock.holder != SHARED:
        return Status(name, lock.holder, lock.token, lock.expires - now, waiters)
    longest = max(share.expires for share in lock.sharers.values())
    live = tuple(holder for holder, share in lock.sharers.items() if now < share.expires)
    return Status(name, live[0] if live else "", lock.token, longest - now, waiters, live)
