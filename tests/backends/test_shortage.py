"""Out of descriptors, of room on the disk, of memory, at the n-th step for each n: locks say so, and go on later."""

import asyncio
import contextlib
import gc
import itertools
import secrets
import signal
import sqlite3
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import fencepost
from fencepost import sync
from fencepost.errors import BackendError, LeaseLost, NotAcquired
from fencepost_lab.servers import Consul, Postgres, Server, ZooKeeper
from tests.conformance.faces import FACES, Client
from tests.harness.descriptors import few_descriptors, no_descriptors, open_descriptors
from tests.harness.disk import SmallDisk, full_disk, small_disk
from tests.harness.isolated import isolated
from tests.harness.memory import OutOfMemory
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import PATIENCE, until, until_async

T = TypeVar("T")

SERVERS = {
    "redis_server": "",
    "redis_cluster": "",
    "redlock_servers": "?node_timeout=3s",
    "etcd_server": "?timeout=3s",
    "zookeeper_server": "?connect_timeout=3s",
    "consul_server": "",
    "postgres_server": "?timeout=3s",
}
"""With the time-outs that a request runs into while nothing can be opened."""
PLENTY = 100


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path_factory.mktemp('few')}/locks.db"
    server: str = request.getfixturevalue(request.param).url
    return server + SERVERS[request.param]


class Shortage:
    """One process that may open ``spare`` more descriptors, and what fails for want of them."""

    def __init__(self, face: str, url: str, spare: int) -> None:
        self._face = face
        self._url = url
        self._spare = spare
        self._name = f"shortage-{secrets.token_hex(4)}"
        self.failures: list[str] = []  # not the errors: their tracebacks keep open what failed

    async def _try(self, call: Awaitable[T]) -> T | None:
        """Make a call that may fail with the documented error, and in no other way."""
        try:
            return await call
        except BackendError as error:
            self.failures.append(str(error))
            return None

    def _short(self) -> AbstractContextManager[None]:
        return few_descriptors(self._spare) if self._spare else no_descriptors()

    def _connect(self) -> Client:
        return Client(self._face, self._url, ttl=PATIENCE)

    async def alone(self) -> None:
        """Take, renew and give back a lock, with nothing open before."""
        locks, name = self._connect(), f"{self._name}/alone"
        with self._short():
            lease = await self._try(locks.acquire(name, timeout=PATIENCE))
            if lease is not None:
                await self._try(lease.renew())
                await self._try(locks.status(name))
                await self._try(lease.release())
        if lease is not None:
            await lease.release()
        assert await (await locks.acquire(name, timeout=PATIENCE)).release(), "nothing stayed behind"
        with self._short():
            await asyncio.wait_for(locks.close(), PATIENCE)

    async def together(self) -> None:
        """Wait for another's lock, be handed it, give it back."""
        locks, others, name = self._connect(), self._connect(), f"{self._name}/together"
        held = await others.acquire(name)
        with self._short():
            waiter = asyncio.create_task(locks.acquire(name, timeout=PATIENCE))
            await until_async(lambda: known_to_wait(locks.raw) == 1 or waiter.done(), "it waits, or cannot")
            await self._try(locks.status(name))
            await held.renew()
            assert await held.release(), "over what was open before"
        if (lease := await self._try(waiter)) is not None:
            assert await lease.release()
        await self._use(locks, others, name)
        await asyncio.wait_for(asyncio.gather(locks.close(), others.close()), PATIENCE)

    async def _use(self, locks: Client, others: Client, name: str) -> None:
        held = await others.acquire(name, timeout=PATIENCE)
        waiter = asyncio.create_task(locks.acquire(name, timeout=PATIENCE))
        await until_async(lambda: known_to_wait(locks.raw) == 1, "it waits", watching=[waiter])
        assert await held.release()
        lease = await waiter
        await lease.renew()
        assert await others.status(name)
        assert await lease.release()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("face", FACES)
@isolated
async def test_a_process_that_runs_out_of_descriptors_says_so_and_recovers(url: str, face: str) -> None:
    async def shortage(spare: int) -> list[str]:
        one = Shortage(face, url, spare)
        await one.alone()
        await one.together()
        return one.failures

    async def closed() -> None:
        gc.collect()  # a future and its error keep each other alive, and what the error's traceback leads to
        await until_async(lambda: len(open_descriptors()) <= before, "every descriptor is closed")

    assert not await shortage(PLENTY)
    before = len(open_descriptors())
    spare = 0
    while await shortage(spare):
        spare += 1
        await closed()
    assert spare, "there was a shortage"
    await closed()


@pytest.mark.slow
@isolated
@pytest.mark.parametrize("new", [True, False], ids=["new", "open"])
def test_locks_in_a_file_that_finds_no_room_say_so_and_go_on(tmp_path: Path, new: bool) -> None:
    """Where not even the clean-up finds room, the ttl does it."""
    size = 0
    while True:
        path = tmp_path / f"{size if new else 0}.db"
        failed, last, lease = False, 0, None
        with fencepost.connect(f"sqlite://{path}", ttl=PATIENCE) as locks:
            if not new:
                last = one_lease(locks, last)
            with full_disk(size):
                try:
                    lease = locks.acquire("lock", ttl=5)
                    last = lease.token
                    lease.renew()
                    assert lease.release()
                except BackendError:
                    failed = True
            if lease is not None:
                lease.release()
            one_lease(locks, last)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not failed:
            break
        size += 1024
    assert size, "the disk was full"


def one_lease(locks: sync.Locks, last: int) -> int:
    """Take the lock, with a token larger than the last one, and give it back."""
    lease = locks.acquire("lock", timeout=PATIENCE)
    assert lease.token > last
    assert lease.release()
    return lease.token


@dataclass(frozen=True)
class Full:
    """A store, where on its server's disk it writes down what it grants, and the time-outs of who asks it then."""

    server: Callable[[], Server]
    folder: str
    hasty: str
    options: str = "?"
    lives: bool = False
    """Whether the server may go on by itself once there is room; the others end."""


FULL = {
    "zookeeper": Full(ZooKeeper, "data", "connect_timeout=5s"),
    "consul": Full(
        lambda: Consul(args=["-hcl", 'session_ttl_min = "500ms"']),
        "data",
        "timeout=5s",
        "?session_ttl_min=500ms&",
        lives=True,
    ),
    "postgres": Full(Postgres, "data/pg_wal", "timeout=5s"),
}
LONG = 300.0
NO_ROOM = "no space left on device"


@contextlib.contextmanager
def on_a_small_disk(store: Full) -> Iterator[tuple[Server, SmallDisk]]:
    server = store.server()
    with contextlib.ExitStack() as stack:
        stack.push(server)
        server.claim()
        server.prepare()
        folder = server.folder / store.folder
        folder.mkdir(exist_ok=True)
        disk = stack.enter_context(small_disk(folder, 40 << 20))
        stack.callback(server.stop)
        server.launch()
        yield server.wait_ready(), disk


def until_refused(server: Server, locks: sync.Locks) -> tuple[list[sync.Lease], dict[str, BackendError]]:
    """Acquire locks until the server has no room for one, and says so: those that were granted, and those refused."""
    granted: list[sync.Lease] = []
    refused: dict[str, BackendError] = {}
    while True:
        if isinstance(server, Postgres):
            with contextlib.suppress(OSError):  # it may have ended
                server.psql("SELECT pg_switch_wal()")  # or it fills what it has reserved first
        name = f"new-{len(granted) + len(refused)}"
        try:
            granted.append(locks.acquire(name, timeout=PATIENCE))
        except BackendError as error:
            refused[name] = error
            if NO_ROOM in server.log.read_text().lower():
                return granted, refused


def fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except BackendError:
        return True
    return False


@pytest.mark.long
@isolated
@pytest.mark.parametrize("store", FULL)
def test_a_store_whose_disk_is_full_grants_nothing_and_goes_on_once_there_is_room(store: str) -> None:
    full = FULL[store]
    with (
        on_a_small_disk(full) as (server, disk),
        fencepost.connect(f"{server.url}{full.options}{full.hasty}", ttl=LONG) as locks,
        fencepost.connect(server.url + full.options, ttl=2) as others,
    ):
        held, kept, given = others.acquire("held"), locks.acquire("kept"), locks.acquire("given")
        waiter = background(partial(others.acquire, "kept", ttl=LONG, timeout=LONG))
        until(lambda: known_to_wait(others) == 1, "it waits", watching=[waiter])
        disk.fill()
        granted, refused = until_refused(server, locks)
        # A server that crashes over its log may have written a part of it that is carried out later.
        assert all(error.ambiguous for error in refused.values() if NO_ROOM in str(error).lower())
        calls = [partial(fails, call) for call in (partial(locks.status, "kept"), kept.renew, given.release)]
        for failing in [background(partial(until, call, "it fails")) for call in calls]:
            failing.result()
        assert held.ended.wait(PATIENCE)
        with pytest.raises(LeaseLost):
            held.check()
        disk.free()
        if not (full.lives and server.running):
            until(lambda: not server.running, "it has ended")
            server.start()
        until(lambda: not fails(kept.renew), "it is renewed again")
        until(lambda: not fails(given.release), "it is released")
        for lease in (kept, *granted):
            found = locks.status(lease.name)
            assert found is not None
            assert found.token == lease.token, "what was granted is held"
            assert lease.release()
        after = waiter.result()
        assert after.token > kept.token
        for name, last in {"held": held.token, "given": given.token, **dict.fromkeys(refused, 0)}.items():
            again = locks.acquire(name, timeout=PATIENCE)  # long before the ttl of what may have been left
            assert again.token > last
            assert again.release()


def one_hold(locks: sync.Locks, name: str) -> bool:
    return locks.acquire(name, ttl=PATIENCE, timeout=PATIENCE).release()


class Remembered:
    """The calls that run out of memory. They work with the same locks as before afterwards, whatever step it was."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.locks = self._connect()
        self.others = fencepost.connect(url, ttl=PATIENCE)
        self.prefix = f"memory-{secrets.token_hex(4)}/"
        self.names: list[str] = []

    def _connect(self) -> sync.Locks:
        return fencepost.connect(self._url, ttl=2)

    def at_every_step(self, call: Callable[[str, OutOfMemory], None]) -> None:
        for step in itertools.count(1):
            self.names.append(f"{self.prefix}{call.__name__}-{step}")
            self.locks.acquire(f"{self.prefix}between").release()  # connects again what the last step has cut
            fault = OutOfMemory(step)
            call(self.names[-1], fault)
            if not fault.raised:
                assert step > 1
                return

    def connect(self, name: str, fault: OutOfMemory) -> None:
        locks = self._connect()
        fault.run(lambda: locks.acquire(name))
        background(locks.close).result()

    def acquire(self, name: str, fault: OutOfMemory) -> None:
        fault.run(lambda: self.locks.acquire(name).release())

    def block(self, name: str, fault: OutOfMemory) -> None:
        def hold() -> None:
            with contextlib.suppress(LeaseLost), self.locks.lock(name):
                pass

        fault.run(hold)

    def renew(self, name: str, fault: OutOfMemory) -> None:
        lease = self.locks.acquire(name)
        with contextlib.suppress(LeaseLost):
            fault.run(lease.renew)
        background(lease.release).result()

    def release(self, name: str, fault: OutOfMemory) -> None:
        lease = self.locks.acquire(name)
        fault.run(lease.release)
        background(lease.release).result()

    def wait(self, name: str, fault: OutOfMemory) -> None:
        held, over = self.others.acquire(name), threading.Event()

        def hand_over() -> bool:
            until(lambda: over.is_set() or known_to_wait(self.locks) > 0, "it waits", poll=0.001)
            return held.release()

        handing = background(hand_over)
        fault.run(lambda: self.locks.acquire(name, timeout=PATIENCE).release())
        over.set()
        assert handing.result(), "nobody took it from its holder"

    def give_up(self, name: str, fault: OutOfMemory) -> None:
        held = self.others.acquire(name)
        with contextlib.suppress(NotAcquired):
            fault.run(lambda: self.locks.acquire(name, timeout=0.001))
        assert held.release(), "nobody took it from its holder"

    def status(self, name: str, fault: OutOfMemory) -> None:
        fault.run(lambda: self.locks.status(name))


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        "redis_server",
        "redlock_servers",
        "etcd_server",
        "zookeeper_server",
        "consul_server",
        "postgres_server",
    ]
)
def remembered(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("memory", "sqlite"):
        return "memory://" if request.param == "memory" else f"sqlite://{tmp_path}/locks.db"
    url: str = request.getfixturevalue(request.param).url
    if request.param == "redlock_servers":
        nodes = url.removesuffix("/0").split(",")[:3]  # each is asked by the same steps
        return ",".join(nodes) + "/0?node_timeout=10s"
    return f"{url}?session_ttl_min=500ms" if request.param == "consul_server" else url


@pytest.mark.slow
@pytest.mark.long
@isolated
def test_a_call_that_runs_out_of_memory_leaves_no_lock_past_its_ttl_and_holds_nobody_up(remembered: str) -> None:
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited")  # the very call that awaits it failed
    with fencepost.connect(remembered) as locks:
        locks.acquire(f"memory-{secrets.token_hex(4)}").release()  # opens what stays open for good
    before = len(open_descriptors())
    victim = Remembered(remembered)
    for call in (
        victim.connect,
        victim.acquire,
        victim.block,
        victim.renew,
        victim.release,
        victim.wait,
        victim.give_up,
        victim.status,
    ):
        victim.at_every_step(call)
    with ThreadPoolExecutor(8) as pool:
        for locks in (victim.others, victim.locks):
            assert all(pool.map(partial(one_hold, locks), victim.names))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for locks in (victim.locks, victim.others):
        background(locks.close).result()
    del victim, call
    gc.collect()
    until(lambda: len(open_descriptors()) <= before, "every descriptor is closed")
