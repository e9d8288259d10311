"""Wait for a condition with a deadline. A wait that fails shows its cause: what the watched work raised."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar, overload

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds to wait for what must come: far longer than it takes. Only a failing test waits this long."""
GIVES_UP = 3.0
"""Seconds after which a client gives up on a server that a test has made silent, if the server must answer the client's
other requests: on a busy machine every server is silent for a part of a second."""


def _pause(poll: float, waited: float) -> float:
    """Seconds until the next look: a twentieth of the wait so far, so that many long waits cost little CPU."""
    return max(poll, min(waited / 20, 0.025))


class Watched(Protocol):
    """Work beside the test; ``check`` raises if it has failed. Child and Background are such."""

    def check(self) -> object: ...


def until(
    condition: Callable[[], T],
    what: str,
    *,
    deadline: float = PATIENCE,
    poll: float = 0.005,
    watching: Iterable[Watched] = (),
) -> T:
    """Return the condition's value once it is true.

    Raises AssertionError with ``what`` after ``deadline`` seconds, and at once what the ``watching`` work raised.
    """
    __tracebackhide__ = True
    begun = time.monotonic()
    while not (value := condition()):
        for each in watching:
            each.check()
        waited = time.monotonic() - begun
        if waited > deadline:
            raise AssertionError(f"never came within {deadline:g} s: {what}; the condition was last {value!r}")
        time.sleep(_pause(poll, waited))
    return value


@overload
async def until_async(
    condition: Callable[[], Awaitable[T]],
    what: str,
    *,
    deadline: float = ...,
    poll: float = ...,
    watching: Iterable[Watched | asyncio.Future[Any]] = ...,
) -> T: ...
@overload
async def until_async(
    condition: Callable[[], T],
    what: str,
    *,
    deadline: float = ...,
    poll: float = ...,
    watching: Iterable[Watched | asyncio.Future[Any]] = ...,
) -> T: ...
async def until_async(
    condition: Callable[[], Any],
    what: str,
    *,
    deadline: float = PATIENCE,
    poll: float = 0.003,
    watching: Iterable[Watched | asyncio.Future[Any]] = (),
) -> Any:
    """The same in an event loop; the condition may be a coroutine function, and futures can be watched.

    After the deadline, the error names every task of the test that has failed meanwhile.
    """
    __tracebackhide__ = True
    begun = time.monotonic()
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        for each in watching:
            if not isinstance(each, asyncio.Future):
                each.check()
            elif each.done():
                each.result()
        waited = time.monotonic() - begun
        if waited > deadline:
            error = AssertionError(f"never came within {deadline:g} s: {what}; the condition was last {value!r}")
            for note in _failures():
                error.add_note(note)
            raise error
        await asyncio.sleep(_pause(poll, waited))


_failed: list[str] = []


def _failures() -> list[str]:
    return [f"meanwhile {each}" for each in _failed[-10:]]


def run(test: Awaitable[T]) -> T:
    """Run a coroutine in an event loop of its own, which remembers failed tasks for the errors of ``until_async``."""

    async def whole() -> T:
        asyncio.get_running_loop().set_task_factory(_remembering)
        return await test

    _failed.clear()
    return asyncio.run(whole())


def _remembering(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    task.add_done_callback(_note)
    return task


def _note(task: asyncio.Task[Any]) -> None:
    # Not task.exception(): that would mark it as retrieved, and silence "exception was never retrieved".
    error = getattr(task, "_exception", None)
    if error is not None:
        _failed.append(f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')}) failed: {error!r}")
