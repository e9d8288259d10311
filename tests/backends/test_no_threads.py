"""A thread that cannot be started, at every start there is: each store goes on once threads can be started again."""

import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost.errors import FencepostError
from fencepost.fleet import Partitions
from tests.harness.leases import renew_soon
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import PATIENCE, until

SERVERS = [
    "redis_server",
    "redis_cluster",
    "redlock_servers",
    "etcd_server",
    "zookeeper_server",
    "consul_server",
    "postgres_server",
]

TTL = 60.0
MORE = {"consul_server": "?session_ttl_min=500ms", "redlock_servers": "?node_timeout=30s"}


class NthStart:
    """Lets the n-th thread that is not a test's own not start, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.left = number
        self.refused = ""
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if not thread.name.startswith("background"):
                self.left -= 1
                if self.left == 0:
                    self.refused = thread.name
                    raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


def tried(call: Callable[[], object]) -> None:
    """Make a call that may fail for want of a thread, and in no other way."""
    try:
        call()
    except FencepostError:
        pass
    except RuntimeError as error:
        if "thread" not in str(error):
            raise


def use(locks: sync.Locks, others: sync.Locks, name: str) -> None:
    """Hold, wait, be handed the lock, have it renewed, give it back."""
    held = others.acquire(name, timeout=PATIENCE)
    waiter = background(lambda: locks.acquire(name, timeout=PATIENCE))
    try:
        until(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiter])
        assert held.release()
        lease = waiter.result()
    except BaseException:  # nobody may still wait here when the next lock is used
        others.break_lock(name)
        tried(waiter.result)
        raise
    before = lease.deadline
    renew_soon(locks, lease)
    until(lambda: lease.deadline > before, "it is renewed")
    assert lease.release()


def lead(locks: sync.Locks, others: sync.Locks, name: str) -> None:
    """Lead for a term, be followed, and see it from outside."""
    with locks.election(name) as first, others.election(name) as second:
        terms, others_terms = iter(first), iter(second)
        term = next(terms)
        heir = background(lambda: next(others_terms))
        until(lambda: (held := locks.status(name)) and held.waiters, "it stands for election", watching=[heir])
        assert term.release()
        following = heir.result()
        assert following.token > term.token
        leader = second.leader()
        assert leader is not None
        assert leader.token == following.token


def serve(locks: sync.Locks, others: sync.Locks, name: str) -> None:
    """Share partitions, and take them over."""
    with Partitions(locks, name, 2, ttl=1) as stays:
        with Partitions(others, name, 2, ttl=1) as leaves:
            until(lambda: len([*stays]) == 1 == len([*leaves]), "each has one")
        until(lambda: len([*stays]) == 2, "it has taken over")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "work"),
    [*((store, use) for store in ("memory", "sqlite", *SERVERS)), ("sqlite", lead), ("sqlite", serve)],
)
def test_each_thread_that_cannot_be_started_costs_one_call_at_the_most(
    request: pytest.FixtureRequest,
    store: str,
    work: Callable[[sync.Locks, sync.Locks, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = []
    for number in range(1, 40):
        urls = {"memory": f"memory://{secrets.token_hex(4)}", "sqlite": f"sqlite://{tmp_path}/{number}.db"}
        url = urls.get(store) or request.getfixturevalue(store).url + MORE.get(store, "")
        name = f"threads-{secrets.token_hex(4)}"
        with monkeypatch.context() as patch:
            fault = NthStart(patch, number)
            with fencepost.connect(url, ttl=TTL) as locks, fencepost.connect(url, ttl=TTL) as others:
                tried(lambda: locks.acquire(name).release())  # noqa: B023
                tried(lambda: work(locks, others, f"{name}-1"))  # noqa: B023
                refused.append(fault.refused)
                fault.left = 0
                work(locks, others, f"{name}-2")
                for each in (locks, others):
                    background(each.close).result()
        if not refused[-1]:
            break
    assert len(refused) > 1, "there are threads"
    assert not refused[-1], "every start was refused once"
