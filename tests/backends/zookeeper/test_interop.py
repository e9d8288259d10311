"""fencepost and ZooKeeper's other lock clients exclude each other, holding and waiting."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

import fencepost
from fencepost import sync
from fencepost_lab.servers.processes import program
from tests.backends.zookeeper.tools import LONG, java, kazoo
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until


def address(url: str) -> str:
    return url.partition("://")[2]


class Other(Protocol):
    """Somebody else's lock client."""

    def ask(self) -> None: ...
    def has_it(self) -> bool: ...
    def release(self) -> None: ...


class Kazoo:
    """kazoo's Lock, on a client of its own."""

    def __init__(self, client: Any, path: str) -> None:
        self._lock = client.Lock(path, "kazoo")
        self._client = client
        self._asking = None

    def ask(self) -> None:
        self._client.handler.spawn(self._lock.acquire)

    def has_it(self) -> bool:
        return bool(self._lock.is_acquired)

    def release(self) -> None:
        self._lock.release()


class Recipe(Child):
    """The Java recipe, in a process of its own."""

    def ask(self) -> None:
        self.tell("lock")
        self.heard("asked")

    def has_it(self) -> bool:
        return self.output.count("acquired") > self.output.count("released")

    def release(self) -> None:
        self.tell("unlock")
        self.heard("released")


@pytest.fixture(scope="session")
def recipe_classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the compiled driver and of the jar that comes with Debian's ZooKeeper."""
    return java(tmp_path_factory.mktemp("java"), "Recipe", "zookeeper-recipes-lock.jar")


def recipe(classes: str, url: str, path: str) -> Recipe:
    jvm = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # it starts sooner, and runs but a moment
    return Recipe([program("JAVA"), *jvm, "-cp", classes, "Recipe", address(url), path, "10000"])


@contextlib.contextmanager
def kazoo_lock(url: str, path: str) -> Iterator[Other]:
    with kazoo(url) as client:
        yield Kazoo(client, path)


@pytest.fixture(params=["kazoo", "zookeeper"])
def parties(
    request: pytest.FixtureRequest, zookeeper_server: Endpoint
) -> Iterator[tuple[sync.Locks, str, Callable[[], contextlib.AbstractContextManager[Other]]]]:
    """fencepost in the other side's layout, the lock's name, and the other side."""
    root, name = f"/interop-{secrets.token_hex(4)}", "shared"
    path, url = f"{root}/{name}", zookeeper_server.url

    def other() -> contextlib.AbstractContextManager[Any]:
        if request.param == "kazoo":
            return kazoo_lock(url, path)
        return recipe(request.getfixturevalue("recipe_classes"), url, path)

    with fencepost.connect(f"{url}{root}?layout={request.param}", ttl=LONG) as locks:
        if request.param == "zookeeper":
            locks.acquire(name).release()  # the recipe makes the lock's own node, but none above it
        yield locks, name, other


def test_while_the_other_holds_fencepost_waits_and_then_gets_it(parties: Any) -> None:
    locks, name, start = parties
    with start() as other:
        other.ask()
        until(other.has_it, "it has the lock")
        assert locks.try_acquire(name) is None
        held = locks.status(name)
        assert held is not None
        assert held.token > 0
        lease = []
        waiting = background(lambda: lease.append(locks.acquire(name, timeout=PATIENCE)))
        until(lambda: len(locks.status(name).waiters) == 1, "the waiters are queued")
        assert not lease
        other.release()
        waiting.join(PATIENCE)
        assert lease[0].token > held.token
        assert lease[0].release()


def test_while_fencepost_holds_the_other_waits_and_then_gets_it(parties: Any) -> None:
    locks, name, start = parties
    with start() as other:
        lease = locks.acquire(name)
        other.ask()
        until(lambda: len(locks.status(name).waiters) == 1, "it counts us")
        assert not other.has_it()
        assert lease.release()
        until(other.has_it, "it has the lock")
        assert locks.try_acquire(name) is None
        other.release()
        assert locks.acquire(name, timeout=PATIENCE).token > lease.token


def test_both_stand_in_one_line(parties: Any) -> None:
    """Whoever came first is served first, whichever client it uses."""
    locks, name, start = parties
    with start() as other:
        lease = locks.acquire(name)
        other.ask()
        until(lambda: len(locks.status(name).waiters) == 1, "the waiters are queued")
        last = []
        waiting = background(lambda: last.append(locks.acquire(name, timeout=PATIENCE)))
        until(lambda: len(locks.status(name).waiters) == 2, "the waiters are queued")
        assert lease.release()
        until(other.has_it, "it has the lock")
        assert not last
        other.release()
        waiting.join(PATIENCE)
        assert last[0].release()


def test_a_killed_java_holder_is_followed(zookeeper_server: Endpoint, recipe_classes: str) -> None:
    root, name = f"/interop-{secrets.token_hex(4)}", "shared"
    url = zookeeper_server.url
    with fencepost.connect(f"{url}{root}?layout=zookeeper", ttl=LONG) as locks:
        before = locks.acquire(name)
        before.release()
        with recipe(recipe_classes, url, f"{root}/{name}") as other:
            other.ask()
            until(other.has_it, "it has the lock")
            other.kill()
        assert locks.acquire(name, timeout=PATIENCE).token > before.token


@pytest.mark.parametrize(("layout", "shape"), [("kazoo", "__lock__"), ("curator", "_c_"), ("zookeeper", "x-")])
def test_our_nodes_are_called_as_the_layout_has_it(zookeeper_server: Endpoint, layout: str, shape: str) -> None:
    root = f"/layout-{secrets.token_hex(4)}"
    url = zookeeper_server.url
    with kazoo(url) as client, fencepost.connect(f"{url}{root}?layout={layout}") as locks, locks.lock("x") as lease:
        [node] = client.get_children(f"{root}/x")
        assert shape in node
        data, stat = client.get(f"{root}/x/{node}")
        assert data.decode().split()[0] == lease._stored
        assert stat.czxid == lease.token
        assert stat.ephemeralOwner
