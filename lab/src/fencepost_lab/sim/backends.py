"""The client's side of each simulated store: the backend contract, kept over the simulated network."""

from collections.abc import Sequence
from typing import Any

from fencepost.address import Address
from fencepost.backend import Backend, Hold, Promises, Renewal, Status
from fencepost.backends.memory import Memory
from fencepost.errors import BackendError, ConfigError, QueueFull
from fencepost.lease import Grant
from fencepost_lab.sim.driver import Flag, Virtual, Wakeup
from fencepost_lab.sim.network import Channel, Message
from fencepost_lab.sim.service import Service

PROMISES = Promises(
    reach="the simulated world",
    fair=True,
    consensus=False,
    failover="as the store that is simulated",
    clock="the simulated store's",
    token="as the store that is simulated",
    wakeup="a push, and a poll in case it is lost",
)


class Remote(Backend):
    """One client of a store that is a single address: Redis, etcd, ZooKeeper."""

    scheme = "sim"
    promises = PROMISES

    def __init__(self, driver: Virtual, channel: Channel, service: Service) -> None:
        super().__init__(Address("sim"), driver)
        self._channel = channel
        self._service = service
        self._store = service.nodes[0]
        self._wakes: dict[str, Flag] = {}
        self._virtual = driver
        channel.pushed = self._pushed

    def _pushed(self, message: Message) -> None:
        if wake := self._wakes.get(message.body):
            wake.set()

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        sent = self.driver.now()
        answer = await self._channel.ask(self._store, "take", name, holder, ttl, queue)
        if answer[0] == "full":
            raise QueueFull(name, queue or 0)
        if answer[0] == "granted":
            return _grant(answer, sent)
        if queue is not None:
            self._wakes[holder] = self._virtual.signal()
        return None

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        now = self.driver.now
        until = None if timeout is None else now() + timeout
        wake = self._wakes.setdefault(holder, self._virtual.signal())
        while True:
            wake.clear()
            sent = now()
            try:
                answer = await self._channel.ask(self._store, "claim", name, holder, ttl)
            except BackendError:
                answer = ("queued",)  # ask again: this waiter has time
            if answer[0] == "granted":
                self._wakes.pop(holder, None)
                return _grant(answer, sent)
            left = ttl / 2 if until is None else min(ttl / 2, until - now())
            if left <= 0:
                return None
            await wake.wait(left)

    async def leave(self, name: str, holder: str) -> None:
        self._wakes.pop(holder, None)
        self._service.parting(holder)
        try:
            await self._channel.ask(self._store, "leave", name, holder)
        except BackendError:
            await self._channel.ask(self._store, "leave", name, holder)
        self._service.left(holder)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        _, *answers = await self._channel.ask(self._store, "renew", tuple(holds), token=holds[0].token)
        return self._service.renewals(holds, [Renewal.RENEWED if mine else Renewal.LOST for mine in answers])

    async def release(self, name: str, holder: str, token: int) -> bool:
        self._service.parting(holder)
        (answer,) = await self._channel.ask(self._store, "release", name, holder, token, token=token)
        return bool(answer == "released")

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        if name is None:
            found: list[Status]
            _, *found = await self._channel.ask(self._store, "list", prefix)
            return found
        answer = await self._channel.ask(self._store, "status", name)
        return [Status(name, *answer[1:])] if answer[0] == "held" else []

    async def break_lock(self, name: str) -> Status | None:
        found = await self.status(name)
        for held in found:
            self._service.parting(held.holder)
            await self._channel.ask(self._store, "release", name, held.holder, held.token)
        return found[0] if found else None

    async def bump(self, name: str, above: int) -> None:
        if self._service.kind != "redis":
            raise ConfigError(f"the tokens of {self._service.kind} are its own numbers, and cannot be raised")
        await self._channel.ask(self._store, "bump", above)


class GetThenDelete(Remote):
    """Releases as many a home-made lock does: read the owner, compare, and then delete whatever is there."""

    async def release(self, name: str, holder: str, token: int) -> bool:
        self._service.parting(holder)
        _, owner = await self._channel.ask(self._store, "get", name)
        if owner != holder:
            return False
        (answer,) = await self._channel.ask(self._store, "del", name, token=token)
        return bool(answer == "released")


class Quorum(Backend):
    """Redlock: a majority of independent Redis; the token is the largest of a majority, remembered by one."""

    scheme = "sim"
    promises = PROMISES
    drift = 0.01

    def __init__(self, driver: Virtual, channel: Channel, service: Service) -> None:
        super().__init__(Address("sim"), driver)
        self._channel = channel
        self._service = service
        self._virtual = driver
        self._quorum = len(service.nodes) // 2 + 1
        self._attempts: dict[str, int] = {}

    async def _all(self, what: str, *body: Any, token: int | None = None, enough: str = "") -> list[tuple[Any, ...]]:
        """Ask every node at once; return when all have answered, or timed out, or a majority said ``enough``."""
        answers: list[tuple[Any, ...]] = []
        done = Wakeup()
        left = len(self._service.nodes)

        async def one(node: str) -> None:
            nonlocal left
            try:
                answers.append(await self._channel.ask(node, what, *body, token=token))
            except BackendError:
                pass
            left -= 1
            if left == 0 or (enough and sum(a[0] == enough for a in answers) >= self._quorum):
                done.fire(None)

        for node in self._service.nodes:
            self._virtual.task(one(node))
        await done
        return list(answers)

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        sent = self.driver.now()
        self._attempts[holder] = self._attempts.get(holder, 0) + 1
        value = self._value(holder)
        answers = await self._all("take", name, value, ttl, None, enough="granted")
        tokens = [answer[1] for answer in answers if answer[0] == "granted"]
        validity = ttl - ttl * self.drift
        if len(tokens) >= self._quorum:
            token = max(tokens)
            kept = await self._all("remember", name, value, token, token=token, enough="remembered")
            mine = sum(answer[0] == "remembered" for answer in kept) >= self._quorum
            if mine and self.driver.now() - sent < validity:
                return Grant(token, validity, sent)
        self._service.parting(holder)
        await self._all("release", name, value, None)
        return None

    def _value(self, holder: str) -> str:
        """What the nodes know a holder by: each attempt goes by a name of its own."""
        return f"{holder}.{self._attempts.get(holder, 0)}"

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        now = self.driver.now
        until = None if timeout is None else now() + timeout
        while True:
            nap = ttl * self._virtual.node.world.rng.uniform(0.05, 0.15)
            left = nap if until is None else min(nap, until - now())
            if left <= 0:
                return None
            await self.driver.sleep(left)
            if grant := await self.take(name, holder, ttl, None):
                return grant

    async def leave(self, name: str, holder: str) -> None:
        self._service.parting(holder)
        if len(await self._all("leave", name, holder)) < self._quorum:
            raise BackendError("a majority did not answer", backend=self.scheme, ambiguous=True)
        self._service.left(holder)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        results = []
        for hold in holds:
            held = hold._replace(holder=self._value(hold.holder))
            answers = await self._all("renew", (held,), token=hold.token)
            renewed = sum(bool(answer[1]) for answer in answers)
            refused = len(answers) - renewed
            lost = refused > len(self._service.nodes) - self._quorum
            results.append(Renewal.RENEWED if renewed >= self._quorum else Renewal.LOST if lost else Renewal.UNKNOWN)
        return self._service.renewals(holds, results)

    async def release(self, name: str, holder: str, token: int) -> bool:
        self._service.parting(holder)
        answers = await self._all("release", name, self._value(holder), None, token=token)
        if len(answers) < self._quorum:
            raise BackendError("a majority did not answer", backend=self.scheme, ambiguous=True)
        return len([answer for answer in answers if answer[0] == "released"]) >= self._quorum

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        return []

    async def break_lock(self, name: str) -> Status | None:
        return None

    async def bump(self, name: str, above: int) -> None:
        if len(await self._all("bump", above)) < self._quorum:
            raise BackendError("a majority did not answer", backend=self.scheme, ambiguous=True)


class Embedded(Memory):
    """The real embedded backend: one store in one host's memory, shared by all clients of the run."""

    def __init__(self, driver: Virtual, service: Service) -> None:
        super().__init__(Address("memory"), driver)
        self._service = service
        self._store = service.memory

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        grant = await super().take(name, holder, ttl, queue, limit)
        self._service.observe()
        return grant

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        grant = await super().wait(name, holder, ttl, timeout, limit)
        self._service.observe()
        return grant

    async def leave(self, name: str, holder: str) -> None:
        self._service.parting(holder)
        await super().leave(name, holder)
        self._service.left(holder)
        self._service.observe()

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        answers = await super().renew(holds)
        self._service.observe()
        return self._service.renewals(holds, answers)

    async def release(self, name: str, holder: str, token: int) -> bool:
        self._service.parting(holder)
        done = await super().release(name, holder, token)
        self._service.observe()
        return done


def _grant(answer: tuple[Any, ...], sent: float) -> Grant:
    """The store had ``remaining`` seconds left when it answered, which was after ``sent``."""
    _, token, ttl, remaining = answer
    return Grant(token, ttl, sent + remaining - ttl)
