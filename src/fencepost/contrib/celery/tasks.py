"""Tasks under a lock."""

import functools
import inspect
import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from math import inf
from typing import Any, Literal, TypeAlias

import celery
from celery.exceptions import Reject, Retry

from fencepost import check
from fencepost.contrib.arguments import Asked, outlives
from fencepost.contrib.celery.settings import locks_of
from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from fencepost.guards import postgres, sqlite
from fencepost.guards.redis import BaseRedisGuard
from fencepost.naming import Name, Namer, from_arguments
from fencepost.once import once as once_in
from fencepost.sql.connections import is_sqlite
from fencepost.sync import Lease, Locks

_log = logging.getLogger("fencepost")

Busy: TypeAlias = Literal["skip", "retry", "wait"]
Seconds: TypeAlias = float | timedelta
Open: TypeAlias = Callable[[], AbstractContextManager[Any]]

_HEADER = "fencepost_busy"  # of a message that is sent again: [retries, since when the lock was busy]
_PAUSE = 1.0


def fenced_task(
    app: "celery.Celery | None",
    /,
    *,
    key: Name,
    busy: Busy,
    locks: Locks | None = None,
    ttl: Seconds | None = None,
    timeout: Seconds | None = None,
    max_hold: Seconds | None = None,
    pause: Seconds | None = None,
    once: Open | None = None,
    run: Name | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """A task of ``app`` whose body holds a lock: ``@fenced_task(app, key="account/{id}", busy="retry")``.

    With ``app=None`` it is a shared task. ``key`` names the lock for each call: its fields are parameter names, whose
    values are an int, a UUID, or a str that is not empty and has no "/"; or it is a function of the same arguments. If
    somebody else holds the lock, ``busy`` decides:

    - ``"skip"``: the task ends, and returns None. A message that the broker delivers again is never skipped, but tried
      again as with "retry": the holder may be its own first attempt, which was killed.
    - ``"retry"``: the worker is free for other tasks, and the message comes back after ``pause`` seconds (1), for
      ``timeout`` seconds in all; these tries do not count as retries of the task.
    - ``"wait"``: the worker waits, first come, first served, for at most ``timeout`` seconds.

    After the timeout, if one is given, the task fails with NotAcquired. ``locks`` are those of the app's setting
    ``fencepost_url`` unless given; ``ttl`` and ``max_hold`` as for ``Locks.acquire``.

    The body finds its lease in a keyword-only parameter ``lease``, and guards find it by themselves. If the lease was
    lost, the task fails with LeaseLost.

    ``once`` opens a connection to SQLite or Postgres, or a ``RedisGuard``, in a ``with`` block. Then the body runs in
    one transaction on it, which it finds in the parameters ``conn`` and ``run``. The lease's token is admitted there
    for the resource with the lock's name, and the run is remembered with the task's result. So a task that was done is
    not done again when its message is delivered again: the second delivery gets the first result. ``acks_late`` is on
    unless you say otherwise. A run is named after its task and task id, or by ``run``, which works like ``key``. In
    Redis the commands of ``run.execute`` are carried out as the body ends, and no token is judged.

    All other ``options`` are Celery's. Raises ConfigError, where the task is defined, for invalid options.

        @fenced_task(app, key="account/{account_id}", busy="skip")
        def settle(account_id): ...
    """
    if busy not in ("skip", "retry", "wait"):
        raise ConfigError(f"busy= is 'skip', 'retry' or 'wait', not {busy!r}")
    if locks is not None and not isinstance(locks, Locks):
        raise ConfigError(f"locks= is what fencepost.connect() returns; a task blocks, so not {type(locks).__name__}")
    if busy == "skip" and timeout is not None:
        raise ConfigError("busy='skip' does not wait, so it takes no timeout=")
    if busy == "wait" and pause is not None:
        raise ConfigError("busy='wait' is woken up when the lock is free, so it takes no pause=")
    if run is not None and once is None:
        raise ConfigError("run= names what once= remembers; give once= too")
    if once is not None and not callable(once):
        raise ConfigError("once= is a function that opens a connection: once=lambda: closing(sqlite3.connect(...))")
    bind = options.pop("bind", False)
    if once is not None:
        options.setdefault("acks_late", True)

    def decorate(work: Callable[..., Any]) -> Any:
        if not callable(work):
            raise ConfigError(f"{work!r} cannot be called")
        if outlives(work):
            raise ConfigError(f"{work.__qualname__} returns before its work is done, and Celery does not await it")
        asked = Asked(work, ("lease",) if once is None else ("lease", "conn", "run"), bound=bind)
        fence = Fence(
            key=from_arguments(key, work, asked.signature),
            busy=busy,
            locks=locks,
            ttl=None if ttl is None else check.ttl(ttl),
            timeout=check.wait(timeout, "timeout"),
            max_hold=None if max_hold is None else check.seconds(max_hold, "max_hold"),
            pause=_PAUSE if pause is None else check.seconds(pause, "pause"),
        )
        runs = None if run is None else from_arguments(run, work, asked.signature)

        @functools.wraps(work)
        def fenced(task: Any, /, *args: Any, **kwargs: Any) -> Any:
            def body(**offers: Any) -> Any:
                result = work(*((task,) if bind else ()), *args, **kwargs, **asked.pick(offers))
                if inspect.iscoroutine(result):  # of a plain function around a coroutine function
                    result.close()
                    raise ConfigError(f"{asked.name} returned a coroutine, which Celery does not await")
                return result

            name = fence.key(args, kwargs)
            id = None if once is None else _run_id(task, runs, args, kwargs)
            lease = fence.take(task, name)
            if lease is None:
                return None
            if once is None or id is None:
                with lease:
                    return body(lease=lease)
            return _remembered(lease, once, id, body)

        fenced.__signature__ = _bound(asked.signature)  # type: ignore[attr-defined]
        make = celery.shared_task if app is None else app.task
        return make(bind=True, **options)(fenced)

    return decorate


def _bound(callers: inspect.Signature) -> inspect.Signature:
    """The signature that Celery checks messages against: the task itself, then what callers give."""
    rest = list(callers.parameters.values())
    alone = bool(rest) and rest[0].kind is inspect.Parameter.POSITIONAL_ONLY
    kind = inspect.Parameter.POSITIONAL_ONLY if alone else inspect.Parameter.POSITIONAL_OR_KEYWORD
    return callers.replace(parameters=[inspect.Parameter("_task", kind), *rest])


def _run_id(task: Any, runs: Namer | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if runs is not None:
        return runs(args, kwargs)
    if task.request.id is None:
        raise ConfigError(
            f"{task.name} was called directly, so that its run has no id to be remembered by; call it with delay() or "
            f"apply(), or name its runs with run="
        )
    return f"{task.name}/{task.request.id}"


def _remembered(lease: Lease, open: Open, id: str, body: Callable[..., Any]) -> Any:
    done = False
    result: Any = None
    try:
        with lease:
            with open() as place, once_in(place, id) as run:
                if not run.done:
                    if not isinstance(place, BaseRedisGuard):
                        guard = sqlite if is_sqlite(place) else postgres
                        guard.admit(place, lease.name, lease)
                    returned = body(lease=lease, conn=place, run=run)
                    if not run.done:
                        run.result = returned
            done, result = True, run.result
    except LeaseLost as lost:
        if not done:
            raise
        # The effect and the memory of the run are committed, and no newer holder had been there before them.
        _log.warning("run %r is done, although its lease was lost at the end: %s", id, lost)
    return result


class Fence:
    """How one task takes its lock."""

    def __init__(
        self,
        key: Namer,
        busy: Busy,
        locks: Locks | None,
        ttl: float | None,
        timeout: float,
        max_hold: float | None,
        pause: float,
    ) -> None:
        self.key = key
        self._busy = busy
        self._locks = locks
        self._ttl = ttl
        self._max_hold = max_hold
        self._timeout = timeout
        self._pause = pause

    def take(self, task: Any, name: str) -> Lease | None:
        """The lease, or None if the task is to be skipped. Raises Retry, and NotAcquired after the timeout."""
        locks = locks_of(task.app) if self._locks is None else self._locks
        request = task.request
        here = request.called_directly or request.is_eager  # there is no message that could be sent again
        if self._busy == "wait" or (self._busy == "retry" and here):
            timeout = None if self._timeout == inf else self._timeout
            return locks.acquire(name, ttl=self._ttl, timeout=timeout, max_hold=self._max_hold)
        lease = locks.try_acquire(name, ttl=self._ttl, max_hold=self._max_hold)
        if lease is not None:
            return lease
        # The message that _again sends is a new one to the broker, which does not call it redelivered.
        again = (request.delivery_info or {}).get("redelivered") or _busy_since(request) is not None
        if self._busy == "skip" and not again:
            _log.info("task %s[%s] is skipped: somebody else holds %r", task.name, request.id, name)
            return None
        raise self._again(task, name)

    def _again(self, task: Any, name: str) -> Any:
        """Send the task's message again, and return the exception that tells Celery so."""
        request = task.request
        now = time.time()
        headers = dict(request.as_execution_options()["headers"])
        since = _busy_since(request)
        since = now if since is None else min(since, now)
        if now - since >= self._timeout:
            return NotAcquired(name, self._timeout)
        # With jitter: tasks that found the lock busy together must not all come back at the same instant.
        countdown = min(self._pause * random.uniform(0.75, 1.25), max(0.0, since + self._timeout - now))
        headers[_HEADER] = [request.retries, since]
        again = task.signature_from_request(request, countdown=countdown, retries=request.retries, headers=headers)
        try:
            again.apply_async()
        except Exception as error:
            return Reject(error, requeue=True)
        return Retry(exc=NotAcquired(name, now - since), when=countdown, sig=again)


def _busy_since(request: Any) -> float | None:
    """Since when this try of the task has found the lock busy; None if its message was not sent again for that."""
    match (request.headers or {}).get(_HEADER):
        case [int(told), int() | float() as since] if told == request.retries:
            return float(since)
    return None
