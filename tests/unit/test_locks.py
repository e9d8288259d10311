"""The core over a store that fails: what it cleans up, what it tells, what may be tried again."""

import contextlib
import gc
import logging
import weakref
from collections.abc import Iterator

import pytest

from fencepost.driver import run
from fencepost.errors import BackendError, ConfigError, LeaseLost
from fencepost.lease import Grant, Reason
from tests.harness.faulty import Bench, fault
from tests.harness.waiting import PATIENCE, until


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.locks.close()


def test_an_acquire_that_may_have_happened_is_cleaned_up_after(bench: Bench) -> None:
    bench.backend.after["take"] = fault(ambiguous=True)
    with pytest.raises(BackendError):
        bench.locks.acquire("a")
    until(lambda: bench.locks.status("a") is None, "it is given back, long before its ttl", deadline=PATIENCE / 2)
    assert bench.kinds() == ["attempt", "abandoned"]
    assert bench.locks.try_acquire("a")


def test_an_acquire_that_did_not_happen_asks_nothing_more(bench: Bench) -> None:
    bench.backend.before["take"] = fault(ambiguous=False)
    with pytest.raises(BackendError):
        bench.locks.acquire("a")
    assert bench.backend.left == []


def test_a_failed_acquire_keeps_nothing_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as half a connection: it would stay open until the garbage collector finds it."""
    kept = []

    async def take(*_: object) -> None:
        connection = Bench()
        kept.append(weakref.ref(connection))
        raise fault(ambiguous=False)

    monkeypatch.setattr(bench.backend, "take", take)
    gc.disable()
    try:
        with contextlib.suppress(BackendError):
            bench.locks.acquire("a")
        assert kept[0]() is None
    finally:
        gc.enable()


def test_a_clean_up_that_fails_too_leaves_the_first_error_and_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.backend.after["take"] = fault(ambiguous=True)
    bench.backend.before["leave"] = fault(ambiguous=True)
    with caplog.at_level(logging.WARNING, logger="fencepost"), pytest.raises(BackendError) as raised:
        bench.locks.acquire("a")
    assert raised.value is first
    until(lambda: "its ttl will" in caplog.text, "the warning")


def test_a_release_that_was_not_answered_may_be_tried_again(bench: Bench) -> None:
    lease = bench.locks.acquire("a")
    bench.backend.before["release"] = fault(ambiguous=True)
    with pytest.raises(BackendError):
        lease.release()
    assert lease.reason is Reason.UNCONFIRMED, "a failed release ends the lease too"
    with pytest.raises(LeaseLost):
        lease.check()
    assert bench.locks.try_acquire("a") is None
    assert lease.release() is True
    assert lease.release() is False
    assert bench.locks.try_acquire("a")


def test_a_block_whose_release_failed_ends_quietly(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.backend.before["release"] = fault(ambiguous=True)
    with caplog.at_level(logging.WARNING, logger="fencepost"), bench.locks.lock("a"):
        pass
    assert "its ttl will free it" in caplog.text


def test_a_block_tries_again_what_its_body_could_not_release(bench: Bench) -> None:
    bench.backend.after["release"] = fault(ambiguous=True)
    with bench.locks.lock("a") as lease, pytest.raises(BackendError):
        lease.release()
    assert bench.locks.try_acquire("a")


def test_a_grant_that_was_slept_through_is_given_back_and_asked_for_again(bench: Bench) -> None:
    """Its process was stopped between the store's answer and its own reading of it."""
    late = [True]

    def slept(grant: Grant) -> Grant:
        return grant._replace(since=grant.since - 1000) if late.pop() else grant

    late.insert(0, False)
    bench.backend.granted = slept
    lease = bench.locks.acquire("a")
    lease.check()
    assert lease.token == 2
    assert len(bench.backend.left) == 1
    assert bench.kinds() == ["attempt", "acquired"]


def test_a_store_whose_every_answer_comes_too_late_is_not_asked_for_ever(bench: Bench) -> None:
    asked: list[Grant] = []

    def slept(grant: Grant) -> Grant:
        asked.append(grant)
        assert len(asked) == 1, "its time is up: it must not ask again"
        return grant._replace(since=grant.since - 1000)

    bench.backend.granted = slept
    assert bench.locks.try_acquire("a") is None
    assert len(asked) == 1
    assert bench.kinds() == ["attempt", "timeout"]
    assert bench.locks.status("a") is None


def test_locks_that_are_closed_while_one_is_granted_keep_none(bench: Bench) -> None:
    def close(grant: Grant) -> Grant:
        bench.locks.close()
        return grant

    bench.backend.granted = close
    with pytest.raises(ConfigError, match="closed"):
        bench.locks.acquire("a")
    assert run(bench.backend.status("a")) == []


def test_a_waiter_leaves_the_line_although_it_is_certain_that_its_request_failed(bench: Bench) -> None:
    lease = bench.locks.acquire("a")
    failure = bench.backend.before["wait"] = fault(ambiguous=False)
    with pytest.raises(BackendError) as raised:
        bench.locks.acquire("a")
    assert raised.value is failure

    def left() -> bool:
        status = bench.locks.status("a")
        assert status is not None
        assert status.holder == lease.holder
        return status.waiters == ()

    until(left, "it has left the line")


def test_a_loss_that_only_the_release_finds_out_is_told(bench: Bench) -> None:
    lease = bench.locks.acquire("a", renew=False)
    bench.locks.break_lock("a")
    assert lease.release() is False
    assert bench.kinds() == ["attempt", "acquired", "not_owner", "lost"]
    assert bench.events[-1].token == lease.token
