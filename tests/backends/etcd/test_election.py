"""fencepost's terms and ``etcdctl elect`` run in one election, and see each other lead."""

import secrets
import signal
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import sync
from tests.backends.etcd.tools import LONG, command
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until


class Elect(Child):
    """``etcdctl elect``: with a proposal it runs, and leads until it is ended; without, it prints each leader."""

    def __init__(self, url: str, name: str, proposal: str = "") -> None:
        what = [name, proposal] if proposal else ["--listen", name]
        super().__init__(command(url, "elect", *what))

    def resign(self) -> None:
        """End it once it knows that it leads: before that it leaves its key behind, for a minute."""
        until(lambda: bool(self.output), "etcdctl leads")
        self.signal(signal.SIGTERM)
        self.wait()


@pytest.fixture
def locks(etcd_server: Endpoint) -> Iterator[sync.Locks]:
    with fencepost.connect(etcd_server.url, ttl=LONG) as connected:
        yield connected


@pytest.fixture
def name() -> str:
    return f"election-{secrets.token_hex(6)}"


def candidates(locks: sync.Locks, name: str) -> int:
    status = locks.status(name)
    return 0 if status is None else 1 + len(status.waiters)


def test_etcdctl_succeeds_a_term_and_a_term_succeeds_etcdctl(
    etcd_server: Endpoint, locks: sync.Locks, name: str
) -> None:
    terms = iter(locks.election(name, metadata="10.0.0.5:8080"))
    term = next(terms)
    with Elect(etcd_server.url, name, "native") as native:
        until(lambda: candidates(locks, name) == 2, "two candidates")
        assert not native.output
        again: list[sync.Lease] = []
        runs = background(lambda: again.append(next(terms)))
        until(lambda: bool(native.output), "etcdctl leads")
        leader = locks.election(name).leader()
        assert leader is not None
        assert leader.metadata == "native"
        assert leader.token > term.token
        until(lambda: candidates(locks, name) == 2, "two candidates")
        assert not again
        native.resign()
        runs.join(PATIENCE)
        assert again[0].token > leader.token
    terms.close()


def test_etcdctl_observes_our_leaders_with_their_metadata(etcd_server: Endpoint, locks: sync.Locks, name: str) -> None:
    with Elect(etcd_server.url, name) as observer:
        for address in ("10.0.0.5:8080", "10.0.0.6:8080"):
            terms = iter(locks.election(name, metadata=address))
            next(terms)
            assert observer.heard(address, PATIENCE)
            terms.close()


def test_our_observer_sees_etcdctl_come_and_go(etcd_server: Endpoint, locks: sync.Locks, name: str) -> None:
    changes = locks.election(name).changes()
    assert next(changes) is None
    with Elect(etcd_server.url, name, "native") as native:
        leader = next(changes)
        assert leader is not None
        assert leader.metadata == "native"
        native.resign()
        assert next(changes) is None
