"""What fencepost.testing offers, without pytest: refusals of every kind, faults, leases left behind."""

import asyncio
import io
import sqlite3
import urllib.error
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost import Reason, testing
from fencepost.errors import BackendError, ConfigError, LeaseLost, NotAcquired, StaleToken, refusal
from fencepost.events import Event
from fencepost.guards import MemoryGuard, sqlite
from fencepost.rule import Stamp, Verdict
from fencepost.signing import Keys
from fencepost.testing import aio, assert_refused
from tests.harness.threads import Background, waiters_of
from tests.harness.waiting import until


@pytest.fixture
def locks() -> Iterator[testing.Locks]:
    with testing.connect() as connected:
        yield connected


def stale() -> Exception:
    return refusal(Verdict.STALE, "a", Stamp(1), Stamp(2))


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


def http_error(status: int, **headers: str) -> urllib.error.HTTPError:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://x", status, "Conflict", message, io.BytesIO())


def client_error(status: int, **headers: str) -> Exception:
    """As requests and httpx raise it."""
    error = RuntimeError(f"{status} for url")
    error.response = SimpleNamespace(status_code=status, headers=headers)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [
        stale(),
        ExceptionGroup("two", [stale(), ExceptionGroup("one", [stale()])]),
        caused(RuntimeError("wrapped by a framework"), stale()),
        http_error(409, X_Fence_Verdict="stale"),
        client_error(409, **{"x-fence-verdict": "stale"}),
        sqlite3.IntegrityError("fencepost: this change carries no newer fencing token"),
        RuntimeError("stale fencing token for account: got 1, seen 2"),
    ],
    ids=repr,
)
def test_a_refusal_counts(error: Exception) -> None:
    with assert_refused() as refused:
        raise error
    assert refused.error is not None
    if isinstance(refused.error, StaleToken):
        assert (refused.token, refused.seen) == (1, 2)


@pytest.mark.parametrize(
    "error",
    [
        ExceptionGroup("mixed", [stale(), KeyError("x")]),
        caused(KeyError("x"), ValueError("y")),
        http_error(404),
        http_error(409, X_Fence_Verdict="late"),
        client_error(412),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_another_error_is_none(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, assert_refused():
        raise error
    assert raised.value is error


def test_an_error_that_merely_came_after_a_refusal_is_none() -> None:
    def handle_wrongly() -> None:
        try:
            raise stale()
        except StaleToken:
            dict[str, int]()["missing"]

    with pytest.raises(KeyError), assert_refused():
        handle_wrongly()


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict not in (Verdict.ADMIT, Verdict.STALE)])
def test_any_other_verdict_fails(verdict: Verdict) -> None:
    with pytest.raises(AssertionError, match="and not as stale"), assert_refused():
        raise refusal(verdict, "a", None if verdict is Verdict.MISSING else Stamp(1), Stamp(2))


def test_no_refusal_fails() -> None:
    with pytest.raises(AssertionError, match="was not refused"), assert_refused():
        pass
    with pytest.raises(AssertionError, match="no guard refused"), assert_refused():
        raise LeaseLost("a", 1, "x")


@pytest.mark.parametrize("error", [http_error(409), client_error(409)], ids=["urllib", "requests"])
def test_a_conflict_that_no_guard_tells_of_fails(error: Exception) -> None:
    with pytest.raises(AssertionError, match="no header X-Fence-Verdict"), assert_refused():
        raise error


def test_responses() -> None:
    assert_refused(SimpleNamespace(status=409, headers={"x-fence-verdict": "stale"}))
    assert_refused(SimpleNamespace(status="409 Conflict", headers={"X-Fence-Verdict": "stale"}))
    for conflict in (SimpleNamespace(status_code=409, headers={}), SimpleNamespace(status="409 Conflict")):
        with pytest.raises(AssertionError, match="no header X-Fence-Verdict"):
            assert_refused(conflict)
    with pytest.raises(AssertionError, match="status 200"):
        assert_refused(SimpleNamespace(status_code=200))
    with pytest.raises(AssertionError, match="as clash"):
        assert_refused(SimpleNamespace(status_code=409, headers={"X-Fence-Verdict": "clash"}))
    with pytest.raises(TypeError, match="no HTTP response"):
        assert_refused(lambda: None)


def test_a_real_service_and_a_trigger(locks: testing.Locks, tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from fencepost.guards.asgi import Fence
    from fencepost.guards.marks import Marks

    marks = Marks(tmp_path / "marks.sqlite3")
    old = locks.acquire("r/1")
    new = testing.zombie(old)

    async def write(request: Request) -> PlainTextResponse:
        return PlainTextResponse("written")

    app = Fence(Starlette(routes=[Route("/r/1", write, methods=["PUT"])]), lambda scope: "r/1", marks=marks)
    client = TestClient(app)
    assert client.put("/r/1", headers=new.access("r/1").headers).status_code == 200
    assert_refused(client.put("/r/1", headers=old.access("r/1").headers))
    with assert_refused():
        client.put("/r/1", headers=old.access("r/1").headers).raise_for_status()
    with pytest.raises(AssertionError, match="status 200"):
        assert_refused(client.put("/r/1", headers=new.access("r/1").headers))
    marks.close()
    with sqlite3.connect(":memory:") as conn:
        conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, lock_epoch INTEGER DEFAULT 0)")
        conn.execute("INSERT INTO account (id, balance) VALUES (42, 100)")
        for statement in sqlite.ddl("account", column="lock_epoch"):
            conn.execute(statement)
        update = "UPDATE account SET balance = 1, lock_epoch = ? WHERE id = 42"
        conn.execute(update, (new.token,))
        with assert_refused():
            conn.execute(update, (old.token,))
    conn.close()


def test_a_lease_that_is_over_is_refused(locks: testing.Locks) -> None:
    lease = locks.acquire("a")
    lease.release()
    for act in (testing.lose, testing.expire, testing.zombie):
        with pytest.raises(ConfigError, match="is over"):
            act(lease)
        with pytest.raises(ConfigError, match="takes a lease"):
            act(None)  # type: ignore[arg-type]
    assert locks.list() == []


def test_a_share_expires_alone(locks: testing.Locks) -> None:
    first, second = locks.shared("a").acquire(), locks.shared("a").acquire()
    with pytest.raises(ConfigError, match="share"):
        testing.zombie(first)
    testing.expire(first)
    assert (first.lost, second.lost) == (True, False)
    with pytest.raises(NotAcquired):
        locks.acquire("a", timeout=0)
    second.release()


def test_a_zombie_among_signed_leases_and_terms() -> None:
    keys = Keys({"k": b"0123456789abcdef"})
    with testing.connect(keys=keys) as locks:
        old = locks.acquire("a")
        new = testing.zombie(old)
        assert new.access().signature
        assert old.access().signature
        terms = iter(locks.election("leader"))
        testing.expire(next(terms))
        assert locks.election("leader").leader() is None
        terms.close()


def test_a_loss_is_told_to_hooks_and_waiters_of_the_end(locks: testing.Locks) -> None:
    events: list[Event] = []
    with testing.connect(hooks=[events.append]) as told:
        lease = told.acquire("a")
        waiting = Background(lambda: lease.ended.wait(30))
        testing.lose(lease)
        assert waiting.result() is True
        assert (lease.reason, events[-1].kind) == (Reason.GONE, "lost")
        testing.expire(told.acquire("a"))
        assert "abandoned" not in [event.kind for event in events]


def test_a_store_that_fails_its_renewals_costs_the_lease(locks: testing.Locks) -> None:
    lease = locks.acquire("a", ttl=60)
    with locks.failing("refused", "renew") as fault:
        with pytest.raises(BackendError):
            lease.renew()
        locks.clock.advance(50)
        assert not lease.lost
        locks.clock.advance(11)
        assert lease.ended.wait(30)
    assert fault.count >= 1
    assert lease.reason is Reason.EXPIRED


def test_a_request_that_hangs_ends_with_the_fault_or_the_patience_of_the_client(locks: testing.Locks) -> None:
    lease = locks.acquire("a")
    with locks.failing("hung", "release") as fault:
        first = Background(lease.release)
        until(lambda: fault.count, "it hangs")
        assert not first.done
        locks.clock.advance(5.1)
        with pytest.raises(BackendError, match="did not answer"):
            first.result()
        second = Background(lambda: locks.acquire("b").release())
        until(lambda: fault.count == 2, "this one too")
    with pytest.raises(BackendError, match="did not answer"):
        second.result()
    assert locks.status("a"), "what hangs is not carried out"


def test_faults_nest_and_name_what_they_know(locks: testing.Locks) -> None:
    with locks.failing("refused") as every, locks.failing("unknown", "acquire") as one:
        with pytest.raises(BackendError) as raised:
            locks.acquire("a")
        with pytest.raises(BackendError):
            locks.status("a")
    assert (raised.value.ambiguous, one.count, every.count) == (True, 1, 2), "its clean-up is refused as well"
    for wrong in (("broken",), ("refused", "aquire")):
        with pytest.raises(ConfigError, match="there are"), locks.failing(*wrong):
            pass


def test_a_pause_inside_another_is_refused_and_the_locks_are_as_before(locks: testing.Locks) -> None:
    guard = MemoryGuard[int]()

    def write(number: int) -> None:
        with locks.lock("a"):
            guard.write("a", number)

    with testing.paused(locks, lambda: write(1)), assert_refused():
        with pytest.raises(ConfigError, match="one at a time"), testing.paused(locks, lambda: None):
            pass
        write(2)
    with pytest.raises(RuntimeError, match="meanwhile"), testing.paused(locks, lambda: _raise()):
        write(3)
    write(4)
    assert guard.read("a", locks.acquire("a")) == 4


def _raise() -> None:
    raise RuntimeError("meanwhile")


def test_who_waits_is_not_paused_instead(locks: testing.Locks) -> None:
    """Only the first lease of the block is a zombie, in whatever thread."""
    lease = locks.acquire("a")
    with testing.paused(locks, lambda: None):
        waiting = Background(lambda: locks.acquire("a", timeout=60))
        waiters_of(locks, "a", 1)
        lease.release()
        zombie = waiting.result()
        assert zombie.lost
        with locks.lock("a") as held:
            assert not held.lost


async def test_leases_of_tasks_are_found_by_their_task() -> None:
    async with aio.connect() as locks:
        # With names of their own: Python 3.13.0 calls each task of a loop with a task factory 'None'.
        jobs = [asyncio.create_task(locks.acquire(f"gathered/{each}"), name=f"gatherer {each}") for each in range(2)]
        leases = await asyncio.gather(*jobs)
        with pytest.raises(AssertionError, match=r"2 leases were not released:\n(.|\n)*in task 'gatherer 1'"):
            locks.assert_released()
        for lease in leases:
            await lease.release()
        locks.assert_released()


def test_many_leases_are_not_kept_in_memory(locks: testing.Locks) -> None:
    held = locks.acquire("held")
    for each in range(2500):
        locks.acquire(f"{each}").release()
    assert len(locks._core._places) <= 1001
    with pytest.raises(AssertionError, match="'held'"):
        locks.assert_released()
    held.release()
    locks.assert_released()


@pytest.mark.parametrize("seconds", [-1, "5", None, float("inf"), float("nan")])
def test_a_clock_goes_forward_only(seconds: Any) -> None:
    clock = testing.Clock()
    before = clock.now()
    with pytest.raises(ConfigError):
        clock.advance(seconds)
    clock.advance(100)
    assert clock.now() >= before + 100
