"""Redis: locks that nobody else wants, against a raw socket and redis-py's Lock."""

import asyncio
import contextlib
import importlib.util
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import hiredis
import redis
import redis.asyncio

import fencepost
from bench.harness import Sides, bench
from fencepost import aio
from fencepost.backends.redis.connection import pack
from fencepost.backends.redis.scripts import Layout, scripts
from fencepost_lab.servers import HOST, Redis

TTL = 30.0


def raw_requests(name: str = "lock") -> tuple[bytes, Callable[[bytes], bytes]]:
    """Fencepost's own two requests, with everything packed in advance but the token."""
    parts, keys = scripts("clock"), Layout("raw:", "clock", False).keys(name)[:4]
    holder = secrets.token_hex(16)
    lock, queue, _, counter = keys

    def release(token: bytes) -> bytes:
        return pack(("EVALSHA", parts.release.sha, 3, lock, queue, counter, f"{holder}:{token.decode()}"))

    return pack(("EVALSHA", parts.take.sha, 4, *keys, holder, int(TTL * 1000), -1, "", 60_000)), release


def raw_cycle(port: int) -> Callable[[], None]:
    """The limit: those two over a bare socket."""
    wire = socket.create_connection((HOST, port))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = hiredis.Reader()

    def call(request: bytes) -> Any:
        wire.sendall(request)
        while (reply := reader.gets()) is False:
            reader.feed(wire.recv(4096))
        return reply

    for script in (scripts("clock").take, scripts("clock").release):
        call(pack(("SCRIPT", "LOAD", script.text)))
    take, release = raw_requests()

    def cycle() -> None:
        assert call(release(call(take))) == 1

    return cycle


@contextlib.contextmanager
def quiet() -> Iterator[Redis]:
    """A Redis that does nothing besides, such as saving."""
    with Redis(args=["--save", ""]) as server:
        yield server


@bench(
    "redis: acquire + release, blocking, vs the limit",
    bound="What is done around two round trips, and the limit does not do: a lease and its deadline; for each request "
    "a look at whether the connection still lives, a poll that keeps the timeout also while signals come, and two "
    "changes of a signal handler for Ctrl-C.",
    aim=1.15,
    iterations=300,
    rounds=25,
)
def uncontended() -> Iterator[Sides]:
    with quiet() as server, fencepost.connect(server.url, ttl=TTL) as locks:

        def cycle() -> None:
            locks.acquire("lock").release()

        yield {"fencepost": cycle, "raw socket, two EVALSHA": raw_cycle(server.port)}


@bench(
    "redis: acquire + release, blocking, vs redis-py",
    bound="Two round trips over loopback, most of it in the kernel and in Redis: both sides wait for them.",
    aim=0.7,
    iterations=300,
    rounds=25,
)
def uncontended_peer() -> Iterator[Sides]:
    with quiet() as server, fencepost.connect(server.url, ttl=TTL) as locks:
        client = redis.Redis(port=server.port)
        theirs = client.lock("peer", timeout=TTL)

        def ours() -> None:
            locks.acquire("lock").release()

        def peer() -> None:
            theirs.acquire()
            theirs.release()

        yield {"fencepost": ours, "redis-py Lock": peer}
        client.close()


if importlib.util.find_spec("pottery"):

    @bench("redis: acquire + release, blocking, vs pottery's Redlock", iterations=30, rounds=20)
    def against_pottery() -> Iterator[Sides]:
        """On one server, where its Redlock asks no more than that."""
        import pottery

        with quiet() as server, fencepost.connect(server.url, ttl=TTL) as locks:
            client = redis.Redis(port=server.port)
            theirs = pottery.Redlock(key="peer", masters={client}, auto_release_time=TTL)

            def peer() -> None:
                assert theirs.acquire()
                theirs.release()

            yield {"fencepost": lambda: locks.acquire("lock").release(), "pottery": peer}
            client.close()


@contextlib.contextmanager
def looped(url: str) -> Iterator[tuple[asyncio.AbstractEventLoop, aio.Locks, Any]]:
    """An event loop with both clients in it."""
    loop = asyncio.new_event_loop()
    locks = aio.connect(url, ttl=TTL)
    client = redis.asyncio.Redis.from_url(url, max_connections=2000)
    try:
        yield loop, locks, client
    finally:
        loop.run_until_complete(locks.close())
        loop.run_until_complete(client.aclose())
        loop.close()


Section = Callable[[str], Awaitable[None]]


def sections(locks: aio.Locks, client: Any) -> tuple[Section, Section]:
    """One acquire and release, by fencepost and by redis-py."""

    async def ours(name: str) -> None:
        await (await locks.acquire(name)).release()

    async def peer(name: str) -> None:
        theirs = client.lock(name, timeout=TTL)
        await theirs.acquire()
        await theirs.release()

    return ours, peer


class Bare(asyncio.Protocol):
    """What asyncio itself takes for a request and its reply: no queue of requests, no timeouts, one at a time."""

    transport: asyncio.Transport
    reply: "asyncio.Future[Any]"

    def __init__(self) -> None:
        self.reader = hiredis.Reader()
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        if (reply := self.reader.gets()) is not False:
            self.reply.set_result(reply)

    def call(self, request: bytes) -> "asyncio.Future[Any]":
        self.reply = self.loop.create_future()
        self.transport.write(request)
        return self.reply


async def bare_section(port: int) -> Section:
    """The limit, as asyncio has it: fencepost's two scripts, with everything packed in advance but the token."""
    _, bare = await asyncio.get_running_loop().create_connection(Bare, HOST, port)
    take, release = raw_requests()
    for script in (scripts("clock").take, scripts("clock").release):
        await bare.call(pack(("SCRIPT", "LOAD", script.text)))

    async def section(name: str) -> None:
        assert await bare.call(release(await bare.call(take))) == 1

    return section


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This thread and the servers it starts share a core, so that what is measured is work.

    On two cores that have nothing else to do, most of a round trip is a virtual machine waking its other core.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def in_turn(loop: asyncio.AbstractEventLoop, section: Section) -> Callable[[], None]:
    """50 sections of a lock, one after another."""

    async def batch() -> None:
        for _ in range(50):
            await section("lock")

    return lambda: loop.run_until_complete(batch())


def beside_bare() -> Iterator[Sides]:
    with quiet() as server, looped(server.url) as (loop, locks, client):
        ours, _ = sections(locks, client)
        bare = loop.run_until_complete(bare_section(server.port))
        yield {"fencepost": in_turn(loop, ours), "bare asyncio, two EVALSHA": in_turn(loop, bare)}


def beside_peer() -> Iterator[Sides]:
    with quiet() as server, looped(server.url) as (loop, locks, client):
        ours, peer = sections(locks, client)
        yield {"fencepost": in_turn(loop, ours), "redis-py asyncio Lock": in_turn(loop, peer)}


_TURN = "A turn of the event loop for each answer, which the bare connection needs too; and a lease with its deadline."


@bench("redis: 50 x acquire + release, asyncio, vs the limit", bound=_TURN, aim=1.05, iterations=4, rounds=25)
def uncontended_asyncio() -> Iterator[Sides]:
    yield from beside_bare()


@bench(
    "redis: 50 x acquire + release, asyncio, on one core, vs the limit", bound=_TURN, aim=1.05, iterations=4, rounds=25
)
def uncontended_asyncio_core() -> Iterator[Sides]:
    with one_core():
        yield from beside_bare()


@bench("redis: 50 x acquire + release, asyncio, vs redis-py", iterations=4, rounds=25)
def uncontended_asyncio_peer() -> Iterator[Sides]:
    yield from beside_peer()


@bench("redis: 50 x acquire + release, asyncio, on one core, vs redis-py", iterations=4, rounds=25)
def uncontended_asyncio_peer_core() -> Iterator[Sides]:
    with one_core():
        yield from beside_peer()


@bench(
    "redis: 256 tasks x 8, each its own lock, vs redis-py",
    bound="One core of Python: for each section a task is resumed twice, and a lease is made, watched and ended.",
    aim=0.105,
    iterations=1,
    rounds=15,
)
def distinct() -> Iterator[Sides]:
    names = [f"lock {number}" for number in range(256)]
    packed = {name: raw_requests(name) for name in names}
    with quiet() as server, looped(server.url) as (loop, locks, client):
        ours, peer = sections(locks, client)
        loop.run_until_complete(ours("lock"))
        backend: Any = locks._core.backend
        wire = backend._nodes.only.transport

        async def bare(name: str) -> None:
            take, release = packed[name]
            token = await wire.call(take, backend.scripts.take.fits)
            assert await wire.call(release(token), backend.scripts.release.fits) == 1

        def side(section: Section) -> Callable[[], None]:
            async def task(name: str) -> None:
                for _ in range(8):
                    await section(name)

            async def batch() -> None:
                await asyncio.gather(*map(task, names))

            return lambda: loop.run_until_complete(batch())

        yield {
            "fencepost": side(ours),
            "its connection, two EVALSHA": side(bare),
            "redis-py asyncio Lock": side(peer),
        }
