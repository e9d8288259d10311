"""A client: a program that holds the lock through the real core, and reads and writes the resource."""

from collections.abc import Coroutine
from itertools import count
from typing import Any

from fencepost.errors import BackendError, FencepostError, LeaseLost, QueueFull
from fencepost.events import Event
from fencepost.lease import BaseLease, Reason, entering_stamp
from fencepost.lease import stamp as stamp_of
from fencepost.locks import Core
from fencepost.rule import Stamp
from fencepost_lab.sim.backends import Embedded, GetThenDelete, Quorum, Remote
from fencepost_lab.sim.driver import Cancelled, Task, Virtual
from fencepost_lab.sim.network import Channel, Message, Network
from fencepost_lab.sim.resource import Resource
from fencepost_lab.sim.scenario import Settings
from fencepost_lab.sim.service import Service
from fencepost_lab.sim.world import Node, World

_TELL = {"renewed", "unrenewed", "lost"}
_GO_ON = 4
"""How often a client tries one increment whose write gets no answer, if it goes on at all."""


class Stop(Exception):
    """The client gives up what it was doing; the reason is in the trace."""


class Client:
    """One process: does one thing after the other, in the order it was told.

    It never looks whether its lease still holds (unless ``heed``), and rightly so: whatever it
    found, a pause can come right after it.
    """

    def __init__(self, node: Node, network: Network, service: Service, resource: Resource, settings: Settings) -> None:
        self.node = node
        self.world: World = node.world
        self.who = node.name
        self.rounds = 0
        """Rounds of work still to be done; a restarted client goes on with them."""
        self._network = network
        self._service = service
        self._resource = resource
        self._settings = settings
        self._ids = count(1)
        self._round: dict[str, Any] = {}
        self.boot()

    def boot(self) -> None:
        """Start, or start again, remembering nothing."""
        settings = self._settings
        self.driver = driver = Virtual(self.node)
        self._channel = Channel(self._network, driver, settings.patience)
        self._network.join(self.node, self._receive)
        backend: Remote | Quorum | Embedded
        if settings.backend == "embedded":
            backend = Embedded(driver, self._service)
        elif settings.backend == "redlock":
            backend = Quorum(driver, self._channel, self._service)
        else:
            kind = GetThenDelete if settings.release == "getdel" else Remote
            backend = kind(driver, self._channel, self._service)
        self.core: Core[BaseLease] = Core(
            backend, driver, BaseLease, ttl=settings.ttl, queue_limit=100, hooks=[self._event], holders=self._holder
        )
        self.lease: BaseLease | None = None
        self._value: tuple[int, int] | None = None
        self._jobs: list[Coroutine[Any, Any, None]] = []
        self._task: Task | None = None
        if self.rounds:
            self.do(self._work())

    def _receive(self, message: Message) -> None:
        self._channel.receive(message)

    def _holder(self) -> str:
        return f"{self.who}{next(self._ids)}"

    def _event(self, event: Event) -> None:
        if event.kind == "attempt":
            self._tell("asked")
        elif event.kind in _TELL:
            facts: dict[str, Any] = {"token": event.token, "holder": event.holder}
            if event.kind == "lost":
                facts["why"] = event.detail
            elif self.lease is not None and event.holder == self.lease.holder:
                facts["until"] = self._until(self.lease)
            self._tell(event.kind, **facts)

    def _tell(self, ev: str, **facts: Any) -> None:
        self.world.tell(ev, who=self.who, **facts)

    def _until(self, lease: BaseLease) -> float:
        return round(self.node.instant(lease.deadline), 6)

    # One thing after the other.

    def perform(self, action: dict[str, Any]) -> None:
        """Do what an action says, after what is being done already."""
        do = action["do"]
        if do == "cancel":
            self.cancel()
        elif do == "work":
            self.rounds += int(action.get("rounds", 1))
            self._round = action
            self.do(self._work())
        elif do == "acquire":
            self.do(self.acquire(action.get("timeout")))
        elif do == "rmw":
            self.do(self.increment(action.get("work", 0.1)))
        else:
            self.do(getattr(self, do)())

    def do(self, job: Coroutine[Any, Any, None]) -> None:
        """Do a thing once those before it are done."""
        self._jobs.append(job)
        if self._task is None or self._task.over:
            self._task = self.driver.task(self._run())

    async def _run(self) -> None:
        while self._jobs:
            try:
                await self._jobs.pop(0)
            except Stop:
                pass

    def cancel(self) -> None:
        """Cancel what is being done right now."""
        if self._task is not None:
            self._task.cancel()
            jobs, self._jobs = self._jobs, []
            self._task = None
            for job in jobs:
                self.do(job)
            if self.rounds and not jobs:
                self.do(self._work())

    def kill(self) -> None:
        """Die at once."""
        self.node.kill()
        self.end()

    def end(self) -> None:
        """Drop what was being done."""
        for job in self._jobs:
            job.close()
        self.driver.end()

    # What a client can do.

    async def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lock and remember the lease."""
        asked = round(self.world.now, 6)
        settings = self._settings
        holder = ""

        def named() -> str:
            nonlocal holder
            holder = self._holder()
            return holder

        try:
            lease = await self.core.acquire(
                self._service.lock, ttl=settings.ttl, timeout=timeout, renew=settings.renew, max_hold=None,
                holders=named,
            )  # fmt: skip
        except (BackendError, QueueFull) as error:
            self._tell("failed", asked=asked, holder=holder, why=f"{type(error).__name__}: {error}")
            raise Stop from None
        except Cancelled:
            self._tell("cancelled", asked=asked, holder=holder)
            raise
        if lease is None:
            self._tell("timeout", asked=asked, holder=holder)
            raise Stop
        self.lease = lease
        self._value = None
        self._tell(
            "acquired", token=lease.token, holder=lease.holder, ttl=lease.ttl, asked=asked, until=self._until(lease)
        )

    async def release(self, lease: BaseLease | None = None) -> None:
        """Give the lock back, of this lease or of the last one."""
        lease = lease or self.lease
        if lease is None:
            return
        asked = round(self.world.now, 6)
        self._tell("releasing", token=lease.token, holder=lease.holder)
        try:
            done = await self.core.release(lease)
        except BackendError:
            self._tell("released", token=lease.token, holder=lease.holder, asked=asked, ok=None)
        else:
            self._tell("released", token=lease.token, holder=lease.holder, asked=asked, ok=done)

    async def read(self) -> None:
        """Read the resource; with full fencing that enters."""
        await self._heed()
        lease, asked = self.lease, round(self.world.now, 6)
        stamp = None if lease is None else entering_stamp(lease)
        answer = await self._ask("read", stamp)
        if answer is None or answer[0] == "refused":
            await self._ended("read", stamp, asked, answer, 1)
            return
        self._value = (answer[1], answer[2])
        self._tell("read", **_stamped(stamp), asked=asked, value=answer[1], version=answer[2])

    async def write(self) -> bool:
        """Write one more than was read last; the same write again if no answer comes. Whether one came."""
        await self._heed()
        lease, asked = self.lease, round(self.world.now, 6)
        value, base = self._value or (None, None)
        stamp = None if lease is None else stamp_of(lease)
        number = self._resource.value if value is None else value
        answer, attempts = None, 0
        while answer is None and attempts <= self._settings.retries:
            attempts += 1
            if attempts > 1 and self._settings.fickle and self._resource.value == number + 1 and base is not None:
                number += 1
            answer = await self._ask("write", stamp, number + 1, base)
        if answer is None or answer[0] == "refused":
            await self._ended("wrote", stamp, asked, answer, attempts, value=number + 1, base=base)
            return False
        if base is not None:
            self._value = (number + 1, answer[1])
        self._tell(
            "wrote", **_stamped(stamp), asked=asked, value=number + 1, base=base, outcome="done", attempts=attempts
        )
        return True

    async def increment(self, work: float) -> None:
        """Read, work, and write back one more."""
        for _ in range(_GO_ON):
            await self.read()
            await self.driver.sleep(work)
            if await self.write():
                return
        raise Stop

    async def _work(self) -> None:
        """Rounds of acquire, increments and release, until all are done."""
        while self.rounds > 0:
            await self._once(self._round)
            await self.driver.sleep(self._round.get("think", 0.1) * self.world.rng.uniform(0.5, 1.5))

    async def _once(self, job: dict[str, Any]) -> None:
        """One round, as ``async with`` makes it: whatever ends the block, the lease is given back."""
        try:
            await self.acquire(job.get("timeout"))
        except Stop:
            return
        lease = self.lease  # once this is cancelled, the next round may have another one before this one ends
        try:
            for _ in range(int(job.get("writes", 1))):
                await self.increment(job.get("work", 0.1))
            self.rounds -= 1
        except Stop:
            pass
        except Cancelled:
            await self.release(lease)
            raise
        await self._finish(lease)

    async def _finish(self, lease: BaseLease | None) -> None:
        """End a block as ``async with`` does; how its lease ended says what became of it."""
        if lease is None:
            return
        asked = round(self.world.now, 6)
        facts = {"token": lease.token, "holder": lease.holder}
        self._tell("releasing", **facts)
        await self.core.finish(lease)
        # Of a lease that was lost before, the end of its block does not say what the store answered.
        ok = {Reason.RELEASED: True, Reason.REPLACED: False}.get(lease.reason or Reason.UNCONFIRMED)
        self._tell("released", **facts, asked=asked, ok=ok)

    async def _ask(self, what: str, stamp: Stamp | None, *body: Any) -> Any:
        token = None if stamp is None else stamp.token
        try:
            return await self._channel.ask("resource", what, stamp, *body, token=token)
        except BackendError:
            return None

    async def _heed(self) -> None:
        if self._settings.heed and self.lease is not None:
            try:
                self.lease.check()
            except LeaseLost as error:
                self._tell("heeded", token=self.lease.token, holder=self.lease.holder, why=error.reason)
                raise Stop from None

    async def _ended(
        self, ev: str, stamp: Stamp | None, asked: float, answer: Any, attempts: int, **facts: Any
    ) -> None:
        """An access was refused, or its fate is not known: tell, and give up what depends on it, or read again."""
        outcome: dict[str, Any] = {"outcome": "unknown"}
        if answer is not None:
            outcome = {"outcome": "refused", "verdict": answer[1], "seen": answer[2]}
        self._tell(ev, **_stamped(stamp), asked=asked, **facts, **outcome, attempts=attempts)
        lease = self.lease
        if answer is not None and lease is not None and not lease.reason and self._settings.bump and answer[2]:
            # Its lease holds and still it is refused: the issuer lost its history.
            try:
                await self.core.bump(self._service.lock, answer[2], True)
                self._tell("bumped", above=answer[2])
            except FencepostError:
                pass
        if answer is None and ev == "wrote" and self._settings.go_on:
            return
        raise Stop


def _stamped(stamp: Stamp | None) -> dict[str, Any]:
    token, seq, holder = stamp or (None, None, None)
    return {"token": token, "seq": seq, "holder": holder}
