"""Tests that raise signals, fork, or use up threads or descriptors: each in a process of its own.

``@isolated`` goes on a test, async or not. Its fixtures are made here; their values travel to the child, so they must
pickle: addresses, paths, a ``Store``. The test's error comes back with the child's traceback and output.

The child is forked from a process that has imported what most of them need and done nothing else (a fork server of
multiprocessing): a new interpreter for each would spend three times as long on imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import gc
import importlib
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fencepost import locks
from tests import ROOT
from tests.harness.threads import Background, on_thread

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = float(os.environ.get("FENCEPOST_TEST_LIMIT", "240"))
"""Seconds for the whole test; below pytest's own timeout, so that a hanging child shows its stacks first."""


class IsolatedFailure(AssertionError):
    """A test failed in its own process; the message is the child's traceback and output."""


PRELOADED = ("pytest", "psycopg", "hiredis", "fencepost.sync", "fencepost.aio", "tests.conformance.store", __name__)


@functools.cache
def _fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context


def isolated(test: Callable[P, Any]) -> Callable[P, None]:
    """Run this test in a process of its own."""

    @functools.wraps(test)
    def apart(*args: P.args, **kwargs: P.kwargs) -> None:
        __tracebackhide__ = True
        call_apart(test, *args, **kwargs)

    return apart


def call_apart(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Call a module-level function in a process of its own; IsolatedFailure if it raised anything there."""
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="fencepost-isolated-") as folder:
        order = Path(folder, "call")
        # The child gets the patience that this process has for a store: see ``unhurried``.
        order.write_bytes(pickle.dumps((call.__module__, call.__qualname__, args, kwargs, locks._ANSWER)))
        # Not a file: a limit on the size of files would apply to it.
        reader, writer = _fork_server().Pipe(duplex=False)
        child = _fork_server().Process(target=_begin, args=(order, writer, dict(os.environ)))
        with reader:
            with writer:
                child.start()
            reading = Background(lambda: _all(reader.fileno()))
            try:
                child.join(LIMIT + 15)
                status = child.exitcode
            finally:
                if child.exitcode != 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid or 0, signal.SIGKILL)  # it leads a session: this kills what it started, too
                    child.join()
                child.close()
            said = reading.result()
    if status != 0:
        how = f"still runs after {LIMIT + 15:g} s" if status is None else f"status {status}"
        raise IsolatedFailure(f"in its own process ({how}):\n{said}")


def _all(descriptor: int) -> str:
    parts = []
    while part := os.read(descriptor, 65536):
        parts.append(part)
    return b"".join(parts).decode(errors="replace")


def in_fork(
    job: Callable[[], Awaitable[T]], deadline: float, *, during: AbstractContextManager[object] | None = None
) -> Awaitable[T]:
    """What ``job`` returns in a forked child, in an event loop of its own there; the child's error is raised here.

    ``during`` lasts for the fork itself, and for all handlers that run after it, in both processes.
    Use it in an ``@isolated`` test only: a fork copies whatever else the process is in the middle of.
    """
    reader, writer = os.pipe()
    with during or contextlib.nullcontext():
        pid = os.fork()
    if pid == 0:
        said: Any = (None, "the child died")
        try:
            os.close(reader)
            said = (asyncio.run(_in_time(job, deadline)), None)
        except BaseException:
            said = (None, traceback.format_exc())
        finally:
            os.write(writer, pickle.dumps(said))
            os._exit(0)
    os.close(writer)
    return _answer(pid, reader, deadline)


async def _answer(pid: int, reader: int, deadline: float) -> Any:
    def listen() -> bytes:
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read()

    try:
        async with asyncio.timeout(deadline + 5):
            raw = await on_thread(listen)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await on_thread(os.waitpid, pid, 0)
    result, error = pickle.loads(raw) if raw else (None, "the child ended without an answer")
    if error is not None:
        raise IsolatedFailure(f"in the forked child:\n{error}")
    return result


async def _in_time(job: Callable[[], Awaitable[T]], deadline: float) -> T:
    async with asyncio.timeout(deadline):
        return await job()


def _begin(order: Path, output: Connection, environment: dict[str, str]) -> None:
    """In the child: set everything up as in a process that was started for this alone."""
    os.setsid()
    with output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # which Python ignores itself
        if signal.getsignal(number) is signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    status = 0
    try:
        _call(order)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _call(order: Path) -> None:
    module, name, args, kwargs, locks._ANSWER = pickle.loads(order.read_bytes())
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    lost: list[str] = []
    sys.unraisablehook = lambda failure: lost.append(
        f"ignored in {failure.object!r}: "
        + "".join(traceback.format_exception(failure.exc_type, failure.exc_value, failure.exc_traceback))
    )
    threading.excepthook = lambda failure: lost.append(
        f"in {failure.thread}: "
        + "".join(traceback.format_exception(failure.exc_type, failure.exc_value, failure.exc_traceback))
    )
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    gc.disable()
    target: Any = importlib.import_module(module)
    # Imported modules are not garbage. Scanning them would take longer than many tests, and copy all their pages.
    gc.freeze()
    gc.enable()
    for part in name.split("."):
        target = getattr(target, part)
    test = inspect.unwrap(target)
    if inspect.iscoroutinefunction(test):
        from tests.harness.running import run_async_test

        run_async_test(test, inspect.signature(test).bind(*args, **kwargs).arguments)
    else:
        test(*args, **kwargs)
    gc.collect()
    if lost:
        raise IsolatedFailure("the test passed, but errors were lost on the way:\n" + "\n".join(lost))
    faulthandler.cancel_dump_traceback_later()
