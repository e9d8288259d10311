"""The third driver: coroutines on the virtual clock of one machine."""

from collections.abc import Callable, Coroutine, Generator
from math import inf
from typing import Any, Final, TypeVar, TypeVarTuple

from fencepost_lab.sim.world import Node

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Cancelled(BaseException):
    """Thrown into a task that somebody gave up on."""


class Wakeup:
    """What a suspended task waits for: to be fired once, with a value."""

    __slots__ = ("fired", "task", "value")

    def __init__(self) -> None:
        self.fired = False
        self.value: Any = None
        self.task: Task | None = None

    def fire(self, value: Any) -> None:
        """Wake the task, with this as the value that it awaited; only the first call counts."""
        if self.fired:
            return
        self.fired = True
        self.value = value
        if self.task is not None:
            self.task.wake(self)

    def __await__(self) -> Generator["Wakeup", None, Any]:
        if not self.fired:
            yield self
        return self.value


class Task:
    """A coroutine that runs on a machine."""

    __slots__ = ("_awaited", "_done", "_driver", "_job", "_thrown", "over")

    def __init__(self, driver: "Virtual", job: Coroutine[Any, Any, object], done: Wakeup | None = None) -> None:
        self._driver = driver
        self._job = job
        self._awaited: Wakeup | None = None
        self._thrown = False
        self._done = done
        self.over = False
        driver.tasks[self] = None
        driver.node.soon(self._step, None)

    def wake(self, wakeup: Wakeup) -> None:
        if wakeup is self._awaited:
            self._driver.node.soon(self._step, wakeup)

    def cancel(self) -> None:
        """Throw Cancelled into the task where it stands."""
        if not self.over and not self._thrown:
            self._thrown = True
            self._driver.node.soon(self._throw)

    def close(self) -> None:
        """End the task with its machine."""
        self.over = True
        self._awaited = None
        self._job.close()

    def _throw(self) -> None:
        self._thrown = False
        if not self.over:
            self._advance(lambda: self._job.throw(Cancelled()))

    def _step(self, wakeup: Wakeup | None) -> None:
        # A task that was cancelled goes on where that is thrown, even if what it waited for has come as well.
        if wakeup is self._awaited and not self.over and not self._thrown:
            self._advance(lambda: self._job.send(None))

    def _advance(self, move: Callable[[], Wakeup]) -> None:
        try:
            self._awaited = awaited = move()
        except (StopIteration, Cancelled):
            self.over = True
            self._awaited = None
            del self._driver.tasks[self]
            if self._done is not None:
                self._done.fire(None)
            return
        awaited.task = self


class Flag:
    """A Signal in virtual time."""

    __slots__ = ("_driver", "_set", "_waiting")

    def __init__(self, driver: "Virtual") -> None:
        self._driver = driver
        self._set = False
        self._waiting: dict[Wakeup, None] = {}

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, {}
        for wakeup in waiting:
            wakeup.fire(True)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        if timeout is not None and timeout <= 0:
            return False
        wakeup = Wakeup()
        self._waiting[wakeup] = None
        if timeout is not None:
            self._driver.node.after(timeout, wakeup.fire, False)
        if not await wakeup:
            self._waiting.pop(wakeup, None)
            return self._set
        return True


class Virtual:
    """Drives the core on one machine of the simulated world, for one life of that machine."""

    blocking: Final = False
    nap: Final = inf

    def __init__(self, node: Node) -> None:
        self.node = node
        self.tasks: dict[Task, None] = {}  # in the order they began

    def now(self) -> float:
        return self.node.clock()

    def signal(self) -> Flag:
        return Flag(self)

    def task(self, job: Coroutine[Any, Any, None]) -> Task:
        """Start a coroutine that can be cancelled."""
        return Task(self, job)

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        Task(self, job)

    def later(self, call: Callable[[], None]) -> None:
        self.node.after(0.02, call)

    async def sleep(self, seconds: float) -> None:
        wakeup = Wakeup()
        self.node.after(seconds, wakeup.fire, None)
        await wakeup

    async def offload(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        return call(*args)

    async def apart(self, job: Coroutine[Any, Any, object], grace: float) -> None:
        done = Wakeup()
        Task(self, job, done)
        self.node.after(grace, done.fire, None)
        await done

    async def within(self, seconds: float, request: Coroutine[Any, Any, T]) -> T:
        return await request  # a simulated store gives up by itself

    def close(self) -> None:
        pass

    def end(self) -> None:
        """Drop every task: the machine died, or the run is over."""
        for task in list(self.tasks):
            task.close()
        self.tasks.clear()
