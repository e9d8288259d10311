"""``?pollers=``: a busy lock is left free now and then, for clients that only try SET NX every so often."""

import pytest
from redis.lock import Lock

import fencepost
from fencepost.errors import ConfigError
from tests.backends.conftest import Own
from tests.backends.redis.test_interop import waiting
from tests.harness.waiting import PATIENCE

KEY = "fencepost:lock:a"
GAP, TURN = f"{KEY}\x1fqueue\x1fgap", f"{KEY}\x1fqueue\x1fturn"


def test_a_release_leaves_the_lock_free_for_a_client_that_polls_and_the_next_hands_it_on(own_redis: Own) -> None:
    foreign = Lock(own_redis.client, KEY, timeout=300)
    with fencepost.connect(f"{own_redis.url}?pollers=5s", ttl=300) as locks:
        lease = locks.acquire("a")
        thread, got = waiting(locks, "a")
        assert lease.release()
        assert own_redis.client.pttl(GAP) > 0
        assert locks.try_acquire("a") is None, "in a gap the lock is for others, though it is free"
        assert foreign.acquire(blocking=False)
        assert not got
        own_redis.client.delete(GAP)  # it is over
        foreign.release()
        thread.join(PATIENCE)
        (lease,) = got
        assert own_redis.client.pttl(TURN) > own_redis.client.pttl(GAP)
        thread, got = waiting(locks, "a")
        assert lease.release()
        assert not foreign.acquire(blocking=False), "it is the turn of those in the queue"
        thread.join(PATIENCE)
        assert got[0].release()
        assert own_redis.keys() <= {TURN}


@pytest.mark.parametrize("cluster", [False, True], ids=["one server", "a cluster"])
def test_a_gap_that_no_client_uses_ends_by_itself(cluster: bool, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("redis_cluster" if cluster else "own_redis").url
    with fencepost.connect(f"{url}?pollers=50ms&prefix=gaps:", ttl=300) as locks:
        lease = locks.acquire("a")
        thread, got = waiting(locks, "a")
        assert lease.release()
        thread.join(PATIENCE)
        assert got[0].token > lease.token
        assert got[0].release()


def test_without_waiters_there_is_no_gap(own_redis: Own) -> None:
    with fencepost.connect(f"{own_redis.url}?pollers=10s") as locks:
        for _ in range(3):
            assert locks.acquire("a", timeout=9).release()
        with locks.shared("a"), locks.shared("a"):
            pass
        assert own_redis.keys() == set()


def test_shared_locks_keep_to_the_gap_too(own_redis: Own) -> None:
    with fencepost.connect(f"{own_redis.url}?pollers=5s", ttl=300) as locks:
        reader = locks.shared("a").acquire()
        thread, got = waiting(locks, "a")
        assert reader.release()
        assert own_redis.client.pttl(GAP) > 0
        assert locks.shared("a").try_acquire() is None
        own_redis.client.delete(GAP)
        thread.join(PATIENCE)
        assert got[0].release()


@pytest.mark.parametrize("text", ["0", "11s", "often"])
def test_a_gap_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="pollers"):
        fencepost.connect(f"redis://localhost?pollers={text}")
