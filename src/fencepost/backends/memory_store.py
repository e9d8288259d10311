"""What all connections to one ``memory://name`` share: locks, their sharers, and the line in front of each."""

import threading
from dataclasses import dataclass, field

from fencepost.drive import Signal
from fencepost.errors import BackendError
from fencepost.lease import Grant
from fencepost.rule import MAX_TOKEN

SHARED = ""
"""The holder of a lock that sharers hold."""


@dataclass(slots=True)
class Waiter:
    ttl: float
    signal: Signal
    limit: int | None = None
    """How many sharers there may be at most, with this one; None: it wants the lock for itself."""


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
        self.gate = threading.Lock()
        self.locks: dict[str, Lock] = {}
        self.observers: dict[str, list[Signal]] = {}
        self.token = 0

    def mint(self) -> int:
        if self.token == MAX_TOKEN:
            raise BackendError("no token is left", backend="memory", ambiguous=False)
        self.token += 1
        return self.token

    def grant(self, name: str, holder: str, ttl: float, now: float) -> Grant:
        token = self.mint()
        lock = self.locks.get(name)
        if lock is None:
            self.locks[name] = Lock(holder, token, now + ttl)
        else:
            lock.holder, lock.token, lock.expires = holder, token, now + ttl
        if self.observers:
            self.tell(name)
        return Grant(token, ttl, now)

    def share(self, name: str, holder: str, ttl: float, limit: int, now: float) -> Grant | None:
        """A share, unless somebody is in the way: who holds alone, who waits, or too many who share."""
        lock = self.locks.get(name)
        if lock is not None and holder in lock.sharers:
            mine = lock.sharers[holder]
            return Grant(mine.token, ttl, mine.expires - ttl)
        if lock is not None and (lock.holder != SHARED or lock.waiters or len(lock.sharers) >= limit):
            return None
        token = self.mint()
        if lock is None:
            lock = self.locks[name] = Lock(SHARED, token, now + ttl)
        lock.sharers[holder] = Share(token, now + ttl)
        self.settle(name, lock)
        return Grant(token, ttl, now)

    def settle(self, name: str, lock: Lock) -> None:
        """After a change among the sharers."""
        lock.token = max(share.token for share in lock.sharers.values())
        lock.expires = min(share.expires for share in lock.sharers.values())
        if self.observers:
            self.tell(name)

    def hand_over(self, name: str, now: float) -> None:
        """Give a lock that has become free to its first waiter, and who may share it with that one; or forget it."""
        lock = self.locks[name]
        lock.sharers.clear()
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
        """Let in from the head of the line who may share, now that there may be room."""
        lock = self.locks[name]
        for holder, waiter in list(lock.waiters.items()):
            if waiter.limit is None or len(lock.sharers) >= waiter.limit:
                break
            del lock.waiters[holder]
            lock.sharers[holder] = Share(self.mint(), now + waiter.ttl)
            waiter.signal.set()
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
        """A sharer, or one who stood in the way of others, is gone."""
        if self.locks[name].sharers:
            self.admit(name, now)
        else:
            self.hand_over(name, now)

    def rouse(self, lock: Lock) -> None:
        """The first in line minds the deadline: have it look which one."""
        for waiter in lock.waiters.values():
            waiter.signal.set()
            break

    def tell(self, name: str) -> None:
        """Wake those who watch the lock."""
        for signal in self.observers.pop(name, ()):
            signal.set()

    def sweep(self, name: str, now: float) -> None:
        """Hand on what has expired."""
        lock = self.locks.get(name)
        if lock is None or now < lock.expires:
            return
        if lock.holder == SHARED:
            lock.sharers = {holder: share for holder, share in lock.sharers.items() if now < share.expires}
            self.part(name, now)
        else:
            self.hand_over(name, now)
