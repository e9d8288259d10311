"""One answer that is refused, lost, late, cut off, doubled or wrong, at every kind of request, one at a time.

A fixed scenario (see ``Trial.scenario``) runs behind a proxy, once for each fault and each kind of request that it
makes, which is its label; on Redis and Consul, where the connection breaks at once, also for the second request of that
kind. A connection's opening words come many times, and more of them would find nothing else. A wrong or refusing
answer is given to every other kind of request, turn and turn about, so that each kind gets half of them; `make torment`
gives all of them to all.

Whatever it is answered, a store fails with an error of fencepost's own; a lease is one that the store has; a lease ends
only where the store says so; and once the fault is over, everything goes on without waiting for a ttl.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import pytest

from fencepost.backend import Status
from fencepost.errors import FencepostError, LeaseLost
from tests import FUZZ
from tests.conformance.faces import Client, Hold
from tests.harness.scripted import (
    BREAKS,
    ETCD,
    JSON,
    POSTGRES,
    RESP,
    ZOOKEEPER,
    End,
    Fault,
    Grpc,
    GrpcScripted,
    Http,
    Postgres,
    Resp,
    Scripted,
    ZooKeeper,
)
from tests.harness.servers import Endpoint
from tests.harness.threads import known_to_wait
from tests.harness.waiting import PATIENCE, run, until, until_async

T = TypeVar("T")
AnyProxy = Scripted | GrpcScripted

TTL = 300.0  # nothing here gets free by expiry


class Kind(NamedTuple):
    """A store: its server's fixture, what it speaks and how that fails."""

    server: str
    proxy: Callable[[int], AnyProxy]
    faults: tuple[Fault, ...]
    asks: tuple[str, ...]
    """The requests of the scenario."""
    options: str = ""
    hasty: str = ""
    """The same for a client that gives up soon on a server that does not answer."""
    plausible: frozenset[tuple[str, str]] = frozenset()
    """Wrong answers, each with a request to which nobody can tell that they are."""
    faces: tuple[str, ...] = ("blocking",)
    seconds: bool = False
    """Whether to break the second request of each kind as well."""
    waits: str = ""
    """The request that a waiter makes once it waits, if there is one."""


LIKE_REDIS = ("refused-ERR", "refused-LOADING", "refused-NOSCRIPT", "done-text", "undone-number", "garbage")
"""What is enough for a store that has its connections in common with Redis."""
KINDS = {
    "redis": Kind(
        "redis_server",
        partial(Scripted, dialect=Resp),
        RESP,
        ("HELLO", "SCRIPT", "SUBSCRIBE", "take", "renew", "status", "SCAN", "release", "claim"),
        options=f"timeout={PATIENCE}s&connect_timeout={PATIENCE}s",
        hasty="timeout=500ms&connect_timeout=500ms",
        plausible=frozenset({("nothing", "status")}),
        faces=("blocking", "asyncio"),
        seconds=True,
        waits="SUBSCRIBE",  # or a look comes before the message that is to be claimed
    ),
    "redlock": Kind(
        "redlock_servers",
        partial(Scripted, dialect=Resp),
        tuple(each for each in RESP if each in BREAKS or each.name in LIKE_REDIS),
        ("HELLO", "SCRIPT", "redlock_take", "redlock_keep", "redlock_leave", "renew", "status", "SCAN"),
        options=f"node_timeout={PATIENCE}s",
        hasty="node_timeout=500ms",
        plausible=frozenset({("nothing", "status"), ("number", "redlock_take")}),
    ),
    "postgres": Kind(
        "postgres_server",
        partial(Scripted, dialect=Postgres),
        POSTGRES,
        (
            *("start", "version", "PREPARE", "LISTEN", "take"),
            *("renew", "held", "granted", "release"),
        ),
        options=f"timeout={PATIENCE}s&connect_timeout={PATIENCE:.0f}",
        hasty="timeout=500ms&connect_timeout=2",
        plausible=frozenset({("nothing", "granted")}),
    ),
    "zookeeper": Kind(
        "zookeeper_server",
        partial(Scripted, dialect=ZooKeeper),
        ZOOKEEPER,
        ("connect", "container", "create", "children", "data", "sync", "delete"),
        plausible=frozenset({("empty", "delete"), ("text", "delete")}),
    ),
    "etcd": Kind(
        "etcd_server",
        partial(Scripted, dialect=Grpc),
        BREAKS,
        tuple(f"call {number}" for number in range(1, 7)),
        options=f"timeout={PATIENCE}s",
        hasty="timeout=500ms",
    ),
    "etcd-grpc": Kind(
        "etcd_server",
        GrpcScripted,
        ETCD,
        (
            *("LeaseGrant", "LeaseRevoke", "LeaseKeepAlive", "Watch", "Range"),
            *("Txn put range", "Txn put range range", "Txn range range range", "Txn range", "Txn delete_range"),
        ),
        options=f"timeout={PATIENCE}s",
        plausible=frozenset({("header", "Range"), ("header", "Txn delete_range")}),
        waits="Watch",
    ),
    "consul": Kind(
        "consul_server",
        partial(Scripted, dialect=Http),
        JSON,
        (
            *("PUT session create", "PUT session renew", "PUT session destroy", "GET session info"),
            *("PUT txn lock", "PUT txn check-session", "PUT txn check-index", "GET keys", "GET kv", "waiting GET kv"),
        ),
        options=f"timeout={PATIENCE}s&connect_timeout={PATIENCE}s",
        hasty="timeout=500ms&connect_timeout=500ms",
        plausible=frozenset({("404", "GET keys"), ("404", "GET kv"), ("list", "GET keys")}),
        waits="waiting GET kv",
        seconds=True,
    ),
}
STORES = [pytest.param(store, face, id=f"{store}-{face}") for store, kind in KINDS.items() for face in kind.faces]
CASES = [
    pytest.param(store, face, fault, id=f"{store}-{face}-{fault.name}")
    for store, kind in KINDS.items()
    for face in kind.faces
    for fault in kind.faults
]


def silent(fault: Fault) -> bool:
    """Whether the client has to give up by itself, and a machine that stalls makes it do so once too often."""
    return fault.end is End.HOLD or fault.name.endswith("push")


@dataclass
class Trial:
    """The scenario under one fault: two clients behind a proxy for each server, and one that goes around them."""

    proxies: Sequence[AnyProxy]
    first: Client
    second: Client
    direct: Client
    name: str
    waits: str
    tokens: list[int] = field(default_factory=list)
    failed: list[FencepostError] = field(default_factory=list)

    async def tried(self, call: Callable[[], Awaitable[T]]) -> T | FencepostError:
        """Make a call, which may fail in a documented way, and in no other."""
        try:
            return await call()
        except FencepostError as error:
            self.failed.append(error)
            return error
        finally:
            self.let_go()

    def let_go(self) -> None:
        for proxy in self.proxies:
            proxy.let_go()

    async def found(self) -> Status | None:
        return await self.direct.status(self.name)

    async def acquire(self, client: Client) -> Hold:
        """Acquire the lock, again after an error."""

        async def once() -> list[Hold]:
            got = await self.tried(lambda: client.acquire(self.name, timeout=PATIENCE))
            return [] if isinstance(got, FencepostError) else [got]

        [lease] = await until_async(once, "it acquires the lock")
        status = await self.found()
        assert status is not None, "a lease is one that the store has"
        assert (status.holder, status.token) == (lease.holder, lease.token)
        assert not self.tokens or lease.token > self.tokens[-1], "tokens grow"
        self.tokens.append(lease.token)
        return lease

    async def renew(self, lease: Hold) -> None:
        renewed = await self.tried(lease.renew)
        assert not isinstance(renewed, LeaseLost), "the store did not say so"
        assert not lease.ended

    async def look(self, lease: Hold) -> None:
        """See the lock as it is, or not at all."""
        status = await self.tried(lambda: self.first.status(self.name))
        if not isinstance(status, FencepostError):
            assert status is not None
            assert (status.holder, status.token) == (lease.holder, lease.token)
        listed = await self.tried(lambda: self.first.list(self.name))
        if not isinstance(listed, FencepostError):
            assert [(each.holder, each.token) for each in listed] == [(lease.holder, lease.token)]

    async def release(self, lease: Hold) -> None:
        """Release, once more after an error; whatever that answers, the lock is not this holder's any more."""

        async def again() -> bool:
            return not isinstance(await self.tried(lease.release), FencepostError)

        released = await self.tried(lease.release)
        assert released, "the store did not say that it is lost"
        if isinstance(released, FencepostError):
            await until_async(again, "it is released")
        status = await self.found()
        assert status is None or status.holder != lease.holder

    async def scenario(self) -> None:
        """Hold, renew, look; another one waits, tries without success, gets the lock, and gives it back."""
        held = await self.acquire(self.first)
        await self.renew(held)
        await self.look(held)
        waiter = asyncio.create_task(self.acquire(self.second))
        await until_async(lambda: known_to_wait(self.second.raw) == 1, "it waits", watching=[waiter])
        if self.waits:
            await until_async(lambda: any(each.seen[self.waits] for each in self.proxies), "it asks", watching=[waiter])
        tried = await self.tried(lambda: self.second.try_acquire(self.name))
        assert not isinstance(tried, Hold), "never two holders at once"
        assert not waiter.done(), "never two holders at once"
        await self.release(held)

        def handed_over() -> bool:
            self.let_go()  # also what the server has sent only since
            return waiter.done()

        await until_async(handed_over, "it is handed the lock")
        await self.release(await waiter)

    async def after(self) -> None:
        """Everything can be closed, and nothing is left behind."""
        for client in (self.first, self.second):
            await asyncio.wait_for(client.close(), PATIENCE)
        await until_async(lambda: not any(proxy.clients for proxy in self.proxies), "its connections are closed")
        for name in (self.name, f"{self.name}/other"):
            lease = await self.direct.acquire(name, timeout=PATIENCE)
            assert lease.token > self.tokens[-1]
            assert await lease.release()
        assert await self.found() is None


@dataclass
class Bench:
    """A store's server, and a client that goes around the proxies."""

    kind: Kind
    url: str
    face: str
    direct: Client


@contextlib.asynccontextmanager
async def bench(request: pytest.FixtureRequest, store: str, face: str) -> AsyncIterator[Bench]:
    kind = KINDS[store]
    server: Endpoint = request.getfixturevalue(kind.server)
    url = server.url + ("&" if "?" in server.url else "?")
    direct = Client("asyncio", url + kind.options, ttl=TTL)
    try:
        yield Bench(kind, url, face, direct)
    finally:
        await direct.close()


async def trial(bench: Bench, fault: Fault | None = None, label: str = "", nth: int = 1) -> Sequence[AnyProxy]:
    """Run the scenario under a fault, of a majority if there are several servers; the proxies that it ran behind."""
    kind, url, face, direct = bench.kind, bench.url, bench.face, bench.direct
    places = re.findall(r"[\d.]+:\d+", url)
    with contextlib.ExitStack() as stack:
        proxies: list[AnyProxy] = [kind.proxy(int(place.rpartition(":")[2])) for place in places]
        for proxy in proxies:
            stack.enter_context(proxy)
        faulty = proxies[: len(proxies) // 2 + 1]
        behind = url + (kind.hasty if fault and silent(fault) else kind.options)
        for place, proxy in zip(places, proxies, strict=True):
            behind = behind.replace(place, proxy.address)
        first, second = Client(face, behind, ttl=TTL), Client(face, behind, ttl=TTL)
        mine = Trial(proxies, first, second, direct, f"scripted-{secrets.token_hex(6)}", kind.waits)
        if fault is not None:
            for proxy in faulty:
                proxy.plan(fault, label, nth)
        try:
            await mine.scenario()
            await mine.after()
            # A refused listener tells everybody who would wait, until it has asked again.
            if fault is None or not (silent(fault) or label == "SUBSCRIBE"):
                assert len(mine.failed) <= 1, "it costs one call at the most"
            if fault is not None and nth == 1:
                assert all(proxy.happened for proxy in faulty), "there was such a request"
        except BaseException as error:
            error.add_note(f"the fault: {fault}, at request {nth} of {label}")
            error.add_note(f"requests: {[dict(proxy.seen) for proxy in proxies]}; failed: {mine.failed}")
            raise
        return faulty


@pytest.mark.parametrize(("store", "face"), STORES)
def test_the_scenario_makes_every_kind_of_request(request: pytest.FixtureRequest, store: str, face: str) -> None:
    async def once() -> None:
        async with bench(request, store, face) as mine:
            for proxy in await trial(mine):
                assert proxy.seen.keys() >= set(mine.kind.asks)

    run(once())


@pytest.mark.parametrize(("store", "face", "fault"), CASES)
def test_one_bad_answer_costs_one_call(request: pytest.FixtureRequest, store: str, face: str, fault: Fault) -> None:
    before = set(threading.enumerate())

    async def every() -> None:
        async with bench(request, store, face) as mine:
            skipped = set() if FUZZ or fault in BREAKS else {*mine.kind.asks[mine.kind.faults.index(fault) % 2 :: 2]}
            for label in mine.kind.asks:
                if label not in skipped and (fault.name.rpartition("-")[2], label) not in mine.kind.plausible:
                    await trial(mine, fault, label)
                    if mine.kind.seconds and fault in BREAKS and not silent(fault):
                        await trial(mine, fault, label, 2)

    def left() -> list[str]:
        return [each.name for each in set(threading.enumerate()) - before if each.name.startswith("fencepost")]

    run(every())
    until(lambda: not left(), "its threads end")
