"""A simulated store: it grants, queues, renews and releases as the real one does, and forgets as it does.

It answers requests that come over the simulated network, each in one atomic step.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from fencepost.backend import Hold, Status
from fencepost_lab.sim.network import Message, Network
from fencepost_lab.sim.state import LockState, State, Waiter
from fencepost_lab.sim.world import Node


class Store:
    """One machine of a store. Subclasses say how it keeps time, mints tokens and survives."""

    durable = False
    recalls = True
    """It keeps its past, to go back to it; one that does not comes back empty."""
    freshness = -1.0
    """A listing may be so many seconds old, as one from a replica; negative: it never is."""
    granularity = 0.0
    """It looks for expired leases only this often, in seconds."""

    def __init__(self, node: Node, network: Network, changed: Callable[[str], None]) -> None:
        self.node = node
        self.state = State()
        self._network = network
        self._changed = changed
        self.asked: dict[str, Waiter] = {}
        """The entry that each holder asked for last, also one that was granted in the same step: for the trace."""
        self._listed: tuple[float, str, tuple[Any, ...]] = (0.0, "", ())
        self._past: list[tuple[float, State]] = [(0.0, State())]
        network.join(node, self.receive)

    # What the kinds differ in.

    def clock(self) -> float:
        """The clock that expires leases."""
        return self.node.wall()

    def instant(self, clock: float) -> float:
        """The true instant at which that clock reads ``clock``, if nobody touches it."""
        return self.node.instant(clock - self.node.shift)

    def granted_ttl(self, ttl: float) -> float:
        return ttl

    def mint(self) -> int:
        self.state.counter += 1
        return self.state.counter

    def deleted(self) -> None:
        """A lock's record was removed."""

    # Requests.

    def receive(self, message: Message) -> None:
        """Handle one request in one atomic step, and answer it."""
        answer = getattr(self, "on_" + message.what)(message.src, *message.body)
        self.keep()
        self._changed("")
        if not message.copy:
            token = answer[1] if answer[0] == "granted" else None
            self._network.send(
                self.node.name, message.src, message.what + ":" + str(answer[0]), answer, token=token,
                answers=message.id,
            )  # fmt: skip

    def on_take(self, client: str, name: str, holder: str, ttl: float, queue: int | None) -> tuple[Any, ...]:
        state = self.state
        if holder.partition(".")[0] in state.gone:
            return ("busy",)
        lock = self._live(name)
        waiters = state.queues.get(name, {})
        if lock is not None and lock.holder == holder:
            return self._yours(lock)
        if lock is None and not waiters:
            return self._yours(self._grant(name, holder, ttl))
        if queue is None:
            return ("busy",)
        if len(waiters) >= queue and holder not in waiters:
            return ("full",)
        return self._join(client, name, holder, ttl)

    def on_claim(self, client: str, name: str, holder: str, ttl: float) -> tuple[Any, ...]:
        """A waiter asks whether it is its turn; one whose entry is gone joins again."""
        if holder in self.state.gone:
            return ("busy",)
        lock = self._live(name)
        if lock is not None and lock.holder == holder:
            return self._yours(lock)
        answer = self._join(client, name, holder, ttl)
        if lock is None:
            self._hand_over(name)
            lock = self.state.locks.get(name)
            if lock is not None and lock.holder == holder:
                return self._yours(lock)
        return answer

    def on_leave(self, client: str, name: str, holder: str) -> tuple[Any, ...]:
        self.state.gone[holder] = None
        self._unqueue(name, holder)
        lock = self.state.locks.get(name)
        if lock is not None and lock.holder.partition(".")[0] == holder:
            self._free(name)
        return ("done",)

    def on_renew(self, client: str, holds: Sequence[Hold]) -> tuple[Any, ...]:
        answers = []
        for name, holder, token, ttl in holds:
            lock = self._live(name)
            mine = lock is not None and lock.holder == holder and lock.token == token
            if lock is not None and mine:
                lock.expires = self.clock() + self.granted_ttl(ttl)
                lock.agreed = True
                self._watch(name, lock)
            answers.append(mine)
        return ("renewed", *answers)

    def on_release(self, client: str, name: str, holder: str, token: int | None) -> tuple[Any, ...]:
        lock = self._live(name)
        if lock is None or lock.holder != holder or (token is not None and lock.token != token):
            return ("not_owner",)
        self._free(name)
        return ("released",)

    def on_get(self, client: str, name: str) -> tuple[Any, ...]:
        lock = self._live(name)
        return ("value", lock.holder if lock else None)

    def on_del(self, client: str, name: str) -> tuple[Any, ...]:
        if self._live(name) is None:
            return ("not_owner",)
        self._free(name)
        return ("released",)

    def on_status(self, client: str, name: str) -> tuple[Any, ...]:
        lock = self._live(name)
        if lock is None:
            return ("free",)
        waiters = tuple(self.state.queues.get(name, ()))
        return ("held", lock.holder, lock.token, lock.expires - self.clock(), waiters)

    def on_list(self, client: str, prefix: str) -> tuple[Any, ...]:
        now = self.clock()
        at, of, answer = self._listed
        if of != prefix or not at <= now <= at + self.freshness:
            answer = (
                "listed",
                *(
                    Status(name, lock.holder, lock.token, lock.expires - now, tuple(self.state.queues.get(name, ())))
                    for name, lock in sorted(self.state.locks.items())
                    if name.startswith(prefix) and now < self.due(lock.expires)
                ),
            )
            self._listed = (now, prefix, answer)
        return answer

    def on_bump(self, client: str, above: int) -> tuple[Any, ...]:
        self.state.counter = max(self.state.counter, above)
        return ("bumped",)

    # How a lock changes hands.

    def _yours(self, lock: LockState) -> tuple[Any, ...]:
        return ("granted", lock.token, lock.ttl, lock.expires - self.clock())

    def _live(self, name: str) -> LockState | None:
        """The lock, if it is held and has not expired by the store's own clock."""
        lock = self.state.locks.get(name)
        if lock is not None and self.clock() >= self.due(lock.expires):
            self._free(name)
            lock = self.state.locks.get(name)
        return lock

    def due(self, expires: float) -> float:
        """When the store notices that a lease is over that expires at ``expires``."""
        return ceil(expires / self.granularity) * self.granularity if self.granularity else expires

    def _grant(self, name: str, holder: str, ttl: float) -> LockState:
        ttl = self.granted_ttl(ttl)
        self.state.grants += 1
        lock = LockState(holder, self.mint(), ttl, self.clock() + ttl)
        self.state.locks[name] = lock
        self._watch(name, lock)
        return lock

    def _watch(self, name: str, lock: LockState) -> None:
        self.node.after(self.due(lock.expires) - self.clock(), self._expire, name, lock)

    def _expire(self, name: str, lock: LockState) -> None:
        if self.state.locks.get(name) is not lock:
            return
        if self.clock() < self.due(lock.expires):
            self._watch(name, lock)
            return
        self._free(name)
        self.keep()
        self._changed("")

    def _free(self, name: str) -> None:
        del self.state.locks[name]
        self.deleted()
        self._hand_over(name)

    def _hand_over(self, name: str) -> None:
        """Give a free lock to the first waiter that is still asking, and tell it."""
        waiters = self.state.queues.get(name, {})
        while waiters:
            holder = next(iter(waiters))
            waiter = waiters.pop(holder)
            if waiter.until >= self.clock():
                lock = self._grant(name, holder, waiter.ttl)
                self._network.send(self.node.name, waiter.client, "wake", holder, token=lock.token)
                break
        self._unqueue(name, "")

    def _join(self, client: str, name: str, holder: str, ttl: float) -> tuple[Any, ...]:
        waiters = self.state.queues.setdefault(name, {})
        until = self.clock() + 2.5 * ttl
        if holder in waiters:
            waiters[holder].until = until
        else:
            waiters[holder] = Waiter(client, ttl, until)
            self.asked[holder] = waiters[holder]
        return ("queued",)

    def _unqueue(self, name: str, holder: str) -> None:
        waiters = self.state.queues.get(name)
        if waiters is not None:
            waiters.pop(holder, None)
            if not waiters:
                del self.state.queues[name]

    # How the store fails.

    def keep(self) -> None:
        """Remember the state for a restart or a failover that goes back to it."""
        if not self.recalls:
            return
        self._past.append((self.node.world.now, self.state.copy()))
        if len(self._past) > 400:
            del self._past[:200]

    def rewind(self, seconds: float | None, why: str) -> None:
        """Go on with the state of some seconds ago, or from before the last grant: what a lagging replica knows."""
        if seconds is None:
            kept = [state for _, state in self._past if state.grants < self.state.grants]
        else:
            instant = self.node.world.now - seconds
            kept = [state for at, state in self._past if at <= instant]
        self.state = kept[-1].copy() if kept else State()
        for name, lock in self.state.locks.items():
            self._watch(name, lock)
        self.keep()
        self._changed(why)

    def kill(self) -> None:
        self.node.kill()
        self._changed("kill")

    def restart(self, tail: float) -> None:
        """Start again with what the disk has kept: all but the last ``tail`` seconds."""
        self.node.restart()
        self.rewind(tail, "restart")

    def failover(self, lag: float | None, offset: float) -> None:
        """A replica that lags behind takes over; its wall clock differs by ``offset``."""
        self.node.shift += offset
        self.rewind(lag, "failover")

    def jump(self, seconds: float) -> None:
        """The wall clock jumps."""
        self.node.shift += seconds
        for name in list(self.state.locks):
            self._live(name)
        for name, lock in self.state.locks.items():
            self._watch(name, lock)
        self.keep()
        self._changed("jump")

    def evict(self, name: str) -> None:
        """Somebody takes the lock from its holder by force."""
        if name in self.state.locks:
            self._free(name)
            self.keep()

    def skew(self, rate: float) -> None:
        """The clocks run at another rate."""
        self.node.skew(rate)
        for name, lock in self.state.locks.items():
            self._watch(name, lock)
        self._changed("skew")

    def lose(self) -> None:
        """The counter is lost: evicted, flushed, or restored from an old backup."""
        self.state.counter = 0
        self.keep()
