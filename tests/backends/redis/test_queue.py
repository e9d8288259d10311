"""Waiting in Redis: in order, in silence, and past everything that dies or is forgotten on the way."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import fencepost
from fencepost import aio, sync
from fencepost.backends.redis import waiters
from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError, NotAcquired
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers.processes import HOST
from tests.backends.conftest import Own
from tests.backends.redis.waiters import Waiters
from tests.harness.forsaken import forsake, stopped
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import PATIENCE, run, until, until_async
from tests.unit.test_no_threads import Unstartable

QUEUE = "fencepost:lock:a\x1fqueue"


async def contenders(
    own: Own, locks: aio.Locks, count: int, served: list[int], first: int = 0
) -> list["asyncio.Task[None]"]:
    """Tasks that wait for the lock in this order, each queued before the next comes."""

    async def one(number: int) -> None:
        async with locks.lock("a"):
            served.append(number)

    tasks = []
    for number in range(first, first + count):
        tasks.append(asyncio.create_task(one(number)))
        queued = own.client.zcard(QUEUE)
        longer = partial(lambda before: own.client.zcard(QUEUE) > before, queued)
        await until_async(longer, f"waiter {number}", watching=tasks[-1:])
    return tasks


@pytest.mark.parametrize("count", [50, 200])
async def test_a_contended_section_costs_two_requests_however_many_wait(own_redis: Own, count: int) -> None:
    async with aio.connect(own_redis.url) as locks:

        async def sections() -> None:
            for _ in range(5):
                async with locks.lock("a"):
                    pass

        await (await locks.acquire("a")).release()
        before = own_redis.requests()
        await asyncio.gather(*(sections() for _ in range(count)))
        assert (own_redis.requests() - before) / (5 * count) <= 2.2
    assert own_redis.keys() == set()


async def test_live_waiters_behind_two_hundred_killed_ones_are_served_in_order(own_redis: Own) -> None:
    async with aio.connect(own_redis.url) as locks:
        held = await locks.acquire("a")
        doomed = [Waiters(own_redis.url, "a", 50) for _ in range(4)]
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 200, "200 waiters", watching=doomed)
        served: list[int] = []
        tasks = await contenders(own_redis, locks, 10, served)
        for process in doomed:
            assert process.kill() == [], "none of them was ever served"
        assert own_redis.client.zcard(QUEUE) == 210, "the dead are still in the queue"
        await until_async(lambda: len(own_redis.client.pubsub_channels("fencepost.*")) == 1, "Redis to notice")
        before = own_redis.requests()
        assert await held.release()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        assert served == list(range(10))
        assert own_redis.requests() - before <= 1 + 10 + 10, "skipping the dead takes no requests"
    assert own_redis.keys() == set()


async def test_when_the_holder_and_the_first_in_line_die_together_the_rest_goes_on(own_redis: Own) -> None:
    async with aio.connect(own_redis.url) as locks:
        # The holder dies: nobody renews, nobody releases, and its key stays until it expires.
        assert await locks._core.backend.take("a", "dead", 300, None)
        doomed = Waiters(own_redis.url, "a", 20)
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 20, "20 waiters", watching=[doomed])
        served: list[int] = []
        tasks = await contenders(own_redis, locks, 30, served)
        assert doomed.kill() == []
        own_redis.client.pexpire("fencepost:lock:a", 300)
        before = own_redis.requests()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        assert served == list(range(30))
        # Thirty releases, and a few looks on behalf of all thirty, however long the wait was.
        assert own_redis.requests() - before <= 30 + 12
    assert own_redis.keys() == set()


Disturb = Callable[[Own], None]


def restart(own: Own) -> None:
    own.server.kill()
    own.server.restart()


def flush(own: Own) -> None:
    own.client.flushall()


def drop_connections(own: Own) -> None:
    assert own.client.client_kill_filter(_type="normal", skipme=True) + own.client.client_kill_filter(_type="pubsub")


def drop_queue(own: Own) -> None:
    assert own.client.delete(QUEUE)


@pytest.mark.parametrize("disturb", [restart, flush, drop_connections, drop_queue])
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_waiting_goes_on_by_itself_after(own_redis: Own, disturb: Disturb, face: str) -> None:
    def blocking() -> None:
        served: list[int] = []

        def one(number: int) -> None:
            with locks.lock("a", ttl=2):
                served.append(number)

        with fencepost.connect(own_redis.url) as locks:
            held = locks.acquire("a", ttl=300, renew=False)
            threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(5)]
            for thread in threads:
                thread.start()
            until(lambda: known_to_wait(locks) == 5, "they wait")
            disturb(own_redis)
            if disturb not in (restart, flush):
                held.release()
            for thread in threads:
                thread.join(PATIENCE)
                assert not thread.is_alive()
            assert sorted(served) == list(range(5))

    async def concurrent() -> None:
        served: list[int] = []
        async with aio.connect(own_redis.url, ttl=2) as locks:
            held = await locks.acquire("a", ttl=300, renew=False)
            tasks = await contenders(own_redis, locks, 5, served)
            await until_async(lambda: known_to_wait(locks) == 5, "they wait", watching=tasks)
            await asyncio.to_thread(disturb, own_redis)
            if disturb not in (restart, flush):
                await held.release()
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            assert sorted(served) == list(range(5))

    if face == "blocking":
        blocking()
    else:
        run(concurrent())
    # What a request took whose answer was cut off may stay for its ttl, 2 s.
    until(lambda: own_redis.keys() == set(), "nothing is left")


async def test_a_script_flush_is_not_noticed(own_redis: Own) -> None:
    async with aio.connect(own_redis.url) as locks:
        held = await locks.acquire("a")
        served: list[int] = []
        tasks = await contenders(own_redis, locks, 3, served)
        own_redis.client.script_flush()
        assert await held.release()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        assert served == [0, 1, 2]


def test_a_queue_whose_waiters_and_holder_are_all_dead_is_forgotten(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as locks:
        held = locks.acquire("a", ttl=300)
        doomed = Waiters(own_redis.url, "a", 3)
        until(lambda: own_redis.client.zcard(QUEUE) == 3, "three wait", watching=[doomed])
        assert doomed.kill() == []
        assert 0 < own_redis.client.pttl(QUEUE) <= 60_000
        assert held.release()
        assert own_redis.keys() == set()


def test_a_full_queue_makes_room_for_the_living(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url, queue_limit=3) as locks:
        held = locks.acquire("a")
        doomed = Waiters(own_redis.url, "a", 3)
        until(lambda: own_redis.client.zcard(QUEUE) == 3, "three wait", watching=[doomed])
        with pytest.raises(fencepost.QueueFull):
            locks.acquire("a", timeout=5)
        assert doomed.kill() == []
        locks._core.backend._pruned.clear()  # type: ignore[attr-defined]  # it looks for the dead only so often
        until(lambda: len(own_redis.client.pubsub_channels("fencepost.*")) <= 1, "Redis notices")
        got: list[sync.Lease] = []
        thread = threading.Thread(target=lambda: got.append(locks.acquire("a", timeout=PATIENCE)), daemon=True)
        thread.start()
        until(lambda: own_redis.client.zcard(QUEUE) == 1, "the queue is that long")
        assert held.release()
        thread.join(PATIENCE)
        assert got


def test_one_that_was_stopped_before_it_learned_that_it_waits_knows_how_old_its_grant_is(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands between the server's answer and its wait; so does the message of its grant, which expires meanwhile."""
    arrived, told, go_on = threading.Event(), threading.Event(), threading.Event()
    with fencepost.connect(own_redis.url) as locks, fencepost.connect(own_redis.url, ttl=300) as stopped:
        backend: Any = stopped._core.backend
        queues, node = backend._waiters, backend._nodes.only
        join, hear = queues.join, node.hear

        def answered(*args: Any) -> Any:
            arrived.set()
            assert told.wait(PATIENCE)
            return join(*args)

        def heard(*args: Any) -> None:
            assert go_on.wait(PATIENCE)
            hear(*args)
            told.set()

        monkeypatch.setattr(queues, "join", answered)
        monkeypatch.setattr(node, "hear", heard)
        held = locks.acquire("a")
        tokens: list[int] = []

        def wait() -> None:
            with stopped.lock("a", timeout=PATIENCE) as lease:
                tokens.append(lease.token)

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert arrived.wait(PATIENCE)
        assert held.release()
        granted = locks.status("a")
        assert granted is not None, "the release handed the lock to the one that stands still"
        assert own_redis.client.pexpire("fencepost:lock:a", 1), "and it expires"
        later = locks.acquire("a", timeout=PATIENCE)
        assert later.token > granted.token
        go_on.set()
        until(lambda: own_redis.client.zcard(QUEUE) == 1, "it queues up again")
        assert later.release()
        waiter.join(PATIENCE)
        assert tokens, "it was served in the end"
        assert tokens[0] > later.token, "and never believed in the grant that had expired"


def test_a_grant_heard_after_its_waiter_has_queued_up_anew_leaves_no_second_place(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of a grant is overtaken by its expiry, and by the look that finds the waiter a new place."""
    look_on, go_on, told, seen = (threading.Event() for _ in range(4))
    with fencepost.connect(own_redis.url) as locks, fencepost.connect(own_redis.url, ttl=300) as slow:
        backend: Any = slow._core.backend
        queues, node = backend._waiters, backend._nodes.only
        look, hear = queues._look, node.hear

        async def looked(*args: Any) -> None:
            assert look_on.wait(PATIENCE)
            await look(*args)

        def heard(*args: Any) -> None:
            assert go_on.wait(PATIENCE)
            hear(*args)
            told.set()

        monkeypatch.setattr(queues, "_look", looked)
        monkeypatch.setattr(node, "hear", heard)
        held = locks.acquire("a")
        tokens: list[int] = []

        def wait() -> None:
            with slow.lock("a", timeout=PATIENCE) as lease:
                tokens.append(lease.token)
                assert seen.wait(PATIENCE)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: own_redis.client.zcard(QUEUE) == 1, "it waits")
        assert held.release()
        assert own_redis.client.pexpire("fencepost:lock:a", 1), "it was handed the lock, which expires"
        later = locks.acquire("a", timeout=PATIENCE)
        look_on.set()
        until(lambda: own_redis.client.zcard(QUEUE) == 1, "it waits again")
        (place,) = own_redis.client.zrange(QUEUE, 0, -1)
        go_on.set()
        assert told.wait(PATIENCE)
        assert later.release()
        granted = locks.status("a")
        assert granted is not None, "it was handed the lock"
        assert f":{granted.holder}~" in place, "in the place that it had"
        until(lambda: bool(tokens), "it is served")
        seen.set()
        waiter.join(PATIENCE)
        assert tokens == [granted.token]
    assert own_redis.keys() == set()


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_waiter_outlives_an_outage_of_any_length(own_redis: Own, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_PATIENCE", 0.05)
    joined = threading.Event()
    failing: list[float] = []
    join, look_for = waiters.Waiters.join, waiters.Waiters._look_for

    def joins(*args: Any) -> Any:
        waiter = join(*args)
        joined.set()
        return waiter

    def looks_for(*args: Any) -> Any:
        if killed:
            failing.append(boottime())
        return look_for(*args)

    monkeypatch.setattr(waiters.Waiters, "join", joins)
    monkeypatch.setattr(waiters.Waiters, "_look_for", looks_for)
    killed: list[bool] = []

    def wait(locks: sync.Locks) -> None:
        with locks.lock("a"):
            pass

    async def wait_in_a_loop() -> None:
        async with aio.connect(own_redis.url) as mine, mine.lock("a"):
            pass

    with fencepost.connect(own_redis.url) as locks, fencepost.connect(own_redis.url) as others:
        others.acquire("a")
        served = background(lambda: wait(locks) if face == "blocking" else run(wait_in_a_loop()))
        until(joined.is_set, "it waits", watching=[served])
        own_redis.server.kill()
        killed.append(True)
        until(lambda: len(failing) > 2 and failing[-1] - failing[0] > 0.1, "its looks fail", watching=[served])
        own_redis.server.start()
        served.result()


def test_what_is_not_of_our_making_in_a_queue_is_passed_over(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as locks:
        lease = locks.acquire("a")
        own_redis.client.zadd(QUEUE, {"rubbish": 1, b"\xff\xfe": 2})
        status = locks.status("a")
        assert status is not None
        assert (status.holder, status.waiters) == (lease.holder, ())
        assert [each.name for each in locks.list()] == ["a"]
        assert locks.break_lock("a") is not None


def test_a_waiter_served_by_a_release_of_its_own_process_counts_from_before_that_was_sent(own_redis: Own) -> None:
    """The server counts from when it carries the release out; its answer may come much later."""
    with (
        Proxy(own_redis.server.port) as proxy,
        fencepost.connect(f"redis://{proxy.address}?timeout={PATIENCE:g}s", ttl=300) as locks,
    ):
        backend: Any = locks._core.backend
        held = locks.acquire("a")
        waiting = background(lambda: locks.acquire("a", timeout=PATIENCE))
        until(lambda: "a" in backend._waiters.queues, "it waits", watching=[waiting])
        proxy.lose_answer_to(held.holder.encode())
        releasing = background(held.release)
        until(lambda: proxy.held > 0, "the answer is held back", watching=[releasing])
        carried_out = boottime()
        proxy.heal()
        assert releasing.result()
        lease = waiting.result()
        assert lease.deadline - lease.ttl < carried_out
        assert lease.release()


def test_a_waiter_that_hears_late_of_its_grant_counts_on_no_more_than_is_left_of_it(own_redis: Own) -> None:
    with (
        Proxy(own_redis.server.port) as proxy,
        fencepost.connect(own_redis.url, ttl=300) as locks,
        fencepost.connect(f"redis://{proxy.address}?timeout={PATIENCE:g}s", ttl=300) as slow,
    ):
        held = locks.acquire("a")
        # Not renewed: two thirds of its time are over when it is granted, so that it would be at once.
        waiting = background(lambda: slow.acquire("a", timeout=PATIENCE, renew=False))
        until(lambda: known_to_wait(slow) == 1, "it waits", watching=[waiting])
        proxy.cut()
        assert held.release()
        until(lambda: proxy.held > 0, "the message is held back", watching=[waiting])
        assert own_redis.client.pexpire("fencepost:lock:a", 100_000), "it was handed the lock some 200 s ago"
        proxy.heal()
        lease = waiting.result()
        assert lease.remaining <= 100
        assert lease.release()


def test_a_waiter_finds_a_dead_holder_although_the_look_out_could_not_be_started_before(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Unstartable(monkeypatch, "fencepost-redis-lookout")
    with fencepost.connect(own_redis.url, ttl=300) as locks, fencepost.connect(own_redis.url) as others:
        held = others.acquire("a")
        with pytest.raises(RuntimeError, match="thread"):
            locks.acquire("a", timeout=PATIENCE)
        assert not fault.left
        assert own_redis.client.zcard(QUEUE) == 0, "it has left"
        assert held.release()
        others.acquire("a", ttl=0.5, renew=False)  # a holder that dies: nobody tells of the end of its lease
        assert locks.acquire("a", timeout=PATIENCE).release()


def test_a_look_that_is_under_way_when_the_lock_is_released_takes_it_for_nobody(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would arrive after the release, find the lock free, and hold it until somebody notices, or for its ttl."""
    monkeypatch.setattr(waiters, "POLL", 0.1)
    monkeypatch.setattr(waiters, "_LOOKS", PATIENCE)
    with fencepost.connect(own_redis.url, ttl=300) as locks, fencepost.connect(own_redis.url) as others:
        held = others.acquire("a")
        backend: Any = locks._core.backend
        ask, looking, releasing = backend._calls.run, threading.Event(), threading.Event()

        async def slow(script: Any, *args: Any, **options: Any) -> Any:
            if threading.current_thread().name.startswith("fencepost-redis-lookout") and not looking.is_set():
                looking.set()
                assert releasing.wait(PATIENCE)
                time.sleep(0.3)
            return await ask(script, *args, **options)

        backend._calls.run = slow
        waiting = background(lambda: locks.acquire("a", timeout=PATIENCE))
        assert looking.wait(PATIENCE)
        assert held.release()
        lease = waiting.result()
        releasing.set()
        assert lease.release()
        assert others.status("a") is None
        until(lambda: not backend._waiters._looks, "the look is over")
        counter = own_redis.client.get(backend.layout.keys("a").counter)
        assert int(str(counter)) == lease.token, "nothing was granted since"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of the first loop's connection
def test_a_waiter_whose_event_loop_was_closed_does_not_keep_those_behind_it_from_the_lock(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url, ttl=10 * PATIENCE) as others:
        held = others.acquire("a")
        left = forsake(own_redis.url, "a", lambda: own_redis.client.zcard(QUEUE) == 1, ttl=1)

        async def second_loop() -> None:
            waiting = asyncio.create_task(left.acquire("a", timeout=PATIENCE))
            await until_async(lambda: own_redis.client.zcard(QUEUE) == 2, "two wait", watching=[waiting])
            assert held.release()
            assert await (await waiting).release()
            await left.close()

        run(second_loop())
        gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_waiter_whose_event_loop_was_stopped_costs_those_behind_it_its_ttl(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url, ttl=10 * PATIENCE) as others:
        held = others.acquire("a")
        with stopped(own_redis.url, "a", lambda: own_redis.client.zcard(QUEUE) == 1, ttl=1) as left:

            async def second_loop() -> None:
                waiting = asyncio.create_task(left.locks.acquire("a", ttl=60, timeout=PATIENCE))
                await until_async(lambda: own_redis.client.zcard(QUEUE) == 2, "two wait", watching=[waiting])
                assert held.release()
                backend: Any = left.locks._core.backend
                backend._waiters.missed("a")  # it looks for both, and finds that the first was handed the lock
                assert await (await waiting).release()

            run(second_loop())
        gc.collect()


@pytest.mark.silence
async def test_a_waiter_that_cannot_leave_before_its_timeout_leaves_when_it_can(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leaving is cut short while it connects, and made again."""
    with fencepost.connect(own_redis.url, ttl=10 * PATIENCE) as others, Proxy(own_redis.server.port) as proxy:
        held = others.acquire("a")
        url = f"redis://{proxy.address}?timeout={PATIENCE:g}s&connect_timeout={PATIENCE:g}s"
        async with aio.connect(url) as locks:
            backend: Any = locks._core.backend
            waiting = asyncio.create_task(locks.acquire("a", timeout=PATIENCE))
            await until_async(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiting])
            proxy.cut_newcomers()
            proxy.drop()  # from now on no new connection is answered
            # Its timeout comes now: a short one could come before it waits.
            monkeypatch.setattr(backend.driver, "now", lambda: boottime() + PATIENCE)
            (waiter,) = backend._waiters.waiters.values()
            waiter.signal.set()
            with pytest.raises((BackendError, NotAcquired)):
                await waiting
            assert own_redis.client.zcard(QUEUE) == 1
            proxy.heal()
            proxy.drop()  # that attempt fails, and the next ones work
            await until_async(lambda: own_redis.client.zcard(QUEUE) == 0, "it has left")
        assert held.release()


async def test_closing_while_an_acquire_connects_is_told_as_such_and_connects_no_more() -> None:
    def connecting() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "fencepost-redis-connect"]

    with socket.create_server((HOST, 0)) as silent:
        locks = aio.connect(f"redis://{HOST}:{silent.getsockname()[1]}?connect_timeout=30s")
        asking = asyncio.create_task(locks.acquire("a"))
        await until_async(connecting, "it connects", watching=[asking])
        await locks.close()
        with pytest.raises(ConfigError, match="closed"):
            await asking
        assert not connecting()
