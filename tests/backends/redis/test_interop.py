"""fencepost and any client that locks with SET NX PX exclude each other, both ways."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

import fencepost
from fencepost import sync
from fencepost.errors import BackendError
from fencepost_lab.experiments.buggy_release import buggy_release
from tests.backends.conftest import Own
from tests.harness.waiting import PATIENCE, until


def waiting(locks: sync.Locks, name: str, ttl: float = 300.0) -> tuple[threading.Thread, list[sync.Lease]]:
    """One who waits on a thread of its own, already in the queue."""
    got: list[sync.Lease] = []
    thread = threading.Thread(target=lambda: got.append(locks.acquire(name, ttl=ttl)), daemon=True)
    thread.start()

    def queued() -> bool:
        status = locks.status(name)
        return status is not None and len(status.waiters) == 1

    until(queued, "it is in the queue")
    return thread, got


def test_redis_py_keeps_fencepost_out_and_its_release_wakes_the_waiter(own_redis: Own) -> None:
    foreign = Lock(own_redis.client, "fencepost:lock:a", timeout=300)
    assert foreign.acquire()
    with fencepost.connect(own_redis.url) as locks:
        assert locks.try_acquire("a") is None
        status = locks.status("a")
        assert status is not None
        assert (status.holder, status.token) == (foreign.local.token.decode(), 0)
        for value in (f"h:{'9' * 5000}", f"h:{2**63}", "h:\u0663", ":7", "\x1b[31m"):  # no token ends in these
            own_redis.client.set("fencepost:lock:odd", value, px=300_000)
            own_redis.client.set("fencepost:lock:node", value, px=300_000)
            assert [(each.name, each.token) for each in locks.list()] == [("a", 0), ("node", 0), ("odd", 0)]
            with fencepost.connect(own_redis.url.replace("redis://", "redlock://")) as node:
                assert [(each.name, each.holder, each.token) for each in node.list("node")] == [("node", value, 0)]
        thread, got = waiting(locks, "a")
        assert not got
        foreign.release()
        thread.join(10)
        assert got
        assert not Lock(own_redis.client, "fencepost:lock:a", timeout=300).acquire(blocking=False)
        assert got[0].release()


@pytest.mark.parametrize("end", ["it expires", "somebody deletes it"])
def test_the_end_of_a_foreign_key_wakes_the_waiter(own_redis: Own, end: str) -> None:
    own_redis.client.set("fencepost:lock:a", "somebody", nx=True, px=5000 if end == "it expires" else None)
    with fencepost.connect(own_redis.url) as locks:
        thread, got = waiting(locks, "a")
        if end != "it expires":
            own_redis.client.delete("fencepost:lock:a")
        thread.join(PATIENCE)
        assert got
        assert got[0].release()


def test_waiting_for_a_foreign_holder_costs_the_same_for_one_waiter_and_for_fifty(own_redis: Own) -> None:
    own_redis.client.set("fencepost:lock:a", "somebody", nx=True)
    with fencepost.connect(own_redis.url) as locks:
        threads = [threading.Thread(target=lambda: locks.acquire("a").release(), daemon=True) for _ in range(50)]
        for thread in threads:
            thread.start()
        until(lambda: own_redis.client.zcard("fencepost:lock:a\x1fqueue") == 50, "the queue is that long")
        before = own_redis.requests()
        until(lambda: own_redis.requests() >= before + 5, "the look-out looks")
        polled = own_redis.requests() - before
        assert polled < 20, "one look-out, not fifty"
        own_redis.client.delete("fencepost:lock:a")
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert own_redis.keys() == set()


def test_fencepost_keeps_redis_py_out_until_it_releases(own_redis: Own) -> None:
    foreign = Lock(own_redis.client, "fencepost:lock:a", timeout=300)
    with fencepost.connect(own_redis.url) as locks:
        with locks.lock("a"):
            assert not foreign.acquire(blocking=False)
            foreign.local.token = b"not the holder"
            with pytest.raises(LockNotOwnedError):
                foreign.release()
            assert locks.status("a")
        assert foreign.acquire(blocking=False)
        foreign.release()


def test_redis_py_gets_a_lock_only_once_nobody_is_in_the_queue(own_redis: Own) -> None:
    """Its turn comes between a holder and the next one, and there is no such moment while somebody waits here."""
    foreign = Lock(own_redis.client, "fencepost:lock:a", timeout=300)
    with fencepost.connect(own_redis.url, ttl=300) as locks:
        lease = locks.acquire("a")
        for _ in range(5):
            thread, got = waiting(locks, "a")
            assert lease.release()
            assert not foreign.acquire(blocking=False)
            thread.join(PATIENCE)
            (lease,) = got
        assert lease.release()
        assert foreign.acquire(blocking=False)
        foreign.release()


def test_the_prefix_says_which_key_is_the_lock(own_redis: Own) -> None:
    with fencepost.connect(f"{own_redis.url}?prefix=") as locks, locks.lock("account/42") as lease:
        assert own_redis.client.get("account/42") == f"{lease._stored}:{lease.token}"
        assert 14_000 < own_redis.client.pttl("account/42") <= 15_152, "a little longer than its holder counts on it"
        own_redis.client.set("not a lock", "1")
        assert [status.name for status in locks.list()] == ["account/42"]


def test_a_key_that_is_no_lock_is_left_alone(own_redis: Own) -> None:
    own_redis.client.hset("fencepost:lock:a", "field", "value")
    with fencepost.connect(own_redis.url) as locks, pytest.raises(BackendError, match="prefix") as raised:
        locks.acquire("a", timeout=5)
    assert not raised.value.ambiguous
    assert own_redis.client.hgetall("fencepost:lock:a") == {"field": "value"}


def test_get_then_del_deletes_somebody_elses_lock_and_our_release_does_not(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as locks, redis.Redis(port=own_redis.server.port) as client:

        def replaced(lease: sync.Lease) -> sync.Lease:
            """Its lease runs out, and somebody else acquires."""
            assert client.delete("fencepost:lock:a")
            return locks.acquire("a")

        first = locks.acquire("a")
        value = f"{first._stored}:{first.token}".encode()
        second: list[sync.Lease] = []
        assert buggy_release(client, "fencepost:lock:a", value, lambda: second.append(replaced(first)))
        assert second
        assert locks.status("a") is None, "the second holder's lock was to be deleted by the first"

        first = locks.acquire("a")
        later = replaced(first)
        assert first.release() is False
        status = locks.status("a")
        assert status is not None
        assert status.token == later.token


def test_a_lock_whose_key_became_something_else_takes_no_other_lock_along(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as locks:
        leases = [locks.acquire(name, ttl=4) for name in ("a", "b", "c")]
        own_redis.client.delete("fencepost:lock:a")
        own_redis.client.hset("fencepost:lock:a", "no", "lock")
        until(lambda: leases[0].lost, "the first lease is lost")
        until(lambda: leases[1].deadline > leases[0].deadline + 4, "only the second is renewed")
        assert [lease.reason for lease in leases[1:]] == [None, None]
        with pytest.raises(BackendError, match="WRONGTYPE"):
            locks.status("a")


def test_a_foreign_key_without_expiry_is_shown_as_one_and_as_json(own_redis: Own) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    own_redis.client.set("fencepost:lock:a", "somebody")
    for command, said in ((["show", "a"], "holder somebody, no expiry"), (["ls"], "-        0  somebody")):
        shown = [sys.executable, "-m", "fencepost", *command, "--backend", own_redis.url]
        assert said in subprocess.check_output(shown, text=True)
        facts = json.loads(subprocess.check_output([*shown, "--json"]), parse_constant=refuse)
        assert (facts[0] if command == ["ls"] else facts)["remaining"] is None


def round_trips(own: Own, work: Callable[[], object]) -> int:
    """How often the server read from a socket meanwhile, as it counts itself."""
    before = own.client.info("stats")["total_reads_processed"]
    work()
    return int(own.client.info("stats")["total_reads_processed"] - before)


def test_many_locks_are_listed_in_few_round_trips(own_redis: Own) -> None:
    names = sorted(f"many/{number}" for number in range(250))
    with fencepost.connect(own_redis.url) as locks:
        for number, name in enumerate(names, 1):
            own_redis.client.set(f"fencepost:lock:{name}", f"h:{number}", px=300_000)
        assert [(each.name, each.token) for each in locks.list("many/")] == [*zip(names, range(1, 251), strict=True)]
        own_redis.client.script_flush()  # so that each question of a batch is asked again
        assert [each.name for each in locks.list("many/")] == names
        assert round_trips(own_redis, lambda: locks.list("many/")) < 20
