"""Tokens grow, whatever Redis forgets; where it was told to keep plain counters, the guard notices."""

import contextlib
import secrets
from collections.abc import Callable, Iterator

import pytest
import redis

import fencepost
from fencepost.errors import BackendError, StaleToken, TokenClash
from fencepost.guards.memory import MemoryGuard
from fencepost.rule import MAX_TOKEN
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import HOST, Redis
from tests.backends.conftest import Own
from tests.harness.waiting import until


def crash(own: Own) -> None:
    own.server.kill()
    own.server.restart()
    assert own.client.dbsize() == 0, "nothing was to survive"


def flush(own: Own) -> None:
    own.client.flushall()


def evict(own: Own) -> None:
    counters = own.client.keys("*")
    own.client.config_set("maxmemory-policy", "allkeys-lru")
    used = own.client.info("memory")["used_memory"]
    own.client.config_set("maxmemory", used + 400_000)

    def evicted() -> bool:
        own.client.set(secrets.token_hex(8), "x" * 10_000)
        return not own.client.exists(*counters)

    until(evicted, "the counter is evicted", poll=0)  # Redis evicts what is oldest in a random sample
    for key in own.client.keys("*"):
        own.client.delete(key)
    own.client.config_set("maxmemory", 0)


LOSSES = [crash, flush, evict]


@pytest.mark.parametrize("lose", LOSSES)
def test_tokens_grow_although_redis_forgot_everything(own_redis: Own, lose: Callable[[Own], None]) -> None:
    with fencepost.connect(own_redis.url) as locks:
        before = [locks.acquire("a").release() and locks.acquire(f"b{number}").token for number in range(3)][-1]
        lose(own_redis)
        with locks.lock("a") as lease:
            assert lease.token > before


def test_tokens_grow_although_the_last_one_lies_ahead_of_the_clock(own_redis: Own) -> None:
    """As after the server's clock was set back by an hour."""
    with fencepost.connect(own_redis.url) as locks:
        with locks.lock("a") as lease:
            ahead = lease.token + 3_600_000_000
        own_redis.client.set("fencepost:lock:\x1ftoken", ahead)
        for expected in (ahead + 1, ahead + 2):
            with locks.lock("a") as lease:
                assert lease.token == expected


@pytest.mark.parametrize("lose", LOSSES)
def test_a_plain_counter_that_starts_again_is_refused_until_it_is_bumped(
    own_redis: Own, lose: Callable[[Own], None]
) -> None:
    guard = MemoryGuard[str]()
    with fencepost.connect(f"{own_redis.url}?fence=counter") as locks:
        for expected in (1, 2, 3):
            with locks.lock("a") as lease:
                assert lease.token == expected
                guard.write("a", "good", lease)
        lose(own_redis)
        for expected in (1, 2):
            with locks.lock("a") as lease:
                assert lease.token == expected, "the counter was to start again"
                with pytest.raises(StaleToken) as refused:
                    guard.write("a", "bad", lease)
        with locks.lock("a") as lease, pytest.raises(TokenClash):
            guard.write("a", "bad", lease)
        assert refused.value.seen == 3
        locks.bump("a", above=refused.value.seen)
        with locks.lock("a") as lease:
            guard.write("a", "good again", lease)
        assert guard.read("a", lease) == "good again"


@contextlib.contextmanager
def lagging() -> Iterator[tuple[Redis, Redis, Proxy]]:
    """A master and its replica, whose stream goes through a proxy."""
    with (
        Redis(args=["--repl-diskless-sync-delay", "0"]) as master,
        Proxy(master.port) as proxy,
        Redis(args=["--replicaof", HOST, str(proxy.port)]) as replica,
    ):
        link = redis.Redis(port=replica.port, decode_responses=True)
        until(
            lambda: link.info("replication")["master_link_status"] == "up",
            "the replica is in sync",
        )
        yield master, replica, proxy
        link.close()
        replica.kill()
        master.kill()


@pytest.mark.parametrize("fence", ["clock", "counter"])
def test_failing_over_to_a_lagging_replica(fence: str) -> None:
    guard = MemoryGuard[str]()
    with lagging() as (master, replica, proxy):
        there = redis.Redis(port=replica.port, decode_responses=True)
        counter = "fencepost:lock:\x1ftoken" if fence == "clock" else "fence:{fencepost:lock:a}"
        with fencepost.connect(f"{master.url}?fence={fence}", ttl=300) as locks:
            with locks.lock("a") as lease:
                control = lease.token
            until(
                lambda: there.get(counter) == str(control) and not there.exists("fencepost:lock:a"),
                "in sync before the cut",
            )
            proxy.cut()
            for _ in range(3):
                with locks.lock("a") as lease:
                    guard.write("a", "on the old master", lease)
                    last = lease.token
            until(lambda: proxy.held > 0, "the stream was to be cut")
        assert there.get(counter) == str(control), "the replica was to lag"
        there.replicaof("NO", "ONE")
        with fencepost.connect(f"{replica.url}?fence={fence}") as locks, locks.lock("a") as lease:
            if fence == "clock":
                assert lease.token > last
                guard.write("a", "on the new master", lease)
            else:
                assert lease.token <= last, "the counter was to run backwards"
                with pytest.raises((StaleToken, TokenClash)):
                    guard.write("a", "on the new master", lease)
        there.close()


@pytest.mark.parametrize("fence", ["clock", "counter"])
@pytest.mark.parametrize("above", [2**53 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 4])
def test_tokens_are_exact_beyond_what_lua_can_count(own_redis: Own, fence: str, above: int) -> None:
    with fencepost.connect(f"{own_redis.url}?fence={fence}") as locks:
        for each in (above - 1, above, above - 1):  # it goes up by one, and never down
            locks.bump("a", above=each, force=True)
        tokens = []
        for _ in range(3):
            with locks.lock("a") as lease:
                tokens.append(lease.token)
                lease.renew()
        assert tokens == [above + 1, above + 2, above + 3]


@pytest.mark.parametrize("fence", ["clock", "counter"])
def test_after_the_last_token_the_next_step_is_named(own_redis: Own, fence: str) -> None:
    with fencepost.connect(f"{own_redis.url}?fence={fence}") as locks:
        locks.bump("a", above=MAX_TOKEN - 1, force=True)
        locks.acquire("a").release()
        with pytest.raises(BackendError, match=r"another \?prefix=") as raised:
            locks.acquire("a")
        assert not raised.value.ambiguous
        assert locks.status("a") is None


def test_locks_that_were_used_leave_nothing_behind(own_redis: Own) -> None:
    client = own_redis.client
    with fencepost.connect(own_redis.url) as locks:
        used = []
        for start in (0, 2_000, 4_000):
            for number in range(start, start + 2_000):
                locks.acquire(f"lock {number}").release()
            used.append(client.info("memory")["used_memory_dataset"])
        assert client.dbsize() == 1
        assert own_redis.keys() == set()
        # A key takes 60 bytes and more. What the clients' buffers take, some 20 kB, comes and goes.
        assert used[2] - used[1] < 2_000 * 20, "less than twenty bytes for each lock"


def test_a_counter_that_somebody_set_below_0_grants_nothing(own_redis: Own) -> None:
    with fencepost.connect(f"{own_redis.url}?fence=counter") as locks:
        own_redis.client.set("fence:{fencepost:lock:a}", -5)
        with pytest.raises(BackendError, match="set below 0"):
            locks.acquire("a")
        assert locks.status("a") is None
        assert locks.acquire("b").release()
