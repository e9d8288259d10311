"""fencepost's terms and kazoo's Election run in one election, and see each other lead."""

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost import sync
from tests.backends.zookeeper.tools import LONG, kazoo
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until


@pytest.fixture
def folder() -> str:
    return secrets.token_hex(6)


@pytest.fixture
def locks(zookeeper_server: Endpoint, folder: str) -> Iterator[sync.Locks]:
    with fencepost.connect(f"{zookeeper_server.url}/{folder}", ttl=LONG) as connected:
        yield connected


@pytest.fixture
def client(zookeeper_server: Endpoint) -> Iterator[Any]:
    with kazoo(zookeeper_server.url) as connected:
        yield connected


def candidates(locks: sync.Locks, name: str) -> int:
    status = locks.status(name)
    return 0 if status is None else 1 + len(status.waiters)


def test_kazoo_succeeds_a_term_and_a_term_succeeds_kazoo(locks: sync.Locks, client: Any, folder: str) -> None:
    terms = iter(locks.election("scheduler", metadata="10.0.0.5:8080"))
    term = next(terms)
    election = client.Election(f"/{folder}/scheduler", "native")
    assert election.contenders() == ["10.0.0.5:8080"]
    leads, done = threading.Event(), threading.Event()

    def lead() -> None:
        leads.set()
        done.wait(PATIENCE)

    background(lambda: election.run(lead))
    until(lambda: candidates(locks, "scheduler") == 2, "two candidates")
    assert not leads.is_set()
    again: list[sync.Lease] = []
    runs = background(lambda: again.append(next(terms)))
    assert leads.wait(PATIENCE)
    leader = locks.election("scheduler").leader()
    assert leader is not None
    assert (leader.metadata, leader.holder) == ("native", f"{election.lock.prefix.partition('_')[0]}@native")
    assert leader.token > term.token
    until(
        lambda: election.contenders() == ["native", "10.0.0.5:8080"],
        "both contend",
    )
    assert not again
    done.set()
    runs.join(PATIENCE)
    assert again[0].token > leader.token
    terms.close()


def test_our_observer_sees_kazoo_come_and_go(locks: sync.Locks, client: Any, folder: str) -> None:
    changes = locks.election("scheduler").changes()
    assert next(changes) is None
    election = client.Election(f"/{folder}/scheduler", "native")
    done = threading.Event()
    background(lambda: election.run(done.wait, PATIENCE))
    leader = next(changes)
    assert leader is not None
    assert leader.metadata == "native"
    done.set()
    assert next(changes) is None


@pytest.mark.parametrize("layout", ["kazoo", "curator", "zookeeper"])
def test_a_leader_is_known_by_its_node_in_every_layout(zookeeper_server: Endpoint, folder: str, layout: str) -> None:
    url = f"{zookeeper_server.url}/{folder}?layout={layout}"
    with fencepost.connect(url, ttl=LONG) as here, fencepost.connect(url, ttl=LONG) as there:
        terms = iter(here.election("scheduler", metadata="10.0.0.5:8080"))
        term = next(terms)
        leader = there.election("scheduler").leader()
        assert leader is not None
        assert (leader.holder, leader.metadata) == (term.holder, "10.0.0.5:8080")
        terms.close()
