"""APScheduler 3: each job runs once per fleet, however many processes have the same scheduler.

For example::

    locks = fencepost.connect("redis://localhost:6379/0")
    fleet = FleetExecutor(locks, "jobs", state="redis://localhost:6379/0")
    scheduler = BackgroundScheduler(executors={"default": fleet})
    scheduler.add_job(report, "cron", hour=4, id="report", misfire_grace_time=60)
"""

import asyncio
import functools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.util import iscoroutinefunction_partial

from fencepost import ambient, check
from fencepost.contrib.campaign import Campaign
from fencepost.contrib.progress import open_progress
from fencepost.errors import ConfigError
from fencepost.sync import Locks, Term

__all__ = ["FleetExecutor", "current_term"]

_log = logging.getLogger("fencepost")
_RANDOM = re.compile(r"[0-9a-f]{32}")  # the id that APScheduler makes up for a job
_running: ContextVar[Term] = ContextVar("fencepost_job_term")


def current_term() -> Term:
    """The term under which the running job was begun; ConfigError outside of a job.

    Pass it to guards: a job whose process was replaced is refused. Guards of a resource whose name is the election's,
    or a path below it, find it by themselves.

        with sqlalchemy.fenced(session, "report", current_term()):
            session.add(Report())
    """
    term = _running.get(None)
    if term is None:
        raise ConfigError("current_term() is for jobs that a FleetExecutor runs")
    return term


class FleetExecutor(BaseExecutor):  # type: ignore[misc]  # APScheduler has no types
    """Runs jobs in one process of a fleet: the leader of the election called ``name``.

    Every process adds the same jobs, under the same ids, and starts its scheduler. ``state`` is where the time of each
    job's last run is kept, behind a guard: a redis:// URL, or a guard. It is written under the term's token before the
    job begins, so a process that was replaced does not begin a job, and each run time runs at most once. The next
    leader runs what came due while nobody led, as far as the job's ``misfire_grace_time`` lets it.

    ``executor`` runs the jobs in the leader: threads unless given, or asyncio's for an AsyncIOScheduler. Raises
    ConfigError for invalid arguments, for a job store that processes could share, and, when a job comes due, if it has
    no ``id=``.

        scheduler.add_executor(FleetExecutor(locks, "scheduler", state="redis://localhost:6379/1"), "default")
    """

    def __init__(
        self,
        locks: Locks,
        name: str,
        *,
        state: Any,
        ttl: float | timedelta | None = None,
        executor: BaseExecutor | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(locks, Locks):
            raise ConfigError(f"FleetExecutor takes what fencepost.connect() returns, not {type(locks).__name__}")
        if isinstance(executor, ProcessPoolExecutor):
            raise ConfigError("a term cannot go to another process; take an executor of threads or of asyncio")
        if isinstance(executor, FleetExecutor):
            raise ConfigError("a FleetExecutor cannot run jobs through another one")
        self._locks = locks
        self._name = check.name(name)
        self._ttl = None if ttl is None else check.ttl(ttl)
        self._progress = open_progress(state, f"fencepost:jobs:{name}", "state=")
        self._inner = ThreadPoolExecutor() if executor is None else executor
        self._campaign: Campaign | None = None
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._term: Term | None = None
        self._last: dict[str, datetime] = {}
        """When each job was run last, by this leader or an earlier one."""
        self._missed: dict[str, tuple[Any, list[datetime]]] = {}
        """The last run times that came due while another process led: it may have died before it ran them."""

    def start(self, scheduler: Any, alias: str) -> None:
        super().start(scheduler, alias)
        for store in scheduler._jobstores.values():
            _require_memory(store)
        self._inner.start(scheduler, alias)
        self._campaign = Campaign(self._locks, self._name, ttl=self._ttl, elected=self._take_over)

    def shutdown(self, wait: bool = True) -> None:
        """End the inner executor, after its jobs if ``wait``, and resign."""
        self._inner.shutdown(wait)
        campaign, self._campaign = self._campaign, None
        with self._gate:
            self._term = None
        if campaign is not None:
            campaign.close()

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        """Run a job if this process leads; else remember that it came due."""
        if _RANDOM.fullmatch(job.id):
            raise ConfigError(
                f"job {job.name!r} has a random id, which no other process knows it by; give it one: "
                f"add_job(..., id={job.name!r})"
            )
        _require_memory(self._scheduler._lookup_jobstore(job._jobstore_alias))
        with self._gate:
            term = self._term
            if term is None or term.ended:
                self._missed[job.id] = (job, run_times)
                return
            due = self._due(job.id, run_times)
        if due:
            self._inner.submit_job(_Under(term, job, functools.partial(self._note, term, job.id, due[-1])), due)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        raise AssertionError("submit_job does it all")

    def _due(self, id: str, run_times: list[datetime]) -> list[datetime]:
        """The run times that no leader has run yet; from now on they count as run by this one."""
        last = self._last.get(id)
        due = [each for each in run_times if last is None or each > last]
        if due:
            self._last[id] = due[-1]
        return due

    def _take_over(self, term: Term) -> None:
        """Read what earlier leaders have run, and run what came due meanwhile."""
        known = {id: datetime.fromisoformat(text) for id, text in self._progress.read(term).items()}
        with self._gate:
            self._term, self._last = term, known
            missed, self._missed = self._missed, {}
        _log.info("this process runs the jobs of %r, epoch %d", self._name, term.token)
        loop = getattr(self._inner, "_eventloop", None)
        for job, run_times in missed.values():
            if loop is None:
                self._catch_up(job, run_times)
            else:
                loop.call_soon_threadsafe(self._catch_up, job, run_times)

    def _catch_up(self, job: Any, run_times: list[datetime]) -> None:
        try:
            self.submit_job(job, run_times)
        except Exception:
            _log.exception("job %r came due while nobody led, and could not be run", job.id)

    def _note(self, term: Term, id: str, run_time: datetime) -> None:
        """Record, under the term's token, that a job runs now; if this raises, the job does not run."""
        self._progress.write(id, run_time.isoformat(), term)


class _Under:
    """A job that notes its run before its first call, and calls its function under a term."""

    def __init__(self, term: Term, job: Any, note: Callable[[], None]) -> None:
        self._job = job
        self._noted = False
        work = job.func

        def begin() -> None:
            if not self._noted:
                note()
                self._noted = True

        @functools.wraps(work)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin()
            with _leading(term):
                return work(*args, **kwargs)

        @functools.wraps(work)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            await asyncio.to_thread(begin)
            with _leading(term):
                return await work(*args, **kwargs)

        self.func = call_async if iscoroutinefunction_partial(work) else call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def __str__(self) -> str:
        return str(self._job)


@contextmanager
def _leading(term: Term) -> Iterator[None]:
    token = _running.set(term)
    ambient.push(term)
    try:
        yield
    finally:
        ambient.pop(term)
        _running.reset(token)


def _require_memory(store: Any) -> None:
    if not isinstance(store, MemoryJobStore):
        raise ConfigError(
            f"a FleetExecutor needs a job store that each process has for itself, MemoryJobStore, not "
            f"{type(store).__name__}: from a shared one, a process that does not lead would take jobs away"
        )
