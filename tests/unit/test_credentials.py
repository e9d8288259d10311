"""The caller's function that tells credentials: slow, failing, hanging, shared, forked, and never shown."""

import asyncio
import logging
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fencepost
from fencepost import aio, credentials, registry
from fencepost.address import parse
from fencepost.credentials import Secret, Source, secret
from fencepost.driver import Driver, run
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError, ConfigError
from tests.harness.isolated import in_fork, isolated
from tests.harness.threads import background, held, on_thread
from tests.harness.waiting import until, until_async

HIDDEN = "s3cret ☃\n"


def source(ask: Callable[[], Any], driver: Driver | None = None) -> Source[Secret]:
    return Source(ask, secret, driver or Blocking(), scheme="redis", what="credentials=")


class Gate:
    """A function that waits until it is let go, and counts its calls."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        assert self.open.wait(60)
        return f"password {self.calls}"


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (HIDDEN, (None, HIDDEN)),
        (HIDDEN.encode(), (None, HIDDEN)),
        (("app", HIDDEN), ("app", HIDDEN)),
        ((b"app", HIDDEN.encode()), ("app", HIDDEN)),
        ((HIDDEN,), (None, HIDDEN)),
        (("", HIDDEN), (None, HIDDEN)),
        ((None, HIDDEN), (None, HIDDEN)),
    ],
)
def test_a_password_or_a_user_with_one_is_taken_with_any_character(told: Any, found: tuple[str | None, str]) -> None:
    assert run(source(lambda: told).get()) == found


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "returned None"),
        (5, "returned an int"),
        ("", "returned an empty password"),
        (("app", ""), "returned an empty password"),
        (("app", None), "returned None as the password"),
        ((7, "x"), "returned an int as the user"),
        (("a", "b", HIDDEN), "returned a tuple of 3"),
        (b"\xff" + HIDDEN.encode(), "a password that is not UTF-8"),
        ([HIDDEN], "returned a list as the password"),
    ],
)
def test_nonsense_is_refused_and_not_repeated(told: Any, why: str) -> None:
    if isinstance(told, list):
        told = (told,)
    with pytest.raises(BackendError, match=why) as raised:
        run(source(lambda: told).get())
    assert not raised.value.ambiguous
    assert HIDDEN not in str(raised.value)


def test_an_error_is_named_by_its_class_alone_and_kept_as_the_cause() -> None:
    def fail() -> str:
        raise LookupError(f"no such secret {HIDDEN}")

    with pytest.raises(BackendError, match=r"credentials= of redis:// raised LookupError$") as raised:
        run(source(fail).get())
    assert isinstance(raised.value.__cause__, LookupError)
    assert HIDDEN not in str(pickle.loads(pickle.dumps(raised.value)))


@pytest.mark.parametrize("told", [5, "password", None])
def test_what_is_no_function_is_refused_by_connect(told: Any) -> None:
    if told is None:
        assert registry.connect("redis://h", Blocking(), None).address.login is None
        return
    with pytest.raises(ConfigError, match="credentials= is a function"):
        fencepost.connect("redis://h", credentials=told)


async def _told() -> str:
    return HIDDEN


class _Awaited:
    async def __call__(self) -> str:
        return HIDDEN


@pytest.mark.parametrize("ask", [_told, _Awaited()])
def test_a_coroutine_function_is_refused_by_blocking_code_at_once(ask: Any) -> None:
    with pytest.raises(ConfigError, match=r"fencepost\.aio\.connect"):
        fencepost.connect("redis://h", credentials=ask)


def test_something_to_await_is_refused_by_blocking_code_when_it_comes() -> None:
    with pytest.raises(BackendError, match="something to await"):
        run(source(lambda: _told()).get())


@pytest.mark.parametrize("url", ["memory://", "sqlite:x.db"])
def test_a_store_that_nobody_logs_in_to_refuses_credentials(url: str) -> None:
    with pytest.raises(ConfigError, match="nobody to log in"):
        fencepost.connect(url, credentials=lambda: HIDDEN)


def test_a_password_in_the_url_too_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave one of them out") as raised:
        fencepost.connect(f"redis://:{'pa55'}@h", credentials=lambda: HIDDEN)
    assert "pa55" not in str(raised.value)


def test_those_who_connect_at_once_share_a_call_and_the_next_one_asks_again() -> None:
    gate = Gate()
    asked = source(gate)
    threads = [background(lambda: run(asked.get())) for _ in range(8)]
    until(lambda: asked._asking is not None and len(asked._asking.waiting) == 8, "all wait", watching=threads)
    gate.open.set()
    assert [thread.result() for thread in threads] == [(None, "password 1")] * 8
    assert run(asked.get()) == (None, "password 2")
    assert asked._asking is None, "what it returned is kept nowhere"


def test_a_call_that_hangs_ends_the_wait_of_its_caller_and_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    asked = source(gate)

    async def within(seconds: float) -> Secret:
        return await Blocking().within(seconds, asked.get())

    with pytest.raises(BackendError, match=r"gave no answer within \S+ s$"):
        run(within(0.05))
    until(lambda: gate.calls == 1, "it is asked")
    with pytest.raises(BackendError, match=r"gave no answer within \S+ s$"):
        run(within(0.05))
    assert gate.calls == 1, "one that is under way is not joined by a second"
    monkeypatch.setattr(asked._asking, "until", 0.0)
    gate.open.set()
    assert run(asked.get()) == (None, "password 2"), "it hung for too long: another call was made"


def test_without_a_thread_it_is_an_error_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asked = source(lambda: HIDDEN)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(BackendError, match="raised RuntimeError"):
            run(asked.get())
    assert run(asked.get()).password == HIDDEN


async def test_a_coroutine_function_is_awaited_on_the_event_loop_also_for_threads() -> None:
    loops = []

    async def told() -> str:
        loops.append(asyncio.get_running_loop())
        return HIDDEN

    asked = source(told, Asyncio())
    assert (await asked.get()).password == HIDDEN
    assert (await on_thread(lambda: run(asked.get()))).password == HIDDEN
    assert loops == [asyncio.get_running_loop()] * 2


async def test_a_plain_function_never_blocks_the_event_loop() -> None:
    gate = Gate()
    asked = source(gate, Asyncio())
    task = asyncio.create_task(asked.get())
    await until_async(lambda: gate.calls == 1, "it was called")
    assert not task.done(), "and the loop goes on"
    gate.open.set()
    assert (await task).password == "password 1"


async def test_a_plain_function_may_return_something_to_await() -> None:
    assert (await source(lambda: _told(), Asyncio()).get()).password == HIDDEN


async def test_one_of_those_who_share_a_call_may_be_cancelled() -> None:
    gate = Gate()
    asked = source(gate, Asyncio())
    one, other = asyncio.create_task(asked.get()), asyncio.create_task(asked.get())
    await until_async(lambda: gate.calls == 1, "it was called")
    one.cancel()
    await asyncio.wait([one])
    gate.open.set()
    assert (await other).password == "password 1"


def test_a_thread_whose_event_loop_is_closed_is_told_so() -> None:
    asked = source(_told, Asyncio())
    with pytest.raises(BackendError, match="raised RuntimeError"):
        run(asked.get())
    assert asyncio.run(asked.get()).password == HIDDEN
    with pytest.raises(BackendError, match="raised RuntimeError"):
        run(asked.get())
    assert asyncio.run(asked.get()).password == HIDDEN, "another loop asks again"


@isolated
async def test_a_forked_child_asks_for_itself_although_its_parent_was_asking() -> None:
    gate = Gate()
    parent = os.getpid()

    def ask() -> str:
        return gate() if os.getpid() == parent else "child"

    asked = source(ask)
    thread = background(lambda: run(asked.get()))
    until(lambda: gate.calls == 1, "the parent asks", watching=[thread])

    async def child() -> str:
        return run(asked.get()).password

    with held(asked._gate):
        assert await in_fork(child, 30) == "child"
    gate.open.set()
    assert thread.result() == (None, "password 1")


def test_nothing_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    locks = fencepost.connect("redis://app@localhost:1/0", credentials=lambda: HIDDEN)
    backend: Any = locks._core.backend
    with pytest.raises(BackendError) as raised:
        locks.acquire("a", timeout=0.1)
    fixed: Any = registry.connect(f"redis://app:{'pa55'}@h", Blocking())
    shown = [repr(each) for each in (locks, backend, backend.address, backend.dial, fixed.dial, fixed.address)]
    shown += [repr(Secret("app", HIDDEN)), str(raised.value), caplog.text]
    for text in shown:
        assert HIDDEN.strip() not in text
        assert "pa55" not in text
    for each in (locks, backend.address, backend.address.login):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(each)
    locks.close()


def test_an_address_of_a_url_has_neither() -> None:
    found = parse("redis://h")
    assert (found.login, found.given) == (None, {})


@pytest.mark.silence
async def test_a_slow_function_respects_the_timeout_of_an_acquire() -> None:
    gate = Gate()
    async with aio.connect("redis://localhost:1/0", credentials=gate) as locks:
        with pytest.raises(fencepost.FencepostError):
            await asyncio.wait_for(locks.acquire("a", timeout=0.05), credentials.LONGEST / 2)
    await until_async(lambda: gate.calls >= 1, "it is asked")
    gate.open.set()
