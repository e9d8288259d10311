"""ZooKeeper and Consul that crash, hang or cannot be reached: holders learn of it in time, waiters recover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from kazoo.protocol.serialization import GetChildren

import fencepost
from fencepost import sync
from fencepost.driver import boottime
from fencepost.errors import BackendError, LeaseLost
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import Consul, ZooKeeper
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import PATIENCE, until

TTL = 4.0
FAST = ["-hcl", 'session_ttl_min = "500ms"']


@dataclass
class Kind:
    """A store of the test's own, and the URL that reaches it at an address."""

    server: ZooKeeper | Consul

    def url(self, address: str = "", patience: float = 3.0) -> str:
        if isinstance(self.server, ZooKeeper):
            return f"zk://{address or self.server.address}/locks?connect_timeout={patience:g}s"
        options = f"session_ttl_min=500ms&timeout={patience:g}s&connect_timeout={patience:g}s"
        return f"consul://{address or self.server.address}/locks?{options}"


@pytest.fixture(scope="module", params=[ZooKeeper, lambda: Consul(args=FAST)], ids=["zookeeper", "consul"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with request.param() as server:
        yield Kind(server)


@pytest.fixture
def proxy(kind: Kind) -> Iterator[Proxy]:
    with Proxy(kind.server.port) as between:
        yield between


class Waiter:
    """Somebody who waits for a lock, and when he got it."""

    def __init__(self, locks: sync.Locks, name: str) -> None:
        self.lease: sync.Lease | None = None
        self.at = 0.0
        self._locks, self._name = locks, name
        self.thread = background(self._wait)
        # Not as soon as the store shows it in its queue: the answer to that request may not have come yet, and a test
        # that breaks the connection now would break the request, which is an error.
        known = "it is queued, and knows it"
        until(lambda: known_to_wait(locks) == 1 or self.lease is not None, known, watching=[self.thread])

    def _wait(self) -> None:
        lease = self._locks.acquire(self._name, timeout=PATIENCE)
        self.at = boottime()
        self.lease = lease

    def got_it(self) -> sync.Lease:
        until(lambda: self.lease is not None, "it gets the lock")
        assert self.lease is not None
        return self.lease


def learns(lease: sync.Lease, upset: Callable[[], None]) -> None:
    """Upset the store, and wait for the news, which comes although nothing can be heard from the store."""
    upset()
    assert lease.ended.wait(PATIENCE)
    with pytest.raises(LeaseLost):
        lease.check()


def pausing(server: ZooKeeper | Consul) -> Callable[[], None]:
    return server.pause


def killing(server: ZooKeeper | Consul) -> Callable[[], None]:
    return server.kill


@pytest.mark.parametrize("upset", [pausing, killing], ids=["SIGSTOP", "SIGKILL"])
def test_a_server_that_is_gone_for_longer_than_the_ttl(kind: Kind, upset: Callable[..., Callable[[], None]]) -> None:
    server = kind.server
    name = f"gone-{upset.__name__}"
    patient = kind.url(patience=PATIENCE)  # it is asked while its client may not be connected again
    with fencepost.connect(patient, ttl=TTL) as here, fencepost.connect(kind.url(), ttl=TTL) as there:
        lease = here.acquire(name)
        waiter = Waiter(there, name)
        try:
            learns(lease, upset(server))
            assert waiter.lease is None
        finally:
            if server.running:
                server.resume()
            else:
                server.restart()
        assert waiter.got_it().token > lease.token, "it recovered without help"
        assert waiter.got_it().release()
        with here.lock(name, timeout=PATIENCE) as again:
            assert again.token > lease.token, "and so did the old holder's client"


def test_a_server_that_is_back_in_time_costs_nobody_a_lease(kind: Kind) -> None:
    with fencepost.connect(kind.url(), ttl=30) as here, fencepost.connect(kind.url(), ttl=30) as there:
        lease = here.acquire("back")
        waiter = Waiter(there, "back")
        kind.server.kill()
        kind.server.restart()
        until(lambda: renewed(lease), "the lease is renewed")
        assert not lease.lost
        assert waiter.lease is None, "the lock survived as well"
        assert lease.release()
        assert waiter.got_it().token > lease.token


def renewed(lease: sync.Lease) -> bool:
    try:
        lease.renew()
    except BackendError:
        return False
    return True


def test_a_holder_that_is_cut_off_learns_before_anybody_else_gets_the_lock(kind: Kind, proxy: Proxy) -> None:
    with fencepost.connect(kind.url(proxy.address), ttl=TTL) as here, fencepost.connect(kind.url(), ttl=TTL) as there:
        lease = here.acquire("cut")
        waiter = Waiter(there, "cut")
        learns(lease, proxy.cut)
        after = waiter.got_it()
        assert proxy.held > 0, "something was to be held back"
        assert after.token > lease.token
        assert waiter.at > lease.deadline
        proxy.heal()
        assert lease.release() is False
        after.check()


def test_a_broken_connection_costs_nobody_a_lease(kind: Kind, proxy: Proxy) -> None:
    with fencepost.connect(kind.url(proxy.address), ttl=30) as here, fencepost.connect(kind.url(), ttl=30) as there:
        lease, watched = here.acquire("broken"), here.acquire("watched")
        watched.renew()  # from now on ZooKeeper tells what becomes of its node, and of the connection
        proxy.drop()
        for each in (lease, watched):
            until(partial(renewed, each), "the lease is renewed")
            assert there.try_acquire(each.name) is None
            assert each.release()


def test_the_deadline_is_counted_from_before_the_request(kind: Kind, proxy: Proxy) -> None:
    """The store begins to count when it carries the request out; its answer may come much later."""
    with fencepost.connect(kind.url(proxy.address, PATIENCE), ttl=300) as locks:
        proxy.lose_answer_to(b"session/create" if isinstance(kind.server, Consul) else b"counted")
        asking = background(lambda: locks.acquire("counted"))
        until(lambda: proxy.held > 0, "the answer is held back", watching=[asking])
        carried_out = boottime()
        proxy.heal()
        lease = asking.result()
        assert lease.deadline - lease.ttl < carried_out
        assert lease.release()


def test_a_waiter_counts_its_deadline_from_before_it_asked(kind: Kind, proxy: Proxy) -> None:
    url = kind.url(proxy.address, PATIENCE)
    with fencepost.connect(url, ttl=300) as here, fencepost.connect(kind.url(), ttl=300) as there:
        holder = there.acquire("turn")
        waiter = Waiter(here, "turn")
        looks = bytes(GetChildren("/locks/turn", None).serialize())
        proxy.lose_answer_to(b'"lock"' if isinstance(kind.server, Consul) else looks)
        assert holder.release()
        until(lambda: proxy.held > 0, "the answer is held back", watching=[waiter.thread])
        carried_out = boottime()
        proxy.heal()
        lease = waiter.got_it()
        assert lease.deadline - lease.ttl < carried_out
        assert lease.release()


def test_a_waiter_outlives_a_broken_connection(kind: Kind, proxy: Proxy) -> None:
    with fencepost.connect(kind.url(proxy.address), ttl=30) as here, fencepost.connect(kind.url(), ttl=30) as there:
        lease = there.acquire("outlive")
        waiter = Waiter(here, "outlive")
        proxy.drop()
        until(lambda: there.try_acquire("outlive") is None, "somebody holds it")
        assert lease.release()
        assert waiter.got_it().token > lease.token


def test_an_acquire_whose_answer_is_lost_leaves_nothing_behind(kind: Kind, proxy: Proxy) -> None:
    """The store carries it out, nobody hears of it, and the session lives on for other leases."""
    url = kind.url(proxy.address, PATIENCE)  # or it would give up by itself, and clean up, before anybody has looked
    with fencepost.connect(url, ttl=60) as here, fencepost.connect(kind.url(), ttl=60) as there:
        other = here.acquire("another")
        assert there.acquire("doubt").release(), "it has been used before"
        proxy.lose_answer_to(b"doubt")
        failed: list[BackendError] = []

        def ask() -> None:
            with pytest.raises(BackendError) as raised:
                here.acquire("doubt", timeout=PATIENCE)
            failed.append(raised.value)

        asking = background(ask)
        until(lambda: there.status("doubt") is not None, "the store carried it out")
        until(lambda: proxy.held > 0, "its answer is held back")
        proxy.drop()
        proxy.heal()
        asking.join(PATIENCE)
        assert failed[0].ambiguous
        assert there.acquire("doubt", timeout=PATIENCE / 2).release(), "long before the session could expire"
        until(lambda: renewed(other), "the other is renewed")
        assert other.release()


def test_a_waiter_whose_answer_is_lost_gets_its_lock_all_the_same(kind: Kind, proxy: Proxy) -> None:
    with fencepost.connect(kind.url(proxy.address), ttl=60) as here, fencepost.connect(kind.url(), ttl=60) as there:
        lease = there.acquire("late")
        waiter = Waiter(here, "late")
        proxy.lose_answer_to(b'"lock"' if isinstance(kind.server, Consul) else b"late")
        assert lease.release()
        until(lambda: proxy.held > 0, "its answer was to be held back")
        proxy.drop()
        proxy.heal()
        until(lambda: waiter.lease is not None, "before any session expires", deadline=PATIENCE / 2)
        assert waiter.got_it().token > lease.token
        assert waiter.got_it().release()
        assert there.acquire("late", timeout=PATIENCE / 2).release()


def test_a_release_that_never_arrived_is_made_up_for(kind: Kind, proxy: Proxy) -> None:
    """Its session lives on for other leases, so no ttl would end it."""
    with fencepost.connect(kind.url(proxy.address), ttl=60) as here, fencepost.connect(kind.url(), ttl=60) as there:
        lease, other = here.acquire("given"), here.acquire("kept")
        proxy.cut()
        failed: list[BackendError] = []

        def give() -> None:
            with pytest.raises(BackendError) as raised:
                lease.release()
            failed.append(raised.value)

        giving = background(give)
        until(lambda: proxy.holds(b"given"), "the release was to be held back")
        proxy.drop()
        proxy.heal()
        giving.join(PATIENCE)
        assert failed[0].ambiguous
        until(lambda: renewed(other), "the other is renewed")
        assert there.acquire("given", timeout=PATIENCE / 2).token > lease.token
        assert other.release()


def test_a_store_that_is_not_there_is_named(kind: Kind) -> None:
    with fencepost.connect(kind.url("127.0.0.1:1")) as locks, pytest.raises(BackendError) as failed:
        locks.acquire("x", timeout=5)
    assert "127.0.0.1:1" in str(failed.value)
    assert not failed.value.ambiguous
