"""A decorator that names the lock from the call, and locks that stay taken for a while: what no store has a part in."""

import asyncio
import enum
import functools
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from typing import Any

import pytest

from fencepost import aio, ambient, naming, testing
from fencepost.errors import BackendError, ConfigError, LeaseLost, NotAcquired
from fencepost.lease import Reason
from fencepost.testing import aio as aio_testing
from tests.harness.threads import Background, waiters_of
from tests.harness.waiting import until_async


@pytest.fixture
def locks() -> Iterator[testing.Locks]:
    with testing.connect() as connected:
        yield connected


class Tone(enum.StrEnum):
    LOUD = "loud"


class Colour(str, enum.Enum):  # noqa: UP042 - what it prints differs between Python versions
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


def report(account: object, day: object = "monday", /, *rest: object, unit: object = 7, **more: object) -> None: ...


@pytest.mark.parametrize(
    ("template", "args", "options", "name"),
    [
        ("nightly", (1,), {}, "nightly"),
        ("report/{account}", (42,), {}, "report/42"),
        ("report/{account}/{day}", (42,), {}, "report/42/monday"),
        ("{unit}:{account}", (-1, "x"), {"unit": "a b"}, "a b:-1"),
        ("{{{account}}}", ("x",), {}, "{x}"),
        ("{{account}}", ("x",), {}, "{account}"),
        ("{account}", (Tone.LOUD,), {}, "loud"),
        ("{account}", (Colour.RED,), {}, "red"),
        ("{account}", (Size.BIG,), {}, "3"),
        ("{account}", ("{day}",), {}, "{day}"),
        ("{account}", (uuid.UUID(int=5),), {}, "00000000-0000-0000-0000-000000000005"),
    ],
)
def test_a_name_is_made_of_the_arguments(
    template: str, args: tuple[object, ...], options: dict[str, object], name: str
) -> None:
    assert naming.from_arguments(template, report)(args, options) == name


@pytest.mark.parametrize(
    "value", ["", "4/2", None, True, 1.5, b"42", date(2026, 11, 17), object(), [1], "a\nb", "x" * 600]
)
def test_an_odd_value_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        naming.from_arguments("report/{account}", report)((value,), {})


@pytest.mark.parametrize(
    "template",
    [
        *("{account.id}", "{account[0]}", "{account!r}", "{account:>3}", "{}", "{0}", "{other}", "{rest}", "{more}"),
        *("{", "}", "{account}{day}", "report/", "", "a\nb", 5, None),
    ],
)
def test_a_name_that_cannot_be_made_is_refused_at_once(locks: testing.Locks, template: Any) -> None:
    with pytest.raises(ConfigError):
        locks.holding(template)(report)


def test_a_name_may_be_a_function_of_the_call(locks: testing.Locks) -> None:
    seen: list[str] = []

    @locks.holding(lambda numbers, *, suffix: f"sum/{sum(numbers)}{suffix}")
    def add(numbers: list[int], *, suffix: str) -> int:
        seen.extend(status.name for status in locks.list())
        return sum(numbers)

    assert add([1, 2], suffix="!") == 3
    assert seen == ["sum/3!"]
    for wrong in ("a/", "", None):
        named: Callable[..., Any] = functools.partial(str, wrong) if wrong is not None else lambda: None
        with pytest.raises(ConfigError):
            locks.holding(named)(lambda: None)()

    async def later() -> str:
        return "a"

    with pytest.raises(ConfigError, match="coroutine"):
        locks.holding(later)(lambda: None)  # type: ignore[arg-type]


def test_methods_partials_and_wrong_calls(locks: testing.Locks) -> None:
    class Shop:
        @locks.holding("shop/{number}")
        def sell(self, number: int) -> str:
            """Sell."""
            return ",".join(status.name for status in locks.list())

    assert Shop().sell(3) == Shop().sell(number=3) == "shop/3"
    assert (Shop.sell.__name__, Shop.sell.__doc__) == ("sell", "Sell.")
    with pytest.raises(TypeError, match="number"):
        Shop().sell()  # type: ignore[call-arg]
    partial = locks.holding("p/{unit}")(functools.partial(report, 1, unit="x"))
    partial()
    with pytest.raises(ConfigError):
        partial(unit="")
    assert locks.list() == []


@pytest.mark.parametrize("work", [5, classmethod(lambda cls: None), property(lambda self: None)])
def test_what_cannot_be_called_is_refused(locks: testing.Locks, work: Any) -> None:
    with pytest.raises(ConfigError, match="go above the lock"):
        locks.holding("a")(work)


def test_work_that_outlives_its_call_is_refused(locks: testing.Locks) -> None:
    async def work() -> None: ...

    with pytest.raises(ConfigError, match="would outlive"):
        locks.holding("a")(work)
    with pytest.raises(ConfigError, match="would outlive"):
        locks.holding("a")(lambda: work())()  # type: ignore[unused-coroutine]
    with pytest.raises(ConfigError, match=r"not a coroutine function; lock it with fencepost\.connect"):
        aio_testing.connect().holding("a")(lambda: None)  # type: ignore[arg-type,return-value]

    def yields() -> Iterator[None]:
        yield

    async def yields_too() -> AsyncIterator[None]:
        yield

    for steps in (yields, yields_too):
        for face in (locks, aio_testing.connect()):
            with pytest.raises(ConfigError, match=r"would outlive .*; take the lock inside its body$"):
                face.holding("a")(steps)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        *({"busy": "never"}, {"busy": None}, {"ttl": 0}, {"ttl": "5"}, {"timeout": -1}, {"max_hold": -1}),
        *({"at_least": -1}, {"at_least": "1h"}, {"at_least": float("nan")}),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(locks: testing.Locks, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        locks.holding("a", **options)


def test_a_busy_lock_is_skipped_and_nothing_else_is(locks: testing.Locks, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    @locks.holding("a", busy="skip")
    def work(error: BaseException | None = None) -> str:
        calls.append("made")
        if error:
            raise error
        return "done"

    with locks.lock("a"), caplog.at_level(logging.INFO, "fencepost"):
        assert work() is None
    assert "is skipped: lock 'a' is busy" in caplog.text
    assert work() == "done"
    for error in (NotAcquired("inner", 1.0), LeaseLost("a", 1, "x"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            work(error)
        assert locks.status("a") is None
    with locks.failing("refused", "acquire") as fault, pytest.raises(BackendError):
        work()
    assert (fault.count, len(calls)) == (1, 4), "a store that fails is not a busy lock"


def test_a_timeout_comes_before_a_skip(locks: testing.Locks) -> None:
    work = locks.holding("a", busy="skip", timeout=1000)(lambda: "done")
    lease = locks.acquire("a", ttl=3000)
    waiting = Background(work)
    waiters_of(locks, "a", 1)
    locks.clock.advance(900)  # not more: real time passes, too
    assert not waiting.done
    locks.clock.advance(101)
    assert waiting.result() is None
    lease.release()


def test_a_reentrant_function_calls_itself(locks: testing.Locks) -> None:
    @locks.holding("tree/{name}", busy="raise", reentrant=True)
    def depth(name: str, left: int) -> int:
        return depth(name, left - 1) + 1 if left else 0

    assert depth("a", 3) == 3
    assert locks.status("tree/a") is None


async def test_the_asyncio_face_has_the_same() -> None:
    async with aio_testing.connect() as locks:

        @locks.holding("a/{number}", busy="skip")
        async def work(number: int) -> str:
            assert await work(number) is None
            return f"done {number}"

        assert await work(1) == "done 1"
        assert [*await asyncio.gather(work(1), work(2))] == ["done 1", "done 2"]
        with pytest.raises(ConfigError):
            await work("")  # type: ignore[arg-type]

        @locks.holding("lost")
        async def lost() -> None:
            (lease,) = ambient.held()
            assert isinstance(lease, aio.Lease)
            await aio_testing.lose(lease)
            await asyncio.sleep(3600)

        with pytest.raises(LeaseLost):
            await lost()


# at_least


def job(locks: testing.Locks, at_least: float, **options: Any) -> Callable[[], str | None]:
    return locks.holding("job", busy="skip", at_least=at_least, **options)(lambda: "ran")


def test_a_quick_job_runs_once_in_a_period(locks: testing.Locks) -> None:
    """Its ttl is neither too short for that nor in its way."""
    for ttl in (100, 5000):
        run = job(locks, 1000, ttl=ttl)
        assert (run(), run()) == ("ran", None)
        locks.clock.advance(900)  # not more: real time passes, too
        assert run() is None
        locks.clock.advance(101)
        assert run() == "ran"
        locks.clock.advance(1001)


def test_a_slow_job_frees_its_lock_when_it_ends(locks: testing.Locks) -> None:
    slow = locks.lock("slow", at_least=5, ttl=60)
    with slow:
        locks.clock.advance(6)
    assert locks.status("slow") is None


def test_a_renewal_does_not_make_it_longer(locks: testing.Locks) -> None:
    with locks.lock("a", at_least=60, ttl=60) as lease:
        locks.clock.advance(30)
        lease.renew()
    locks.clock.advance(31)
    assert locks.status("a") is None


def test_it_is_kept_however_the_block_ends_and_after_closing() -> None:
    with testing.connect() as outside:
        with testing.connect(outside.url, clock=outside.clock) as locks:
            with pytest.raises(RuntimeError), locks.lock("failed", at_least=60) as lease:
                raise RuntimeError
            assert (lease.reason, lease.released, lease.release()) == (Reason.RELEASED, True, False)
            with locks.lock("left", at_least=60).acquire():
                pass
        assert [status.name for status in outside.list()] == ["failed", "left"]
        outside.clock.advance(61)
        assert outside.list() == []


def test_a_release_by_hand_frees_it_at_once(locks: testing.Locks) -> None:
    with locks.lock("a", at_least=60) as lease:
        lease.release()
    assert locks.status("a") is None
    locks.lock("a", at_least=60).acquire().release()
    assert locks.status("a") is None


def test_a_lease_that_was_lost_is_not_kept(locks: testing.Locks) -> None:
    with pytest.raises(LeaseLost), locks.lock("a", at_least=60) as lease:
        other = testing.zombie(lease)
    status = locks.status("a")
    assert status is not None
    assert status.token == other.token
    with pytest.raises(LeaseLost), locks.lock("b", at_least=60):
        locks.break_lock("b")
    assert locks.status("b") is None


@pytest.mark.parametrize("failure", ["refused", "unknown"])
def test_a_store_that_fails_to_keep_it_leaves_it_to_its_ttl(
    locks: testing.Locks, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with locks.failing(failure, "release") as fault, locks.lock("a", at_least=60, ttl=15) as lease:
        pass
    assert (fault.count, lease.reason) == (1, Reason.UNCONFIRMED)
    assert "its ttl will free it" in caplog.text
    locks.clock.advance(16)
    assert (locks.status("a") is None) == (failure == "refused"), "or it was kept, and only the answer is lost"


async def test_cancelling_the_end_of_a_block_keeps_it_all_the_same() -> None:
    async with aio_testing.connect() as locks:
        ended = asyncio.Event()

        async def work() -> None:
            async with locks.lock("a", at_least=60, ttl=15):
                ended.set()

        with locks.failing("hung", "release") as fault:
            task = asyncio.create_task(work())
            await ended.wait()
            await until_async(lambda: fault.count, "it hangs")
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        locks.clock.advance(30)
        assert await locks.status("a"), "although its ttl has passed"
        locks.clock.advance(31)
        assert await locks.status("a") is None


def test_threads_that_run_the_same_job_run_it_once(locks: testing.Locks) -> None:
    run, together = job(locks, 60), threading.Barrier(8)

    def one() -> str | None:
        together.wait(30)
        return run()

    ran = [each.result() for each in [Background(one) for _ in range(8)]]
    assert ran.count("ran") == 1
