"""Work beside the test on threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from fencepost import aio, sync
from tests.harness.waiting import PATIENCE, Watched, until

T = TypeVar("T")


class Background(Generic[T]):
    """A thread whose result, or error, the test gets."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"background {job!r}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._result.append(self._job())
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise what the job raised, if it has."""
        if self._error is not None:
            raise self._error

    def result(self, deadline: float = PATIENCE) -> T:
        """Wait for the job; what it returned, or raised."""
        self._thread.join(deadline)
        self.check()
        if self._thread.is_alive():
            raise AssertionError(f"still running after {deadline:g} s: {self._thread.name}")
        return self._result[0]

    join = result


def background(job: Callable[[], T]) -> Background[T]:
    """Start ``job`` on a thread of its own."""
    return Background(job)


@contextlib.contextmanager
def held(gate: AbstractContextManager[object]) -> Iterator[None]:
    """Another thread holds ``gate`` during this block."""
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with gate:
            inside.set()
            go_on.wait()

    holding = background(hold)
    until(inside.is_set, "it holds the gate", watching=[holding])
    try:
        yield
    finally:
        go_on.set()
        holding.result()


def known_to_wait(locks: sync.Locks | aio.Locks) -> int:
    """How many acquires of these locks wait, and have the store's answer that they must.

    A waiter is in the store's queue before the answer to its request has come. A test that breaks the connection as
    soon as ``status`` shows the waiter may hit that request, which is an error of its own.
    """
    return len(locks._core._waits._inside)


def waiters_of(locks: sync.Locks, name: str, count: int, *watching: Watched) -> tuple[str, ...]:
    """The waiters of a lock, once there are as many."""

    def waiters() -> tuple[str, ...]:
        status = locks.status(name)
        return status.waiters if status else ()

    until(lambda: len(waiters()) == count, f"{count} wait", watching=watching)
    return waiters()


async def on_thread(call: Callable[..., T], /, *args: Any, **options: Any) -> T:
    """Run a blocking call on a new thread; cancelling this leaves the thread alone."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None where T is None

    def work() -> None:
        result, error = None, None
        try:
            result = call(*args, **options)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the test is over, and its loop closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await done
