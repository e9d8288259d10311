"""A lease by itself: how it ends, its own block, and the margin."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

import fencepost
from fencepost import Reason, aio, ambient, sync
from fencepost import lease as leases
from fencepost.errors import BackendError, ConfigError, LeaseLost, NotAcquired
from fencepost.lease import Grant
from tests.harness.faulty import Bench, fault
from tests.harness.isolated import in_fork, isolated
from tests.harness.leases import lease as lease_of
from tests.harness.threads import held
from tests.harness.waiting import PATIENCE, until_async

State = tuple[bool, bool, bool, Reason | None]


def state(lease: sync.Lease | aio.Lease) -> State:
    return bool(lease.ended), lease.lost, lease.released, lease.reason


@pytest.fixture
def locks() -> Iterator[sync.Locks]:
    with fencepost.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        yield locks


def test_a_lease_that_holds_has_no_reason_to_be_over(locks: sync.Locks) -> None:
    assert state(locks.acquire("a")) == (False, False, False, None)


def test_a_release_is_no_loss(locks: sync.Locks) -> None:
    lease = locks.acquire("a")
    assert lease.release()
    assert state(lease) == (True, False, True, Reason.RELEASED)
    assert not lease.release()
    assert state(lease) == (True, False, True, Reason.RELEASED)


def test_a_deadline_that_passed_is_a_loss(locks: sync.Locks) -> None:
    lease = locks.acquire("a", ttl=0.05, renew=False)
    assert lease.ended.wait(PATIENCE)
    assert state(lease) == (True, True, False, Reason.EXPIRED)
    lease.release()
    assert state(lease) == (True, True, False, Reason.EXPIRED), "nothing changes any more"


def test_a_lock_that_somebody_broke_is_replaced_or_gone(locks: sync.Locks) -> None:
    lease = locks.acquire("a", renew=False)
    locks.break_lock("a")
    assert not lease.release()
    assert state(lease) == (True, True, False, Reason.REPLACED)
    lease = locks.acquire("a")
    locks.break_lock("a")
    with pytest.raises(LeaseLost):
        lease.renew()
    assert state(lease) == (True, True, False, Reason.GONE)


def test_closing_is_no_loss(locks: sync.Locks) -> None:
    lease = locks.acquire("a")
    locks.close()
    assert state(lease) == (True, False, True, Reason.CLOSED)


def test_a_release_that_failed_may_be_tried_again() -> None:
    bench = Bench()
    with bench.locks as locks:
        lease = locks.acquire("a")
        bench.backend.before["release"] = fault()
        with pytest.raises(BackendError):
            lease.release()
        assert state(lease) == (True, False, True, Reason.UNCONFIRMED)
        assert lease.release()
        assert state(lease) == (True, False, True, Reason.RELEASED)


@isolated
async def test_a_forked_child_has_lost_what_its_parent_holds(tmp_path: Path) -> None:
    with fencepost.connect(f"sqlite://{tmp_path}/locks.db") as locks:
        lease = locks.acquire("a")

        async def look() -> State:
            return state(lease)

        assert await in_fork(look, PATIENCE) == (True, True, False, Reason.FORKED)
        assert state(lease) == (False, False, False, None)


def test_the_block_of_a_lease_releases_it(locks: sync.Locks) -> None:
    with locks.acquire("a") as lease:
        assert ambient.find("a") is lease
    assert lease.reason is Reason.RELEASED
    assert ambient.find("a") is None
    assert locks.status("a") is None


def test_the_block_of_a_lease_raises_what_its_body_raises_and_releases(locks: sync.Locks) -> None:
    with pytest.raises(ZeroDivisionError), locks.acquire("a"):
        raise ZeroDivisionError
    assert locks.status("a") is None


def test_a_lease_is_entered_once(locks: sync.Locks) -> None:
    with locks.lock("a") as lease:
        with pytest.raises(ConfigError, match="has a block already"), lease:
            raise AssertionError("the body must not run")
        lease.check()
    with locks.acquire("b") as lease, pytest.raises(ConfigError, match="has a block already"), lease:
        raise AssertionError("the body must not run")


def test_a_lease_that_is_over_is_not_entered(locks: sync.Locks) -> None:
    lease = locks.acquire("a")
    lease.release()
    with pytest.raises(LeaseLost, match="it was released"), lease:
        raise AssertionError("the body must not run")
    assert ambient.held() == ()


def test_leaving_the_block_of_a_lost_lease_raises_unless_the_body_did(locks: sync.Locks) -> None:
    with pytest.raises(LeaseLost), locks.acquire("a", renew=False):
        locks.break_lock("a")
    with pytest.raises(ZeroDivisionError), locks.acquire("a", renew=False):  # noqa: PT012
        locks.break_lock("a")
        raise ZeroDivisionError


def test_a_guard_does_not_take_a_share_for_the_lock(locks: sync.Locks) -> None:
    lease = locks.shared("a").acquire()
    assert lease.shared
    with lease:
        assert ambient.find("a") is None
    assert not locks.acquire("a").shared


async def test_an_asyncio_lease_has_a_block_that_its_loss_cancels() -> None:
    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        async with await locks.acquire("a") as lease:
            assert ambient.find("a") is lease
        assert state(lease) == (True, False, True, Reason.RELEASED)
        with pytest.raises(LeaseLost):
            async with await locks.acquire("a", ttl=0.1, renew=False):
                await asyncio.sleep(PATIENCE)
        lease = await locks.acquire("a")
        await lease.release()
        with pytest.raises(LeaseLost, match="it was released"):
            async with lease:
                raise AssertionError("the body must not run")
        async with locks.lock("a") as lease:
            with pytest.raises(ConfigError, match="has a block already"):
                await lease.__aenter__()


def test_a_margin_raises_while_there_is_time_to_stop(locks: sync.Locks) -> None:
    lease = locks.acquire("a", ttl=60, renew=False)
    lease.check(margin=30)
    lease.deadline -= 31
    with pytest.raises(LeaseLost, match="it is expiring: 2"):
        lease.check(margin=30)
    lease.check(margin=20)
    assert not lease.ended, "it goes on"


@pytest.mark.parametrize("margin", [40, 60, -1])
def test_a_margin_that_would_fire_at_random_is_refused(locks: sync.Locks, margin: float) -> None:
    with pytest.raises(ConfigError):
        locks.acquire("a", ttl=60).check(margin=margin)


def test_a_term_that_was_lost_on_the_way_to_its_block_ends_the_block_and_not_the_loop(locks: sync.Locks) -> None:
    seen = []
    for term in locks.election("a"):
        seen.append(term.token)
        if len(seen) == 1:
            locks.break_lock("a")
            with pytest.raises(LeaseLost):
                term.renew()
        with term:
            term.check()
            break
    assert len(seen) == 2


async def test_an_asyncio_term_that_is_over_is_not_led_and_is_entered_once() -> None:
    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        election = locks.election("a")
        loop = aiter(election)
        term = await anext(loop)
        await election.close()
        async with term:
            await asyncio.sleep(0)
            raise AssertionError("the body must not go on")
        with pytest.raises(ConfigError, match="has a block already"):
            await term.__aenter__()
        await asyncio.sleep(0)  # the cancellation was the block's, and ended with it


@pytest.mark.parametrize("close", ["election", "locks"])
async def test_closing_from_another_task_ends_the_body_that_leads(close: str) -> None:
    locks = aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60)
    election, leads = locks.election("a"), asyncio.Event()
    ended: list[Reason | None] = []

    async def lead() -> None:
        async for term in election:
            async with term:
                leads.set()
                try:
                    await asyncio.sleep(PATIENCE)
                finally:
                    ended.append(term.reason)

    task = asyncio.create_task(lead())
    await leads.wait()
    if close == "election":
        await election.close()
        await task
        assert ended == [Reason.RELEASED]
    else:
        await locks.close()
        with pytest.raises(ConfigError, match="closed"):
            await task
        assert ended == [Reason.CLOSED]
    await locks.close()


async def test_a_release_that_was_cancelled_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        lease = await locks.acquire("a")

        async def hang(*_: object) -> bool:
            await asyncio.sleep(PATIENCE)
            return False

        with monkeypatch.context() as frozen:
            frozen.setattr(locks._core.backend, "release", hang)
            frozen.setattr(locks._core.backend, "leave", hang)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lease.release(), 0.01)
        assert lease.reason is Reason.UNCONFIRMED
        assert await lease.release()
        assert state(lease) == (True, False, True, Reason.RELEASED)


@isolated
async def test_a_forked_child_may_use_a_re_entrant_lock_of_its_parent(tmp_path: Path) -> None:
    with fencepost.connect(f"sqlite://{tmp_path}/locks.db", ttl=60) as locks:
        lock = locks.lock("a", reentrant=True)
        lease = lock.__enter__()

        async def leave_and_ask() -> str:
            with pytest.raises(LeaseLost):
                lock.__exit__(None, None, None)
            with pytest.raises(NotAcquired), locks.lock("a", reentrant=True, timeout=0):
                raise AssertionError("the parent holds it")
            return str(lease.reason)

        assert await in_fork(leave_and_ask, PATIENCE) == "forked"
        lock.__exit__(None, None, None)


def test_a_second_release_of_what_the_first_one_freed_is_no_release_by_a_stranger() -> None:
    bench = Bench()
    with bench.locks as locks:
        lease = locks.acquire("a")
        bench.backend.after["release"] = fault()
        with pytest.raises(BackendError):
            lease.release()
        assert not lease.release()
        assert lease.reason is Reason.UNCONFIRMED
    assert "not_owner" not in bench.kinds()


def test_an_election_of_closed_locks_is_an_error_wherever_it_stands() -> None:
    locks = fencepost.connect(f"memory://{secrets.token_hex(4)}")
    before, loop = locks.election("a"), iter(locks.election("a"))
    next(loop)
    locks.close()
    for each in (loop, iter(before)):
        with pytest.raises(ConfigError, match="these locks are closed"):
            next(each)


@isolated
async def test_a_forked_child_takes_stamps_although_a_thread_of_its_parent_s_was_taking_one() -> None:
    async def take() -> int:
        return lease_of("a", "ann", 5).access().stamp.seq

    with held(leases._gate):
        assert await in_fork(take, PATIENCE / 4) == 1


@isolated
async def test_a_forked_child_may_fork_in_its_turn(tmp_path: Path) -> None:
    """As a daemon does."""
    with fencepost.connect(f"sqlite://{tmp_path}/locks.db", ttl=60) as locks:
        lease = locks.acquire("a")

        async def fork_again() -> tuple[bool, bool]:
            async def look() -> tuple[bool, bool]:
                return locks.try_acquire("a") is None, locks.try_acquire("b") is not None

            return await in_fork(look, PATIENCE / 8)

        assert await in_fork(fork_again, PATIENCE / 4) == (True, True)
        assert lease.release()


def test_an_election_that_is_closed_while_it_is_decided_elects_nobody() -> None:
    bench = Bench()
    with bench.locks as locks:
        election = locks.election("a")

        def close(grant: Grant) -> Grant:
            election.close()
            return grant

        bench.backend.granted = close
        assert next(iter(election), None) is None
        assert bench.kinds() == ["attempt", "acquired", "released"]
        assert locks.status("a") is None


def test_the_loss_of_another_lease_is_not_taken_for_the_end_of_a_term(locks: sync.Locks) -> None:
    other = locks.acquire("b")
    other.release()
    for term in locks.election("a"):
        with pytest.raises(LeaseLost) as raised, term:
            other.check()
        assert raised.value.name == "b"
        assert term.released
        break


async def test_the_loss_of_another_lease_is_not_taken_for_the_end_of_an_asyncio_term() -> None:
    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        other = await locks.acquire("b")
        await other.release()
        async with aclosing(aiter(locks.election("a"))) as terms:
            term = await anext(terms)
            with pytest.raises(LeaseLost) as raised:
                async with term:
                    other.check()
        assert raised.value.name == "b"
        assert term.released


async def test_a_leader_that_closes_its_own_election_goes_on_to_the_end_of_its_block() -> None:
    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        election, reached = locks.election("a"), []
        async for term in election:
            async with term:
                await election.close()
                await asyncio.sleep(0)
                reached.append(term.reason)
        assert reached == [Reason.RELEASED]


async def test_a_block_in_the_clean_up_of_a_cancelled_task_is_told_of_its_loss() -> None:
    begun = asyncio.Event()
    told: list[LeaseLost] = []

    async def lose(locks: aio.Locks) -> None:
        async with locks.lock("a", ttl=0.1, renew=False):
            await asyncio.sleep(PATIENCE)

    async def work(locks: aio.Locks) -> None:
        try:
            begun.set()
            await asyncio.sleep(PATIENCE)
        finally:
            with pytest.raises(LeaseLost) as raised:
                await lose(locks)
            told.append(raised.value)

    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        task = asyncio.create_task(work(locks))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(told) == 1


async def test_an_election_that_is_closed_while_a_lost_term_is_cleaned_up_after_ends_in_peace() -> None:
    steps: list[str] = []
    cleaning, go = asyncio.Event(), asyncio.Event()

    async def lead() -> None:
        async for term in election:
            async with term:
                try:
                    await asyncio.Event().wait()
                finally:
                    cleaning.set()
                    await go.wait()
                    steps.append("cleaned up")

    async with aio.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as locks:
        election = locks.election("a", ttl=3)
        leading = asyncio.create_task(lead())

        async def leads() -> bool:
            return await locks.break_lock("a") is not None

        await until_async(leads, "a leader, whose term is broken off", watching=[leading])
        await cleaning.wait()
        await election.close()
        go.set()
        async with asyncio.timeout(PATIENCE):
            await leading
    assert steps == ["cleaned up"]
