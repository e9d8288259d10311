"""Sharers of a Postgres lock: each with a token drawn under the row's lock, told by NOTIFY, gone with its own ttl."""

from collections.abc import Iterator

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.postgres import listener
from fencepost.holders import unlabelled
from fencepost_lab.servers import Postgres
from tests.backends.postgres.tools import LONG, aside, session, started
from tests.backends.redis.waiters import Waiters
from tests.harness.threads import known_to_wait, waiters_of
from tests.harness.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with started() as server:
        yield server


def blocked(server: Postgres) -> bool:
    return server.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != "0"


def sharers(locks: sync.Locks, name: str) -> tuple[str, ...]:
    status = locks.status(name)
    return status.sharers if status else ()


def test_a_share_blocked_across_anothers_whole_life_gets_a_larger_token_and_its_whole_ttl(
    server: Postgres, name: str
) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        first = locks.shared(name).acquire()
        with other.transaction():
            other.execute("SELECT 1 FROM fencepost.lock WHERE name = %s FOR UPDATE", [name])
            late = aside(locks.shared(name).try_acquire)
            until(lambda: blocked(server), "somebody is blocked")
            (((token,),),) = other.execute(
                "SELECT fencepost.take_share(%s, 'somebody', 60, 9, NULL, NULL)", [name]
            ).fetchall()
            assert other.execute("SELECT fencepost.release(%s, 'somebody', %s)", [name, token]).fetchall() == [(True,)]
            ((before,),) = other.execute("SELECT clock_timestamp()").fetchall()
            assert not late.done(), "it was blocked all the while"
        lease = late.result(PATIENCE)
        assert lease is not None
        assert lease.token > token > first.token
        ((expires,),) = other.execute(
            "SELECT expires FROM fencepost.share WHERE holder = %s", [lease._stored]
        ).fetchall()
        assert (expires - before).total_seconds() >= LONG


def test_readers_let_in_together_are_told_once_each(server: Postgres, name: str, news: list[str]) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        writer = locks.acquire(name)
        tasks = [aside(locks.shared(name).acquire) for _ in range(30)]
        waiters = waiters_of(locks, name, 30)
        assert writer.release()
        leases = {task.result(PATIENCE).holder: task.result() for task in tasks}
        tokens = [leases[holder].token for holder in waiters]
        assert tokens == sorted(set(tokens)), "in the order they came"
        assert [unlabelled(each)[0] for each in news] == list(waiters)
        assert sharers(locks, name) == waiters


def test_a_killed_writer_in_line_keeps_no_reader_out(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        kept = locks.shared(name).acquire()
        dead = Waiters(server.url, name, 3)
        waiters_of(locks, name, 3)
        assert locks.shared(name).try_acquire() is None
        assert dead.kill() == []
        listening = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        until(lambda: server.psql(listening) == "0", "the server has noticed")
        lease = locks.shared(name).try_acquire()
        assert lease is not None
        assert sharers(locks, name) == (kept.holder, lease.holder)


def test_a_waiter_is_told_of_a_sharer_that_expires_earlier(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It minds the deadline of the writer before, which is far off; the reader let in before it dies soon."""
    monkeypatch.setattr(listener, "_LISTENING", (2 * PATIENCE, 3 * PATIENCE))  # nobody looks for lost news
    with fencepost.connect(server.url, ttl=LONG) as locks, fencepost.connect(server.url, ttl=LONG) as there:
        writer = locks.acquire(name)
        short = aside(locks.shared(name, ttl=3, renew=False).acquire)
        waiters_of(locks, name, 1)
        last = aside(there.acquire, name)
        waiters_of(locks, name, 2)
        assert writer.release()
        reader = short.result(PATIENCE)
        assert last.result(PATIENCE).token > reader.token
        assert not reader.release()


def test_shares_and_their_line_survive_a_crash_of_the_server(name: str) -> None:
    with Postgres() as server, fencepost.connect(server.url, ttl=LONG) as locks:
        leases = [locks.semaphore(name, 2).acquire() for _ in range(2)]
        third = aside(locks.semaphore(name, 2).acquire)
        until(lambda: known_to_wait(locks) == 1, "it waits")
        server.kill()
        server.start()
        until(lambda: blocked(server) is False, "nobody is blocked")
        assert sharers(locks, name) == tuple(lease.holder for lease in leases)
        for lease in leases:
            lease.renew()
        assert leases[0].release()
        assert third.result(PATIENCE).token > leases[1].token
