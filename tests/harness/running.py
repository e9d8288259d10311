"""How tests run: an async one in an event loop of its own, its ``Store`` closed in there too; all of them unhurried."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Protocol, runtime_checkable

import pytest

from fencepost import locks
from tests.harness import waiting

WHOLE = 200.0
"""Seconds for an async test: longer than any wait in it, so that a wait that fails says what never came, and shorter
than the limits of ``@isolated`` and of pytest."""


@runtime_checkable
class ClosedInLoop(Protocol):
    """A fixture's value that must be closed in the event loop that used it, within its own ``patience``."""

    patience: float

    async def close(self) -> None: ...


def run_async_test(test: Callable[..., Awaitable[None]], arguments: Mapping[str, Any]) -> None:
    """Run ``test`` to its end."""

    async def whole() -> None:
        used = [each for each in arguments.values() if isinstance(each, ClosedInLoop)]
        try:
            async with asyncio.timeout(WHOLE):
                await test(**arguments)
        finally:
            for each in used:
                await each.close()

    waiting.run(whole())


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store answer long after an acquire's timeout; the acquire then raises NotAcquired, and not BackendError.

    If the machine stalls for a second, every store is silent for that long.
    """
    if request.node.get_closest_marker("silence") is None:
        monkeypatch.setattr(locks, "_ANSWER", waiting.PATIENCE)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "silence: about a store that does not answer: an acquire gives up on it as usual"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage only afterwards: there is next to none, and looking takes a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every garbage collection: it takes a second each time."""
    gc.freeze()


class Interrupted(AssertionError):
    """A KeyboardInterrupt came out of a test. Code that raises signals belongs into a process of its own."""


def _contained(config: pytest.Config) -> Generator[None, Any, Any]:
    """Let an interrupt fail the test that it came out of, and not end pytest-xdist's worker with all its other tests.

    A real Ctrl-C reaches the process that directs the workers too, and ends the run there.
    """
    try:
        return (yield)
    except KeyboardInterrupt as error:
        if not hasattr(config, "workerinput"):
            raise
        raise Interrupted("KeyboardInterrupt; a test that raises signals needs @isolated or a Child") from error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _contained(item.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _contained(item.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _contained(item.config))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    run_async_test(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in wanted})
    return True
