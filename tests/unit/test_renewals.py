"""The service that renews, over a backend that misbehaves.

Where a lease must be kept, its ttl is minutes, and the test has the clock advance; where it must be lost, it is short.
"""

import asyncio
import gc
import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf

import pytest

from fencepost import aio, sync
from fencepost.backend import Hold, Renewal
from fencepost.driver import boottime
from fencepost.driver.reply import Reply
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError, LeaseLost
from fencepost.events import Event
from fencepost.lease import Reason
from fencepost.locks import Core
from fencepost.renewals import _FEW
from fencepost.testing import Clock
from fencepost.testing import aio as testing_aio
from tests.harness.faulty import Bench, Faulty, fault
from tests.harness.isolated import call_apart
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until, until_async

KEPT = 600.0
DUE = KEPT / 3 + 1  # a renewal is due
AGAIN = KEPT / 10 + 1  # a renewal that failed is due again; one that is under way has had no answer for too long
SHORT = 0.3


def fine() -> None: ...


def silent() -> None:
    raise fault()


def broken() -> None:
    raise ZeroDivisionError


def hangs(over: threading.Event) -> Callable[[], object]:
    return lambda: over.wait(PATIENCE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(clock: Clock) -> Iterator[Bench]:
    bench = Bench(ttl=KEPT, clock=clock)
    yield bench
    bench.locks.close()


def renewed(bench: Bench, name: str) -> None:
    until(lambda: "renewed" in bench.kinds(name), f"a renewal of {name!r}")


def unrenewed(bench: Bench, times: int) -> None:
    until(lambda: bench.kinds().count("unrenewed") == times, f"renewals that failed: {times}")


def let_go(bench: Bench) -> None:
    until(lambda: len(bench.core._renewals._timer) == 0, "nothing is left to watch")


def expires(bench: Bench, clock: Clock, name: str) -> None:
    """Have time pass until the service watches no lease; a renewal that is under way may keep one until it is over."""
    for _ in range(10):
        before = bench.kinds().count("renewed")
        clock.advance(DUE)
        until(
            lambda: len(bench.core._renewals._timer) == 0 or bench.kinds().count("renewed") > before,  # noqa: B023
            "the service looks",
        )
    let_go(bench)
    clock.advance(KEPT)
    assert bench.locks.status(name) is None


def test_a_renewal_that_the_store_does_not_confirm_is_an_error_to_who_asks_for_it(bench: Bench) -> None:
    async def unsure(holds: Sequence[Hold]) -> list[Renewal]:
        return [Renewal.UNKNOWN] * len(holds)

    lease = bench.locks.acquire("a")
    deadline = lease.deadline
    bench.backend.renew = unsure  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="its deadline stands") as raised:
        lease.renew()
    assert raised.value.ambiguous
    assert lease.deadline == deadline
    lease.check()


def test_no_answer_keeps_the_old_deadline_and_is_asked_again_until_it_passes(bench: Bench, clock: Clock) -> None:
    bench.backend.renewing = [silent]
    lease = bench.locks.acquire("a")
    deadline = lease.deadline
    clock.advance(DUE)
    unrenewed(bench, 1)
    clock.advance(AGAIN)
    unrenewed(bench, 2)
    clock.advance(KEPT)
    assert lease.ended.wait(PATIENCE)
    assert lease.deadline == deadline
    until(lambda: "lost" in bench.kinds(), "the news")
    assert bench.events[-1].detail == "its deadline has passed"


def test_a_store_that_answers_again_in_time_keeps_the_lease(bench: Bench, clock: Clock) -> None:
    bench.backend.renewing = [silent, silent, fine]
    lease = bench.locks.acquire("a")
    clock.advance(DUE)
    unrenewed(bench, 1)
    clock.advance(AGAIN)
    unrenewed(bench, 2)
    clock.advance(AGAIN)
    renewed(bench, "a")
    assert bench.kinds().count("unrenewed") == 2
    assert lease.release() is True


def test_a_backend_with_a_bug_counts_as_no_answer(bench: Bench, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bench.backend.renewing = [broken, fine]
    with caplog.at_level(logging.ERROR, logger="fencepost"):
        lease = bench.locks.acquire("a")
        clock.advance(DUE)
        unrenewed(bench, 1)
        clock.advance(AGAIN)
        renewed(bench, "a")
    assert "ZeroDivisionError" in caplog.text
    assert lease.release() is True


def test_a_store_that_hangs_does_not_delay_the_news(bench: Bench) -> None:
    stuck = threading.Event()
    bench.backend.renewing = [hangs(stuck)]
    lease = bench.locks.acquire("a", ttl=SHORT)
    assert lease.ended.wait(PATIENCE)
    until(lambda: "lost" in bench.kinds(), "the news, while the store still hangs", deadline=PATIENCE / 2)
    stuck.set()
    assert lease.lost, "an answer that comes too late changes nothing"
    assert "renewed" not in bench.kinds()


def test_a_store_that_hangs_does_not_hold_up_leases_that_come_later(bench: Bench, clock: Clock) -> None:
    stuck = threading.Event()
    bench.backend.renewing = [hangs(stuck), fine]
    first = bench.locks.acquire("a")
    clock.advance(DUE)
    until(lambda: len(bench.backend.batches) == 1, "the first renewal")
    second = bench.locks.acquire("b")
    clock.advance(2 * DUE)  # past the first one's deadline, and not the second one's
    assert first.ended.wait(PATIENCE)
    renewed(bench, "b")
    second.check()
    stuck.set()


def test_an_answer_to_a_lease_released_meanwhile_is_dropped(bench: Bench, clock: Clock) -> None:
    stuck = threading.Event()
    bench.backend.renewing = [hangs(stuck), fine]
    lease = bench.locks.acquire("a")
    clock.advance(DUE)
    until(lambda: len(bench.backend.batches) == 1, "the first renewal")
    lease.release()
    again = bench.locks.acquire("a", timeout=PATIENCE)
    stuck.set()
    clock.advance(DUE)
    renewed(bench, "a")
    again.check()
    assert "lost" not in bench.kinds()


def test_leases_that_are_due_together_are_renewed_together(bench: Bench, clock: Clock) -> None:
    leases = [bench.locks.acquire(f"lock-{each}") for each in range(50)]
    clock.advance(DUE)
    until(lambda: sum(bench.backend.batches) >= 50, "a renewal of each")
    assert len(bench.backend.batches) <= 10, "not one call for each"
    assert all(lease.release() for lease in leases)


@pytest.mark.slow
def test_one_thread_serves_all_leases_and_ends_after_them(bench: Bench, clock: Clock) -> None:
    others = set(threading.enumerate())

    def services() -> int:
        return sum(each.name == "fencepost-renewals" for each in set(threading.enumerate()) - others)

    leases = [bench.locks.acquire(f"lock-{each}") for each in range(20)]
    assert services() == 1
    for lease in leases:
        lease.release()
    clock.advance(DUE)
    until(lambda: services() == 0, "its end")
    bench.locks.acquire("again").release()
    lease = bench.locks.acquire("and again")
    clock.advance(DUE)
    renewed(bench, "and again")
    lease.check()


def test_a_backend_reports_a_loss_from_any_thread(bench: Bench) -> None:
    lease = bench.locks.acquire("a", ttl=60)
    other = bench.locks.acquire("b", ttl=60)
    threading.Thread(target=bench.backend.report, args=(lease.holder, "the session is gone")).start()
    assert lease.ended.wait(PATIENCE)
    assert (lease.reason, lease._why) == (Reason.GONE, "the session is gone")
    bench.backend.report("unknown holder", "nobody")
    other.check()


def test_what_a_batch_says_of_each_lease_reaches_that_one(bench: Bench, clock: Clock) -> None:
    kept, gone = bench.locks.acquire("kept"), bench.locks.acquire("gone")
    bench.locks.break_lock("gone")
    clock.advance(DUE)
    assert gone.ended.wait(PATIENCE)
    assert gone.reason is Reason.GONE
    renewed(bench, "kept")
    kept.check()


def test_the_service_keeps_no_dropped_lease_alive(bench: Bench, clock: Clock) -> None:
    lease = bench.locks.acquire("a")
    clock.advance(DUE)
    renewed(bench, "a")
    del lease
    gc.collect()
    expires(bench, clock, "a")


def test_nor_does_it_keep_one_alive_whose_renewal_was_answered_while_its_risk_was_told(
    bench: Bench, clock: Clock
) -> None:
    stuck = threading.Event()
    bench.backend.renewing = [hangs(stuck), fine]

    def renewing() -> bool:
        return any(thread.name == "fencepost-renewal" for thread in threading.enumerate())

    def answered(event: Event) -> None:
        if event.kind == "at_risk":
            stuck.set()
            until(lambda: not renewing(), "the answer is taken in")

    bench.core.hooks._hooks += (answered,)
    lease = bench.locks.acquire("a")
    clock.advance(DUE)
    until(lambda: len(bench.backend.batches) == 1, "a renewal is under way")
    clock.advance(AGAIN)
    until(lambda: "recovered" in bench.kinds(), "it is renewed after all")
    assert lease.reason is None
    del lease
    gc.collect()
    expires(bench, clock, "a")


async def test_a_loss_is_told_at_once_although_a_renewal_is_answered_at_the_same_time() -> None:
    driver = Asyncio()
    backend = Faulty(driver)

    async def renew(holds: Sequence[Hold]) -> list[Renewal]:
        backend.report(holds[0].holder, "the session is gone")
        return [Renewal.RENEWED] * len(holds)

    backend.renew = renew  # type: ignore[method-assign]
    core: Core[aio.Lease] = Core(backend, driver, aio.Lease, ttl=40 * PATIENCE, queue_limit=10, hooks=[])
    lease = await aio.Locks(core).acquire("a")
    await core.renew(lease)
    await until_async(lambda: lease.reason is Reason.GONE, "the news, long before the next renewal")
    await core.close()


def test_a_lease_that_is_released_when_its_renewal_begins_leaves_no_key(bench: Bench, clock: Clock) -> None:
    lease = bench.locks.acquire("a")
    released: list[bool] = []

    def home(name: str) -> None:
        if not released:
            released.append(lease.release())

    bench.backend.home = home  # type: ignore[method-assign]
    clock.advance(DUE)
    until(lambda: released, "a renewal is due")
    let_go(bench)
    assert released == [True]


def test_a_renewal_that_is_under_way_when_the_block_ends_does_not_undo_at_least(bench: Bench, clock: Clock) -> None:
    stuck = threading.Event()
    bench.backend.renewing = [hangs(stuck), fine]  # the second is made by keep, in the store in memory
    with bench.locks.lock("a", at_least=10 * KEPT) as lease:
        clock.advance(DUE)
        until(lambda: len(bench.backend.batches) == 1, "a renewal is under way")
        timer = threading.Timer(0.3, stuck.set)
        timer.start()
    timer.join()
    assert lease.released
    until(lambda: not any(thread.name == "fencepost-renewal" for thread in threading.enumerate()), "it is answered")
    status = bench.locks.status("a")
    assert status is not None
    assert status.remaining > 2 * KEPT


def test_a_renewal_that_failed_is_not_tried_again_after_max_hold(bench: Bench, clock: Clock) -> None:
    bench.backend.renewing = [silent, fine]
    lease = bench.locks.acquire("a", max_hold=DUE + AGAIN / 2)
    deadline = lease.deadline
    clock.advance(DUE)
    unrenewed(bench, 1)
    clock.advance(AGAIN)
    until(lambda: lease._due == deadline, "the service looks, and waits for the deadline")
    clock.advance(KEPT)
    assert lease.ended.wait(PATIENCE)
    assert len(bench.backend.batches) == 1, "it was due for renewal once"
    assert lease.deadline == deadline


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
    assert lease.ended.wait(inf)


async def test_the_asyncio_service_survives_a_store_that_hangs() -> None:
    driver = Asyncio()
    backend = Faulty(driver)
    hang = asyncio.Event()

    async def renew(holds: Sequence[Hold]) -> list[Renewal]:
        await hang.wait()
        return [Renewal.RENEWED] * len(holds)

    backend.renew = renew  # type: ignore[method-assign]  # a store that does not answer
    core: Core[aio.Lease] = Core(backend, driver, aio.Lease, ttl=SHORT, queue_limit=10, hooks=[])
    locks = aio.Locks(core)

    async def body() -> None:
        async with locks.lock("a"):
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLost, match="deadline has passed"):
        await body()
    hang.set()
    await locks.close()


class Suspendable:
    """A clock that goes on while the machine is suspended, as deadlines do and waits do not."""

    def __init__(self) -> None:
        self.slept = 0.0

    def __call__(self) -> float:
        return boottime() + self.slept


async def test_answers_that_come_at_once_count_at_once_and_are_taken_in_step_by_step() -> None:
    """So that a busy event loop loses no lease for which the answer came in time, and is not held up by many."""
    driver = Asyncio(clock := Suspendable(), nap=0.01)
    backend = Faulty(driver)
    replies: list[Reply] = []
    sizes: list[int] = []
    step, taken_in, order = 0, Counter[int](), list[str]()

    async def renew(holds: Sequence[Hold]) -> list[Renewal]:
        sizes.append(len(holds))
        replies.append(reply := Reply(asyncio.get_running_loop()))
        await reply
        return [Renewal.RENEWED] * len(holds)

    def hear(event: Event) -> None:
        if event.kind == "renewed":
            taken_in[step] += 1
            order.append(event.name)

    backend.renew = renew  # type: ignore[method-assign]  # a store that was slow, and answers all requests at once
    core: Core[aio.Lease] = Core(backend, driver, aio.Lease, ttl=KEPT * 10, queue_limit=10, hooks=[hear])
    locks = aio.Locks(core)
    leases = [await locks.acquire(str(each)) for each in range(480)]
    leases += [await locks.acquire(f"short/{each}", ttl=KEPT * 8) for each in range(20)]
    clock.slept += KEPT * 5
    await until_async(lambda: sum(sizes) == 500, "every lease is in a batch")
    assert max(sizes) == 100

    def answer() -> None:
        for reply in reversed(replies):
            reply.bring(None)
        clock.slept += KEPT * 4

    asyncio.get_running_loop().call_soon(answer)
    await asyncio.sleep(0)
    for lease in leases:
        lease.check()
    while taken_in.total() < len(leases):
        step += 1
        await asyncio.sleep(0)
    small = sum(size for size in sizes if size < _FEW)  # on a slow machine some come apart; they are taken in at once
    assert max(taken_in.values()) <= 100 + small
    assert sum(name.startswith("short/") for name in order[: 200 + small]) == 20, (
        "those with the least time left come first"
    )
    await locks.close()


def test_a_backend_that_answers_for_others_counts_as_no_answer(
    bench: Bench, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def renew(holds: Sequence[Hold]) -> list[Renewal]:
        nonlocal calls
        calls += 1
        return [Renewal.RENEWED] * (len(holds) - 1)  # never as many, however the leases are batched

    bench.backend.renew = renew  # type: ignore[method-assign]  # such as one that has a bug
    leases = [bench.locks.acquire(name) for name in "ab"]
    clock.advance(DUE)
    unrenewed(bench, 2)
    clock.advance(AGAIN)
    unrenewed(bench, 4)
    clock.advance(KEPT)
    until(lambda: all(lease.lost for lease in leases), "both are lost at their deadline")
    assert 1 < calls < 30, "it was asked again, and not at full speed"
    assert re.search(r"the backend has (0 answers for 1|1 answers for 2) holds", caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize("renew", [True, False])
def test_who_waits_hears_of_a_loss_soon_after_a_suspend(renew: bool) -> None:
    driver = Blocking(clock := Suspendable())
    core = Core(Faulty(driver), driver, sync.Lease, ttl=600, queue_limit=10, hooks=())
    with sync.Locks(core) as locks:
        lease = locks.acquire("a", renew=renew)
        told = background(lease.ended.wait)
        heir = background(lambda: locks.acquire("a"))
        until(lambda: (status := locks.status("a")) and status.waiters, "a waiter", watching=[told, heir])
        clock.slept = 3600
        assert told.result()
        assert lease.reason is Reason.EXPIRED
        assert heir.result().release(), "it minds the deadline too"


@pytest.mark.slow
@pytest.mark.parametrize("renew", [True, False])
async def test_a_loss_cancels_the_body_soon_after_a_suspend(renew: bool) -> None:
    driver = Asyncio(clock := Suspendable())
    core = Core(Faulty(driver), driver, aio.Lease, ttl=600, queue_limit=10, hooks=())

    async def hold() -> None:
        async with asyncio.timeout(PATIENCE), locks.lock("a", renew=renew):
            await asyncio.sleep(0)
            clock.slept = 3600
            await asyncio.sleep(2 * PATIENCE)

    async with aio.Locks(core) as locks:
        with pytest.raises(LeaseLost):
            await hold()


async def test_cancelling_all_tasks_of_an_event_loop_stops_no_renewal() -> None:
    told: list[Event] = []
    begun = asyncio.Event()
    async with testing_aio.connect(ttl=KEPT, hooks=[told.append]) as locks, locks.lock("a") as lease:
        backend = locks._core.backend
        renew = backend.renew

        async def hang(holds: Sequence[Hold]) -> Sequence[Renewal]:
            begun.set()
            await asyncio.sleep(PATIENCE)
            return await renew(holds)

        backend.renew = hang  # type: ignore[method-assign]
        locks.clock.advance(DUE)
        await begun.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert {"fencepost-renewals", "fencepost-renewal"} <= {task.get_name() for task in others}
        backend.renew = renew  # type: ignore[method-assign]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await until_async(lambda: "renewed" in [event.kind for event in told], "it is renewed all the same")
        assert not lease.lost


def release_at_once() -> None:
    sys.setswitchinterval(1e-6)
    with sync.connect("memory://") as locks:
        for number in range(800):
            lease = locks.acquire(f"lock-{number}", renew=False)
            both = threading.Barrier(2)

            def end(lease: sync.Lease = lease, both: threading.Barrier = both) -> None:
                both.wait()
                lease.release()

            threads = [threading.Thread(target=end) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert lease.reason is Reason.RELEASED, "although two threads released it"


@pytest.mark.slow
def test_a_lease_that_two_threads_release_at_once_was_released_and_not_lost() -> None:
    call_apart(release_at_once)


def test_a_loss_is_never_told_before_the_acquire(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    renewals = bench.core._renewals
    watch, told = renewals.watch, list[str]()

    def note(lease: sync.Lease) -> None:
        told.extend(bench.kinds())
        watch(lease)

    monkeypatch.setattr(renewals, "watch", note)
    with bench.locks as locks:
        locks.acquire("a")
    assert told == ["attempt", "acquired"], "from here on the service may tell that it is lost"


async def test_cancelling_all_tasks_before_the_service_has_begun_stops_no_renewal() -> None:
    told: list[Event] = []
    async with testing_aio.connect(ttl=KEPT, hooks=[told.append]) as locks:
        lease = await locks.acquire("a")
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert "fencepost-renewals" in {task.get_name() for task in others}
        for task in others:
            task.cancel()
        locks.clock.advance(DUE)
        await until_async(lambda: "renewed" in [event.kind for event in told], "it is renewed all the same")
        assert not lease.lost


def test_a_renewal_that_ended_with_its_event_loop_is_made_in_the_next() -> None:
    told: list[Event] = []
    locks = testing_aio.connect(ttl=KEPT, hooks=[told.append])
    backend = locks._core.backend
    renew = backend.renew
    leases: list[aio.Lease] = []

    async def first() -> None:
        begun = asyncio.Event()

        async def hang(holds: Sequence[Hold]) -> Sequence[Renewal]:
            begun.set()
            await asyncio.sleep(PATIENCE)
            return await renew(holds)

        backend.renew = hang  # type: ignore[method-assign]
        leases.append(await locks.acquire("a"))
        locks.clock.advance(DUE)
        await begun.wait()
        backend.renew = renew  # type: ignore[method-assign]

    async def second() -> None:
        await locks.acquire("b")  # which starts the service
        await until_async(lambda: ("renewed", "a") in [(event.kind, event.name) for event in told], "it is renewed")
        assert not leases[0].lost
        await locks.close()

    asyncio.run(first())
    asyncio.run(second())


def test_a_loss_is_told_although_it_is_reported_before_the_lease_is_watched(bench: Bench, clock: Clock) -> None:
    """The session ends while the acquire is on its way back."""
    other = bench.locks.acquire("other")

    def report(event: Event) -> None:
        if event.kind == "acquired" and event.name == "a":
            bench.backend.report(event.holder or "", "the session is gone")
            clock.advance(DUE)
            renewed(bench, "other")  # so that the service has heard of it

    bench.core.hooks._hooks += (report,)
    lease = bench.locks.acquire("a", ttl=10 * KEPT)
    assert lease.ended.wait(PATIENCE)
    assert lease.reason is Reason.GONE
    other.check()


def test_a_block_whose_event_loop_was_closed_costs_no_other_lease_its_renewal(
    bench: Bench, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Dead:
        def cancel(self) -> None:
            raise RuntimeError("Event loop is closed")

    bench.backend.renewing = [silent, fine]
    gone = bench.locks.acquire("gone", ttl=KEPT / 3, renew=False)
    gone._body = Dead()
    kept = bench.locks.acquire("kept")
    clock.advance(DUE)  # one is over, and the other is due
    until(lambda: "lost" in bench.kinds("gone"), "the loss is told")
    unrenewed(bench, 1)
    clock.advance(AGAIN)
    renewed(bench, "kept")
    kept.check()
    assert "could not be told" in caplog.text
