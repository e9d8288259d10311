"""What a holder learns while its lease still holds, but is not renewed."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from fencepost import sync, testing
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError
from fencepost.events import Event
from fencepost.locks import Core
from fencepost.testing import aio
from tests.harness.faulty import Faulty
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until, until_async

TTL = 600.0
DUE = TTL / 3 + 1  # a renewal is due
LATE = TTL / 10  # it has had no answer for too long


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def locks(told: list[Event]) -> Iterator[testing.Locks]:
    with testing.connect(ttl=TTL, hooks=[told.append]) as locks:
        yield locks


def follow(lease: sync.Lease, seen: list[bool]) -> None:
    for risk in lease.at_risk.changes():
        seen.append(risk)


def failures(told: list[Event]) -> int:
    """How many renewals have failed; when the next one comes is known by then."""
    return sum(event.kind == "unrenewed" for event in told)


def kinds(told: list[Event]) -> list[str]:
    return [event.kind for event in told if event.kind in ("at_risk", "recovered", "lost", "released")]


def test_a_holder_learns_once_that_renewals_fail_and_once_that_they_work_again(
    locks: testing.Locks, told: list[Event]
) -> None:
    lease, seen = locks.acquire("a"), list[bool]()
    assert not lease.at_risk
    assert lease.at_risk.wait(0) is False
    changes = background(lambda: follow(lease, seen))
    locks.clock.advance(TTL / 2)  # the machine was suspended for so long, and the renewal is late
    until(lambda: "renewed" in [event.kind for event in told], "it is renewed all the same", watching=[changes])
    assert (kinds(told), seen, bool(lease.at_risk)) == ([], [], False), "the store answered at once"
    for outage in (1, 2):
        with locks.failing("refused", "renew"):
            waiting = background(lease.at_risk.wait)
            locks.clock.advance(DUE)
            assert waiting.result() is True
            assert lease.at_risk
            lease.check()  # it holds
            assert lease.at_risk.wait_clear(0.01) is False
            before = failures(told)
            locks.clock.advance(LATE)
            until(lambda: failures(told) > before, "another renewal that fails", watching=[changes])  # noqa: B023
        locks.clock.advance(LATE)
        assert lease.at_risk.wait_clear(PATIENCE) is True
        assert not lease.at_risk
        until(lambda: len(kinds(told)) == len(seen) == 2 * outage, "both events", watching=[changes])  # noqa: B023
    assert lease.release()
    changes.result()
    assert seen == [True, False] * 2
    assert kinds(told) == ["at_risk", "recovered"] * 2 + ["released"]
    risk = next(event for event in told if event.kind == "at_risk")
    assert (risk.name, risk.token, risk.holder) == ("a", lease.token, lease.holder)
    assert risk.seconds is not None
    assert 0 < risk.seconds < TTL * 2 / 3


def test_a_store_that_does_not_answer_is_told_long_before_the_deadline(told: list[Event]) -> None:
    clock, stuck = testing.Clock(), threading.Event()
    driver = Blocking(clock.now, nap=0.02)
    backend = Faulty(driver)
    backend.renewing = [lambda: stuck.wait(PATIENCE), lambda: None]
    core: Core[sync.Lease] = Core(backend, driver, sync.Lease, ttl=TTL, queue_limit=10, hooks=[told.append])
    with sync.Locks(core) as locks:
        lease = locks.acquire("a")
        clock.advance(DUE)
        until(lambda: backend.batches, "a renewal without an answer")
        assert not lease.at_risk, "the answer may come yet"
        clock.advance(LATE)
        until(lambda: kinds(told) == ["at_risk"], "the event", deadline=PATIENCE / 2)
        assert lease.at_risk.wait(0)
        assert lease.remaining > TTL / 2
        stuck.set()
        assert lease.at_risk.wait_clear(PATIENCE)
        until(lambda: kinds(told) == ["at_risk", "recovered"], "the other one")


def test_nothing_is_told_after_the_loss(locks: testing.Locks, told: list[Event]) -> None:
    lease, seen = locks.acquire("a"), list[bool]()
    changes = background(lambda: follow(lease, seen))
    with locks.failing("hung", "renew") as fault:
        locks.clock.advance(DUE)
        until(lambda: fault.count, "a renewal without an answer", watching=[changes])
        locks.clock.advance(LATE)
        until(lambda: seen == [True], "the change", watching=[changes])
        clear = background(lease.at_risk.wait_clear)
        locks.clock.advance(TTL)
        assert clear.result() is False, "it is lost, and not out of risk"
    assert lease.lost
    assert not lease.at_risk
    assert lease.at_risk.wait(0) is False
    changes.result()
    assert seen == [True]
    until(lambda: "lost" in kinds(told), "the news")
    other = locks.acquire("b", renew=False)
    with locks.failing("refused", "renew"), pytest.raises(BackendError):
        other.renew()
    assert other.at_risk, "its holder's own renewal failed"
    other.renew()
    assert not other.at_risk
    other.release()
    assert [kind for kind in kinds(told) if kind != "released"] == ["at_risk", "lost", "at_risk", "recovered"]


def test_a_process_that_was_frozen_knows_it_by_the_clock_alone() -> None:
    now, told = [100.0], list[Event]()
    driver = Blocking(lambda: now[0], nap=10 * PATIENCE)
    core: Core[sync.Lease] = Core(Faulty(driver), driver, sync.Lease, ttl=300.0, queue_limit=10, hooks=[told.append])
    with sync.Locks(core) as locks:
        lease, once = locks.acquire("a"), locks.acquire("b", renew=False)
        run = core._renewals._timer._service._run
        until(lambda: run.nudge._flag._waiters, "the service sleeps")  # type: ignore[union-attr]
        now[0] += 129
        assert not lease.at_risk
        now[0] += 2
        assert lease.at_risk
        assert not once.at_risk, "it is not to be renewed"
        assert lease.at_risk.wait(0) is True
        assert kinds(told) == [], "nobody was awake to tell"
        now[0] += 170
        assert not lease.at_risk, "it is lost"


async def test_tasks_learn_it_too_and_their_block_goes_on(told: list[Event]) -> None:
    async with aio.connect(ttl=TTL, hooks=[told.append]) as locks, locks.lock("a") as lease:
        seen: list[bool] = []

        async def follow() -> None:
            async for risk in lease.at_risk.changes():
                seen.append(risk)

        following, dropped = asyncio.create_task(follow()), asyncio.create_task(lease.at_risk.wait())
        await asyncio.sleep(0)
        dropped.cancel()
        with locks.failing("refused", "renew"):
            locks.clock.advance(DUE)
            assert await lease.at_risk.wait(PATIENCE)
            await until_async(lambda: seen == [True], "the change", watching=[following])
        locks.clock.advance(LATE)
        assert await lease.at_risk.wait_clear(PATIENCE)
        await until_async(lambda: seen == [True, False], "the other one", watching=[following])
        assert dropped.cancelled()
        await lease.release()
        await following
    assert kinds(told) == ["at_risk", "recovered", "released"]
