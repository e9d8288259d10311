"""The compat Lock of redis-py: tokens beside the key, and what goes wrong is told."""

import asyncio
import logging
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import DataError, LockError, LockNotOwnedError

import fencepost
from fencepost.compat.redis import Lock, Redis, RedisCluster, aio, from_url
from fencepost.errors import MissingToken, StaleToken
from fencepost.events import Event
from fencepost.guards import RedisGuard
from fencepost.guards.policy import Policy
from fencepost.hooks.instruments import measure
from fencepost_lab.servers import HOST
from fencepost_lab.servers import Redis as Server
from tests.harness.child import Child
from tests.harness.logs import logged
from tests.harness.servers import Endpoint
from tests.harness.waiting import run, until


def kinds(told: list[Event]) -> list[str]:
    return [event.kind for event in told]


def test_tokens_grow_over_holders_with_this_lock_and_with_fenceposts_own(client: Any, own_redis: Server) -> None:
    tokens = []
    with fencepost.connect(f"{own_redis.url}?prefix=") as locks:
        locks.bump("a", above=3 * 10**15, force=True)  # by the counter alone: the clock is far below
        for _ in range(3):
            with Lock(client, "a", timeout=300) as lock:
                assert lock.lease is not None
                tokens.append(lock.lease.token)
                assert client.get("a") == lock.local.token
                assert locks.try_acquire("a") is None
            with locks.lock("a") as lease:
                tokens.append(lease.token)
                assert not Lock(client, "a").acquire(blocking=False)
    assert tokens == sorted(set(tokens))
    assert tokens[0] == 3 * 10**15 + 1
    assert client.keys() == [b"\x1ftoken"]


def test_a_lock_that_expired_while_its_holder_worked_is_told_once(client: Any, told: list[Event]) -> None:
    lock = Lock(client, "a", timeout=0.05)
    assert lock.acquire()
    lease = lock.lease
    until(lambda: not client.exists("a"), "it expires")
    with pytest.raises(LockNotOwnedError):
        lock.extend(1)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert kinds(told) == ["attempt", "acquired", "lost", "not_owner"]
    assert told[2].detail == "its deadline has passed"
    assert lease is not None
    assert (lease.lost, lock.lease) == (True, None)
    counted = [each.name for event in told for each in measure(event)]
    assert counted[-2:] == ["lease_expired_while_executing_total", "release_by_non_owner_total"]


def test_a_lock_that_another_released_is_told_apart_from_one_that_expired(client: Any, told: list[Event]) -> None:
    with pytest.raises(LockNotOwnedError), Lock(client, "a", timeout=300):
        client.delete("a")
    with Lock(client, "a", timeout=300, raise_on_release_error=False):
        client.set("a", "somebody else")
    lost = [event for event in told if event.kind == "lost"]
    assert [event.detail for event in lost] == ["it was released or taken by another"] * 2
    assert kinds(told).count("not_owner") == 2


def test_what_goes_right_is_told_too(client: Any, told: list[Event]) -> None:
    with Lock(client, "a", timeout=10) as lock:
        assert lock.lease is not None
        before = lock.lease.deadline
        lock.extend(5)
        assert lock.lease.deadline == before + 5
        lock.reacquire()
        assert lock.lease.deadline < before + 5
        left = client.pttl("a") / 1000  # asked first, and in whole milliseconds
        assert 0 < lock.lease.remaining <= left + 0.001
        assert not Lock(client, "a").acquire(blocking=False)
        with pytest.raises(LockError), Lock(client, "a", sleep=0.001, blocking_timeout=0.01):
            pass
    assert kinds(told) == [
        *("attempt", "acquired", "renewed", "renewed"),
        *("attempt", "timeout", "attempt", "timeout", "released"),
    ]
    assert {event.source for event in told} == {"compat.redis"}


def test_a_guard_takes_the_lease_and_refuses_the_holder_that_was_replaced(client: Any) -> None:
    guard = RedisGuard(client)
    zombie = Lock(client, "account:42", timeout=0.05)
    assert zombie.acquire()
    stale = zombie.lease
    assert stale is not None
    until(lambda: not client.exists("account:42"), "it expires")
    with Lock(client, "account:42", timeout=300, thread_local=False):
        guard.execute("SET", "account:42/balance", 1)  # by the name of the lock around it
    with pytest.raises(StaleToken):
        guard.execute("SET", "account:42/balance", 2, lease=stale)
    with pytest.raises(MissingToken):
        guard.execute("SET", "account:42/balance", 3)
    assert client.get("account:42/balance") == b"1"


def test_a_holder_in_another_thread_or_a_forked_child_has_no_part_in_the_lease(client: Any) -> None:
    lock = Lock(client, "a", timeout=300)
    with lock:
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.append(lock.lease))
        thread.start()
        thread.join()
        assert seen == [None]
    shared = Lock(client, "a", timeout=300, thread_local=False)
    assert shared.acquire()
    thread = threading.Thread(target=shared.release)
    thread.start()
    thread.join()
    assert not client.exists("a")


def test_clients_from_here_make_such_locks(own_redis: Server) -> None:
    with Redis(HOST, own_redis.port) as client, from_url(own_redis.url) as other:
        with client.lock("a", timeout=5) as lock:
            assert isinstance(lock, Lock)
            assert isinstance(lock, redis.lock.Lock)
            assert not other.lock("a").acquire(blocking=False)
        assert not isinstance(client.lock("a", lock_class=redis.lock.Lock), Lock)


def test_a_user_that_may_not_mint_gets_the_lock_without_a_token(
    client: Any, own_redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(Lock):
        prefix = "app:"

    client.acl_setuser("app", enabled=True, passwords=["+secret"], keys=["app:*"], commands=["+@all"])
    client.acl_setuser("few", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-time"])
    try:
        with redis.Redis(HOST, own_redis.port, username="app", password="secret") as limited:
            with caplog.at_level(logging.ERROR, "fencepost"):
                for _ in range(2):
                    with Lock(limited, "app:a", timeout=5) as lock:
                        assert lock.lease is None
                        assert lock.owned()
            assert [record.levelname for record in logged(caplog)] == ["ERROR"]
            assert "'\\x1ftoken'" in caplog.text
            with Own(limited, "app:a", timeout=5) as lock:
                assert lock.lease is not None
            with Own(client, "other", timeout=5) as lock:
                assert lock.lease is not None
        few = redis.Redis(HOST, own_redis.port, username="few", password="secret")
        with few, Lock(few, "a", timeout=5) as lock:
            assert lock.owned()
            assert lock.lease is None
    finally:
        client.acl_deluser("app", "few")


def test_an_interrupted_acquire_leaves_no_lock_behind(own_redis: Server) -> None:
    class Interrupted(redis.Redis):
        def evalsha(self, *args: Any) -> Any:
            reply = super().evalsha(*args)
            if interrupts.pop():
                raise KeyboardInterrupt
            return reply

    interrupts = [False, True]
    with Interrupted(HOST, own_redis.port) as client:
        Lock(client, "warm").do_acquire(b"x")  # the server knows the script then
        interrupts[:] = [False, True]
        with pytest.raises(KeyboardInterrupt):
            Lock(client, "a").acquire()
        assert not client.exists("a")


def test_names_that_are_no_names_of_fencepost_work_as_before(client: Any) -> None:
    for name in (b"\xff\x00", "x" * 2000, "with\nline", 42, -1, 10**15, 1.5):
        with Lock(client, name, timeout=5) as lock:  # type: ignore[arg-type]
            assert client.exists(name)
            assert lock.lease is not None
            assert lock.lease.name == (r"\xff" "\0" if isinstance(name, bytes) else str(name))
        assert not client.exists(name)
    with pytest.raises(DataError):
        Lock(client, None).acquire()  # type: ignore[arg-type]


def test_a_lock_without_an_expiry_that_cannot_be_extended_is_not_lost(client: Any, told: list[Event]) -> None:
    lock = Lock(client, "a", timeout=0)
    with lock, pytest.raises(LockNotOwnedError):  # as redis-py's, although it is held
        lock.extend(5)
    assert kinds(told) == ["attempt", "acquired", "released"]


def test_a_lease_is_not_copied_into_another_process(client: Any) -> None:
    with Lock(client, "a", timeout=5) as lock:
        with pytest.raises(TypeError, match="pass on lease"):
            pickle.dumps(lock.lease)
        assert lock.lease is not None
        access = lock.lease.access("a")
        assert pickle.loads(pickle.dumps(access)).headers == access.headers


def test_a_token_of_the_callers_own_is_the_value_as_before(client: Any) -> None:
    lock = Lock(client, "a", timeout=5)
    assert lock.acquire(token="worker 7\n")
    assert client.get("a") == b"worker 7\n"
    assert lock.lease is not None
    assert "\n" not in lock.lease.holder
    lock.release()


class TestAsyncio:
    def test_the_lease_its_loss_and_the_block(self, own_redis: Server, told: list[Event]) -> None:
        async def test() -> None:
            async with aio.Redis(host=HOST, port=own_redis.port) as client:
                async with client.lock("a", timeout=300) as lock:
                    assert isinstance(lock, aio.Lock)
                    assert lock.lease is not None
                    assert fencepost.ambient.find("a") is lock.lease
                    assert not await aio.Lock(client, "a").acquire(blocking=False)
                    await lock.extend(1)
                    await lock.reacquire()
                assert lock.lease is None
                with pytest.raises(LockNotOwnedError):
                    async with client.lock("a", timeout=300):
                        await client.delete("a")

        run(test())
        assert kinds(told) == [
            *("attempt", "acquired", "attempt", "timeout", "renewed", "renewed", "released"),
            *("attempt", "acquired", "not_owner", "lost"),
        ]

    def test_a_cancelled_acquire_leaves_no_lock_behind(self, own_redis: Server) -> None:
        class Slow(redis.asyncio.Redis):
            async def evalsha(self, *args: Any) -> Any:
                reply = await super().evalsha(*args)
                if args[2] == "a" and not taken.is_set():
                    taken.set()
                    await asyncio.Event().wait()
                return reply

        async def test() -> None:
            async with Slow(host=HOST, port=own_redis.port) as client:
                await aio.Lock(client, "warm").acquire()
                task = asyncio.create_task(aio.Lock(client, "a").acquire())
                await taken.wait()
                assert await client.exists("a")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not await client.exists("a")

        taken = asyncio.Event()
        run(test())

    def test_a_task_that_outstays_its_lock_does_not_take_the_lease_of_the_next_along(self, own_redis: Server) -> None:
        async def test() -> None:
            async with aio.Redis(host=HOST, port=own_redis.port) as client:
                lock = aio.Lock(client, "a", timeout=300, raise_on_release_error=False)
                inside, leave = asyncio.Event(), asyncio.Event()

                async def first() -> object:
                    async with lock:
                        inside.set()
                        await leave.wait()
                    return fencepost.ambient.find("a")

                task = asyncio.create_task(first())
                await inside.wait()
                await client.delete("a")
                async with lock:
                    leave.set()
                    assert await task is None
                    assert fencepost.ambient.find("a") is not None
                assert fencepost.ambient.find("a") is None

        run(test())


def test_on_a_cluster_the_counter_is_in_the_slot_of_the_lock(redis_cluster: Endpoint) -> None:
    host, _, port = redis_cluster.url.partition("://")[2].partition(",")[0].rpartition(":")
    with RedisCluster(host=host, port=int(port)) as client:
        names: list[Any] = ["compat:{tag}:a", "compat:b", b"compat:\xff", 42]
        for name in names:
            with client.lock(name, timeout=5) as lock:
                first = lock.lease
            with client.lock(name, timeout=5) as lock:
                assert lock.lease.token > first.token

    async def test() -> None:
        cluster = aio.RedisCluster(host=host, port=int(port))
        async with cluster, cluster.lock("compat:b", timeout=5) as lock, cluster.lock(b"\xff", timeout=5) as other:
            assert lock.lease is not None
            assert other.lease is not None

    run(test())


APP = """
import sys, redis
from fencepost.compat.redis import Lock
from fencepost.guards import RedisGuard
from fencepost.guards.policy import Policy
from fencepost.hooks.audit import Audit
client = redis.Redis.from_url(sys.argv[1])
zombie = Lock(client, "report", timeout=0.05)
zombie.acquire()
lease = zombie.lease
while client.exists("report"): pass
guard = RedisGuard(client, policy=Policy("shadow"), hooks=[Audit(sys.argv[2])])
with Lock(client, "report", timeout=5) as lock:
    guard.execute("SET", "total", 1, lease=lock.lease)
guard.execute("SET", "total", 2, lease=lease)
try:
    zombie.release()
except redis.exceptions.LockNotOwnedError:
    print("released too late")
"""


def test_after_a_week_the_report_has_it_all(own_redis: Server, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with Child.python("-c", APP, own_redis.url, log, env={"FENCEPOST_AUDIT": str(log)}) as app:
        assert app.succeed() == ["released too late"]
    assert "its deadline has passed" in app.errors, "and it is logged"
    with Child.fencepost("guard", "report", log) as report:
        report.wait()
    lines = "\n".join(report.output)
    assert "would have refused: 1 stale" in lines
    assert "locks of compat.redis: 2 acquired" in lines
    assert "expired while executing: 1" in lines
    assert "released too late: 1" in lines
    assert "taken by another" not in lines


def test_an_audit_log_that_cannot_be_written_does_not_stop_the_lock(own_redis: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    app = "import sys, redis; from fencepost.compat.redis import Lock\n"
    app += "with Lock(redis.Redis.from_url(sys.argv[1]), 'a', timeout=5) as lock: print(lock.lease is not None)"
    nowhere = {"FENCEPOST_AUDIT": str(tmp_path / "file" / "audit.jsonl")}
    with Child.python("-c", app, own_redis.url, env=nowhere) as child:
        assert child.succeed() == ["True"]
    assert "$FENCEPOST_AUDIT" in child.errors


def test_the_policy_of_a_guard_in_shadow_lets_a_lock_without_a_token_pass(client: Any, told: list[Event]) -> None:
    guard = RedisGuard(client, policy=Policy("shadow"), hooks=[told.append])
    with redis.lock.Lock(client, "a", timeout=5):
        guard.execute("SET", "total", 1)
    (decision,) = told
    assert (decision.verdict, decision.enforced) == ("missing", False)
