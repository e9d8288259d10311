"""Who comes first in ZooKeeper: by number, past the number's end, and without waking anybody else."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import GetChildren
from kazoo.security import make_acl

import fencepost
from fencepost import sync
from fencepost.backends.zookeeper import contender, names
from fencepost.backends.zookeeper.backend import ZooKeeper as Backend
from fencepost.backends.zookeeper.session import Session
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.registry import connect
from fencepost_lab.servers import ZooKeeper, ask
from tests.backends.zookeeper.tools import LONG, WornZooKeeper, kazoo
from tests.harness.servers import Endpoint
from tests.harness.threads import Background, background, waiters_of
from tests.harness.waiting import PATIENCE, until

LAST = 2**31 - 1


@pytest.mark.parametrize(
    ("node", "number"),
    [
        ("0123456789abcdef__lock__0000000007", 7),
        ("_c_6f1b2c3d-aaaa-bbbb-cccc-0123456789ab-lock-0000000007", 7),
        ("x-72057594037927936-0000000007", 7),
        ("n-2147483647", LAST),
        ("0123456789abcdef__lock__-2147483648", -(2**31)),
        ("_c_6f1b2c3d-aaaa-bbbb-cccc-0123456789ab-lock--2147483648", -(2**31)),
        ("x-72057594037927936--000000005", -5),
        ("0123456789abcdef__lock__-000000005", -5),
        ("config", None),
        ("a9999999999", None),
        ("lease", None),
    ],
)
def test_every_sequential_child_is_known_by_its_number(node: str, number: int | None) -> None:
    assert names.sequence(node) == number


PLAIN = ["a__lock__0000000007", "_c_0-lock-0000000003", "x-72-f-0000000012", "n-0000000001", "0000000009"]


@pytest.mark.parametrize(
    ("more", "sure"),
    [
        ([], True),
        (["~base", "config", "ü", "\uff11" * 10], True),
        (["b__lock__-000000005"], False),
        (["x-72-f--000000005"], False),
        (["-0000000005"], False),
        (["x--0000000005"], False),
        (["b__lock__-0000000005"], False),
        (["b__lock__0000000007"], False),
        ([f"n-{LAST}"], False),
        (["n-9999999999"], True),
    ],
)
def test_contenders_stand_by_number_and_unsure_ones_are_known(more: list[str], sure: bool) -> None:
    children = [*PLAIN, *more]
    numbered = sorted((number, child) for child in children if (number := names.sequence(child)) is not None)
    assert names.contenders(children) == ([child for _, child in numbered], sure)


@pytest.mark.parametrize("name", ["plain-Name_1.~", "a/b", ".", "..", "zookeeper", "%2E", "ü", "a b", "\ue000", "😀/%"])
def test_a_name_is_one_path_component_and_back(name: str) -> None:
    component = names.encode(name)
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]+", component)
    assert component not in (".", "..", "zookeeper")
    assert names.decode(component) == name
    assert (component == name) == (name == "plain-Name_1.~")


@pytest.fixture(scope="module")
def worn() -> Iterator[WornZooKeeper]:
    with WornZooKeeper(worn="/locks/worn", count=LAST - 3) as server:
        yield server


def crowd(other: Any) -> list[str]:
    """Foreign contenders; made many at a time, so that the server takes some numbers from what it has not yet done."""
    made: list[str] = []
    while not any((names.sequence(path) or 0) < 0 for path in made):
        assert len(made) < 400, "the number was to wrap"
        stems = [f"/locks/worn/{len(made) + each}-" for each in range(8)]
        made += [each.get(timeout=PATIENCE) for each in [other.create_async(x, b"", None, True, True) for x in stems]]
    return made


def test_the_order_survives_the_end_of_the_numbers(worn: WornZooKeeper) -> None:
    """ZooKeeper then repeats 2147483647, and under load also turns negative; both happen here."""
    with fencepost.connect(f"{worn.url}/locks", ttl=LONG) as locks, kazoo(worn.url) as other:
        holder = locks.acquire("worn")
        served: list[int] = []

        def turn() -> None:
            lease = locks.acquire("worn", timeout=PATIENCE)
            served.append(lease.token)
            lease.release()

        waiting = []
        for count in range(1, 7):
            waiting.append(background(turn))
            waiters_of(locks, "worn", count)
        foreign = crowd(other)
        waiting.append(background(turn))
        waiters_of(locks, "worn", 7 + len(foreign))
        numbers = [names.sequence(child) for child in other.get_children("/locks/worn")]
        assert numbers.count(LAST) > 1, "the number was to be repeated"
        assert holder.release()
        until(lambda: len(served) == 6, "all six are served")
        for path in foreign:
            assert len(served) == 6, "the foreign ones came before the last of ours"
            other.delete(path)
        for thread in waiting:
            thread.join(PATIENCE)
        assert len(served) == 7
        assert served == sorted(served)
        assert served[0] > holder.token


def test_doctor_warns_of_numbers_that_come_to_their_end(worn: WornZooKeeper) -> None:
    backend = connect(f"{worn.url}/locks", Blocking())
    findings = run(backend.doctor())
    run(backend.close())
    assert any("/locks/worn" in finding.what for finding in findings if finding.level == "risk")


def received(server: ZooKeeper) -> int:
    """How many requests the server has had."""
    found = re.search(rb"Received: (\d+)", ask(server.port, b"srvr"))
    assert found
    return int(found[1])


@pytest.mark.parametrize("size", [50, 200])
def test_a_hand_over_wakes_one_waiter_only(size: int) -> None:
    with ZooKeeper() as server, fencepost.connect(f"{server.url}/locks", ttl=LONG) as locks:
        holder = locks.acquire("hot")
        served: list[int] = []

        def turn() -> None:
            lease = locks.acquire("hot", timeout=PATIENCE)
            served.append(lease.token)
            lease.release()

        threads = [background(turn) for _ in range(size)]
        waiters_of(locks, "hot", size)
        before = received(server)
        assert holder.release()
        for thread in threads:
            thread.join(PATIENCE)
        spent = received(server) - before
        assert served == sorted(served), "no inversion"
        assert len(served) == size
        # Each hand-over: the one woken looks at the line, after a sync, and later deletes its node. Were all of them
        # woken each time, it would be hundreds. A few pings come on top.
        assert spent <= 3 * size + 20


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue counts as a long one."""
    monkeypatch.setattr(contender, "_LONG", 0)


@pytest.fixture
def folder() -> str:
    return secrets.token_hex(6)


@pytest.fixture
def locks(zookeeper_server: Endpoint, folder: str) -> Iterator[sync.Locks]:
    with fencepost.connect(f"{zookeeper_server.url}/{folder}", ttl=LONG) as connected:
        yield connected


def watches(locks: sync.Locks) -> int:
    """How many nodes are watched."""
    backend = locks._core.backend
    assert isinstance(backend, Backend)
    return sum(len(session._client._data_watchers) for session in backend._sessions.values())


def queued(
    locks: sync.Locks, name: str, *others: Background[sync.Lease], timeout: float = PATIENCE
) -> Background[sync.Lease]:
    """One more that waits for a lock."""
    waiter = background(lambda: locks.acquire(name, timeout=timeout))
    waiters_of(locks, name, len(others) + 1)
    until(lambda: watches(locks) == len(others) + 1, "it watches the one before it")
    return waiter


def settled(locks: sync.Locks, name: str, waiter: Background[sync.Lease]) -> None:
    """Wait until a waiter that was woken has looked, and waits again: this acquire takes longer than that."""
    with pytest.raises(fencepost.NotAcquired):
        locks.acquire(name, timeout=0.5)
    assert not waiter.done, "somebody else holds the lock"


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("layout", ["kazoo", "curator", "zookeeper"])
def test_a_hand_over_in_a_long_queue_does_not_list_it(
    zookeeper_server: Endpoint, folder: str, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    url = f"{zookeeper_server.url}/{folder}?layout={layout}"
    with fencepost.connect(url, ttl=LONG) as here, fencepost.connect(url, ttl=LONG) as there:
        holder = here.acquire("hot")
        waiters: list[Background[sync.Lease]] = []
        for count, locks in enumerate((there, here, there), 1):
            waiters.append(background(partial(locks.acquire, "hot", timeout=PATIENCE)))
            waiters_of(here, "hot", count)
        until(lambda: watches(here) + watches(there) == 3, "each watches the one before it")
        sent: list[object] = []
        send = Session.send

        def noted(self: Session, request: object, *then: Any) -> Any:
            sent.append(request)
            return send(self, request, *then)

        monkeypatch.setattr(Session, "send", noted)
        for waiter in waiters:
            assert holder.release()
            token, holder = holder.token, waiter.join(PATIENCE)
            assert holder.token > token
        assert holder.release()
        assert not [request for request in sent if isinstance(request, GetChildren)]
        # A release, and a look at its node; a sync, and a look at the queue, at one's own node and at the base.
        assert len(sent) == 3 * 6 + 1


def test_who_joined_a_short_queue_that_is_long_now_does_not_list_it(
    locks: sync.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contender, "_LONG", 4)
    holder = locks.acquire("hot")
    waiters: list[Background[sync.Lease]] = []
    for _ in range(8):
        waiters.append(queued(locks, "hot", *waiters))
    lists: list[object] = []
    send = Session.send

    def noted(self: Session, request: object, *then: Any) -> Any:
        if isinstance(request, GetChildren):
            lists.append(request)
        return send(self, request, *then)

    monkeypatch.setattr(Session, "send", noted)
    for waiter in waiters:
        assert holder.release()
        holder = waiter.join(PATIENCE)
    assert holder.release()
    assert len(lists) == 3, "the first waiter saw how long the queue is; it is short again for the last two"


def behind_one_that_leaves(zookeeper: str, locks: sync.Locks, between: Callable[[], object]) -> Background[sync.Lease]:
    """One that waits for the lock, after the one before it has left."""
    with fencepost.connect(zookeeper, ttl=LONG) as leaves:
        before = queued(leaves, "hot")
        waiter = background(lambda: locks.acquire("hot", timeout=PATIENCE))
        waiters_of(locks, "hot", 2)
        until(lambda: watches(locks) == 1, "it watches the one before it")
        between()
    with pytest.raises(fencepost.ConfigError):  # its locks were closed
        before.join(PATIENCE)
    return waiter


@pytest.mark.usefixtures("long")
def test_a_waiter_does_not_hold_when_the_one_before_it_leaves(
    zookeeper_server: Endpoint, locks: sync.Locks, folder: str
) -> None:
    holder = locks.acquire("hot")
    waiter = behind_one_that_leaves(f"{zookeeper_server.url}/{folder}", locks, lambda: None)
    settled(locks, "hot", waiter)
    assert holder.release()
    assert waiter.join(PATIENCE).release()


@pytest.mark.usefixtures("long")
def test_a_waiter_does_not_hold_when_one_that_was_changed_before_leaves(
    zookeeper_server: Endpoint, locks: sync.Locks, folder: str
) -> None:
    holder = locks.acquire("hot")

    def change() -> None:
        """The node of the one in the middle, as somebody does who revokes all of them; and wait until that was seen."""
        with kazoo(zookeeper_server.url) as other:
            nodes = sorted(other.get_children(f"/{folder}/hot"), key=lambda node: names.sequence(node) or 0)
            other.set(f"/{folder}/hot/{nodes[1]}", b"__REVOKE__")
        with pytest.raises(fencepost.NotAcquired):
            locks.acquire("hot", timeout=0.5)

    waiter = behind_one_that_leaves(f"{zookeeper_server.url}/{folder}", locks, change)
    settled(locks, "hot", waiter)
    assert holder.release()
    assert waiter.join(PATIENCE).release()


@pytest.mark.usefixtures("long")
def test_a_client_of_kazoos_is_woken_by_a_release_in_a_long_queue(
    zookeeper_server: Endpoint, locks: sync.Locks, folder: str
) -> None:
    holder = locks.acquire("hot")
    with kazoo(zookeeper_server.url) as other:
        foreign = other.Lock(f"/{folder}/hot", "somebody")
        waiter = background(lambda: foreign.acquire(timeout=PATIENCE))
        waiters_of(locks, "hot", 1)
        until(lambda: len(other._data_watchers) == 1, "it watches the holder")
        assert holder.release()
        assert waiter.join(PATIENCE)
        foreign.release()


@pytest.mark.usefixtures("long")
def test_a_waiter_does_not_hold_when_the_holders_node_is_changed(
    zookeeper_server: Endpoint, locks: sync.Locks, folder: str
) -> None:
    """As by Curator's Revoker."""
    holder = locks.acquire("hot")
    waiter = queued(locks, "hot")
    with kazoo(zookeeper_server.url) as other:
        first = min(other.get_children(f"/{folder}/hot"), key=lambda node: names.sequence(node) or 0)
        other.set(f"/{folder}/hot/{first}", b"__REVOKE__")
        settled(locks, "hot", waiter)
        other.delete(f"/{folder}/hot/{first}")
    assert waiter.join(PATIENCE).release()
    assert not holder.release()


@pytest.mark.usefixtures("long")
def test_a_waiter_whose_node_was_deleted_does_not_hold(
    zookeeper_server: Endpoint, locks: sync.Locks, folder: str
) -> None:
    holder = locks.acquire("hot")
    waiter = queued(locks, "hot")
    with kazoo(zookeeper_server.url) as other:
        mine = max(other.get_children(f"/{folder}/hot"), key=lambda node: names.sequence(node) or 0)
        foreign = other.create(f"/{folder}/hot/foreign-", b"", None, True, True)
        other.delete(f"/{folder}/hot/{mine}")
        assert holder.release()
        settled(locks, "hot", waiter)
        other.delete(foreign)
        assert waiter.join(PATIENCE).release()


@pytest.mark.usefixtures("long")
def test_a_base_that_was_raised_counts_for_who_waited(locks: sync.Locks) -> None:
    holder = locks.acquire("hot")
    waiter = queued(locks, "hot")
    above = 2 * holder.token + 10**12
    locks.bump("hot", above=above)
    assert holder.release()
    lease = waiter.join(PATIENCE)
    assert lease.token > above
    assert lease.release()


@pytest.mark.usefixtures("long")
def test_a_release_of_what_was_evicted_is_none(zookeeper_server: Endpoint, locks: sync.Locks, folder: str) -> None:
    holder = locks.acquire("hot")
    with kazoo(zookeeper_server.url) as other:
        [node] = other.get_children(f"/{folder}/hot")
        other.delete(f"/{folder}/hot/{node}")
    assert not holder.release()


@pytest.mark.usefixtures("long")
def test_a_holder_that_may_not_write_to_its_node_releases_it(zookeeper_server: Endpoint, folder: str) -> None:
    rights = [make_acl("world", "anyone", read=True, create=True, delete=True)]
    with kazoo(zookeeper_server.url) as other:
        other.ensure_path(f"/{folder}")
    client = KazooClient(f"{zookeeper_server.url.partition('://')[2]}/{folder}", default_acl=rights)
    with fencepost.connect(client, ttl=LONG) as locks:
        holder = locks.acquire("hot")
        waiter = queued(locks, "hot")
        assert holder.release()
        assert waiter.join(PATIENCE).release()
