"""A waiter whose event loop was closed blocks nobody; if it was stopped, for its ttl; and connections like that."""

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import fencepost
from fencepost import aio, driver, sync
from fencepost.backend import Hold
from fencepost.backends.sqlite import mailbox
from fencepost_lab.servers.processes import HOST
from tests.harness.forsaken import forsake, stopped
from tests.harness.threads import Background, background
from tests.harness.waiting import PATIENCE, run, until, until_async

LONG = 10 * PATIENCE


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(mailbox, "LOOK", 0.1)
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite://{tmp_path}/locks.db"


def waiters(locks: sync.Locks) -> int:
    status = locks.status("a")
    return len(status.waiters) if status else 0


def forsaken(url: str, locks: sync.Locks) -> aio.Locks:
    """Let the loop of a waiter be closed that is the only one in line; its locks."""
    return forsake(url, "a", lambda: waiters(locks) == 1, ttl=LONG)


class Dying:
    """One who holds the lock "a", and no longer renews it once it dies: nobody tells those who wait."""

    def __init__(self, locks: sync.Locks) -> None:
        self._locks = locks
        self.lease = locks.acquire("a")

    def die(self) -> None:
        self._locks._core._renewals.close()


@contextmanager
def dying(url: str) -> Iterator[Dying]:
    with fencepost.connect(url, ttl=5) as locks:
        yield Dying(locks)


@pytest.mark.slow
def test_it_leaves_the_queue(url: str) -> None:
    with fencepost.connect(url, ttl=LONG) as locks:
        holder = locks.acquire("a")
        left = forsaken(url, locks)
        until(lambda: waiters(locks) == 0, "it leaves")
        assert holder.release()
        assert locks.acquire("a", timeout=PATIENCE).release()
    run(left.close())


@pytest.mark.slow
def test_it_is_passed_over_when_its_turn_comes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "LOOK", LONG)
    with fencepost.connect(url, ttl=LONG) as locks:
        holder = locks.acquire("a")
        left = forsaken(url, locks)
        listed = waiters(locks)
        behind = background(lambda: locks.acquire("a"))
        until(lambda: waiters(locks) == listed + 1, "another one waits", watching=[behind])
        assert holder.release()
        assert behind.result().release()
    run(left.close())


@pytest.mark.slow
def test_those_behind_it_notice_that_the_holders_lease_has_expired(url: str) -> None:
    with fencepost.connect(url, ttl=LONG) as locks:
        holder = locks.acquire("a", renew=False)
        left = forsaken(url, locks)
        driver.run(locks._core.backend.renew([Hold("a", holder._stored, holder.token, ttl=0.5)]))
        assert locks.acquire("a", timeout=PATIENCE).token > holder.token
    run(left.close())


@pytest.mark.slow
def test_one_whose_event_loop_was_stopped_holds_up_those_behind_it_for_its_ttl(url: str) -> None:
    with (
        fencepost.connect(url, ttl=LONG) as locks,
        dying(url) as holder,
        stopped(url, "a", lambda: waiters(locks) == 1, ttl=3) as left,
    ):
        behind = background(lambda: locks.acquire("a"))
        until(lambda: waiters(locks) == 2, "another one waits", watching=[behind])
        holder.die()
        assert behind.result().release()
        lease, status = left.go_on()
        assert lease.token > holder.lease.token
        assert status is not None
        assert status.token == lease.token


@pytest.mark.slow
def test_those_behind_one_whose_event_loop_is_closed_while_they_wait_notice_an_expiry(url: str) -> None:
    with fencepost.connect(url, ttl=LONG) as locks, dying(url) as holder:
        behind: list[Background[sync.Lease]] = []

        def waits() -> bool:
            if waiters(locks) == 1 and not behind:
                behind.append(background(lambda: locks.acquire("a")))
            return waiters(locks) == 2

        left = forsake(url, "a", waits, ttl=LONG)
        holder.die()
        assert behind[0].result().release()
    run(left.close())


@pytest.mark.slow
def test_a_lease_whose_event_loop_was_stopped_ends_at_its_ttl(url: str) -> None:
    loop = asyncio.new_event_loop()
    left = aio.connect(url, ttl=0.5)
    lease = loop.run_until_complete(left.acquire("a"))
    with fencepost.connect(url, ttl=LONG) as locks:
        assert locks.acquire("a", timeout=PATIENCE).token > lease.token
        loop.run_until_complete(left.close())
    assert lease.lost
    loop.close()


@pytest.mark.slow
def test_locks_whose_event_loop_was_stopped_work_in_the_next(url: str) -> None:
    """Their leases are renewed there, although what renewed the first one stands still."""
    locks = aio.connect(url, ttl=1)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(locks.acquire("a"))

    async def hold() -> None:
        lease = await locks.acquire("b", ttl=6)
        before = lease.deadline
        await until_async(lambda: lease.deadline > before or lease.lost, "it is renewed")
        assert not lease.lost
        assert await lease.release()

    second.run_until_complete(hold())
    second.run_until_complete(locks.close())
    first.run_until_complete(until_async(lambda: len(asyncio.all_tasks()) == 1, "what was renewed there ends"))
    for loop in (first, second):
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.mark.slow
async def test_one_whose_coroutine_was_closed_leaves_the_queue(url: str) -> None:
    """No clean-up can be awaited in it, although its event loop lives on."""
    locks = aio.connect(url, ttl=LONG)
    with fencepost.connect(url, ttl=LONG) as others:
        holder = others.acquire("a")
        waiting = locks.acquire("a", timeout=PATIENCE)
        task = asyncio.create_task(waiting)
        await until_async(lambda: waiters(others) == 1, "it waits", watching=[task])
        waiting.close()
        task.cancel()
        await until_async(lambda: waiters(others) == 0, "it leaves")
        assert holder.release()
        assert others.acquire("a", timeout=PATIENCE).release()
    await locks.close()


@pytest.mark.slow
def test_it_does_not_fill_the_queue_nor_keep_sharers_out(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    with fencepost.connect(url, ttl=LONG, queue_limit=1) as locks:
        share = locks.shared("a").acquire()
        left = [forsaken(url, locks)]
        assert background(locks.shared("a").acquire).result().release()
        assert share.release()
        holder = locks.acquire("a")
        left.append(forsaken(url, locks))
        behind = background(lambda: locks.acquire("a"))
        until(lambda: waiters(locks) == 1, "there is room for one more", watching=[behind])
        assert holder.release()
        assert behind.result().release()
    for each in left:
        run(each.close())


@pytest.mark.parametrize(
    "url",
    ["redis://{0}?connect_timeout=200ms", "redlock://{0},{1},{2}?node_timeout=200ms", "etcd://{0}?tls=1&timeout=200ms"],
    ids=["redis", "redlock", "etcd"],
)
def test_a_connection_that_nobody_waits_for_any_more_fails_without_a_word(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancelled(*addresses: str) -> None:
        locks = aio.connect(url.format(*addresses))
        asking = asyncio.create_task(locks.try_acquire("a"))

        def connecting() -> set[asyncio.Task[object]]:
            return {task for task in asyncio.all_tasks() if task.get_name().endswith("-connect")}

        await until_async(connecting, "it connects", watching=[asking])
        opening = connecting()
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.wait(opening)  # it is not the caller's to cancel
        await locks.close()

    gc.collect()
    caplog.clear()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        run(cancelled(*(f"{HOST}:{each.getsockname()[1]}" for each in silent)))
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []
