"""A store that does not answer: nobody waits much longer for it than asked for."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost import aio, sync
from fencepost.backend import Backend
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError, LeaseLost, NotAcquired
from fencepost.lease import Grant, Reason
from fencepost.locks import Core
from tests.harness.faulty import Bench, Faulty, fault
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until, until_async

pytestmark = pytest.mark.silence


class Frozen(Faulty):
    """A store in memory whose requests hang from ``freeze()`` to ``thaw()``."""

    def __init__(self, driver: Blocking | Asyncio) -> None:
        super().__init__(driver)
        self.hanging: list[str] = []
        self.methods: tuple[str, ...] = ()
        self._thawed = driver.signal()

    def thaw(self) -> None:
        self.methods = ()
        self._thawed.set()

    async def _hang(self, method: str) -> None:
        if method in self.methods and method not in self.before:
            self.hanging.append(method)
            await self._thawed.wait()

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        await self._hang("take")
        return await super().take(name, holder, ttl, queue, limit)

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        await self._hang("wait")
        return await super().wait(name, holder, ttl, timeout, limit)

    async def leave(self, name: str, holder: str) -> None:
        await self._hang("leave")
        await super().leave(name, holder)

    async def release(self, name: str, holder: str, token: int) -> bool:
        await self._hang("release")
        return await super().release(name, holder, token)


def core(backend: Backend, driver: Any, lease: Any) -> Core[Any]:
    return Core(backend, driver, lease, ttl=60, queue_limit=10, hooks=())


@pytest.fixture
def blocking() -> Iterator[tuple[sync.Locks, Frozen]]:
    driver = Blocking()
    backend = Frozen(driver)
    locks = sync.Locks(core(backend, driver, sync.Lease))
    yield locks, backend
    backend.thaw()
    locks.close()


def test_a_clean_up_that_hangs_does_not_hold_a_blocking_acquire(blocking: tuple[sync.Locks, Frozen]) -> None:
    locks, backend = blocking
    backend.methods = ("leave",)
    backend.after["take"] = fault()
    trial = background(lambda: locks.acquire("a", timeout=0.05))
    with pytest.raises(BackendError, match="on purpose"):
        trial.result()
    until(lambda: backend.hanging == ["leave"], "the clean-up hangs")
    assert locks.status("a") is not None, "it was granted, and is not given back yet"
    backend.thaw()
    until(lambda: locks.status("a") is None, "the clean-up is seen through")


def test_a_clean_up_happens_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.backend.after["take"] = fault()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BackendError):
        bench.locks.acquire("a")
    assert len(bench.backend.left) == 1
    assert bench.locks.status("a") is None


@pytest.mark.parametrize("method", ["take", "wait", "leave"])
async def test_an_acquire_of_a_frozen_store_ends_with_its_timeout(method: str) -> None:
    driver = Asyncio()
    backend = Frozen(driver)
    locks = aio.Locks(core(backend, driver, aio.Lease))
    held = None if method == "take" else await locks.acquire("a")
    backend.methods = (method, "leave")
    with pytest.raises((BackendError, NotAcquired)):
        async with asyncio.timeout(PATIENCE):
            await locks.acquire("a", timeout=1)
    assert method in backend.hanging
    backend.thaw()
    if held is not None:
        assert await held.release()

    async def free() -> bool:
        return await locks.status("a") is None

    await until_async(free, "it is given back, and nobody is in line")
    await locks.close()


@pytest.mark.slow
def test_closing_gives_a_store_that_hangs_one_patience_for_all_leases(blocking: tuple[sync.Locks, Frozen]) -> None:
    locks, backend = blocking
    leases = [locks.acquire(f"lock-{each}") for each in range(20)]
    backend.methods = ("release",)
    backend.before["release"] = fault()  # of the first one
    background(locks.close).result()
    assert backend.hanging == ["release"], "the second; the others were not asked one after the other"
    assert all(lease.ended for lease in leases)
    assert {lease.reason for lease in leases} == {Reason.CLOSED}


async def held_until_cancelled(locks: aio.Locks, inside: asyncio.Event, name: str) -> None:
    async with locks.lock(name):
        inside.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["fails", "fails and hangs for the other", "is cut off"])
async def test_closing_ends_the_bodies_of_leases_that_could_not_be_released(how: str) -> None:
    driver = Asyncio()
    backend = Frozen(driver)
    locks = aio.Locks(core(backend, driver, aio.Lease))
    bodies = []
    for name in ("a", "b"):
        inside = asyncio.Event()
        bodies.append(asyncio.create_task(held_until_cancelled(locks, inside, name)))
        await inside.wait()
    if how == "is cut off":
        backend.methods = ("release",)
        closing = asyncio.create_task(locks.close())
        await until_async(lambda: backend.hanging, "a release is under way", watching=[closing])
        closing.cancel()
        await asyncio.wait([closing], timeout=PATIENCE)
        assert closing.cancelled()
        backend.thaw()
    else:
        backend.before["release"] = fault()
        backend.methods = () if how == "fails" else ("release",)
        await locks.close()
        backend.thaw()
    async with asyncio.timeout(PATIENCE):
        for ended in await asyncio.gather(*bodies, return_exceptions=True):
            assert isinstance(ended, LeaseLost), ended
            assert "its locks were closed" in str(ended)


def test_a_block_raises_if_its_locks_were_closed_and_could_not_release_it() -> None:
    bench = Bench()
    with pytest.raises(LeaseLost, match="its locks were closed"), bench.locks.lock("a"):  # noqa: PT012
        bench.backend.before["release"] = fault()
        bench.locks.close()


@pytest.mark.parametrize("fails", [False, True])
def test_who_releases_beside_another_thread_hears_how_that_went(
    blocking: tuple[sync.Locks, Frozen], fails: bool
) -> None:
    locks, backend = blocking
    lease = locks.acquire("a")
    backend.methods = ("release",)
    first = background(lease.release)
    until(lambda: backend.hanging, "the first is under way", watching=[first])
    second = background(lease.release)
    until(lambda: lease._signal is not None, "the second waits for it", watching=[second])
    assert not second.done, "nobody knows yet whether it is released"
    if fails:
        backend.before["release"] = fault()
    backend.thaw()
    if fails:
        with pytest.raises(BackendError):
            first.result()
        assert second.result(), "it tried itself"
    else:
        assert first.result()
        assert second.result() is False, "it was released already"
    assert locks.status("a") is None
    assert lease.reason is Reason.RELEASED


async def test_who_releases_beside_another_task_hears_how_that_went() -> None:
    driver = Asyncio()
    backend = Frozen(driver)
    locks = aio.Locks(core(backend, driver, aio.Lease))
    lease = await locks.acquire("a")
    backend.methods = ("release",)
    first = asyncio.create_task(lease.release())
    await until_async(lambda: backend.hanging, "the first is under way", watching=[first])
    second = asyncio.create_task(lease.release())
    await until_async(lambda: lease._signal is not None, "the second waits for it", watching=[second])
    backend.thaw()
    assert await first
    assert await second is False
    await locks.close()


def test_a_signal_handler_that_releases_inside_a_release_does_not_wait_for_itself() -> None:
    bench = Bench()
    lease = bench.locks.acquire("a")
    heard: list[bool] = []
    really = bench.backend.release

    async def interrupted(name: str, holder: str, token: int) -> bool:
        heard.append(lease.release())
        return await really(name, holder, token)

    bench.backend.release = interrupted  # type: ignore[method-assign]
    assert background(lease.release).result()
    assert heard == [False]
    bench.locks.close()
