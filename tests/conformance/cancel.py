"""Cancel a coroutine at its n-th await, for every n: enumerated, not sampled."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Cut(NamedTuple):
    """Where to cancel. ``late`` cancels when what is awaited has just arrived, and is lost that way."""

    at: tuple[int, ...]
    late: bool


class Cutter:
    """Runs a job as a task that is cancelled at the chosen awaits."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.awaits = 0

    @property
    def happened(self) -> bool:
        """Whether the job had as many awaits as it takes."""
        return self.awaits > self.cut.at[-1]

    def start(self, job: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        async def whole() -> T:
            return await self._step(job)

        return asyncio.create_task(whole())

    @types.coroutine
    def _step(self, job: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        task = asyncio.current_task()
        assert task is not None
        raised: BaseException | None = None
        while True:
            try:
                awaited: Any = job.send(None) if raised is None else job.throw(raised)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic
            if self.awaits in self.cut.at:
                if self.cut.late and awaited is not None:
                    # Comes before the task's own callback: the result is there, and is never delivered.
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            self.awaits += 1
            try:
                raised = yield awaited
            except BaseException as error:
                raised = error


def cuts() -> Iterator[tuple[int, Collection[Cut]]]:
    """For each await: cancelled while it waits, when its result has just come, and again in the clean-up."""
    for at in range(100):
        yield at, [Cut((at,), False), Cut((at,), True), Cut((at, at + 1), False), Cut((at, at + 1), True)]
    raise AssertionError("a hundred awaits, and no end")


async def at_every_await(trial: Callable[[Cutter], Awaitable[None]]) -> int:
    """Run the trial for every cut, until it has no further await; how many awaits there were."""
    for at, here in cuts():
        reached = False
        for cut in here:
            cutter = Cutter(cut)
            await trial(cutter)
            reached = reached or cutter.awaits > at
        if not reached:
            return at
    raise AssertionError("unreachable")
