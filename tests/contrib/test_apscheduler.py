"""APScheduler: schedulers in real processes, all with the same jobs."""

import asyncio
import json
import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.executors.pool import ProcessPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

import fencepost
from fencepost import BackendError, ConfigError
from fencepost.ambient import find
from fencepost.contrib import campaign
from fencepost.contrib.apscheduler import FleetExecutor, current_term
from fencepost.guards import MemoryGuard
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.waiting import PATIENCE, until, until_async

LONG = 60
SHORT = 1
"""The ttl of the process that is frozen; the other one must not lose its term while the machine stalls."""


def test_each_run_happens_once_in_a_fleet_whose_leader_is_frozen_replaced_and_killed(redis_server: Endpoint) -> None:
    prefix, url = f"jobs-{secrets.token_hex(4)}:", redis_server.url

    def start(ttl: float) -> Child:
        return Child.python("-m", "tests.contrib.jobs", url, prefix, ttl)

    with redis.Redis.from_url(url, decode_responses=True, socket_timeout=None) as client:

        def runs() -> list[list[Any]]:
            return [json.loads(each) for each in client.lrange(f"{prefix}runs", 0, -1)]

        def leads(child: Child) -> None:
            known = len(runs())
            until(
                lambda: [pid for pid, _, error in runs()[known:] if error == "NoneType"].count(child.pid) >= 3,
                "it runs the jobs",
                watching=[child],
            )

        with start(SHORT) as first:
            leads(first)
            client.set(f"{prefix}hold", "frozen")
            assert client.blpop([f"{prefix}told"], timeout=PATIENCE) == (f"{prefix}told", str(first.pid))
            first.freeze()
            with start(LONG) as second:
                leads(second)
                client.rpush(f"{prefix}go:frozen", "go")
                first.thaw()
                until(
                    lambda: [first.pid, "StaleToken"] in [each[::2] for each in runs()], "the guard refuses its write"
                )
                leads(second)
                assert client.get(f"{prefix}value") == str(second.pid)
                assert second.finish() == 0  # it resigns: nobody has to wait for its ttl
            leads(first)
            first.kill()
        times = [run_time for _, run_time, _ in runs()]
        assert len(times) == len(set(times)), "no run time was run twice"


@pytest.fixture
def locks() -> Iterator[fencepost.Locks]:
    with fencepost.connect("memory://") as locks:
        yield locks


@pytest.fixture
def name() -> str:
    return f"jobs-{secrets.token_hex(4)}"


class Fleet:
    """Schedulers in this process, which share what they know."""

    def __init__(self, locks: fencepost.Locks, name: str) -> None:
        self.locks = locks
        self.name = name
        self.guard = MemoryGuard[bytes]()
        self.running: list[Any] = []

    def start(self, *jobs: Any, at: datetime, **options: Any) -> FleetExecutor:
        executor = FleetExecutor(self.locks, self.name, state=self.guard)
        scheduler = BackgroundScheduler(executors={"default": executor})
        for job in jobs:
            scheduler.add_job(job, "date", run_date=at, id=job.__name__, **options)
        scheduler.start()
        self.running.append(scheduler)
        return executor

    def stop(self, number: int) -> None:
        """Shut a scheduler down once it has done what was due; in the middle of that, APScheduler's thread fails."""
        scheduler = self.running[number]

        def due() -> list[Any]:
            return [each for each in scheduler.get_jobs() if each.next_run_time <= datetime.now(UTC)]

        until(lambda: not due(), "it has submitted what was due")
        scheduler.shutdown()

    def close(self) -> None:
        for number, each in enumerate(self.running):
            if each.running:
                self.stop(number)


@pytest.fixture
def fleet(locks: fencepost.Locks, name: str) -> Iterator[Fleet]:
    fleet = Fleet(locks, name)
    yield fleet
    fleet.close()


def test_the_next_leader_runs_what_came_due_while_nobody_led_and_nothing_else(fleet: Fleet) -> None:
    ran: list[str] = []
    began, go = threading.Event(), threading.Event()

    def early() -> None:
        ran.append("early")
        began.set()
        go.wait(PATIENCE)

    def late() -> None:
        term = current_term()
        assert find(f"{fleet.name}/x") is term
        ran.append("late")

    due = datetime.now(UTC)
    fleet.start(early, at=due, misfire_grace_time=60)
    assert began.wait(PATIENCE)
    second = fleet.start(early, late, at=due, misfire_grace_time=60)
    until(lambda: len(second._missed) == 2, "both came due in a process that does not lead")
    assert ran == ["early"]
    go.set()
    fleet.stop(0)
    until(lambda: "late" in ran, "the next leader runs what the first one had not")
    fleet.stop(1)
    assert ran == ["early", "late"]


def test_what_came_due_too_long_ago_is_missed(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    with fleet.locks.lock(fleet.name):
        executor = fleet.start(print, at=datetime.now(UTC) - timedelta(seconds=5), misfire_grace_time=2)
        until(lambda: executor._missed, "it came due while another one leads")
    until(lambda: "was missed by" in caplog.text, "APScheduler's own word")


def test_a_job_does_not_begin_unless_that_could_be_noted(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def job() -> None:
        ran.append("job")

    def fail(*_: Any) -> bool:
        raise BackendError("no answer", backend="memory", ambiguous=True)

    monkeypatch.setattr(fleet.guard, "write", fail)
    fleet.start(job, at=datetime.now(UTC), misfire_grace_time=60)
    until(lambda: "no answer" in caplog.text, "the job fails")
    assert ran == []


def test_a_candidate_whose_state_cannot_be_read_runs_again(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "_AGAIN", 0.01)
    read, ran = fleet.guard.read, threading.Event()

    def fail(*_: Any) -> Any:
        monkeypatch.setattr(fleet.guard, "read", read)
        raise BackendError("no answer", backend="memory", ambiguous=False)

    def job() -> None:
        ran.set()

    monkeypatch.setattr(fleet.guard, "read", fail)
    fleet.start(job, at=datetime.now(UTC), misfire_grace_time=60)
    assert ran.wait(PATIENCE)
    assert "running again" in caplog.text


async def test_coroutines_run_in_the_loop_of_an_asyncio_scheduler(locks: fencepost.Locks, name: str) -> None:
    found: list[Any] = []

    async def job() -> None:
        await asyncio.sleep(0)
        found.append((current_term().name, threading.current_thread()))

    held = locks.acquire(name)
    executor = FleetExecutor(locks, name, state=MemoryGuard[bytes](), executor=AsyncIOExecutor())
    scheduler = AsyncIOScheduler(executors={"default": executor})
    scheduler.add_job(job, "date", run_date=datetime.now(UTC), id="job", misfire_grace_time=60)
    scheduler.start()
    await until_async(lambda: executor._missed, "it came due while another one leads")
    held.release()
    await until_async(lambda: found, "it is run")
    scheduler.shutdown()
    assert found == [(name, threading.current_thread())]


def test_what_cannot_be_meant_is_refused(
    locks: fencepost.Locks, name: str, fleet: Fleet, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    guard = MemoryGuard[bytes]()
    with pytest.raises(ConfigError, match="another process"):
        FleetExecutor(locks, name, state=guard, executor=ProcessPoolExecutor(1))
    with pytest.raises(ConfigError, match="through another one"):
        FleetExecutor(locks, name, state=guard, executor=FleetExecutor(locks, name, state=guard))
    with pytest.raises(ConfigError, match="state= is"):
        FleetExecutor(locks, name, state="sqlite:x")
    with pytest.raises(ConfigError, match=r"what fencepost\.connect"):
        FleetExecutor("redis://", name, state=guard)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ttl"):
        FleetExecutor(locks, name, state=guard, ttl=0)
    with pytest.raises(ConfigError, match="for jobs that a FleetExecutor runs"):
        current_term()

    shared = SQLAlchemyJobStore(f"sqlite:///{tmp_path}/jobs.db")
    scheduler = BackgroundScheduler(
        executors={"default": FleetExecutor(locks, name, state=guard)}, jobstores={"default": shared}
    )
    with pytest.raises(ConfigError, match="each process has for itself"):
        scheduler.start()
    shared.shutdown()

    fleet.start(at=datetime.now(UTC))
    fleet.running[0].add_job(print)
    until(lambda: "has a random id" in caplog.text, "a job that no other process can know")
