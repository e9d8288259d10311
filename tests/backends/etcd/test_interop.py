"""fencepost and etcdctl lock exclude each other, holding and waiting, on the very same keys."""

import base64
import contextlib
import secrets
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import sync
from tests.backends.etcd.tools import LONG, Native, etcdctl
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until


@pytest.fixture(params=["etcd_server", "etcd_cluster"])
def url(request: pytest.FixtureRequest) -> str:
    server: Endpoint = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture
def locks(url: str) -> Iterator[sync.Locks]:
    with fencepost.connect(url, ttl=LONG) as connected:
        yield connected


@pytest.fixture
def name() -> str:
    return f"interop-{secrets.token_hex(6)}/lock"


def waiting(locks: sync.Locks, name: str, count: int) -> bool:
    status = locks.status(name)
    return status is not None and len(status.waiters) == count


def test_while_etcdctl_holds_fencepost_waits(url: str, locks: sync.Locks, name: str) -> None:
    got: list[sync.Lease] = []
    with Native(url, name) as native:
        until(native.has_it, "it has the lock")
        assert locks.try_acquire(name) is None
        waiter = background(lambda: got.append(locks.acquire(name, timeout=LONG)))
        until(lambda: waiting(locks, name, 1), "one waits")
        assert not got
        status = locks.status(name)
        assert status is not None
        assert f"{name}/{status.holder}" == native.output[0], "a foreign holder goes by its lease"
        native.release()
        waiter.join(PATIENCE)
        assert got[0].token > status.token
        assert got[0].release()


def test_while_fencepost_holds_etcdctl_waits(url: str, locks: sync.Locks, name: str) -> None:
    lease = locks.acquire(name)
    with Native(url, name) as native:
        until(lambda: waiting(locks, name, 1), "one waits")
        assert not native.has_it()
        assert lease.release()
        until(native.has_it, "it has the lock")
        assert locks.try_acquire(name) is None


def test_both_stand_in_one_line(url: str, locks: sync.Locks, name: str) -> None:
    lease = locks.acquire(name)
    got: list[sync.Lease] = []
    with Native(url, name) as first:
        until(lambda: waiting(locks, name, 1), "one waits")
        ours = background(lambda: got.append(locks.acquire(name, timeout=LONG)))
        until(lambda: waiting(locks, name, 2), "two wait")
        with Native(url, name) as last:
            until(lambda: waiting(locks, name, 3), "three wait")
            assert lease.release()
            until(first.has_it, "it has the lock")
            assert not got
            first.release()
            ours.join(PATIENCE)
            assert got
            assert not last.has_it()
            assert got[0].release()
            until(last.has_it, "it has the lock")


def test_a_killed_etcdctl_is_succeeded_at_its_ttl(url: str, locks: sync.Locks, name: str) -> None:
    with Native(url, name, ttl=2) as native:
        until(native.has_it, "it has the lock")
        native.kill()
        assert locks.acquire(name, timeout=PATIENCE).release()


def test_an_evicted_etcdctl_makes_room(url: str, locks: sync.Locks, name: str) -> None:
    with Native(url, name) as native:
        until(native.has_it, "it has the lock")
        ended = locks.break_lock(name)
        assert ended is not None
        assert f"{name}/{ended.holder}" == native.output[0]
        assert locks.acquire(name, timeout=PATIENCE).release()


def test_a_key_is_named_after_its_lease_and_tells_its_holder(url: str, locks: sync.Locks, name: str) -> None:
    lease = locks.acquire(name)
    found = etcdctl(url, "get", "--prefix", f"{name}/")
    (entry,) = found["kvs"]
    assert base64.b64decode(entry["key"]).decode() == f"{name}/{entry['lease']:x}"
    assert base64.b64decode(entry["value"]).decode() == lease._stored
    assert entry["create_revision"] == lease.token
    assert lease.release()


@pytest.mark.parametrize("below", ["/b", "/abc", "/b/c", "/", "//", "/0", "/ä"])
def test_a_name_below_another_is_another_lock(locks: sync.Locks, name: str, below: str) -> None:
    """etcd's own clients take name/b/<lease> for a contender of name; that must not make two of ours meet."""
    with contextlib.ExitStack() as held:
        for one, two in ((name, name + below), (f"{name}-2{below}", f"{name}-2")):
            first, second = locks.try_acquire(one), locks.try_acquire(two)
            assert first is not None
            assert second is not None
            held.callback(first.release)
            held.callback(second.release)
            assert locks.try_acquire(one) is None
            assert locks.try_acquire(two) is None
            names = [each.name for each in locks.list(name)]
            assert {one, two} <= set(names)


def test_a_key_without_a_lease_below_a_name_does_not_contend(url: str, locks: sync.Locks, name: str) -> None:
    """Such as a setting of the same program: it would hold the lock forever."""
    etcdctl(url, "put", f"{name}/before", "x")
    assert locks.status(name) is None
    lease = locks.try_acquire(name)
    assert lease is not None
    etcdctl(url, "put", f"{name}/between", "x")
    waiter = background(lambda: locks.acquire(name, timeout=LONG))
    until(lambda: waiting(locks, name, 1), "one waits", watching=[waiter])
    assert lease.release()
    assert waiter.result().release()
    assert len(etcdctl(url, "get", "--prefix", f"{name}/")["kvs"]) == 2, "they are left alone"


def test_a_line_forms_past_the_locks_below(locks: sync.Locks, name: str) -> None:
    under = [locks.acquire(f"{name}/{each}") for each in range(3)]
    lease = locks.acquire(name)
    under += [locks.acquire(f"{name}/{each}") for each in range(3, 6)]
    got: list[sync.Lease] = []
    waiter = background(lambda: got.append(locks.acquire(name, timeout=LONG)))
    until(lambda: waiting(locks, name, 1), "one waits")
    assert lease.release()
    waiter.join(PATIENCE)
    assert got[0].token > lease.token
    assert all(each.release() for each in [*under, *got])
