"""The line in front of a Postgres lock: in order, one wake-up per hand-over, the dead skipped."""

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.postgres import listener
from fencepost.backends.postgres.backend import Postgres as Backend
from fencepost.backends.postgres.listener import Listener, Waker
from fencepost.errors import BackendError
from fencepost.holders import unlabelled
from fencepost_lab.servers import Postgres
from tests.backends.postgres.tools import LONG, aside, session, started
from tests.backends.redis.waiters import Waiters
from tests.harness.child import Child
from tests.harness.forsaken import forsake
from tests.harness.pgbouncer import PgBouncer
from tests.harness.scripted import CLOSE, SWALLOW, Fault, Scripted
from tests.harness.scripted import Postgres as Dialect
from tests.harness.threads import known_to_wait, waiters_of
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with started("-c", "track_functions=all") as server:
        yield server


LISTENS = "SELECT listens FROM fencepost.process JOIN fencepost.waiter ON process = id WHERE name = %s"


def calls(server: Postgres) -> dict[str, int]:
    """How often each function was called. A session counts when it ends."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost'"
    until(lambda: server.psql(sessions) == "0", "its sessions are gone")
    said = server.psql("SELECT funcname, calls FROM pg_stat_user_functions WHERE schemaname = 'fencepost'")
    return {function: int(count) for function, count in (line.split("|") for line in said.splitlines())}


def asleep(locks: sync.Locks, name: str) -> int:
    """How many wait for a lock, and are known to their process as that: a release looks there."""
    inside = locks._core.backend
    assert isinstance(inside, Backend)
    return len(inside._queues._queues.get(name, ()))


def behind(server: Postgres, proxy: Scripted) -> str:
    return server.url.replace(server.address, proxy.address)


def listening(server: Postgres) -> int:
    """How many processes listen."""
    return int(server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))


@pytest.mark.parametrize(("count", "clients"), [(50, 1), (50, 2), (200, 1)])
def test_a_hand_over_wakes_one_waiter_and_nobody_asks_meanwhile(
    server: Postgres, name: str, count: int, clients: int, news: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    doubtful: list[str] = []
    doubt = Listener._doubt

    def count_and_doubt(listener: Listener, queued: Collection[str] = ()) -> None:
        doubtful.extend(holder for holder in listener._waiters.copy() if holder not in queued)
        doubt(listener, queued)

    monkeypatch.setattr(Listener, "_doubt", count_and_doubt)
    failures: list[str] = []
    ask = Backend._ask

    async def ask_and_count(self: Backend, *args: Any) -> tuple[float, list[int]]:
        try:
            return await ask(self, *args)
        except BackendError as error:
            failures.append(str(error))
            raise

    monkeypatch.setattr(Backend, "_ask", ask_and_count)
    before = calls(server)
    served: list[tuple[str, sync.Locks]] = []
    gate = threading.Lock()
    with ExitStack() as stack:
        several = [stack.enter_context(fencepost.connect(server.url, ttl=LONG)) for _ in range(clients)]
        holder = several[0].acquire(name)

        def pass_on(locks: sync.Locks) -> None:
            lease = locks.acquire(name)
            with gate:
                served.append((lease.holder, locks))
            assert lease.release()

        tasks = [aside(pass_on, several[number % clients]) for number in range(count)]
        waiters = waiters_of(several[0], name, count)
        until(lambda: sum(asleep(locks, name) for locks in several) == count, "all of them wait")
        assert holder.release()
        for task in tasks:
            task.result(PATIENCE)
    assert [each for each, _ in served] == list(waiters), "0 inversions"
    ways = pairwise([(holder.holder, several[0]), *served])
    abroad = [each for (_, sender), (each, receiver) in ways if receiver is not sender]
    assert sorted(unlabelled(each)[0] for each in news) == sorted(abroad), "a message for each that leaves its client"
    assert bool(abroad) == (clients > 1)
    after = calls(server)
    functions = ("take", "release", "hand_over")
    spent = {function: after.get(function, 0) - before.get(function, 0) for function in functions}
    # One request each, and one more from each of those who came before this process could hear, or who were not in line
    # at one of its beats. What failed, as when the server of a busy machine does not answer in time, is asked again.
    assert count + 1 <= spent["take"] <= 2 * count + 1 + len(doubtful) + len(failures), (doubtful, failures)
    assert spent["release"] + spent["hand_over"] == count + 1
    assert spent["hand_over"] >= count / 2


@pytest.mark.parametrize("fault", [CLOSE, SWALLOW], ids=str)
def test_an_answer_that_was_to_tell_of_a_hand_over_and_is_lost_costs_the_next_waiter_no_time(
    server: Postgres, name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_LISTENING", (2 * PATIENCE, 3 * PATIENCE))  # no beat comes in time
    with Scripted(server.port, Dialect) as proxy, fencepost.connect(behind(server, proxy), ttl=LONG) as locks:
        holder = locks.acquire(name)
        waiter = aside(locks.acquire, name)
        until(lambda: known_to_wait(locks) == 1, "it waits")
        proxy.plan(fault, "hand_over", 1)
        with pytest.raises(BackendError):
            holder.release()
        assert proxy.happened
        if fault is SWALLOW:  # the server has not heard of it
            assert not waiter.done()
            assert holder.release()
        asked = proxy.seen["beat"]
        assert waiter.result(PATIENCE).release()
        assert proxy.seen["beat"] == asked, "before the listener looks whether it is still in line"


def test_waiters_of_killed_processes_are_skipped_at_once(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        dead = Waiters(server.url, name, 100)
        waiters_of(locks, name, 100)
        behind = [aside(locks.acquire, name) for _ in range(2)]
        waiters_of(locks, name, 102)
        assert dead.kill() == []
        until(lambda: listening(server) == 1, "the server has noticed")
        assert holder.release()
        until(lambda: any(each.done() for each in behind), "one behind is served")
        lease = next(each for each in behind if each.done()).result()
        assert lease.remaining > LONG / 2, "nobody's ttl had to pass"
        assert lease.release()
        for each in behind:
            each.result(PATIENCE).release()
        assert locks.status(name) is None


def test_a_process_without_a_sign_of_life_is_skipped_and_joins_again(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a frozen one is, or one on a host that vanished: its session lives on, but it does not."""
    goes_on = threading.Event()
    wait = Waker.wait

    def wait_frozen(waker: Waker, timeout: float, descriptor: int) -> None:
        inside = silent._core.backend
        assert isinstance(inside, Backend)
        if waker is inside._listener._waker:
            goes_on.wait(PATIENCE)  # its next beat comes after this
        wait(waker, timeout, descriptor)

    monkeypatch.setattr(Waker, "wait", wait_frozen)
    with (
        fencepost.connect(server.url, ttl=LONG) as silent,
        fencepost.connect(server.url, ttl=LONG) as locks,
        session(server) as other,
    ):
        holder = locks.acquire(name)
        skipped = aside(silent.acquire, name)
        waiters_of(locks, name, 1)
        other.execute("UPDATE fencepost.process SET until = clock_timestamp() - interval '1 second'")
        behind = aside(locks.acquire, name)
        waiters_of(locks, name, 2)
        other.execute(
            "UPDATE fencepost.process SET until = clock_timestamp() + interval '1 minute' WHERE id = "
            "(SELECT process FROM fencepost.waiter WHERE name = %s ORDER BY ticket DESC LIMIT 1)",
            [name],
        )
        assert holder.release()
        lease = behind.result(PATIENCE)
        goes_on.set()
        waiters_of(locks, name, 1)
        assert lease.release()
        assert skipped.result(PATIENCE).token > lease.token


def test_a_process_that_waits_says_again_and_again_that_it_lives(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_LISTENING", (0.1, 15.0))
    look = "SELECT until FROM fencepost.process JOIN fencepost.waiter ON process = id WHERE name = %s"
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        holder = locks.acquire(name)
        waiter = aside(locks.acquire, name)
        waiters_of(locks, name, 1)
        ((first,),) = other.execute(look, [name]).fetchall()
        until(lambda: other.execute(look, [name]).fetchall()[0][0] > first, "another sign of life")
        assert holder.release()
        assert waiter.result(PATIENCE).release()


def test_a_full_queue_of_dead_waiters_takes_the_living(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG, queue_limit=5) as locks:
        holder = locks.acquire(name)
        dead = Waiters(server.url, name, 5)
        waiters_of(locks, name, 5)
        with pytest.raises(fencepost.QueueFull):
            locks.acquire(name)
        dead.kill()

        until(lambda: listening(server) == 1, "the server has noticed")
        waiter = aside(locks.acquire, name)
        waiters_of(locks, name, 1)
        assert holder.release()
        assert waiter.result(PATIENCE).release()


WAITS_AND_FORKS = """
import os, sys, threading, fencepost
from fencepost.backends.postgres import listener

_, url, name, when = sys.argv
connect, connected, forked = listener.connect, threading.Event(), threading.Event()

async def slow(*args):
    link = await connect(*args)
    connected.set()
    forked.wait()
    return link

if when == "connecting":
    listener.connect = slow
locks = fencepost.connect(url, ttl=600)
threading.Thread(target=locks.acquire, args=(name,), daemon=True).start()
if when == "connecting":
    connected.wait()
else:
    sys.stdin.readline()
if os.fork():
    forked.set()
    threading.Event().wait()
print("forked", flush=True)
sys.stdin.readline()
print("lives", flush=True)
"""


@pytest.mark.parametrize("when", ["waiting", "connecting"])
def test_a_killed_waiter_is_skipped_although_a_child_of_its_process_lives(
    server: Postgres, name: str, when: str
) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        with Child.python("-c", WAITS_AND_FORKS, server.url, name, when) as process:
            if when == "waiting":
                waiters_of(locks, name, 1, process)
                process.tell("fork")
            assert process.line() == "forked"
            waiters_of(locks, name, 1, process)
            until(lambda: listening(server) == 1, "it listens, and nobody from an earlier test does any more")
            behind = aside(locks.acquire, name)
            waiters_of(locks, name, 2)
            assert listening(server) == 2
            process.kill()
            until(lambda: listening(server) == 1, "the server has noticed")
            assert holder.release()
            assert behind.result(PATIENCE).release()
            process.tell("are you there")
            assert process.line() == "lives"


def test_whoever_is_woken_for_nothing_waits_on(server: Postgres, name: str) -> None:
    """NOTIFY is open to everybody in the database: what it says without a grant behind it is found out."""
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        holder = locks.acquire(name)
        waiter = aside(locks.acquire, name)
        waiters_of(locks, name, 1)
        ((process,),) = other.execute("SELECT process FROM fencepost.waiter WHERE name = %s", [name]).fetchall()
        other.execute("SELECT pg_notify('fencepost_' || %s::bigint, 'nonsense')", [process])
        other.execute("SELECT pg_notify('fencepost_' || %s::bigint, concat('x 1 2 ', %s::text))", [process, name])
        holder.renew()
        assert not waiter.done()
        assert holder.release()
        assert waiter.result(PATIENCE).release()


def test_a_grant_that_the_store_does_not_know_of_is_not_believed(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can read the queue can send a waiter any token."""
    heard = threading.Event()
    hear = Listener._heard

    def noticed(listener: Listener, news: str) -> None:
        hear(listener, news)
        heard.set()

    monkeypatch.setattr(Listener, "_heard", noticed)
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        holder = locks.acquire(name)
        waiter = aside(locks.acquire, name)
        waiters_of(locks, name, 1)
        ((process, who),) = other.execute("SELECT process, holder FROM fencepost.waiter WHERE name = %s", [name])
        forged = f"{who} {2**63 - 1} {2**62} {name}"
        other.execute("SELECT pg_notify('fencepost_' || %s::bigint, %s)", [process, forged])
        until(heard.is_set, "it has heard of it")
        holder.renew()
        assert holder.release()
        lease = waiter.result(PATIENCE)
        assert holder.token < lease.token < 2**62
        assert lease.release()


def test_a_waiter_whose_event_loop_was_closed_leaves_the_queue(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_LISTENING", (0.1, 15.0))

    def waits() -> bool:
        status = locks.status(name)
        return status is not None and len(status.waiters) == 1

    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        forsaken = forsake(server.url, name, waits, ttl=LONG)
        waiters_of(locks, name, 0)
        assert holder.release()
        assert locks.acquire(name, timeout=LONG / 4).release(), "long before any ttl"
    run(forsaken.close())


def test_nobody_listens_when_nobody_waits_any_more(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LINGER", 0.1)
    monkeypatch.setattr(listener, "_LISTENING", (0.1, 15.0))
    with fencepost.connect(server.url, ttl=LONG) as locks:
        for _ in range(2):
            holder = locks.acquire(name)
            waiter = aside(locks.acquire, name)
            waiters_of(locks, name, 1)
            assert holder.release()
            assert waiter.result(PATIENCE).release()
            until(lambda: listening(server) == 0, "the server has noticed")


def test_a_way_to_listen_that_leads_nowhere_is_said_so(server: Postgres, name: str) -> None:
    nowhere = quote("postgresql://127.0.0.1:1/x", safe="")
    with fencepost.connect(f"{server.url}?timeout={GIVES_UP:g}s&listen={nowhere}", ttl=LONG) as locks:
        lease = locks.acquire(name)
        with pytest.raises(fencepost.BackendError, match=r"listen=.*127\.0\.0\.1"):
            locks.acquire(name)
        assert lease.release()


def test_behind_a_pooler_a_direct_way_to_listen_makes_waiting_silent(server: Postgres, name: str) -> None:
    with PgBouncer(target=server.url) as bouncer, session(server) as other:
        for url, listens in ((bouncer.url, False), (f"{bouncer.url}?listen={quote(server.url, safe='')}", True)):
            with fencepost.connect(url, ttl=LONG) as locks:
                holder = locks.acquire(name)
                waiter = aside(locks.acquire, name)
                waiters_of(locks, name, 1)
                assert other.execute(LISTENS, [name]).fetchall() == [(listens,)]
                assert holder.release()
                assert waiter.result(PATIENCE).release()
