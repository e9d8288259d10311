"""Background work of which at most one instance runs: a listener, a monitor, a renewal loop."""

import threading
from collections.abc import Callable, Coroutine
from typing import Any

from fencepost.driver import Driver, inert
from fencepost.driver.fork import in_child
from fencepost.driver.interrupts import protected
from fencepost.logs import logger


class Run:
    """One instance of a service's job. It acts only while it is ``current``: another run may have replaced it."""

    def __init__(self, service: "Service", driver: Driver) -> None:
        self._service = service
        self.nudge = driver.signal()
        """Set by ``Service.wake``. Each run has its own: a signal belongs to one event loop."""
        self._bound = hasattr(self.nudge, "inert")
        self.interrupt: Callable[[], object] | None = None
        """Ends the job's wait, if it waits in a read instead of for its nudge; called whenever it is nudged."""
        self.spawned = False
        """Whether starting its thread or task was tried; until then, do not rely on this run."""

    @property
    def current(self) -> bool:
        return self._service._run is self

    @property
    def lives(self) -> bool:
        """Whether it can do its work: its event loop is neither closed, nor stopped while the caller's runs."""
        return not self._bound or not inert(self.nudge)

    def stir(self) -> None:
        """Wake the job, wherever it waits."""
        self.nudge.set()
        if (interrupt := self.interrupt) is not None:
            interrupt()

    def ends(self, idle: Callable[[], bool]) -> bool:
        """Whether the job should return because there is nothing to do; the next ``ensure`` then starts another run.

        ``idle`` is called under the service's gate: work that is added under that gate is either seen here, or starts a
        new run.
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
    could not be started. If its event loop was stopped, the job starts again in the next loop that runs. Should the
    stopped loop go on, its run sees that it is no longer ``current``.
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
        with self.gate:  # other threads must not rely on a run that may fail to start
            if self.running or self._closed:
                return
            before, run = self._run, Run(self, self._driver)
            work = self._work(run)

            def begin() -> None:
                self._run = run
                if before is not None:
                    before.stir()  # it ends if its event loop ever goes on
                try:
                    self._driver.spawn(work, self._name)
                except (RuntimeError, MemoryError):
                    work.close()
                    self._forget(run)
                    raise
                finally:
                    run.spawned = True

            try:
                protected(begin)  # what a signal handler raises comes before begin(), or once the job runs
            except MemoryError:
                if not run.spawned:
                    work.close()
                raise

    def ensure(self) -> bool:
        """As ``start``, without an error: False if no thread can be started just now, or the service is closed."""
        try:
            self.start()
        except (RuntimeError, MemoryError):
            return False
        return not self._closed

    def wake(self) -> None:
        """Nudge the run, from any thread; this starts nothing."""
        run = self._run
        if run is not None:
            run.stir()

    def close(self) -> None:
        """Start no more runs; the current one is nudged, and sees that it is no longer ``current``."""
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
            self._driver.later(self._again)  # all tasks were cancelled, but the work is not done
            raise
        finally:
            self._forget(run)

    def _again(self) -> None:
        self.ensure()
