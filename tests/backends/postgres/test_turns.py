"""Requests of one process about one lock: sent one after another, a release first."""

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.postgres import turns
from fencepost.backends.postgres.backend import Postgres as Backend
from fencepost.backends.postgres.connection import Call
from fencepost.backends.postgres.pool import Links
from fencepost.backends.postgres.turns import Turns
from fencepost.driver import run as drive
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError
from fencepost_lab.servers import Postgres
from tests.backends.postgres.tools import LONG, aside, session
from tests.harness.waiting import PATIENCE, run, until, until_async

ROW = "SELECT FROM fencepost.lock WHERE name = %s FOR UPDATE"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost' AND wait_event_type = 'Lock'"

_kept: list[object] = []  # for good: Python complains of a task that is destroyed while it is pending


@contextlib.contextmanager
def locked_row(server: Postgres, name: str) -> Iterator[None]:
    """Another client is inside a transaction that has locked the lock's row: requests about it get no answer."""
    with session(server) as other, other.transaction():
        assert other.execute(ROW, [name]).rowcount == 1
        yield


def blocked(server: Postgres) -> int:
    """How many of our requests wait in the server."""
    return int(server.psql(WAITING))


def queued(locks: sync.Locks, name: str) -> int:
    """How many requests about a lock wait for their turn."""
    backend = locks._core.backend
    assert isinstance(backend, Backend)
    return len(backend._turns._waiting.get(name, ()))


def served(waiters: list[Future[sync.Lease]]) -> None:
    """Each of them has the lock once, and releases it."""
    while waiters:
        first = until(lambda: next((each for each in waiters if each.done()), None), "the next one has the lock")
        assert first is not None
        waiters.remove(first)
        assert first.result().release()


def test_many_who_wait_for_one_lock_leave_the_connections_to_other_locks(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    with fencepost.connect(f"{server.url}?pool=2", ttl=LONG) as locks:
        holder = locks.acquire(name)
        with locked_row(server, name):
            waiters = [aside(locks.acquire, name) for _ in range(5)]
            until(lambda: (queued(locks, name), blocked(server)) == (4, 1), "one is sent, the others wait")
            assert locks.acquire(f"{name} other", timeout=PATIENCE).release()
            assert blocked(server) == 1
        assert holder.release()
        served(waiters)


def test_a_release_goes_before_those_that_still_wait_for_their_turn(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    made: list[str] = []
    call = Links.call

    async def note_and_call(self: Links, statement: Call, *args: str | None) -> str | None:
        made.append(statement._name.decode())
        return await call(self, statement, *args)

    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        monkeypatch.setattr(Links, "call", note_and_call)
        with locked_row(server, name):
            waiters = [aside(locks.acquire, name)]
            until(lambda: blocked(server) == 1, "the first is sent")
            made.clear()
            waiters += [aside(locks.acquire, name) for _ in range(2)]
            until(lambda: queued(locks, name) == 2, "the others wait")
            released = aside(holder.release)
            until(lambda: queued(locks, name) == 3, "the release waits for the first alone")
            assert not made
        assert released.result(PATIENCE)
        assert made[0] in ("release", "hand_over")
        served(waiters)


def test_a_request_that_waited_long_enough_is_sent_without_its_turn(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.05)
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        with locked_row(server, name):
            waiters = [aside(locks.acquire, name) for _ in range(3)]
            until(lambda: blocked(server) == 3, "all three are sent")
        assert holder.release()
        served(waiters)


def test_one_whose_event_loop_was_closed_keeps_nobody_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is sent, nor one that waits."""
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    driver = Asyncio()
    turn = Turns(driver)

    async def enter_and_stay() -> None:
        tasks = [asyncio.create_task(turn.enter("a", driver.signal())) for _ in range(3)]
        _kept.extend(tasks)
        await until_async(lambda: len(turn._waiting.get("a", ())) == 2, "one is sent, two wait", watching=tasks[:1])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(enter_and_stay())
    loop.close()

    async def enter_and_leave() -> None:
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                mine = driver.signal()
                await turn.enter("a", mine)
                turn.leave("a", mine)

    run(enter_and_leave())


def test_one_that_is_cancelled_while_it_waits_passes_its_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its turn has just come, and it has not run since."""
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    driver = Asyncio()
    turn = Turns(driver)

    async def take_turn() -> None:
        mine = driver.signal()
        try:
            await turn.enter("a", mine)
        finally:
            turn.leave("a", mine)

    async def scene() -> None:
        sent = driver.signal()
        await turn.enter("a", sent)
        second, third = (asyncio.create_task(take_turn()) for _ in range(2))
        await until_async(lambda: len(turn._waiting.get("a", ())) == 2, "they wait", watching=[second, third])
        turn.leave("a", sent)
        second.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([second, third])
        assert second.cancelled()
        assert third.exception() is None
        assert not turn._sent
        assert not turn._waiting

    run(scene())


def test_one_whose_time_is_up_before_its_turn_was_certainly_not_sent() -> None:
    driver = Blocking()
    turn = Turns(driver)
    drive(turn.enter("a", driver.signal()))

    async def scene() -> None:
        mine = driver.signal()
        with pytest.raises(BackendError, match="earlier requests about the lock 'a'") as raised:
            await driver.within(0.01, turn.enter("a", mine))
        turn.leave("a", mine)
        assert not raised.value.ambiguous

    drive(scene())
    assert not turn._waiting
