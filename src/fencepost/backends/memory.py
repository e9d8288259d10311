"""Locks of one process, in its memory: for tests, and for programs that run alone."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from fencepost.backend import Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.drive import Driver, Signal
from fencepost.errors import BackendError, ConfigError, QueueFull
from fencepost.lease import Grant
from fencepost.rule import MAX_TOKEN
from fencepost.url import Address


@dataclass(slots=True)
class _Waiter:
    ttl: float
    signal: Signal


@dataclass(slots=True)
class _Lock:
    holder: str
    token: int
    expires: float
    waiters: dict[str, _Waiter] = field(default_factory=dict)  # by holder, in the order they came


class _Store:
    """What all connections to one ``memory://name`` share."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.locks: dict[str, _Lock] = {}
        self.observers: dict[str, list[Signal]] = {}
        self.token = 0

    def grant(self, name: str, holder: str, ttl: float, now: float) -> Grant:
        if self.token == MAX_TOKEN:
            raise BackendError("no token is left", backend="memory", ambiguous=False)
        self.token += 1
        lock = self.locks.get(name)
        if lock is None:
            self.locks[name] = _Lock(holder, self.token, now + ttl)
        else:
            lock.holder, lock.token, lock.expires = holder, self.token, now + ttl
        if self.observers:
            self.tell(name)
        return Grant(self.token, ttl, now)

    def hand_over(self, name: str, now: float) -> None:
        """Give a lock that has become free to its first waiter, or forget it."""
        lock = self.locks[name]
        if not lock.waiters:
            del self.locks[name]
            if self.observers:
                self.tell(name)
            return
        holder = next(iter(lock.waiters))
        waiter = lock.waiters.pop(holder)
        self.grant(name, holder, waiter.ttl, now)
        waiter.signal.set()
        for behind in lock.waiters.values():  # the new first one has to mind the new deadline
            behind.signal.set()
            break

    def tell(self, name: str) -> None:
        """Wake those who watch the lock."""
        for signal in self.observers.pop(name, ()):
            signal.set()

    def sweep(self, name: str, now: float) -> None:
        """Hand an expired lock on."""
        lock = self.locks.get(name)
        if lock is not None and now >= lock.expires:
            self.hand_over(name, now)


_stores: dict[str, _Store] = {}


class Memory(Backend):
    """``memory://`` or ``memory://name``: everybody in this process who names it shares its locks."""

    scheme = "memory"
    promises = Promises(
        reach="one process",
        fair=True,
        consensus=False,
        failover="everything ends with the process; so do its holders",
        clock="this host's boot-time clock",
        token="one counter for all locks",
        wakeup="the releasing thread wakes the next waiter; the first in line also wakes at the holder's deadline",
        observe="whoever changes the lock tells its observers",
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        address.options()
        if address.path.strip("/") or len(address.hosts) > 1 or address.user:
            raise ConfigError("a memory URL is memory:// or memory://name")
        self._name = address.hosts[0][0] if address.hosts else ""
        self._store = _stores.setdefault(self._name, _Store())

    async def take(self, name: str, holder: str, ttl: float, queue: int | None) -> Grant | None:
        store = self._store
        with store.gate:
            now = self.driver.now()
            store.sweep(name, now)
            lock = store.locks.get(name)
            if lock is None:
                return store.grant(name, holder, ttl, now)
            if queue is not None:
                if len(lock.waiters) >= queue:
                    raise QueueFull(name, queue)
                lock.waiters[holder] = _Waiter(ttl, self.driver.signal())
            return None

    async def wait(self, name: str, holder: str, ttl: float, timeout: float | None) -> Grant | None:
        store = self._store
        until = None if timeout is None else self.driver.now() + timeout
        while True:
            with store.gate:
                now = self.driver.now()
                store.sweep(name, now)
                lock = store.locks.get(name)
                if lock is None:
                    return store.grant(name, holder, ttl, now)
                if lock.holder == holder:
                    return Grant(lock.token, ttl, lock.expires - ttl)
                waiter = lock.waiters.setdefault(holder, _Waiter(ttl, self.driver.signal()))
                nap = None if until is None else until - now
                if next(iter(lock.waiters)) == holder:
                    left = lock.expires - now
                    nap = left if nap is None else min(nap, left)
                if until is not None and now >= until:
                    return None
                waiter.signal.clear()
            await waiter.signal.wait(nap)

    async def leave(self, name: str, holder: str) -> None:
        store = self._store
        with store.gate:
            lock = store.locks.get(name)
            if lock is None:
                return
            if lock.holder == holder:
                store.hand_over(name, self.driver.now())
            elif lock.waiters.pop(holder, None) and lock.waiters:
                next(iter(lock.waiters.values())).signal.set()

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        store = self._store
        answers = []
        with store.gate:
            now = self.driver.now()
            for name, holder, token, ttl in holds:
                lock = store.locks.get(name)
                if lock and lock.holder == holder and lock.token == token and now < lock.expires:
                    lock.expires = now + ttl
                    answers.append(Renewal.RENEWED)
                else:
                    answers.append(Renewal.LOST)
        return answers

    async def release(self, name: str, holder: str, token: int) -> bool:
        store = self._store
        with store.gate:
            now = self.driver.now()
            lock = store.locks.get(name)
            if lock is None or lock.holder != holder or lock.token != token:
                return False
            held = now < lock.expires
            store.hand_over(name, now)
            return held

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        store = self._store
        with store.gate:
            now = self.driver.now()
            return [
                Status(key, lock.holder, lock.token, lock.expires - now, tuple(lock.waiters))
                for key, lock in sorted(store.locks.items())
                if now < lock.expires and (key == name if name is not None else key.startswith(prefix))
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

    async def evict(self, name: str) -> Status | None:
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
        # The child's copy is of no use to anybody else: it starts afresh, past the parent's tokens.
        if _stores[self._name] is self._store:
            _stores[self._name] = _Store()
            _stores[self._name].token = self._store.token
        self._store = _stores[self._name]
