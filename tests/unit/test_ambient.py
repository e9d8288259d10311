"""Inside ``with lock:`` a guard finds the lease by itself."""

import asyncio
import threading

import pytest

import fencepost
from fencepost import ambient
from fencepost.errors import MissingToken, StaleToken
from fencepost.guards.memory import MemoryGuard
from fencepost.rule import Stamp


@pytest.fixture
def guard() -> MemoryGuard[str]:
    return MemoryGuard[str]()


def test_the_lease_of_the_block_is_taken_and_none_outside(guard: MemoryGuard[str]) -> None:
    with fencepost.connect("memory://ambient") as locks:
        with locks.lock("thing") as lease:
            guard.read("thing")
            guard.write("thing", "x")
            assert guard.mark("thing") == Stamp(lease.token, 2, lease.holder)
        with pytest.raises(MissingToken, match="acquire its lock"):
            guard.write("thing", "y")
        with pytest.raises(MissingToken):
            guard.read("thing")
    assert ambient.held() == ()


def test_a_decorated_call_has_it_too(guard: MemoryGuard[str]) -> None:
    with fencepost.connect("memory://ambient") as locks:

        @locks.lock("thing")
        def job() -> bool:
            return guard.write("thing", "x")

        assert job()


def test_of_several_the_one_that_covers_the_resource_speaks(guard: MemoryGuard[str]) -> None:
    with (
        fencepost.connect("memory://ambient") as locks,
        locks.lock("account") as wide,
        locks.lock("account/42") as near,
        locks.lock("mail"),
    ):
        guard.write("account/42", "x")
        guard.write("account/42/balance", "x")
        guard.write("account/7", "x")
        assert [guard.mark(name) for name in ("account/42", "account/42/balance", "account/7")] == [
            Stamp(near.token, 1, near.holder),
            Stamp(near.token, 2, near.holder),
            Stamp(wide.token, 1, wide.holder),
        ]
        for stranger in ("account42", "accounts/1", "other"):
            with pytest.raises(MissingToken):
                guard.write(stranger, "x")


def test_a_zombie_is_judged_not_forgotten(guard: MemoryGuard[str]) -> None:
    with fencepost.connect("memory://ambient") as locks:

        @locks.lock("thing")
        def zombie() -> None:
            locks.break_lock("thing")
            with locks.lock("thing") as new:
                guard.write("thing", "new", new)
            with pytest.raises(StaleToken):
                guard.write("thing", "zombie")

        with pytest.raises(fencepost.LeaseLost):
            zombie()


def test_threads_start_without_and_to_thread_takes_it_along(guard: MemoryGuard[str]) -> None:
    found: list[object] = []
    with fencepost.connect("memory://ambient") as locks, locks.lock("thing"):
        thread = threading.Thread(target=lambda: found.append(ambient.find("thing")))
        thread.start()
        thread.join()
    assert found == [None]

    async def scenario() -> None:
        async with fencepost.aio.connect("memory://ambient") as locks, locks.lock("thing") as lease:
            assert await asyncio.to_thread(guard.write, "thing", "x")
            assert guard.mark("thing") == Stamp(lease.token, 1, lease.holder)

    asyncio.run(scenario())


async def test_tasks_keep_their_leases_apart(guard: MemoryGuard[str]) -> None:
    async with fencepost.aio.connect("memory://ambient") as locks:

        async def worker(name: str) -> None:
            async with locks.lock(name) as lease:
                await asyncio.sleep(0)
                guard.write(name, "x")
                assert guard.mark(name) == Stamp(lease.token, 1, lease.holder)
            assert ambient.held() == ()

        await asyncio.gather(*(worker(f"thing/{number}") for number in range(5)))


def test_of_two_leases_of_one_lock_the_inner_one_speaks(guard: MemoryGuard[str]) -> None:
    with fencepost.connect("memory://ambient") as locks:

        @locks.lock("thing")
        def replaced() -> None:
            locks.break_lock("thing")
            with locks.lock("thing") as new:
                guard.write("thing", "x")
                assert guard.mark("thing") == Stamp(new.token, 1, new.holder)

        with pytest.raises(fencepost.LeaseLost):
            replaced()
