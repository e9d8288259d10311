"""Shares in Redis: the lock's own key keeps everybody else out, and what is asked of the server does not grow."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from redis.lock import Lock

import fencepost
from fencepost import aio, sync
from fencepost.backends.redis.backend import Cluster, Redis, Sentinel
from fencepost.errors import LeaseLost
from tests.backends.conftest import Own
from tests.harness.threads import known_to_wait
from tests.harness.waiting import PATIENCE, until, until_async

LOCK, QUEUE, SHARES = "fencepost:lock:a", "fencepost:lock:a\x1fqueue", "fencepost:lock:a\x1fshares"


def test_one_server_can_and_a_cluster_says_that_it_cannot() -> None:
    assert [kind.promises.shared for kind in (Redis, Sentinel, Cluster)] == [True, True, False]


def test_sharers_keep_redis_py_out_for_as_long_as_the_last_of_them(own_redis: Own) -> None:
    client = own_redis.client
    foreign = Lock(client, LOCK, timeout=300)
    with fencepost.connect(own_redis.url) as locks:
        short = locks.shared("a", ttl=100, renew=False).acquire()
        assert 99_000 < client.pttl(LOCK) <= 101_003
        long = locks.shared("a", ttl=200, renew=False).acquire()
        assert 199_000 < client.pttl(LOCK) <= 202_003
        short.renew()
        assert client.pttl(LOCK) > 199_000, "a shorter share shortens nobody's"
        assert not foreign.acquire(blocking=False)
        assert long.release()
        assert client.pttl(LOCK) <= 101_003, "nobody is kept out for one who left"
        assert not foreign.acquire(blocking=False)
        assert not client.set(LOCK, "somebody", nx=True, px=1000)
        assert short.release()
        assert own_redis.keys() == set()
        assert foreign.acquire(blocking=False)
        assert locks.shared("a").try_acquire() is None
        foreign.release()


def test_a_dead_sharers_key_frees_itself_for_everybody(own_redis: Own) -> None:
    foreign = Lock(own_redis.client, LOCK, timeout=300)
    with fencepost.connect(own_redis.url) as locks:
        lease = locks.shared("a", ttl=3, renew=False).acquire()
        assert not foreign.acquire(blocking=False)
        assert foreign.acquire(blocking=True, blocking_timeout=PATIENCE)
        assert own_redis.keys() == {LOCK}
        assert not lease.release()
        foreign.release()


def test_a_renewal_does_not_bring_back_a_share_that_expired_beside_others(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url, ttl=300) as locks:
        kept, expired = (locks.shared("a").acquire() for _ in range(2))
        entry = f"{expired._stored}:{expired.token}"
        assert own_redis.client.zadd(SHARES, {entry: 1}, xx=True, ch=True) == 1, "its deadline has passed"
        with pytest.raises(LeaseLost):
            expired.renew()
        status = locks.status("a")
        assert status is not None
        assert status.sharers == (kept.holder,)
        assert kept.release()


async def test_readers_come_in_together_when_a_foreign_holder_goes(own_redis: Own) -> None:
    async with aio.connect(own_redis.url) as locks:
        own_redis.client.set(LOCK, "somebody", nx=True)
        readers = [asyncio.create_task(locks.shared("a").acquire()) for _ in range(5)]
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 5, "five readers")
        own_redis.client.delete(LOCK)
        leases = await asyncio.wait_for(asyncio.gather(*readers), PATIENCE)
        assert own_redis.client.zcard(SHARES) == 5
        for lease in leases:
            assert await lease.release()
    assert own_redis.keys() == set()


def test_shares_of_a_lock_that_was_taken_by_force_count_no_more(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as locks:
        gone = [locks.semaphore("a", 2, renew=False).acquire() for _ in range(2)]
        own_redis.client.delete(LOCK)
        with locks.lock("a") as alone:
            assert alone.token > gone[1].token
            for lease in gone:
                with pytest.raises(fencepost.LeaseLost):
                    lease.renew()
        one, two = (locks.semaphore("a", 2).try_acquire() for _ in range(2))
        assert one is not None
        assert two is not None
        status = locks.status("a")
        assert status is not None
        assert status.sharers == (one.holder, two.holder)
        assert not gone[0].release()
        assert one.release()
        assert two.release()
        assert own_redis.keys() == set()


async def test_a_release_lets_in_however_many_readers_by_one_request(own_redis: Own) -> None:
    async with aio.connect(own_redis.url) as locks:
        alone = await locks.acquire("a")
        readers = [asyncio.create_task(locks.shared("a").acquire()) for _ in range(50)]
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 50, "fifty readers")
        assert await alone.release()
        assert own_redis.client.zcard(QUEUE) == 0, "before any of them could ask"
        leases = await asyncio.wait_for(asyncio.gather(*readers), PATIENCE)
        assert [lease.token for lease in leases] == sorted({lease.token for lease in leases})
        for lease in leases:
            assert await lease.release()
    assert own_redis.keys() == set()


def drop_connections(own: Own) -> None:
    assert own.client.client_kill_filter(_type="normal", skipme=True) + own.client.client_kill_filter(_type="pubsub")


def drop_queue(own: Own) -> None:
    assert own.client.delete(QUEUE)


def flush(own: Own) -> None:
    own.client.flushall()


def forget_scripts(own: Own) -> None:
    own.client.script_flush()


@pytest.mark.parametrize("disturb", [drop_connections, drop_queue, flush, forget_scripts])
async def test_waiting_for_a_share_goes_on_by_itself_after(own_redis: Own, disturb: Callable[[Own], None]) -> None:
    async with aio.connect(own_redis.url, ttl=2) as locks:
        alone = await locks.acquire("a", ttl=300, renew=False)

        async def use() -> int:
            async with locks.semaphore("a", 2) as lease:
                return lease.token

        tasks = [asyncio.create_task(use()) for _ in range(5)]
        await until_async(lambda: known_to_wait(locks) == 5, "they wait", watching=tasks)
        await asyncio.to_thread(disturb, own_redis)
        if disturb is not flush:
            await alone.release()
        assert len(set(await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE))) == 5
    assert own_redis.keys() == set()


def test_a_grant_whose_message_was_lost_is_found_by_looking(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as others, fencepost.connect(own_redis.url) as locks:
        backend = locks._core.backend
        assert isinstance(backend, Redis)
        alone = others.acquire("a")
        heard = Counter[str]()
        backend._nodes.nodes[0].hear = lambda node, push: heard.update(["message"])
        got: list[sync.Lease] = []
        thread = threading.Thread(target=lambda: got.append(locks.shared("a").acquire()), daemon=True)
        thread.start()
        until(lambda: own_redis.client.zcard(QUEUE) == 1, "the queue is that long")
        assert alone.release()
        thread.join(PATIENCE)
        assert got
        assert got[0].token > alone.token
        assert heard["message"], "it was told, and did not hear"
        assert got[0].release()
        assert own_redis.keys() == set(), "it was that very grant, and no second one"


def test_who_shares_nothing_pays_nothing(own_redis: Own) -> None:
    def commands() -> Counter[str]:
        stats = own_redis.client.info("commandstats")
        return Counter({name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()})

    with fencepost.connect(own_redis.url) as locks:
        locks.acquire("a").release()
        before = commands()
        locks.acquire("a").release()
        used = commands() - before
    take = {"exists": 1, "time": 1, "get": 1, "set": 2}
    release = {"get": 1, "zrange": 1, "del": 1}
    assert used == Counter({"evalsha": 2, "info": 1}) + Counter(take) + Counter(release)


async def test_who_leaves_frees_the_key_at_once_and_lets_in_those_behind_it(own_redis: Own) -> None:
    async with aio.connect(own_redis.url) as locks:
        backend = locks._core.backend
        assert await backend.take("a", "one", 300, None, 2)
        await backend.leave("a", "one")
        assert own_redis.keys() == set()
        reader = await locks.shared("a").acquire()
        writer = asyncio.create_task(locks.acquire("a"))
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 1, "the writer")
        behind = asyncio.create_task(locks.shared("a").acquire())
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 2, "the reader behind it")
        writer.cancel()
        await asyncio.wait([writer])
        assert own_redis.client.zcard(QUEUE) == 0
        assert await (await asyncio.wait_for(behind, PATIENCE)).release()
        assert await reader.release()
    assert own_redis.keys() == set()
