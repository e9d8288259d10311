"""The workers of a simulated fleet, and the hosts they run on."""

from collections.abc import Callable
from typing import Any, Protocol

from fencepost.driver import Signal
from fencepost.errors import BackendError, NotAcquired
from fencepost.events import Event
from fencepost.fleet.group import Group, Owned
from fencepost.lease import BaseLease, entering_stamp
from fencepost.lease import stamp as stamp_of
from fencepost.locks import Core
from fencepost.rule import Stamp
from fencepost_lab.sim.backends import Remote
from fencepost_lab.sim.driver import Virtual
from fencepost_lab.sim.network import Channel, Network
from fencepost_lab.sim.service import Service
from fencepost_lab.sim.world import Node, World

_RETRIES = 2


class Sized(Protocol):
    @property
    def partitions(self) -> int: ...
    @property
    def ttl(self) -> float: ...


class Host:
    """A machine: its workers share a clock, and most of their fate."""

    def __init__(self, name: str, offset: float, rate: float) -> None:
        self.name = name
        self.offset = offset
        self.rate = rate
        self.workers: list[Worker] = []


class Worker:
    """One process of the fleet: the real group on a virtual clock. It counts up what it owns.

    It never looks whether a lease still holds between its read and its write.
    """

    def __init__(self, name: str, host: Host, world: World, network: Network, service: Service, size: Sized) -> None:
        self.name = name
        self.leaving = False
        self.world = world
        self._down: float | None = None
        self._hurts: list[str] = []
        self._owned: dict[str, Owned[BaseLease]] = {}
        self._network = network
        self._store = service.nodes[0]
        self._size = size
        self.node = Node(world, name, offset=host.offset, rate=host.rate)
        self.driver = Virtual(self.node)
        self.channel = Channel(network, self.driver, 0.3 * size.ttl)
        network.join(self.node, self.channel.receive)
        core: Core[BaseLease] = Core(
            Remote(self.driver, self.channel, service), self.driver, BaseLease,
            ttl=size.ttl, queue_limit=1000, hooks=[self._event],
            holders=lambda: f"{world.rng.getrandbits(128):032x}",
        )  # fmt: skip
        self.group: Group[BaseLease, Owned[BaseLease]] = Group(
            core, "orders", size.partitions, member=name, ttl=None, owned=_owned,
            begin=self._begin, work=self._work, end=self._end,
        )  # fmt: skip
        self.driver.spawn(self._join(), name)

    @property
    def hit(self) -> float | None:
        """Since when it is dead or frozen, or, cut off, has given up what it owned; None while it works."""
        member = self.group._membership
        if self._down is None and self._hurts and member is not None and member.reason:
            return min(self.node.instant(member.deadline), self.world.now)
        return self._down

    @property
    def fit(self) -> bool:
        """It runs, is not cut off, and was not asked to leave."""
        return self._down is None and not self._hurts and not self.leaving

    async def _join(self) -> None:
        joined = False
        while not joined and not self.leaving:
            try:
                await self.group.join()
                joined = True
            except (BackendError, NotAcquired):  # cut off from the store for longer than a join has patience
                await self.driver.sleep(self._size.ttl / 10)

    # What happens to it.

    def leave(self) -> None:
        """Ask it to leave."""
        self.leaving = True
        self.node.perform(self.group.stop, ())

    def kill(self) -> None:
        """Die at once."""
        self._down = self.world.now if self._down is None else self._down
        self.world.tell("fault", do="kill", who=self.name)
        self.end()

    def end(self) -> None:
        """Drop what was being done."""
        self.node.kill()
        self.driver.end()

    def hurt(self, way: str) -> None:
        """Freeze it, or cut it off from the store: what it sends, what it should hear, or both."""
        self._hurts.append(way)
        self.world.tell("fault", do="pause" if way == "freeze" else "cut", who=self.name)
        if way == "freeze":
            self._down = self.world.now if self._down is None else self._down
            self.node.pause()
        for src, dst in self._links(way):
            self._network.cut(src, dst)

    def heal(self, way: str) -> None:
        """End one hurt."""
        self._hurts.remove(way)
        for src, dst in self._links(way):
            self._network.heal(src, dst)
        if self.node.up and self.node.paused and "freeze" not in self._hurts:
            self._down = None
            self.node.resume()

    def _links(self, way: str) -> list[tuple[str, str]]:
        out, into = (self.name, self._store), (self._store, self.name)
        return {"out": [out], "in": [into], "both": [out, into]}.get(way, [])

    # What it does.

    def _tell(self, ev: str, owned: Owned[BaseLease], **facts: Any) -> None:
        lease = owned.lease
        self.world.tell(ev, who=self.name, lock=lease.name, token=lease.token, holder=lease.holder, **facts)

    async def _begin(self, owned: Owned[BaseLease]) -> None:
        lease = owned.lease
        self._owned[lease.holder] = owned
        asked, until = (round(self.node.instant(clock), 6) for clock in (lease.since, lease.deadline))
        self._tell("acquired", owned, asked=asked, ttl=lease.ttl, until=until)

    def _event(self, event: Event) -> None:
        if event.kind == "renewed" and (owned := self._owned.get(event.holder or "")):
            self._tell("renewed", owned, until=round(self.node.instant(owned.lease.deadline), 6))

    async def _end(self, owned: Owned[BaseLease]) -> None:
        self._owned.pop(owned.lease.holder, None)
        self._tell("lost" if owned.lease.reason else "releasing", owned, why=owned.lease.reason)

    async def _work(self, owned: Owned[BaseLease]) -> None:
        nap: Callable[[], float] = lambda: self._size.ttl * self.world.rng.uniform(0.1, 0.6)  # noqa: E731 - a dice
        while not owned._stopping():
            found = await self._ask("enter", owned, entering_stamp(owned.lease))
            if found is not None and found["verdict"] != "admit":
                break
            await self.driver.sleep(nap())
            if found is None:
                continue
            stamp, value, base = stamp_of(owned.lease), found["value"] + 1, found["version"]
            answer, attempts = None, 0
            while answer is None and attempts <= _RETRIES:
                attempts += 1
                answer = await self._ask("write", owned, stamp, value=value, base=base)
            outcome: dict[str, Any] = {"outcome": "unknown"}
            if answer is not None:
                done = answer["verdict"] in ("admit", "replay")
                outcome = {"outcome": "done"} if done else {"outcome": "refused", **_pick(answer)}
            self._tell(
                "wrote", owned, key=owned.name, seq=stamp.seq, value=value, base=base, attempts=attempts, **outcome
            )
            if outcome["outcome"] == "refused":
                break
        await owned._until_stop()

    async def _ask(self, do: str, owned: Owned[BaseLease], stamp: Stamp, **facts: Any) -> Any:
        who = {"who": self.name, "do": do, "key": owned.name}
        access = {**who, "token": stamp.token, "seq": stamp.seq, "holder": stamp.holder, **facts}
        try:
            return await self.channel.ask("resource", do, access)
        except BackendError:
            return None


def _owned(number: int, lease: BaseLease, signal: Signal) -> Owned[BaseLease]:
    return Owned(number, lease, signal)


def _pick(answer: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": answer["verdict"], "seen": answer["seen"]}
