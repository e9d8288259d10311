"""Requests of one process to join the queue of one lock: sent one after another, and a release at once."""

import asyncio
import contextlib
import types
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.postgres import turns
from fencepost.backends.postgres.backend import Postgres as Backend
from fencepost.backends.postgres.turns import Turns
from fencepost.driver import run as drive
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking, ThreadSignal
from fencepost_lab.servers import Postgres
from tests.backends.postgres.tools import LONG, aside, session
from tests.harness.isolated import in_fork, isolated
from tests.harness.threads import held
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


def test_a_release_needs_no_turn(server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        with locked_row(server, name):
            waiters = [aside(locks.acquire, name) for _ in range(3)]
            until(lambda: (queued(locks, name), blocked(server)) == (2, 1), "one is sent, two wait")
            released = aside(holder.release)
            until(lambda: blocked(server) == 2, "the release is sent too")
            assert queued(locks, name) == 2
        assert released.result(PATIENCE)
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


def test_a_request_without_an_answer_delays_one_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one is sent without its turn, and the next ones wait for it, not for the one without an answer."""
    driver = Blocking()
    turn = Turns(driver)
    lost, second, third = (driver.signal() for _ in range(3))
    drive(turn.enter("a", lost))
    monkeypatch.setattr(turns, "PATIENCE", 0.01)
    drive(turn.enter("a", second))
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    turn.leave("a", second)
    drive(driver.within(PATIENCE, turn.enter("a", third)))
    turn.leave("a", lost)
    assert turn._sent == {"a": third}, "the answer came late: the third still has its turn"
    turn.leave("a", third)
    assert (turn._sent, turn._waiting) == ({}, {})


def test_a_request_whose_caller_has_little_time_keeps_most_of_it_for_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    driver = Blocking()
    turn = Turns(driver)
    drive(turn.enter("a", driver.signal()))
    waits: list[float] = []

    class Noted(ThreadSignal):
        async def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            raise KeyboardInterrupt

    mine = Noted()
    with pytest.raises(KeyboardInterrupt):
        drive(driver.within(PATIENCE, turn.enter("a", mine)))
    turn.leave("a", mine)
    assert 0 < waits[0] <= PATIENCE / 4
    assert not turn._waiting


def test_a_lease_is_counted_from_when_its_request_was_sent(
    server: Postgres, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from when it began to wait for its turn."""
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    with fencepost.connect(server.url, ttl=LONG) as locks:
        assert locks.acquire(name).release()
        backend = locks._core.backend
        assert isinstance(backend, Backend)
        before = backend.driver.signal()
        drive(backend._turns.enter(name, before))
        taken = aside(lambda: drive(backend.take(name, "me", LONG, 10)))
        until(lambda: queued(locks, name) == 1, "it waits for its turn")
        ended = backend.driver.now()
        backend._turns.leave(name, before)
        grant = taken.result(PATIENCE)
        assert grant is not None
        assert grant.since >= ended


class Stuck(ThreadSignal):
    """The signal of a request whose event loop is blocked while it waits."""

    async def wait(self, timeout: float | None = None) -> bool:
        await _suspend()
        return False


@types.coroutine
def _suspend() -> Iterator[None]:
    yield


def test_one_that_waits_and_cannot_run_delays_others_for_as_long_as_it_would_wait_itself() -> None:
    now = 0.0
    driver = Blocking(clock=lambda: now)
    turn = Turns(driver)
    sent, stuck = driver.signal(), Stuck()
    drive(turn.enter("a", sent))
    waits = turn.enter("a", stuck)
    waits.send(None)
    turn.leave("a", sent)
    assert stuck.is_set(), "its turn has come"
    assert turn._begin("a", driver.signal()) is False

    now = turns.PATIENCE
    for _ in range(2):
        mine = driver.signal()
        assert turn._begin("a", mine)
        turn.leave("a", mine)
    with pytest.raises(StopIteration):
        waits.send(None)
    assert turn._sent == {"a": stuck}, "it can run again, and is sent"
    turn.leave("a", stuck)
    assert (turn._sent, turn._waiting) == ({}, {})


class Stoppable(ThreadSignal):
    """The signal of a request whose event loop may be stopped, or closed."""

    inert = False
    abandoned = False


def test_who_comes_after_a_turn_that_nobody_passed_on_wakes_the_first_that_waits() -> None:
    """Its event loop was stopped: the one behind it is asleep, and would sleep for as long as it may."""
    driver = Blocking()
    turn = Turns(driver)
    sent, asleep = Stoppable(), Stuck()
    drive(turn.enter("a", sent))
    turn.enter("a", asleep).send(None)
    assert not asleep.is_set()
    sent.inert = True
    assert not turn._begin("a", driver.signal())
    assert asleep.is_set()


def test_one_that_waits_in_a_closed_event_loop_is_not_kept_in_memory() -> None:
    driver = Blocking()
    turn = Turns(driver)
    mine, waits = driver.signal(), Stoppable()
    drive(turn.enter("a", mine))
    with turn._gate:
        turn._waiting["a"] = {waits: driver.now() + LONG}
    waits.inert = waits.abandoned = True
    turn.leave("a", mine)
    assert (turn._sent, turn._waiting) == ({}, {})


@isolated
async def test_a_forked_child_waits_for_no_request_of_its_parent() -> None:
    driver = Blocking()
    turn = Turns(driver)
    drive(turn.enter("a", driver.signal()))

    async def child() -> None:
        turn.forked()
        mine = driver.signal()
        drive(driver.within(PATIENCE, turn.enter("a", mine)))
        assert turn._sent == {"a": mine}
        turn.leave("a", mine)

    with held(turn._gate):
        await in_fork(child, PATIENCE)
