"""What the adapters for web frameworks have in common: answers, and jobs of a whole fleet."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from fencepost import check
from fencepost.errors import BackendError, ConfigError, FencepostError, LeaseLost, NotAcquired, QueueFull, Refused
from fencepost.lease import BaseLease
from fencepost.once import aio, once
from fencepost.sql.connections import is_async, within

_log = logging.getLogger("fencepost")


class Terms(NamedTuple):
    """How long a request waits for its lock, and the answer if it waited so long without getting it."""

    timeout: float
    status: int
    retry_after: int

    @classmethod
    def of(cls, timeout: Any, status: Any, retry_after: Any) -> "Terms":
        """These terms; ConfigError if they are invalid."""
        if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
            raise ConfigError(f"the answer to a request whose lock is busy is a status from 400 to 599, not {status!r}")
        if isinstance(retry_after, bool) or not isinstance(retry_after, int) or retry_after < 0:
            raise ConfigError(f"retry_after is a whole number of seconds, not {retry_after!r}")
        return cls(check.seconds(timeout, "timeout"), status, retry_after)

    def but(self, timeout: Any, status: Any, retry_after: Any) -> "Terms":
        """The same terms, but with these values, as far as they are not None."""
        given = (timeout, status, retry_after)
        return Terms.of(*(mine if other is None else other for mine, other in zip(self, given, strict=True)))


class Answer(NamedTuple):
    """What to answer to a request that could not be served under its lock."""

    status: int
    detail: str
    headers: dict[str, str]


def misnamed(name: object) -> Answer | None:
    """The answer to a request whose lock has an invalid name; None if it is valid. Names come from clients."""
    try:
        if isinstance(name, str):  # anything else is a mistake of the program
            check.name(name)
    except ConfigError:
        return Answer(404, "there is no such thing", {})
    return None


def answer(error: FencepostError, lease: BaseLease | None, terms: Terms) -> Answer | None:
    """The answer to an error that came before the request had its ``lease``, or under it; None if it is about another.

    The answer names no lock, holder or store: those are for the log.
    """
    again = {"Retry-After": str(terms.retry_after)}
    if lease is None:
        if isinstance(error, NotAcquired) and not isinstance(error, QueueFull):
            return Answer(terms.status, "busy: another request holds the lock; try again", again)
        if isinstance(error, (QueueFull, BackendError)):
            _log.error("a request got no lock: %s", error)
            return Answer(503, "the lock is not available; try again", again)
        return None
    if isinstance(error, LeaseLost) and (error.name, error.token) == (lease.name, lease.token):
        _log.warning("a request lost its lock: %s", error)
        return Answer(409, "the lock was lost meanwhile; read again, then try again", {"X-Fence-Verdict": "lost"})
    if isinstance(error, Refused) and error.offer and error.offer[::2] == (lease.token, lease.holder):
        _log.warning("a request was refused under its own lock: %s", error)
        return Answer(
            409,
            "another request took the lock over, and this one changed nothing; read again, then try again",
            {"X-Fence-Verdict": error.verdict.value},
        )
    return None


class _NotYet(Exception):
    """Rolls back the transaction that looked whether a job was done."""


async def was_done(memory: Callable[[], Any], name: str) -> bool:
    """Whether the job called ``name`` is remembered as done, by what ``memory`` opens for a block."""
    try:
        async with within(memory()) as conn, within(_once(conn, name)) as run:
            if not run.done:
                raise _NotYet
    except _NotYet:
        return False
    return True


async def remember(memory: Callable[[], Any], name: str) -> None:
    """Remember the job called ``name`` as done."""
    async with within(memory()) as conn, within(_once(conn, name)) as run:
        if not run.done:
            run.result = True


def _once(conn: Any, name: str) -> Any:
    return aio.once(conn, name) if is_async(conn) else once(conn, name)
