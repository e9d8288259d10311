"""The kinds of stores: whose clock expires a lease, where the token comes from, what a crash takes along."""

from collections.abc import Callable
from math import ceil
from typing import Any

from fencepost_lab.sim.network import Network
from fencepost_lab.sim.state import LockState
from fencepost_lab.sim.stores import Store
from fencepost_lab.sim.world import Node


class RedisStore(Store):
    """Redis: expires by its wall clock, replicates behind its clients' backs, forgets what was not on disk."""

    def __init__(self, node: Node, network: Network, changed: Callable[[str], None], *, hybrid: bool = False) -> None:
        super().__init__(node, network, changed)
        self._hybrid = hybrid

    def mint(self) -> int:
        last = self.state.counter + 1
        self.state.counter = max(last, int(self.node.wall() * 1e6)) if self._hybrid else last
        return self.state.counter


class RedlockStore(RedisStore):
    """One of the five independent Redis of a Redlock.

    A holder is named with the number of its attempt, ``A3.2``: what belongs to an earlier attempt must
    not touch a later one.
    """

    def _grant(self, name: str, holder: str, ttl: float) -> LockState:
        lock = super()._grant(name, holder, ttl)
        lock.agreed = False
        return lock

    def on_remember(self, client: str, name: str, holder: str, token: int) -> tuple[Any, ...]:
        """Keep a token that the quorum agreed on; later ones will be larger."""
        self.state.counter = max(self.state.counter, token)
        lock = self._live(name)
        if lock is None or lock.holder != holder:
            return ("not_owner",)
        lock.token, lock.agreed = token, True
        return ("remembered",)


class ConsensusStore(Store):
    """A replicated log: what was answered is never lost, and leases run on the leader's monotonic clock.

    A new leader gives every lease its full ttl again, for it cannot know how much was left.
    """

    durable = True

    def clock(self) -> float:
        return self.node.clock()

    def instant(self, clock: float) -> float:
        return self.node.instant(clock)

    def keep(self) -> None:
        pass

    def kill(self) -> None:
        self.node.kill()

    def restart(self, tail: float) -> None:
        self.node.restart()
        for name, lock in self.state.locks.items():
            lock.expires = self.clock() + lock.ttl
            self._watch(name, lock)
        for waiters in self.state.queues.values():
            for waiter in waiters.values():
                waiter.until = self.clock() + 2.5 * waiter.ttl
        self._changed("restart")

    def failover(self, lag: float | None, offset: float) -> None:
        self.kill()
        self.restart(0.0)

    def jump(self, seconds: float) -> None:
        self.node.shift += seconds


class EtcdStore(ConsensusStore):
    """etcd: the token is the key's create revision; every change of a key counts; ttls are whole seconds."""

    granularity = 0.5

    def __init__(self, node: Node, network: Network, changed: Callable[[str], None]) -> None:
        super().__init__(node, network, changed)
        self.state.counter = 1

    def granted_ttl(self, ttl: float) -> float:
        return float(ceil(ttl))

    def deleted(self) -> None:
        self.state.counter += 1


class ZooKeeperStore(ConsensusStore):
    """ZooKeeper: the token is the node's czxid; sessions and deletions count too; expiry comes in ticks."""

    granularity = 0.5

    def mint(self) -> int:
        self.state.counter += 2  # the session, then the ephemeral node
        return self.state.counter

    def deleted(self) -> None:
        self.state.counter += 1
