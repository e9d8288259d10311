"""A backend under test, through one of its faces, with a namespace of its own."""

import asyncio
import dataclasses
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from fencepost.backend import Promises, Status
from tests.conformance.faces import Client, Hold
from tests.conformance.worker import Worker
from tests.harness.waiting import Watched, until_async

T = TypeVar("T")


@dataclass
class Store:
    """What a test gets: clients and worker processes of one store, all closed after it."""

    face: str
    url: str
    promises: Promises
    prefix: str = field(default_factory=lambda: f"conformance-{secrets.token_hex(6)}")
    clients: list[Client] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    common: Iterator[Client] | None = None
    """The clients that behaviours side by side have in common."""

    @property
    def name(self) -> str:
        """The name of a lock that no other test uses."""
        return f"{self.prefix}/lock"

    @property
    def short(self) -> float:
        """A ttl for leases that shall expire."""
        return max(0.4, self.promises.min_ttl)

    @property
    def kept(self) -> float:
        """A ttl for leases that shall be renewed past it, although the machine stands still for 4 seconds."""
        return max(6.0, self.promises.min_ttl)

    @property
    def past(self) -> float:
        """Seconds after which a lease with ttl ``kept`` is over, unless it was renewed."""
        return 1.2 * self.kept

    @property
    def long(self) -> float:
        """A ttl that outlives the test: whatever frees the lock, it was not expiry."""
        return min(max(300.0, self.promises.min_ttl), self.promises.max_ttl)

    @property
    def patience(self) -> float:
        """How long to wait for what must come; far longer than it takes, on the busiest machine."""
        return 45.0

    async def side_by_side(self, *behaviours: Callable[["Store"], Awaitable[None]]) -> None:
        """Run behaviours at the same time, each with locks of its own: they share their waits and their connections.

        Each failure names its behaviour, and none stops the others.
        """
        __tracebackhide__ = True
        common: list[Client] = []

        def clients() -> Iterator[Client]:
            for number in itertools.count():
                if number == len(common):
                    common.append(self.connect())
                yield common[number]

        async def one(number: int, behaviour: Callable[[Store], Awaitable[None]]) -> None:
            mine = dataclasses.replace(self, prefix=f"{self.prefix}-{number:02}", common=clients())
            try:
                await behaviour(mine)
            except BaseException as error:
                error.add_note(f"the behaviour that failed: {getattr(behaviour, '__name__', behaviour)}")
                raise

        ended = await asyncio.gather(*itertools.starmap(one, enumerate(behaviours)), return_exceptions=True)
        failures = [error for error in ended if error is not None]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise BaseExceptionGroup(f"{len(failures)} behaviours failed", failures)

    def connect(self, **options: Any) -> Client:
        """A new connection, as another program would have; among behaviours side by side, the next common one."""
        if self.common is not None and not options:
            return next(self.common)
        client = Client(self.face, self.url, **({"ttl": self.long} | options))
        self.clients.append(client)
        return client

    def spawn(self) -> Worker:
        """A client in another process."""
        worker = Worker(self.face, self.url)
        self.workers.append(worker)
        return worker

    @overload
    async def until(
        self,
        condition: Callable[[], Awaitable[T]],
        what: str,
        *,
        watching: Iterable[Watched | asyncio.Future[Any]] = (),
    ) -> T: ...
    @overload
    async def until(
        self, condition: Callable[[], T], what: str, *, watching: Iterable[Watched | asyncio.Future[Any]] = ()
    ) -> T: ...
    async def until(
        self,
        condition: Callable[[], Any],
        what: str,
        *,
        watching: Iterable[Watched | asyncio.Future[Any]] = (),
    ) -> Any:
        """The condition's value once it is true. Fails after ``patience``, or as soon as a worker or watched work has.

        The condition may be a coroutine function.
        """
        __tracebackhide__ = True
        return await until_async(  # each look is a request: too many of them keep a busy machine busy
            condition, what, deadline=self.patience, poll=0.01, watching=[*self.workers, *watching]
        )

    async def queue(
        self, client: Client, count: int, name: str = "", *, watching: Iterable[asyncio.Future[Any]] = ()
    ) -> tuple[str, ...]:
        """Return once ``count`` wait for the lock. An unfair store keeps no line that could be seen."""
        if not self.promises.fair:
            return ()

        async def line() -> Status | None:
            status = await client.status(name or self.name)
            return status if status and len(status.waiters) == count else None

        status = await self.until(line, f"{count} waiters of {name or self.name}", watching=watching)
        assert status is not None
        return status.waiters

    async def settled(self, client: Client, tasks: Sequence[asyncio.Future[Any]], name: str = "") -> None:
        """Return once each of the tasks, which all acquire the lock, waits in its line or is done.

        On a busy machine a short lease is over, and the next one served, before anybody has looked.
        """
        if not self.promises.fair:
            return

        async def line() -> bool:
            status = await client.status(name or self.name)
            waiting = sum(not task.done() for task in tasks)
            return waiting == 0 or (status is not None and len(status.waiters) == waiting)

        await self.until(line, f"each who asked for {name or self.name} waits or is served")

    async def free(self, client: Client, name: str = "") -> Hold:
        """The lock, as soon as it is free."""
        return await client.acquire(name or self.name, timeout=self.long, ttl=self.long)

    async def close(self) -> None:
        for worker in self.workers:
            worker.close()
        for client in self.clients:
            await client.close()
