"""Holding a lock for as long as a command runs."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from typing import Any, cast

from fencepost import aio
from fencepost.address import masked
from fencepost.cli import exits
from fencepost.cli.child import ENDING, FORWARDED, Child, Still, stop
from fencepost.cli.text import complain, left, named
from fencepost.errors import BackendError, LeaseLost, NotAcquired, QueueFull
from fencepost.events import Event, Hook
from fencepost.holders import own_label

_NOT_OURS = "it runs as another user, and we may not signal it"


async def hold(
    url: str,
    name: str,
    command: Sequence[str],
    *,
    ttl: float,
    timeout: float | None,
    grace: float,
    verbose: bool,
    hooks: Sequence[Hook] = (),
    metrics: str | None = None,
) -> int:
    """Acquire, run the command, release; the exit code. Raises NotAcquired, LeaseLost, BackendError.

    ``metrics`` is the address where metrics are served: the command gets it, and ``verbose`` prints it.
    """

    def say(what: str) -> None:
        if verbose:
            complain(what)

    def warn(event: Event) -> None:
        if event.kind == "at_risk":
            say(f"the lease on {name!r} is not renewed; it holds for {event.seconds or 0.0:.1f} s more")
        elif event.kind == "recovered":
            say(f"the lease on {name!r} is renewed again")

    label = own_label(os.path.basename(command[0]))
    async with aio.connect(url, ttl=ttl, label=label, hooks=[*hooks, warn]) as locks:
        signals = Signals(getattr(locks._core.backend, "still", nullcontext))
        try:
            lease = await signals.unless_told_to_end(locks.acquire(name, timeout=timeout))
        except QueueFull:
            raise
        except NotAcquired as error:
            raise await _explained(locks, error) from None
        if isinstance(lease, signal.Signals):
            say(f"{lease.name} while waiting for {name!r}")
            return exits.SIGNALLED + lease
        say(f"holding {name!r} in {masked(url)}, token {lease.token}")
        facts = {"FENCE_TOKEN": str(lease.token), "FENCE_HOLDER": lease.holder, "FENCE_NAME": name}
        if metrics is not None:
            say(f"metrics at {metrics}")
            facts["FENCE_METRICS"] = metrics
        try:
            child = signals.start(command, facts, may_go_on=lambda: not lease.lost)
        except OSError as error:
            await lease.release()
            complain(f"{command[0]}: {error.strerror}")
            return exits.NO_COMMAND if isinstance(error, FileNotFoundError) else exits.NO_EXEC
        code, lost = await _see_through(child, lease, grace)
        say(f"{command[0]} ended with {code}")
        try:
            held = await lease.release()
        except BackendError as error:
            complain(f"release of {name!r} failed, its ttl will free it: {error}")
            held = True
        if lost or not held:
            raise LeaseLost(name, lease.token, f"{lost or 'it was replaced'}; {command[0]!r} ended with {code}")
        return code


async def _explained(locks: aio.Locks, error: NotAcquired) -> NotAcquired:
    """The same error, which also names the current holder."""
    try:
        status = await locks.status(error.name)
    except BackendError:
        return error
    if status is None:
        return error  # it is free again, as of just now
    waited = f"within {error.timeout:g} s" if error.timeout else "at once"
    held = f"shared by {len(status.sharers)}" if status.sharers else f"held by {named(status, status.holder)}"
    return NotAcquired(
        error.name,
        error.timeout,
        f"lock {error.name!r} was not acquired {waited}: it is {held}, {left(status)}; wait longer (--timeout), or see "
        f"'fencepost show {error.name}'",
    )


async def _see_through(child: Child, lease: aio.Lease, grace: float) -> tuple[int, str]:
    """Wait for the command, and end it if the lease is lost first; its exit code, and why the lease was lost."""
    ended = asyncio.create_task(child.wait())
    losing = asyncio.create_task(lease.ended.wait())
    await asyncio.wait([ended, losing], return_when=asyncio.FIRST_COMPLETED)
    why = ""
    try:
        lease.check()
    except LeaseLost as lost:
        why = lost.reason
        if not await child.end(grace):  # before anything is printed: writing to stderr may block
            complain(f"lease on {lease.name!r} is lost: {why}; the command goes on: {_NOT_OURS}")
    losing.cancel()
    with suppress(asyncio.CancelledError):
        await losing
    return await ended, why


class Signals:
    """Handles signals: at first they end the wait for the lock, or stop us in it; later they go to the command."""

    def __init__(self, still: Still) -> None:
        loop = asyncio.get_running_loop()
        self._still = still
        self._told: asyncio.Future[signal.Signals] = loop.create_future()
        self._child: Child | None = None
        # Signals that were ignored when we started stay ignored, for the command too: nohup and shells rely on it.
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._came, number)

    def _came(self, number: signal.Signals) -> None:
        if self._child is not None:
            if not self._child.forward(number):
                complain(f"{number.name} is not passed on: {_NOT_OURS}")
        elif number is signal.SIGTSTP:
            stop(self._still, number)
        elif number in ENDING and not self._told.done():
            self._told.set_result(number)

    async def unless_told_to_end(self, acquire: Coroutine[Any, Any, aio.Lease]) -> aio.Lease | signal.Signals:
        """The lease, or the signal that came first; then the acquire is cancelled, or its lease released."""
        task: asyncio.Future[Any] = asyncio.ensure_future(acquire)
        waiting: list[asyncio.Future[Any]] = [task, self._told]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not self._told.done():
            return cast(aio.Lease, await task)
        task.cancel()
        with suppress(asyncio.CancelledError, NotAcquired):
            await (await task).release()
        return self._told.result()

    def start(self, command: Sequence[str], facts: dict[str, str], *, may_go_on: Callable[[], bool]) -> Child:
        """Start the command, which gets our signals from now on; OSError if it cannot be run."""
        self._child = Child(command, facts, may_go_on=may_go_on, still=self._still)
        if self._told.done():  # the signal came too late to end the wait
            self._child.send(self._told.result())
        return self._child
