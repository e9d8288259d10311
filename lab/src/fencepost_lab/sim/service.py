"""The lock service as a whole: its machines, its faults, and what it believes from moment to moment."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fencepost.backend import Hold, Renewal
from fencepost.backends import memory
from fencepost.lease import Grant
from fencepost_lab.sim.kinds import ConsensusStore, EtcdStore, RedisStore, RedlockStore, ZooKeeperStore
from fencepost_lab.sim.network import Network
from fencepost_lab.sim.scenario import MACHINES, Settings
from fencepost_lab.sim.stores import Store
from fencepost_lab.sim.world import Node, World

_ELECTION = 0.8  # seconds without a leader


class Opinion(NamedTuple):
    """Who holds the lock, as the service sees it, and until when if nothing happens; ``due``: when that is noticed."""

    holder: str
    token: int
    until: float
    due: float


class _Memory(memory.Store):
    """Tells of each grant at once: its holder may be stopped, and the lease expire before anybody looks."""

    def __init__(self, granted: Callable[[], None]) -> None:
        super().__init__()
        self._granted = granted

    def grant(self, name: str, holder: str, ttl: float, now: float) -> Grant:
        grant = super().grant(name, holder, ttl, now)
        self._granted()
        return grant


class Service:
    """The machines of the store. After each change it tells the trace what the service believes now."""

    def __init__(self, world: World, network: Network, settings: Settings, lock: str) -> None:
        self.world = world
        self.lock = lock
        self.kind = settings.backend
        self.nodes = MACHINES[settings.backend]
        self.memory = _Memory(lambda: self.observe(self._why))
        self._why = ""
        self.stores: dict[str, Store] = {}
        self._network = network
        self._opinion: Opinion | None = None
        self._queue: dict[str, tuple[Any, float | None]] = {}
        """The waiters of which the trace knows, each as the store has it, and until when it counts as one that asks."""
        self._parting: dict[str, None] = {}
        for name in self.nodes:
            offset = world.rng.uniform(0.0, 1000.0) if settings.offsets else 0.0
            node = Node(world, name, offset=offset)
            if self.kind == "etcd":
                self.stores[name] = EtcdStore(node, network, self.observe)
            elif self.kind == "zookeeper":
                self.stores[name] = ZooKeeperStore(node, network, self.observe)
            elif self.kind == "redlock":
                self.stores[name] = RedlockStore(node, network, self.observe, hybrid=settings.fence == "hybrid")
            else:
                self.stores[name] = RedisStore(node, network, self.observe, hybrid=settings.fence == "hybrid")

    # What clients do, noted so that the trace can say why a hold ended.

    def parting(self, holder: str) -> None:
        """A holder is about to ask for its release."""
        self._parting[holder] = None

    def left(self, holder: str) -> None:
        """A holder was told that it neither holds nor waits any more."""
        self.world.tell("left", holder=holder)

    def renewals(self, holds: Sequence[Hold], answers: list[Renewal]) -> list[Renewal]:
        """Pass the answers on, and note whom they tell that its hold is gone."""
        for hold, answer in zip(holds, answers, strict=True):
            if answer is Renewal.LOST:
                self.world.tell("told", holder=hold.holder)
        return answers

    # What the service believes.

    def opinion(self) -> Opinion | None:
        """Who holds the lock by the service's own clocks; for a quorum, what a majority agrees on."""
        if not self.nodes:
            lock = self.memory.locks.get(self.lock)
            if lock is None or self.world.now >= lock.expires:
                return None
            return Opinion(lock.holder, lock.token, lock.expires, lock.expires)
        votes: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for store in self.stores.values():
            held = store.state.locks.get(self.lock)
            if held is not None and held.agreed and (store.node.up or store.durable):
                end = store.instant(held.expires), store.instant(store.due(held.expires))
                votes.setdefault((held.holder, held.token), []).append(end)
        majority = len(self.nodes) // 2 + 1
        for (holder, token), ends in votes.items():
            if len(ends) >= majority:
                return Opinion(holder.partition(".")[0], token, *sorted(ends)[-majority])
        return None

    def observe(self, why: str = "") -> None:
        """Tell the trace of a change of opinion: granted, extended, freed; and of those who wait."""
        before, queue = self._opinion, self._waiters()
        known, self._queue = self._queue, {holder: (waiter, self._asks(waiter)) for holder, waiter in queue.items()}
        for holder, (waiter, until) in known.items():
            if self._asks(waiter) != until:
                self._tell_queued(holder, waiter)
        now = self.opinion()
        if now is not None and now != before and now.holder in known:
            # One that had stopped asking may ask again, and be granted the lock in the same step.
            last = self._last_asked(now.holder)
            if last is not None and last.until > known[now.holder][0].until:
                self._tell_queued(now.holder, last)
        gone = [holder for holder, (waiter, _) in known.items() if queue.get(holder) is not waiter]
        gone = [holder for holder in gone if now is None or now == before or holder != now.holder]
        # Those that the store passed over because they had stopped asking were there when it granted the lock.
        silent = [] if why else [holder for holder in gone if holder not in self._parting]
        for holder in gone:
            if holder not in silent:
                self.world.tell("unqueued", holder=holder, how="left" if holder in self._parting else why)
        if before != now:
            self._opinion = now
            self._tell(before, now, why)
        for holder in silent:
            self.world.tell("unqueued", holder=holder, how="silent")
        for holder, waiter in queue.items():
            if known.get(holder, (None,))[0] is not waiter:
                self._tell_queued(holder, waiter)

    def _tell_queued(self, holder: str, waiter: Any) -> None:
        self.world.tell("queued", holder=holder, until=self._asks(waiter))

    def _last_asked(self, holder: str) -> Any:
        return self.stores[self.nodes[0]].asked.get(holder) if self.nodes else None

    def _asks(self, waiter: Any) -> float | None:
        """Until when a waiter counts as one that still asks; the embedded store sees when one is gone."""
        if not self.nodes:
            return None
        return round(self.stores[self.nodes[0]].instant(waiter.until), 6)

    def _waiters(self) -> dict[str, Any]:
        """Those who wait, in order; a quorum has no queue."""
        if not self.nodes:
            lock = self.memory.locks.get(self.lock)
            return dict(lock.waiters) if lock else {}
        store = self.stores[self.nodes[0]]
        if len(self.nodes) > 1 or not (store.node.up or store.durable):
            return {}
        return dict(store.state.queues.get(self.lock, {}))

    def _tell(self, before: Opinion | None, now: Opinion | None, why: str) -> None:
        world = self.world
        if before is not None and (now is None or now[:2] != before[:2]):
            if before.due <= world.now + 1e-6:
                how = "expired"
            elif before.holder in self._parting:
                how = "released"
            else:
                how = why or "taken"
            world.tell("freed", token=before.token, holder=before.holder, how=how)
        if now is None:
            return
        if before is None or now[:2] != before[:2]:
            world.tell("granted", token=now.token, holder=now.holder, until=round(now.until, 6))
        else:
            world.tell("extended", token=now.token, holder=now.holder, until=round(now.until, 6))
        if not self.nodes:
            world.at(now.until, None, self.observe)

    def died(self, client: str) -> None:
        """The embedded store notices that a process of its host is gone: it waits no longer, its hold expires."""
        lock = self.memory.locks.get(self.lock)
        if lock is not None:
            for holder in [holder for holder in lock.waiters if holder.rstrip("0123456789") == client]:
                del lock.waiters[holder]
            self.observe("kill")
            for first in lock.waiters.values():
                first.signal.set()
                break

    def waiting(self) -> list[str]:
        """The holders in the queue."""
        if not self.nodes:
            lock = self.memory.locks.get(self.lock)
            return list(lock.waiters) if lock else []
        return [holder for store in self.stores.values() for holder in store.state.queues.get(self.lock, ())]

    # Faults.

    def store(self, name: str) -> Store:
        """One machine of the service, by its name."""
        return self.stores[name]

    def failover(self, name: str, lag: float | None, offset: float) -> None:
        """Another machine takes over from one: at once and stale on Redis, after an election on consensus stores."""
        store = self.store(name)
        if isinstance(store, ConsensusStore):
            store.kill()
            self.world.at(self.world.now + _ELECTION, None, self._elected, store)
        else:
            store.failover(lag, offset)

    def evict(self) -> None:
        """Take the lock from its holder by force."""
        if self.nodes:
            for store in self.stores.values():
                if store.node.up:
                    store.evict(self.lock)
        elif self.lock in self.memory.locks:
            self._why = "evict"
            self.memory.hand_over(self.lock, self.world.now)
            self._why = ""
        self.observe("evict")

    def _elected(self, store: Store) -> None:
        if not store.node.up:
            store.restart(0.0)
