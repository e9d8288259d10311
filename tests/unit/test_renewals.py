"""The service that renews, over a backend that misbehaves."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf

import pytest

from fencepost import aio, sync
from fencepost.backend import Hold, Renewal
from fencepost.backends.memory import Memory
from fencepost.drive import Asyncio, Blocking
from fencepost.errors import BackendError
from fencepost.events import Event
from fencepost.lab.servers.processes import wait_until
from fencepost.locks import Core
from fencepost.url import Address

TTL = 0.6
PATIENCE = 20.0


class Faulty(Memory):
    """A store whose answers to renewals are scripted: each call takes the next step, the last one stays."""

    script: Sequence[Callable[[], None]] = ()

    def __init__(self, driver: Blocking | Asyncio) -> None:
        super().__init__(Address("memory", ((f"faulty-{id(self)}", None),)), driver)
        self.batches: list[int] = []

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        step = min(len(self.batches), len(self.script) - 1)
        self.batches.append(len(holds))
        if self.script:
            self.script[step]()
        return await super().renew(holds)


def fine() -> None: ...


def silent() -> None:
    raise BackendError("no answer", backend="faulty", ambiguous=True)


def broken() -> None:
    raise ZeroDivisionError


def hangs(until: threading.Event) -> Callable[[], None]:
    def step() -> None:
        until.wait(PATIENCE)

    return step


class Bench:
    def __init__(self) -> None:
        driver = Blocking()
        self.events: list[Event] = []
        self.backend = Faulty(driver)
        self.core: Core[sync.Lease] = Core(
            self.backend, driver, sync.Lease, ttl=TTL, queue_limit=10, hooks=[self.events.append]
        )
        self.locks = sync.Locks(self.core)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.locks.close()


def test_no_answer_keeps_the_old_deadline_and_is_asked_again_until_it_passes(bench: Bench) -> None:
    bench.backend.script = [silent]
    lease = bench.locks.acquire("a")
    deadline = lease.deadline
    assert lease.lost.wait(PATIENCE)
    assert lease.deadline == deadline
    assert wait_until(lambda: "lost" in bench.kinds(), timeout=PATIENCE)
    assert bench.kinds().count("unrenewed") >= 2
    assert bench.events[-1].detail == "its deadline has passed"


def test_a_store_that_answers_again_in_time_keeps_the_lease(bench: Bench) -> None:
    bench.backend.script = [silent, silent, fine]
    lease = bench.locks.acquire("a")
    assert lease.lost.wait(2 * TTL) is False
    assert bench.kinds().count("unrenewed") == 2
    assert lease.release() is True


def test_a_backend_with_a_bug_counts_as_no_answer(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.backend.script = [broken, fine]
    lease = bench.locks.acquire("a")
    with caplog.at_level(logging.ERROR, logger="fencepost"):
        assert lease.lost.wait(1.5 * TTL) is False
    assert "ZeroDivisionError" in caplog.text
    assert lease.release() is True


def test_a_store_that_hangs_does_not_delay_the_news(bench: Bench) -> None:
    stuck = threading.Event()
    bench.backend.script = [hangs(stuck)]
    lease = bench.locks.acquire("a")
    assert lease.lost.wait(PATIENCE)
    assert wait_until(lambda: "lost" in bench.kinds(), timeout=PATIENCE / 2), "while the store still hangs"
    assert not stuck.is_set()
    stuck.set()
    assert lease.lost, "an answer that comes too late changes nothing"
    assert "renewed" not in bench.kinds()


def test_a_store_that_hangs_does_not_hold_up_leases_that_come_later(bench: Bench) -> None:
    stuck = threading.Event()
    bench.backend.script = [hangs(stuck), fine]
    first = bench.locks.acquire("a")
    assert wait_until(lambda: len(bench.backend.batches) == 1, timeout=PATIENCE)
    second = bench.locks.acquire("b")
    assert first.lost.wait(PATIENCE)
    assert second.lost.wait(2 * TTL) is False
    stuck.set()


def test_an_answer_to_a_lease_released_meanwhile_is_dropped(bench: Bench) -> None:
    stuck = threading.Event()
    bench.backend.script = [hangs(stuck)]
    lease = bench.locks.acquire("a")
    assert wait_until(lambda: len(bench.backend.batches) == 1, timeout=PATIENCE)
    assert lease.release() is True
    stuck.set()
    again = bench.locks.acquire("a")
    assert again.lost.wait(TTL / 2) is False
    assert "lost" not in bench.kinds()


def test_leases_that_are_due_together_are_renewed_together(bench: Bench) -> None:
    bench.core.ttl = 3.0
    leases = [bench.locks.acquire(f"lock-{each}") for each in range(50)]
    assert wait_until(lambda: sum(bench.backend.batches) >= 50, timeout=PATIENCE)
    assert len(bench.backend.batches) <= 10, "not one call for each"
    assert all(lease.release() for lease in leases)


def test_one_thread_serves_all_leases_and_ends_after_them(bench: Bench) -> None:
    def services() -> int:
        return sum(thread.name == "fencepost-renewals" for thread in threading.enumerate())

    assert wait_until(lambda: services() == 0, timeout=PATIENCE), "those of other tests have ended"
    leases = [bench.locks.acquire(f"lock-{each}") for each in range(20)]
    assert services() == 1
    for lease in leases:
        lease.release()
    assert wait_until(lambda: services() == 0, timeout=PATIENCE)
    bench.locks.acquire("again").release()
    lease = bench.locks.acquire("and again")
    assert lease.lost.wait(1.5 * TTL) is False, "the next one is renewed too"


def test_a_backend_reports_a_loss_from_any_thread(bench: Bench) -> None:
    bench.core.ttl = 60.0
    lease = bench.locks.acquire("a")
    other = bench.locks.acquire("b")
    threading.Thread(target=bench.backend.report, args=(lease.holder, "the session is gone")).start()
    assert lease.lost.wait(PATIENCE)
    assert lease.over == "the session is gone"
    bench.backend.report("unknown holder", "nobody")
    other.check()


def test_what_a_batch_says_of_each_lease_reaches_that_one(bench: Bench) -> None:
    bench.core.ttl = 0.9
    kept, gone = bench.locks.acquire("kept"), bench.locks.acquire("gone")
    bench.locks.evict("gone")
    assert gone.lost.wait(PATIENCE)
    assert gone.over == "the store gave it away or lost it"
    assert wait_until(lambda: "renewed" in bench.kinds(), timeout=PATIENCE)
    kept.check()


def test_the_service_keeps_no_dropped_lease_alive(bench: Bench) -> None:
    lease = bench.locks.acquire("a")
    assert wait_until(lambda: bench.kinds().count("renewed") >= 2, timeout=PATIENCE)
    holder = lease.holder
    del lease
    gc.collect()
    assert wait_until(lambda: bench.locks.status("a") is None, timeout=PATIENCE), holder


def test_a_manual_clock_decides_what_is_over() -> None:
    now = [100.0]
    driver = Blocking(clock=lambda: now[0])
    core: Core[sync.Lease] = Core(Faulty(driver), driver, sync.Lease, ttl=10.0, queue_limit=10, hooks=[])
    lease = sync.Locks(core).acquire("a", renew=False)
    assert lease.remaining == 10.0
    now[0] += 9.999
    lease.check()
    now[0] += 0.001
    assert lease.lost
    assert lease.lost.wait(inf)


def test_the_asyncio_service_survives_a_store_that_hangs() -> None:
    async def main() -> None:
        driver = Asyncio()
        backend = Faulty(driver)
        hang = asyncio.Event()

        async def renew(holds: Sequence[Hold]) -> list[Renewal]:
            await hang.wait()
            return [Renewal.RENEWED] * len(holds)

        backend.renew = renew  # type: ignore[method-assign]  # a store that does not answer
        core: Core[aio.Lease] = Core(backend, driver, aio.Lease, ttl=TTL, queue_limit=10, hooks=[])
        locks = aio.Locks(core)
        begun = time.monotonic()
        with pytest.raises(Exception, match="deadline has passed"):
            await body(locks)
        assert time.monotonic() - begun < PATIENCE
        hang.set()
        await locks.close()

    async def body(locks: aio.Locks) -> None:
        async with locks.lock("a"):
            await asyncio.sleep(PATIENCE)

    asyncio.run(main())
