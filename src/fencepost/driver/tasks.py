"""The driver of asyncio code: background work is a task, blocking calls go to a thread."""

import asyncio
import os
import time
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, TypeVar, TypeVarTuple

from fencepost.driver import NAP, boottime
from fencepost.driver.scope import current, deadline, put_back

_SOON = 0.02  # seconds: if asyncio.run() cancelled all tasks because it ends, the loop is closed by then
_PARTING = 0.5  # seconds for what is cancelled at the end of an event loop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def shared(job: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task that any number of callers await with ``joined``; if none is left, its error is ignored."""
    task = asyncio.create_task(job, name=name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def joined(task: asyncio.Task[T]) -> T:
    """Await a shared task. Cancelling one caller does not cancel the task, which others may await.

    If the task itself was cancelled, ConnectionAbortedError: a CancelledError would mean that the caller was cancelled.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise ConnectionAbortedError("it was closed")
    try:
        return task.result()
    finally:
        del task  # else an error would keep itself alive, through the frame in its traceback


class TaskSignal:
    """A Signal for asyncio code, which other threads may set as well."""

    __slots__ = ("_event", "_loop", "_still")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        # Note the loop now, if there is one: another thread could set this signal just as a task begins to wait.
        self._loop: asyncio.AbstractEventLoop | None = asyncio._get_running_loop()
        self._still: float | None = None

    def set(self) -> None:
        loop = self._loop
        if loop is None or loop is asyncio._get_running_loop():
            self._event.set()
            return
        try:
            loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            # The loop is closed. Setting the event would wake tasks of that loop, and asyncio would raise an error.
            self._event = asyncio.Event()
            self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    @property
    def abandoned(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    @property
    def inert(self) -> bool:
        loop, running = self._loop, asyncio._get_running_loop()
        if loop is None or loop is running:
            return False
        return loop.is_closed() if running is None else not loop.is_running()

    def stood_still(self, seconds: float) -> bool:
        loop, still, now = self._loop, self._still, boottime()
        if loop is None or loop.is_running():
            return False
        if still is None:
            # A loop that runs now and then may just be between two runs: if it runs again, it calls _runs().
            self._still = still = now
            try:
                loop.call_soon_threadsafe(self._runs)
            except RuntimeError:
                pass  # it is closed
        return loop.is_closed() or now - still >= seconds

    def _runs(self) -> None:
        self._still = None

    async def wait(self, timeout: float | None = None) -> bool:
        self._loop = asyncio.get_running_loop()
        if self._event.is_set():
            return True
        waits = current.get()
        if waits is not None:
            with waits.woken(self.set):
                return await self._wait(timeout)
        return await self._wait(timeout)

    async def _wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return await self._event.wait()
        if timeout <= 0:
            return False
        try:
            async with asyncio.timeout(timeout):
                return await self._event.wait()
        except TimeoutError:
            return self._event.is_set()


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


async def _begun(job: Coroutine[Any, Any, T]) -> T:
    """Await the job. It runs up to its first wait even if it is cancelled before it began: a job that never begins
    cannot clean up."""
    try:
        await _pause()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
    except BaseException:
        job.close()
        raise
    return await job


class _Work:
    """The tasks that we have started in one event loop; they end with the loop.

    At its end, asyncio.run() cancels all tasks, closes the asynchronous generators that were begun in the loop, waits
    for its threads, and closes the loop. A task that was started after the first step would be dropped half done, with
    a warning of asyncio's. So this has a generator, which cancels the remaining tasks when it is closed.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()  # the loop itself keeps only weak references
        self.over = False
        self._end: AsyncGenerator[None, None] | None = self._until_the_end()
        with suppress(StopIteration):
            self._end.__anext__().send(None)  # from now on the loop closes it at its end

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._end, done = None, self.over
            self.over = True
            if not done and self.tasks:
                for task in self.tasks:
                    task.cancel()
                await asyncio.wait(self.tasks, timeout=_PARTING)

    def forget(self) -> None:
        """Do not cancel the remaining tasks: they end by themselves."""
        self.over = True
        if self._end is not None:
            with suppress(StopIteration, RuntimeError):  # its loop, in another thread, may end just now
                self._end.aclose().send(None)


class Asyncio:
    """Drives asyncio code: blocking calls go to one thread of its own, in the order they were made."""

    blocking: Final = False

    def __init__(self, clock: Callable[[], float] = boottime, nap: float = NAP) -> None:
        self.now = clock
        self.nap = nap
        # Event loops of several threads may use this at once: each step below is atomic.
        self._works: dict[asyncio.AbstractEventLoop, _Work] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._process = 0

    def signal(self) -> TaskSignal:
        return TaskSignal()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        self._task(job, name)

    def later(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        work = self._work(loop)
        loop.call_later(_SOON, lambda: None if work.over else call())

    def _task(self, job: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        context = None
        if current.get() is not None or deadline.get() is not None:
            # The job works for all callers: it must not end with the wait in which it was started.
            context = copy_context()
            context.run(current.set, None)
            context.run(deadline.set, None)
        loop = asyncio.get_running_loop()
        tasks = self._work(loop).tasks
        begun = _begun(job)
        begun.send(None)
        task = loop.create_task(begun, name=name, context=context)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def _work(self, loop: asyncio.AbstractEventLoop) -> _Work:
        work = self._works.get(loop)
        if work is None:
            for each in list(self._works):
                if each.is_closed():
                    self._works.pop(each, None)
            work = self._works[loop] = _Work()
        return work

    async def sleep(self, seconds: float) -> None:
        if current.get() is not None:
            await TaskSignal().wait(seconds)
        else:
            await asyncio.sleep(seconds)

    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        if self._thread is None or self._process != os.getpid():  # a forked child has none of the parent's threads
            self._thread = ThreadPoolExecutor(1, "fencepost-offload")
            self._process = os.getpid()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        await asyncio.wait([self._task(job, "fencepost-cleanup")], timeout=grace)

    async def within(self, seconds: float, request: Coroutine[Any, Any, T]) -> T:
        before = deadline.set(time.monotonic() + seconds)
        try:
            async with asyncio.timeout(seconds):
                return await request
        finally:
            put_back(deadline, before)

    def close(self) -> None:
        for work in list(self._works.values()):
            work.forget()
        self._works.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
