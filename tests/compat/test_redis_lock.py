"""The compat Lock of python-redis-lock: the same keys and signals, with tokens, and what goes wrong is told."""

import threading
from typing import Any

import pytest
import redis_lock as original

import fencepost
from fencepost.compat import redis_lock
from fencepost.errors import StaleToken
from fencepost.events import Event
from fencepost.guards import RedisGuard
from fencepost_lab.servers import Redis as Server
from tests.harness.waiting import PATIENCE, until


def test_old_and_new_exclude_and_wake_each_other(client: Any) -> None:
    for first, second in ((original.Lock, redis_lock.Lock), (redis_lock.Lock, original.Lock)):
        held = first(client, "a", expire=300)
        assert held.acquire()
        assert not second(client, "a", expire=300).acquire(blocking=False)
        waiter = second(client, "a", expire=300)
        thread = threading.Thread(target=waiter.acquire, daemon=True)
        thread.start()
        until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits for the signal")
        held.release()
        thread.join(PATIENCE)
        assert client.get("lock:a") == waiter.id.encode(), "its signal woke the other kind"
        waiter.release()


def test_the_original_works_in_a_process_that_has_made_one_of_ours_first(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(original, "reset_all_script", None)
    for name in ("unlock_script", "extend_script", "reset_script", "reset_all_script"):
        monkeypatch.setattr(original.Lock, name, None)
    with redis_lock.Lock(client, "a", expire=5):
        pass
    with original.Lock(client, "a", expire=5):
        pass


def test_tokens_grow_beside_fenceposts_own_locks_also_after_reset_all(client: Any, own_redis: Server) -> None:
    tokens = []
    with fencepost.connect(f"{own_redis.url}?prefix=lock:") as locks:
        for _ in range(2):
            with redis_lock.Lock(client, "a", expire=300) as lock:
                assert lock.lease is not None
                tokens.append(lock.lease.token)
                assert locks.try_acquire("a") is None
            with locks.lock("a") as lease:
                tokens.append(lease.token)
                with pytest.raises(redis_lock.NotAcquired):
                    redis_lock.Lock(client, "a", blocking=False).__enter__()
            redis_lock.reset_all(client)
    assert tokens == sorted(set(tokens))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the original's thread ends so
def test_losses_are_told_also_by_the_thread_that_renews(client: Any, told: list[Event]) -> None:
    lock = redis_lock.Lock(client, "a", expire=300, auto_renewal=True)
    lock._lock_renewal_interval = 0.01
    lock.acquire()
    until(lambda: "renewed" in [event.kind for event in told], "it is renewed")
    original.Lock(client, "a").reset()
    until(lambda: "lost" in [event.kind for event in told], "the loss is told before the release")
    with pytest.raises(original.NotAcquired):
        lock.release()
    kinds = [event.kind for event in told if event.kind != "renewed"]
    assert kinds == ["attempt", "acquired", "lost", "not_owner"]
    assert {event.detail for event in told if event.kind == "lost"} == {"it was released or taken by another"}


def test_a_guard_finds_the_lease_by_the_name_of_the_key(client: Any) -> None:
    guard = RedisGuard(client)
    first = redis_lock.Lock(client, "account:42", expire=300)
    assert first.acquire()
    stale = first.lease
    assert stale is not None
    first.reset()
    with redis_lock.Lock(client, "account:42", expire=300):
        guard.execute("SET", "total", 1, resource="lock:account:42")
    with pytest.raises(StaleToken):
        guard.execute("SET", "total", 2, lease=stale, resource="lock:account:42")


def test_its_errors_are_those_of_the_original(client: Any) -> None:
    lock = redis_lock.Lock(client, "a", expire=5, id="me")
    assert lock.acquire()
    with pytest.raises(original.AlreadyAcquired):
        lock.acquire()
    assert redis_lock.Lock(client, "a", id="me").get_owner_id() == "me"
    lock.release()
    with pytest.raises(original.NotAcquired):
        lock.release()
    with pytest.raises(original.TimeoutNotUsable):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(original.TimeoutTooLarge):
        lock.acquire(timeout=6)
    with pytest.raises(ValueError, match="StrictRedis"):
        redis_lock.Lock(object(), "a")
