"""Background work of which at most one instance runs: a listener, a look-out, a renewal loop."""

import threading
from collections.abc import Callable, Coroutine
from typing import Any

from fencepost.driver import Driver, inert
from fencepost.driver.fork import in_child
from fencepost.driver.interrupts import protected
from fencepost.logs import logger


class Run:
    """One instance of a service's job. It acts only while it is ``current``: another may have taken its place."""

    def __init__(self, service: "Service", driver: Driver) -> None:
        self._service = service
        self.nudge = driver.signal()
        """Set by ``Service.wake``. Each run has its own: a signal belongs to one event loop."""
        self._bound = hasattr(self.nudge, "inert")
        self.interrupt: Callable[[], object] | None = None
        """Ends what the job waits in, if that is not its nudge but a read of its own; called whenever it is nudged."""
        self.spawned = False
        """Whether its thread or task was started; until then it may come to nothing."""

    @property
    def current(self) -> bool:
        return self._service._run is self

    @property
    def lives(self) -> bool:
        """Whether it can do its work: its event loop is not closed, nor stopped while the caller's runs."""
        return not self._bound or not inert(self.nudge)

    def stir(self) -> None:
        """Have the job look around, wherever it waits."""
        self.nudge.set()
        if (interrupt := self.interrupt) is not None:
            interrupt()

    def ends(self, idle: Callable[[], bool]) -> bool:
        """Whether to return, because there is nothing to do; then the next ``ensure`` starts another run.

        ``idle`` is asked under the service's gate. What is added under that gate is either seen here, or starts a run.
        """
        with self._service.gate:
            if self.current and not idle():
                return False
            if self.current:
                self._service._run = None
            return True


class Service:
    """At most one run of ``job`` at a time, on a thread or a task of ``driver``.

    It is started on demand, and again after it has ended, failed, was cancelled or forked, lost its event loop, or
    could not be started. If its event loop was stopped, the next one that runs has the job; a run that finds itself in
    a loop that goes on sees that it is no longer ``current``.
    """

    def __init__(self, driver: Driver, job: Callable[[Run], Coroutine[Any, Any, None]], name: str) -> None:
        self._driver = driver
        self._job = job
        self._name = name
        self.gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._run: Run | None = None
        self._closed = False
        in_child(self, Service._forked)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def running(self) -> bool:
        run = self._run
        return run is not None and run.lives

    def start(self) -> None:
        """Start the job unless it runs. RuntimeError or MemoryError, and no change, if no thread can be started."""
        run = self._run
        if (run is not None and run.spawned and run.lives) or self._closed:
            return
        with self.gate:  # another thread must not rely on a run that cannot be started after all
            if self.running or self._closed:
                return
            before, run = self._run, Run(self, self._driver)
            work = self._work(run)

            def begin() -> None:
                self._run = run
                if before is not None:
                    before.stir()  # it ends as soon as its event loop goes on, if it does
                try:
                    self._driver.spawn(work, self._name)
                except (RuntimeError, MemoryError):
                    work.close()
                    self._forget(run)
                    raise
                finally:
                    run.spawned = True

            try:
                protected(begin)  # what a signal handler raises comes when the job runs already, or before any of this
            except MemoryError:
                if not run.spawned:
                    work.close()
                raise

    def ensure(self) -> bool:
        """The same, without an error: False if no thread can be started just now, or this is closed."""
        try:
            self.start()
        except (RuntimeError, MemoryError):
            return False
        return not self._closed

    def wake(self) -> None:
        """Nudge the run, from any thread; starts nothing."""
        run = self._run
        if run is not None:
            run.stir()

    def close(self) -> None:
        """Start no more runs; the present one is nudged, and sees that it is no longer ``current``."""
        with self.gate:
            self._closed = True
            run, self._run = self._run, None
        if run is not None:
            run.stir()

    def _forked(self) -> None:
        """In a forked child: forget the parent's run, and a gate that one of its threads may have held."""
        self.gate = threading.RLock()
        self._run = None

    def _forget(self, run: Run) -> None:
        with self.gate:
            if self._run is run:
                self._run = None

    async def _work(self, run: Run) -> None:
        try:
            await self._job(run)
        except GeneratorExit:
            raise
        except Exception:
            logger().exception("%s failed; it starts again when it is needed", self._name)
        except BaseException:
            self._forget(run)
            self._driver.later(self._again)  # somebody cancelled all tasks, and the work is not done
            raise
        finally:
            self._forget(run)

    def _again(self) -> None:
        self.ensure()
