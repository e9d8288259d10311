"""The embedded stores: a waiter whose event loop was closed does not stand in anybody's way."""

import asyncio
from pathlib import Path

import pytest

import fencepost
from fencepost import aio, driver, sync
from fencepost.backend import Hold
from fencepost.backends.sqlite import mailbox
from tests.harness.forsaken import forsake
from tests.harness.threads import background
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


def test_it_leaves_the_queue(url: str) -> None:
    with fencepost.connect(url, ttl=LONG) as locks:
        holder = locks.acquire("a")
        left = forsaken(url, locks)
        until(lambda: waiters(locks) == 0, "it leaves")
        assert holder.release()
        assert locks.acquire("a", timeout=PATIENCE).release()
    run(left.close())


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


def test_those_behind_it_notice_that_the_holders_lease_has_expired(url: str) -> None:
    with fencepost.connect(url, ttl=LONG) as locks:
        holder = locks.acquire("a", renew=False)
        left = forsaken(url, locks)
        driver.run(locks._core.backend.renew([Hold("a", holder.holder, holder.token, ttl=0.5)]))
        assert locks.acquire("a", timeout=PATIENCE).token > holder.token
    run(left.close())


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
