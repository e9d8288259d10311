"""A Postgres that crashes, freezes, hangs up or is out of reach: holders know in time, waiters recover unaided."""

import asyncio
import os
import secrets
import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import aio, sync
from fencepost.backends.postgres.backend import Postgres as Backend
from fencepost.errors import BackendError
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import HOST, Postgres
from tests.backends.postgres.tools import LONG, aside, session
from tests.harness.isolated import isolated
from tests.harness.pgbouncer import PgBouncer
from tests.harness.servers import Endpoint
from tests.harness.threads import known_to_wait, waiters_of
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until, until_async


def in_turn(others: sync.Locks, locks: sync.Locks, name: str, ttl: float) -> tuple[sync.Lease, Future[sync.Lease]]:
    """A holder with a short ttl, just served, and one who is in line behind it before that ttl begins."""
    first = others.acquire(name)
    holder = aside(locks.acquire, name, ttl=ttl)
    waiters_of(others, name, 1)
    waiter = aside(locks.acquire, name)
    waiters_of(others, name, 2)
    until(lambda: known_to_wait(locks) == 2, "they know that they wait")
    assert first.release()
    return holder.result(PATIENCE), waiter


def test_holder_and_waiters_survive_a_crash_of_the_server_in_order(server: Postgres, name: str) -> None:
    """kill -9, and a restart after a while: the hold is still there, and so is the line."""
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        waiters = []
        for place in range(3):
            waiters.append(aside(locks.acquire, name))
            waiters_of(locks, name, place + 1)
        order = waiters_of(locks, name, 3)
        until(lambda: known_to_wait(locks) == 3, "they know that they wait")
        server.kill()
        with pytest.raises(BackendError):
            locks.status(name)
        server.start()
        holder.renew()
        assert waiters_of(locks, name, 3) == order
        tokens = [holder.token]
        assert holder.release()
        for waiter in waiters:
            lease = waiter.result(PATIENCE)
            tokens.append(lease.token)
            assert lease.release()
        assert tokens == sorted(set(tokens))


def test_a_hold_that_ran_out_while_the_server_was_down_goes_to_the_next(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder, waiter = in_turn(locks, locks, name, ttl=GIVES_UP)
        server.kill()
        assert holder.ended.wait(PATIENCE)
        server.start()
        assert waiter.result(PATIENCE).token > holder.token
        assert not holder.release()


def test_a_holder_knows_of_its_loss_by_its_deadline_while_the_server_is_frozen(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder, waiter = in_turn(locks, locks, name, ttl=GIVES_UP)
        with server.paused():
            assert holder.ended.wait(PATIENCE)
            with pytest.raises(fencepost.LeaseLost):
                holder.check()
        assert waiter.result(PATIENCE).token > holder.token


def test_a_request_to_a_frozen_server_is_given_up(server: Postgres, name: str) -> None:
    with fencepost.connect(f"{server.url}?timeout={GIVES_UP:g}s", ttl=LONG) as locks:
        assert locks.acquire(name).release()
        with server.paused(), pytest.raises(BackendError, match=f"no answer within {GIVES_UP:g} s") as raised:
            locks.acquire(name)
        assert raised.value.ambiguous
        assert locks.acquire(name, timeout=PATIENCE).release(), "what was still under way then was undone"


async def test_the_same_through_asyncio(server: Postgres, name: str) -> None:
    async with aio.connect(f"{server.url}?timeout={GIVES_UP:g}s", ttl=LONG) as locks:
        assert await (await locks.acquire(name)).release()
        with server.paused(), pytest.raises(BackendError, match=f"no answer within {GIVES_UP:g} s"):
            await locks.acquire(name)
        assert await (await locks.acquire(name, timeout=PATIENCE)).release()


def test_a_cut_connection_is_lost_in_time_and_replaced(server: Postgres, name: str) -> None:
    """Nothing gets through any more, and nobody says so. Behind the cut, the session still lives."""
    with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?timeout={GIVES_UP:g}s"
        with fencepost.connect(server.url, ttl=LONG) as others, fencepost.connect(url, ttl=LONG) as locks:
            holder, waiter = in_turn(others, locks, name, ttl=GIVES_UP)
            proxy.cut()
            assert holder.ended.wait(PATIENCE)
            assert proxy.held, "renewals were on their way"
            proxy.heal()
            lease = waiter.result(PATIENCE)
            assert lease.token > holder.token
            assert lease.release()


def test_a_grant_whose_answer_was_held_up_counts_from_before_it_was_asked_for(server: Postgres, name: str) -> None:
    with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?timeout={PATIENCE:g}s"
        with fencepost.connect(server.url, ttl=LONG) as others, fencepost.connect(url, ttl=LONG) as locks:
            assert locks.acquire(name).release(), "its connection is open"
            proxy.lose_answer_to(name.encode())
            late = aside(locks.try_acquire, name)

            def granted() -> bool:
                status = others.status(name)
                return status is not None and status.remaining < LONG - 1

            until(granted, "the server has granted it, more than a second ago")
            assert proxy.held, "its answer is held up"
            proxy.heal()
            lease = late.result(PATIENCE)
            assert lease is not None
            status = others.status(name)
            assert status is not None
            assert lease.remaining <= status.remaining + 0.001, "never later than the server's own deadline"


def test_a_request_that_arrives_late_does_not_take_the_lock_after_all(server: Postgres, name: str) -> None:
    """It was given up and cleaned up after; then the network delivers it."""
    with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?timeout={GIVES_UP:g}s"
        with fencepost.connect(server.url, ttl=LONG) as others, fencepost.connect(url, ttl=LONG) as locks:
            assert locks.acquire(name).release()
            proxy.cut(newcomers=False)
            with pytest.raises(BackendError):
                locks.acquire(name)
            assert proxy.held, "the request was on its way"
            proxy.heal()
            assert others.status(name) is None
            until(lambda: others.try_acquire(name) is not None, "it is free, long before any ttl", deadline=LONG / 4)


def unread(pid: int) -> bool:
    """Whether a server's process has bytes before it that it did not read yet."""
    own = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    sockets = (row.split() for row in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:])
    return any(f"socket:[{row[9]}]" in own and not row[4].endswith(":00000000") for row in sockets)


def test_a_request_whose_connection_broke_does_not_take_the_lock_after_all(server: Postgres, name: str) -> None:
    """The server's process reads it when its client has hung up, and has cleaned up after it."""
    with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?application_name={name}"
        with fencepost.connect(server.url, ttl=LONG) as others, fencepost.connect(url, ttl=LONG) as locks:
            assert locks.acquire(name).release()
            with session(server) as other:
                ((pid,),) = other.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name])
            os.kill(pid, signal.SIGSTOP)
            try:
                victim = aside(locks.acquire, name)
                until(lambda: unread(pid), "the request has arrived")
                proxy.drop()
                with pytest.raises(BackendError):
                    victim.result(PATIENCE)
            finally:
                os.kill(pid, signal.SIGCONT)
            until(lambda: not Path(f"/proc/{pid}").exists(), "the process is gone")
            assert others.status(name) is None


def crowd(locks: sync.Locks, count: int) -> None:
    """Have the pool open so many connections, which are idle then."""
    together = threading.Barrier(count)
    backend = locks._core.backend
    assert isinstance(backend, Backend)

    def one(number: int) -> None:
        together.wait(PATIENCE)
        with locks.lock(f"crowd-{number}"):
            pass

    def idle() -> bool:
        for task in [aside(one, number) for number in range(count)]:
            task.result(PATIENCE)
        return len(backend._links._idle) >= count

    until(idle, f"{count} connections are idle")


def test_a_request_given_up_does_not_take_the_lock_although_another_connection_cleans_up(
    server: Postgres, name: str
) -> None:
    url = f"{server.url}?application_name={name}&timeout=4s"
    with fencepost.connect(server.url, ttl=LONG) as others, fencepost.connect(url, ttl=LONG) as locks:
        crowd(locks, 3)
        pid = locks._core.backend._links._idle[-1].pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BackendError, match="no answer within 4 s"):
                locks.try_acquire(name)
            assert unread(pid), "the request has arrived"
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the process is gone")
        assert others.status(name) is None


async def test_a_request_whose_caller_was_cancelled_does_not_take_the_lock_after_its_clean_up(
    server: Postgres, name: str
) -> None:
    url = f"{server.url}?application_name={name}&timeout={GIVES_UP:g}s"
    async with aio.connect(url, ttl=LONG) as locks:
        links = locks._core.backend._links  # type: ignore[attr-defined]
        for lease in await asyncio.gather(*(locks.acquire(f"{name}-{number}") for number in range(3))):
            assert await lease.release()
        assert len(links._idle) > 1
        pid = links._idle[-1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            victim = asyncio.create_task(locks.acquire(name))
            await until_async(lambda: unread(pid), "the request has arrived", watching=[victim])
            victim.cancel()
            await asyncio.wait([victim])
            assert victim.cancelled()
            await until_async(lambda: not links._stranded and len(links._idle) == links._open, "it is cleaned up")
        finally:
            os.kill(pid, signal.SIGCONT)
        await until_async(lambda: not Path(f"/proc/{pid}").exists(), "the process is gone")
        assert await locks.status(name) is None


async def test_behind_a_pooler_a_cancelled_request_ends_before_its_clean_up(server: Postgres, name: str) -> None:
    """Nobody can end the server's process there, and a second cancellation cuts off what would cancel the request."""
    with PgBouncer(target=server.url) as pooler:
        url = f"{pooler.url}?application_name={name}"
        async with aio.connect(url, ttl=LONG) as locks, aio.connect(server.url, ttl=LONG) as others:
            links = locks._core.backend._links  # type: ignore[attr-defined]
            await (await locks.acquire(name)).release()
            assert links.pooled
            with session(server) as other:
                look = "SELECT pid, clock_timestamp() FROM pg_stat_activity WHERE application_name = %s"
                ((pid, stopped),) = other.execute(look, [name])
            os.kill(pid, signal.SIGSTOP)
            try:
                victim = asyncio.create_task(locks.acquire(name))
                await until_async(lambda: unread(pid), "the request has arrived", watching=[victim])
                while not victim.done():
                    victim.cancel()
                    await asyncio.sleep(0)
                await until_async(lambda: links._unfinished and links._queue, "the clean-up waits for its end")
            finally:
                os.kill(pid, signal.SIGCONT)
            with session(server) as other:
                busy = "SELECT FROM pg_stat_activity WHERE pid = %s AND (state = 'active' OR query_start < %s)"
                await until_async(lambda: not other.execute(busy, [pid, stopped]).fetchall(), "it was carried out")

            async def free() -> bool:
                return await others.status(name) is None

            await until_async(free, "the lock is free")


def test_one_silent_connection_makes_all_idle_ones_suspect(server: Postgres, name: str) -> None:
    """As when a firewall has forgotten them all: each of them would be waited for in its turn."""
    with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?timeout=4s"
        with fencepost.connect(url, ttl=LONG) as locks:
            crowd(locks, 4)
            proxy.cut(newcomers=False)
            with pytest.raises(BackendError, match="no answer within 4 s"):
                locks.acquire(name)
            assert proxy.held, "the request was on its way"
            again = f"{name}-again"
            assert locks.acquire(again).release()
            assert not proxy.holds(again.encode()), "nothing more was asked over the old connections"


def test_a_connection_that_a_closed_event_loop_left_in_use_ends_with_its_locks(server: Postgres, name: str) -> None:
    async def begin(proxy: Proxy) -> tuple[aio.Locks, asyncio.Task[aio.Lease]]:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?application_name={name}"
        locks = aio.connect(url, ttl=LONG)
        assert await (await locks.acquire(name)).release()
        proxy.cut()
        asking = asyncio.create_task(locks.acquire(name))
        await until_async(lambda: bool(proxy.held), "the request is on its way", watching=[asking])
        return locks, asking

    sessions = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    with Proxy(server.port) as proxy:
        loop = asyncio.new_event_loop()
        locks, asking = loop.run_until_complete(begin(proxy))
        _kept.extend(asyncio.all_tasks(loop))
        loop.close()
        proxy.heal()
        run(locks.close())
        until(lambda: server.psql(sessions) == "0", "the server knows")
        assert not asking.done(), "it is still there, and has its connection"


def test_a_connection_that_another_event_loop_opened_is_not_closed_under_a_request(server: Postgres, name: str) -> None:
    async def first() -> aio.Locks:
        locks = aio.connect(f"postgresql://postgres@{HOST}:{proxy.port}/postgres?timeout={PATIENCE:g}s", ttl=LONG)
        assert await (await locks.acquire(name)).release()
        return locks

    async def second(locks: aio.Locks) -> None:
        links = locks._core.backend._links  # type: ignore[attr-defined]
        proxy.cut()
        asking = asyncio.create_task(locks.acquire(name))
        await until_async(lambda: bool(proxy.held), "the request is on its way", watching=[asking])
        (link,) = links._used
        await links.close()
        assert not link.closed
        proxy.heal()
        assert await (await asking).release()
        assert link.closed, "it was given back"
        await locks.close()

    with Proxy(server.port) as proxy:
        loop = asyncio.new_event_loop()
        locks = loop.run_until_complete(first())
        _kept.extend(asyncio.all_tasks(loop))
        loop.close()
        run(second(locks))


_kept: list[asyncio.Task[Any]] = []  # for good: Python complains of a task that is destroyed while it is pending


@pytest.mark.parametrize("waits", [False, True])
def test_whoever_is_cancelled_while_nothing_gets_through_is_cancelled(server: Postgres, name: str, waits: bool) -> None:
    """It must neither be told of the server's silence instead nor, waiting, go on as if nothing had been said."""

    async def scene(proxy: Proxy, others: sync.Locks) -> None:
        async with aio.connect(
            f"postgresql://postgres@{HOST}:{proxy.port}/postgres?timeout={GIVES_UP:g}s", ttl=LONG
        ) as locks:
            assert await (await locks.acquire(name)).release()
            if waits:
                holder = others.acquire(name, ttl=8, renew=False)
                victim = asyncio.create_task(locks.acquire(name))
                await asyncio.to_thread(waiters_of, others, name, 1)
                assert not holder.ended
            proxy.cut()
            if not waits:
                victim = asyncio.create_task(locks.acquire(name))
            await until_async(lambda: bool(proxy.held), "the request is on its way")
            victim.cancel()
            await asyncio.wait([victim], timeout=PATIENCE)
            assert victim.cancelled()
            proxy.heal()

    with Proxy(server.port) as proxy, fencepost.connect(server.url) as others:
        run(scene(proxy, others))


def test_sessions_that_were_ended_are_replaced_unseen(server: Postgres, name: str) -> None:
    """By an administrator, a failover or an idle timeout: the pool's, and the one that listens."""
    kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'mine'"
    there = "SELECT pid FROM pg_stat_activity WHERE application_name = 'mine'"
    url = f"{server.url}?application_name=mine"
    with fencepost.connect(url, ttl=LONG) as locks, session(server) as other:
        for _ in range(3):
            holder = locks.acquire(name)
            waiter = aside(locks.acquire, name)
            until(lambda: known_to_wait(locks) == 1, "it waits")
            # The thread that listens may not have noticed yet that its session was ended the last time.
            until(lambda: len(other.execute(there).fetchall()) >= 2, "one of the pool, and one that listens")
            assert len(other.execute(kill).fetchall()) >= 2
            assert holder.release()
            assert waiter.result(PATIENCE).release()


def test_a_place_in_line_is_kept_when_the_session_that_listens_ends(server: Postgres, name: str) -> None:
    place = "SELECT ticket, process FROM fencepost.waiter WHERE name = %s"
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        holder = locks.acquire(name)
        waiter = aside(locks.acquire, name)
        until(lambda: known_to_wait(locks) == 1, "it waits")
        ((ticket, process),) = other.execute(place, [name]).fetchall()
        other.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND "
            "(classid::bigint << 32) | objid::bigint = %s",
            [process],
        )
        until(
            lambda: other.execute(place, [name]).fetchall()[0][1] != process,
            "another process takes its place",
        )
        assert other.execute(place, [name]).fetchall()[0][0] == ticket
        assert other.execute("SELECT 1 FROM fencepost.process WHERE id = %s", [process]).fetchall() == []
        assert holder.release()
        assert waiter.result(PATIENCE).release()


def test_a_database_that_defaults_to_serializable_transactions_loses_no_update(server: Postgres, name: str) -> None:
    with session(server) as other:
        other.execute("DROP DATABASE IF EXISTS strict")
        other.execute("CREATE DATABASE strict")
        other.execute("ALTER DATABASE strict SET default_transaction_isolation = serializable")
    value, url = [0], server.url.replace("/postgres", "/strict").replace("strict@", "postgres@")
    with fencepost.connect(url, ttl=LONG) as locks:

        def increment() -> None:
            for _ in range(20):
                with locks.lock(name):
                    seen = value[0]
                    time.sleep(0)
                    value[0] = seen + 1

        for task in [aside(increment) for _ in range(8)]:
            task.result(2 * PATIENCE)
        assert value == [160]
        assert locks.list() == []


def test_a_refused_login_names_no_password(server: Postgres) -> None:
    with (
        fencepost.connect(f"postgresql://nobody:s3cret@{server.address}/nowhere") as locks,
        pytest.raises(BackendError, match="nobody") as raised,
    ):
        locks.acquire("x")
    assert not raised.value.ambiguous
    assert "s3cret" not in str(raised.value) + repr(raised.value)


def test_a_connection_to_a_server_that_takes_no_writes_any_more_is_given_up(server: Postgres, name: str) -> None:
    """After a failover the name may lead to the old primary for a while, which is a standby now."""
    with fencepost.connect(server.url, ttl=LONG) as first:
        assert first.acquire(name).release(), "the tables are there"
    with session(server) as other, fencepost.connect(server.url, ttl=LONG) as locks:
        other.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        try:
            with pytest.raises(BackendError, match="read-only"):
                locks.acquire(name)
        finally:
            other.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        assert locks.acquire(name).release()


def test_an_acquire_that_surely_failed_leaves_no_waiter_behind(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks, fencepost.connect(server.url, ttl=LONG) as others:
        holder = others.acquire(name)
        waiting = aside(locks.acquire, name)
        waiters_of(others, name, 1)
        backend: Any = locks._core.backend
        call = backend._links.call

        async def refused(*_: object) -> str:
            raise BackendError("too many connections", backend="postgresql", ambiguous=False)

        backend._links.call = refused
        for _ in range(3):
            with pytest.raises(BackendError, match="too many"):
                locks.acquire(name, timeout=1)
        backend._links.call = call
        assert len(backend._listener._waiters) == 1, "the one that waits"
        assert holder.release()
        assert waiting.result(PATIENCE).release()


@isolated
def test_a_signal_handler_inside_the_pool_uses_locks_too(postgres_server: Endpoint) -> None:
    """Handlers of most signals are held back meanwhile; this one's is not."""
    names = [f"lock-{secrets.token_hex(4)}" for _ in range(2)]
    with fencepost.connect(postgres_server.url, ttl=LONG) as locks:
        other = locks.acquire(names[0])
        released: list[bool] = []

        class Interrupted(list[Any]):
            def pop(self, *at: Any) -> Any:
                if not released:
                    signal.raise_signal(signal.SIGCHLD)
                return super().pop(*at)

        def handle(*_: object) -> None:
            released.append(False)
            released[0] = other.release()

        signal.signal(signal.SIGCHLD, handle)
        backend: Any = locks._core.backend
        backend._links._idle = Interrupted(backend._links._idle)
        assert locks.acquire(names[1]).release()
        assert released == [True]
