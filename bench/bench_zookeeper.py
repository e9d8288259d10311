"""Locks in ZooKeeper, against one create and one delete through kazoo, and against kazoo's Lock."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient

import fencepost
from bench.harness import Sides, bench
from fencepost import aio
from fencepost_lab.servers import ZooKeeper


@contextmanager
def kazoo(server: ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(server.address)
    client.start()
    yield client
    client.stop()
    client.close()


@contextmanager
def sides() -> Iterator[dict[str, Callable[[], object]]]:
    with ZooKeeper(fsync=True) as server, fencepost.connect(f"{server.url}/locks") as locks, kazoo(server) as client:
        client.ensure_path("/bare")
        lock = client.Lock("/native/bench")

        def native() -> None:
            lock.acquire()
            lock.release()

        yield {
            "fencepost": lambda: locks.acquire("bench").release(),
            "kazoo's Lock": native,
            "create + delete": lambda: client.delete(client.create("/bare/x", b"x", ephemeral=True, sequence=True)),
        }


@bench("zookeeper: acquire + release vs one create + one delete", aim=1.3, iterations=60, rounds=25)
def against_bare() -> Iterator[Sides]:
    with sides() as all_of_them:
        yield {name: all_of_them[name] for name in ("fencepost", "create + delete")}


@bench("zookeeper: acquire + release vs kazoo's Lock", aim=1 / 1.3, iterations=60, rounds=25)
def against_kazoo() -> Iterator[Sides]:
    with sides() as all_of_them:
        yield {name: all_of_them[name] for name in ("fencepost", "kazoo's Lock")}


@bench("zookeeper: asyncio acquire + release vs one create + one delete", iterations=60, rounds=25)
def asynchronous() -> Iterator[Sides]:
    with ZooKeeper(fsync=True) as server, kazoo(server) as client, asyncio.Runner() as runner:
        locks = aio.connect(f"{server.url}/locks")
        client.ensure_path("/bare")

        async def cycle() -> None:
            await (await locks.acquire("bench")).release()

        yield {
            "fencepost.aio": lambda: runner.run(cycle()),
            "create + delete": lambda: client.delete(client.create("/bare/x", b"x", ephemeral=True, sequence=True)),
        }
        runner.run(locks.close())


def crowd(size: int, turn: Callable[[], object]) -> None:
    """Everybody waits for the same lock at once and takes it once."""
    threads = [threading.Thread(target=turn) for _ in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hot(size: int) -> Iterator[Sides]:
    with ZooKeeper(fsync=True) as server, fencepost.connect(f"{server.url}/locks") as locks, kazoo(server) as client:

        def native() -> None:
            with client.Lock("/native/hot"):
                time.sleep(0)

        yield {
            "fencepost": lambda: crowd(size, lambda: locks.acquire("hot").release()),
            "kazoo's Lock": lambda: crowd(size, native),
        }


_SERVED = "ZooKeeper's own time for a create, a delete and a watch for each waiter, which both sides need."


@bench("zookeeper: hot key, 50 waiters, each once", bound=_SERVED, aim=0.75, iterations=1, rounds=12)
def hot_50() -> Iterator[Sides]:
    yield from hot(50)


@bench("zookeeper: hot key, 200 waiters, each once", bound=_SERVED, aim=0.75, iterations=1, rounds=6)
def hot_200() -> Iterator[Sides]:
    yield from hot(200)


@bench("zookeeper: hot key, 1000 waiters, each once", bound=_SERVED, aim=0.75, iterations=1, rounds=3)
def hot_1000() -> Iterator[Sides]:
    yield from hot(1000)
