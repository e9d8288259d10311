"""The compat locks of redlock-py and pottery: a token that a majority remembers, on the keys of the original."""

import pickle
import time
from collections.abc import Iterator
from typing import Any

import pottery as original_pottery
import pytest
import redis
import redis.asyncio
import redlock as original

import fencepost
from fencepost.compat import pottery, redlock
from fencepost.driver import boottime
from fencepost.errors import ConfigError, StaleToken
from fencepost.events import Event
from fencepost.guards.memory import MemoryGuard
from fencepost_lab.servers import HOST
from fencepost_lab.servers.redis_groups import Independent
from tests.harness.servers import running
from tests.harness.waiting import GIVES_UP, run, until


@pytest.fixture(scope="module")
def started() -> Iterator[Independent]:
    with running(Independent(size=3)) as servers:
        yield servers


@pytest.fixture
def servers(started: Independent) -> Iterator[Independent]:
    yield started
    for member in started.members:
        if not member.running:
            member.restart()
        with redis.Redis(HOST, member.port) as client:
            client.flushall()


@pytest.fixture
def clients(servers: Independent) -> Iterator[list[Any]]:
    found = [redis.Redis(HOST, member.port) for member in servers.members]
    yield found
    for client in found:
        client.close()


class TestRedlockPy:
    def test_a_pickled_lock_unlocks_and_has_no_lease(self, clients: list[Any]) -> None:
        manager = redlock.Redlock(clients, 1, 0.01)
        held: Any = manager.lock(10**15, 300_000)  # type: ignore[arg-type]  # redlock-py takes numbers
        assert held.lease.name == str(10**15)
        copy = pickle.loads(pickle.dumps(held))
        assert copy == held
        assert copy.lease is None
        manager.unlock(copy)
        assert not clients[0].exists(10**15)

    def test_old_and_new_exclude_each_other_and_tokens_grow(self, clients: list[Any]) -> None:
        old, new = (kind.Redlock(clients, 1, 0.01) for kind in (original, redlock))
        tokens = []
        for _ in range(3):
            held = new.lock("a", 300_000)
            assert isinstance(held, redlock.Lock)
            assert held.lease is not None
            assert clients[0].get("a") == held.key
            tokens.append(held.lease.token)
            assert not old.lock("a", 1000)
            new.unlock(held)
            before = old.lock("a", 300_000)
            assert before
            assert new.lock("a", 1000) is False
            old.unlock(before)
        assert tokens == sorted(set(tokens))
        validity, resource, _ = held
        assert (resource, validity <= 300_000) == ("a", True)

    def test_the_token_is_larger_although_another_majority_grants(
        self, clients: list[Any], servers: Independent
    ) -> None:
        """The first holder's token is what the first two remember; the next majority shares only the second."""
        new = redlock.Redlock(clients, retry_count=1)
        ahead = time.time_ns() // 1000 + 3600 * 10**6
        clients[0].set("\x1ftoken", ahead)  # its clock was an hour ahead
        clients[2].set("a", "somebody")
        first = new.lock("a", 300_000)
        assert isinstance(first, redlock.Lock)
        assert first.lease is not None
        assert first.lease.token == ahead + 1
        new.unlock(first)
        clients[2].delete("a")
        clients[0].set("a", "somebody")
        second = new.lock("a", 300_000)
        assert isinstance(second, redlock.Lock)
        assert second.lease is not None
        assert second.lease.token > first.lease.token
        guard = MemoryGuard[str]()
        guard.write("a", "second", second.lease)
        with pytest.raises(StaleToken):
            guard.write("a", "first", first.lease)

    def test_fenceposts_own_redlock_takes_the_same_keys_and_tokens_grow(
        self, clients: list[Any], servers: Independent
    ) -> None:
        compat = redlock.Redlock(clients, 1, 0.01)
        tokens = []
        with fencepost.connect(f"{servers.url}?prefix=&node_timeout={GIVES_UP:g}s") as locks:
            for _ in range(2):
                held = compat.lock("a", 300_000)
                assert isinstance(held, redlock.Lock)
                assert held.lease is not None
                tokens.append(held.lease.token)
                assert locks.try_acquire("a") is None
                compat.unlock(held)
                with locks.lock("a") as lease:
                    tokens.append(lease.token)
                    assert compat.lock("a", 1000) is False
        assert tokens == sorted(set(tokens))

    def test_what_goes_wrong_is_told(self, clients: list[Any], told: list[Event]) -> None:
        new = redlock.Redlock(clients, 1, 0.001)
        held = until(lambda: new.lock("a", 50), "it is taken while it is valid")  # a busy machine may be slower
        told.clear()
        until(lambda: not any(client.exists("a") for client in clients), "it expires")
        new.unlock(held)
        taken = new.lock("a", 300_000)
        assert taken
        for client in clients[:2]:
            client.delete("a")
        new.unlock(taken)
        kinds = [(event.kind, event.detail) for event in told if event.kind not in ("attempt", "acquired")]
        assert kinds == [
            ("not_owner", ""),
            ("lost", "its deadline has passed"),
            ("not_owner", ""),
            ("lost", "it was released or taken by another"),
        ]

    def test_the_deadline_does_not_move_while_the_servers_are_told_the_token(self, servers: Independent) -> None:
        class Slow(redis.Redis):
            def evalsha(self, *args: Any) -> Any:
                calls.append((args[1], boottime()))
                if args[1] == 1:  # the counter alone: it is told the token
                    time.sleep(0.05)
                return super().evalsha(*args)

        calls: list[tuple[int, float]] = []
        manager = redlock.Redlock([Slow(HOST, member.port) for member in servers.members], 1)
        held: Any = manager.lock("a", 300_000)
        assert 1 in [keys for keys, _ in calls]
        assert 290 < held.lease.deadline - calls[0][1] <= 300 - 3
        manager.unlock(held)

    def test_the_validity_ends_in_time_although_a_server_is_slow_to_be_told_the_token(
        self, servers: Independent
    ) -> None:
        class Slow(redis.Redis):
            def evalsha(self, *args: Any) -> Any:
                asked.append(boottime())
                if args[1] == 1:  # the counter alone: it is told the token
                    time.sleep(0.05)
                    told.append(boottime())
                return super().evalsha(*args)

        asked: list[float] = []
        told: list[float] = []
        manager = redlock.Redlock([Slow(HOST, member.port) for member in servers.members], 1)
        held: Any = manager.lock("a", 300_000)
        assert told[-1] + held.validity / 1000 <= asked[0] + 300 - 3.002 + 1e-6
        assert held.validity > 200_000
        manager.unlock(held)

    def test_a_lock_that_expires_while_the_servers_are_told_the_token_is_unlocked_and_not_returned(
        self, clients: list[Any], servers: Independent, told: list[Event]
    ) -> None:
        class Late(redis.Redis):
            def evalsha(self, *args: Any) -> Any:
                if args[1] == 1:  # the counter alone: it is told the token
                    delayed.append(sum(client.persist("a") for client in clients))  # so that only an unlock ends it
                    time.sleep(1)
                return super().evalsha(*args)

        delayed: list[int] = []
        manager = redlock.Redlock([Late(HOST, member.port) for member in servers.members], 100, 0.01)
        assert manager.lock("a", 1000) is False
        assert delayed
        assert not any(client.exists("a") for client in clients)
        assert [event.kind for event in told] == ["attempt", "timeout"]

    def test_bad_input_is_refused_as_before(self, clients: list[Any]) -> None:
        with pytest.raises(ValueError, match="not an integer"):
            redlock.Redlock(clients).lock("a", 1.5)  # type: ignore[arg-type]
        assert not any(client.exists("a") for client in clients)


class TestPottery:
    def test_its_errors_name_the_servers_as_before(self, clients: list[Any]) -> None:
        with pytest.raises(pottery.ReleaseUnlockedLock) as refused:
            pottery.Redlock(key="a", masters=set(clients)).release()
        assert all(repr(client) in str(refused.value) for client in clients)

    def test_old_and_new_exclude_each_other_and_tokens_grow(self, clients: list[Any], told: list[Event]) -> None:
        masters = set(clients)
        tokens = []
        for _ in range(2):
            with pottery.Redlock(key="a", masters=masters, auto_release_time=300) as lock:
                assert lock.lease is not None
                assert fencepost.ambient.find("redlock:a") is lock.lease
                tokens.append(lock.lease.token)
                assert not original_pottery.Redlock(key="a", masters=masters).acquire(blocking=False)
                lock.extend()
                assert 0 < lock.lease.remaining < lock.locked() + 4
            with original_pottery.Redlock(key="a", masters=masters):
                assert not pottery.Redlock(key="a", masters=masters).acquire(blocking=False)
        assert tokens[0] < tokens[1]
        kinds = [event.kind for event in told]
        assert kinds == ["attempt", "acquired", "renewed", "released", "attempt", "timeout"] * 2

    def test_losses_are_told_and_raised_as_before(self, clients: list[Any], told: list[Event]) -> None:
        lock = pottery.Redlock(key="a", masters=set(clients), auto_release_time=300)
        assert lock.acquire()
        for client in clients:
            client.delete("redlock:a")
        with pytest.raises(original_pottery.ExtendUnlockedLock):
            lock.extend()
        with pytest.raises(original_pottery.ReleaseUnlockedLock):
            lock.release()
        assert [event.kind for event in told] == ["attempt", "acquired", "lost", "not_owner"]

    def test_a_minority_that_is_down_costs_nothing(self, clients: list[Any], servers: Independent) -> None:
        servers.members[0].kill()

        @pottery.synchronize(key="a", masters=set(clients), auto_release_time=300)
        def work() -> int:
            lease = fencepost.ambient.find("redlock:a")
            assert lease is not None
            return int(lease.token)

        assert work() < work()

    def test_asyncio(self, servers: Independent, told: list[Event]) -> None:
        async def test() -> None:
            masters = {redis.asyncio.Redis(host=HOST, port=member.port) for member in servers.members}
            async with pottery.AIORedlock(key="a", masters=masters, auto_release_time=300) as lock:
                assert lock.lease is not None
                assert not await pottery.AIORedlock(key="a", masters=masters).acquire(blocking=False)
                await lock.extend()
            lost = pottery.AIORedlock(key="a", masters=masters, auto_release_time=300)
            assert await lost.acquire()
            for master in masters:
                await master.delete("redlock:a")
            with pytest.raises(original_pottery.ReleaseUnlockedLock):
                await lost.release()
            for master in masters:
                await master.aclose()

        run(test())
        kinds = [event.kind for event in told]
        assert kinds == [
            *("attempt", "acquired", "attempt", "timeout", "renewed", "released"),
            *("attempt", "acquired", "not_owner", "lost"),
        ]


def test_a_missing_original_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "redlock", None)
    monkeypatch.delitem(sys.modules, "fencepost.compat.redlock")
    with pytest.raises(ConfigError, match=r"needs 'redlock': pip install 'fencepost\[redlock-py\]'"):
        importlib.import_module("fencepost.compat.redlock")
