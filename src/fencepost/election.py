"""Elections: a lock held for a term, whose token is the epoch; written once for both faces."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from fencepost import check, holders
from fencepost.driver.backoff import Backoff
from fencepost.driver.scope import Scope
from fencepost.errors import BackendError
from fencepost.lease import BaseLease, Grant
from fencepost.locks import PARTING, Core
from fencepost.logs import logger

T = TypeVar("T", bound=BaseLease)
_RETRY = (0.1, 5.0)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as the store sees it."""

    name: str
    holder: str
    """The same as ``holder`` of the leader's term."""
    token: int
    """The epoch."""
    metadata: str
    """What the candidate gave as its metadata, such as an address; empty if nothing."""
    remaining: float
    """Seconds until the term expires unless it is renewed; 0 where the store does not tell."""


class Candidate(Generic[T]):
    """A candidate in every election of a name, which holds one term at a time."""

    def __init__(
        self,
        core: Core[Any],
        make: Callable[[Core[Any], str, str, Grant, bool, float | None, bool], T],
        name: str,
        *,
        ttl: float | timedelta | None,
        metadata: str,
        scope: Scope,
    ) -> None:
        self._core = core
        self._make = make
        self._name = check.name(name)
        self._ttl = ttl
        self._metadata = metadata
        self._scope = scope
        self._elected = False
        self._term: T | None = None
        self._holder()

    def _holder(self) -> str:
        return holders.compose(holders.random_holder(), self._metadata)

    async def elect(self) -> T:
        """Resign, run again, and return the next term; Closed if the election was closed meanwhile.

        Most often an outage of the store ends a term. So a candidate that was elected before keeps trying through it.
        """
        await self.resign()
        self._core.check_open()
        self._scope.check()
        pauses = Backoff(*_RETRY)
        while True:
            try:
                term: T | None = await self._core.acquire(
                    self._name,
                    ttl=self._ttl,
                    timeout=None,
                    renew=True,
                    max_hold=None,
                    holders=self._holder,
                    make=self._make,
                    scope=self._scope,
                )
                assert term is not None, "who waits without a timeout is elected in the end"
                self._term, self._elected = term, True
                if self._scope.over:  # closed just now: close() may not have seen this term
                    await self.resign()
                    self._scope.check()
                return term
            except BackendError as error:
                if not self._elected:
                    raise
                logger().warning("election of %r: %s; running again in %g s", self._name, error, pauses.pause)
            await self._core.waiting(self._core.driver.sleep(pauses.next()), self._scope)

    async def resign(self) -> None:
        """Give the term back, if there is one; if the store does not answer, the term expires."""
        term, self._term = self._term, None
        if term is not None:
            await self._core.finish(term)


async def leader(core: Core[Any], name: str) -> Leader | None:
    """Who leads now."""
    status = await core.status(name)
    if status is None:
        return None
    return Leader(name, status.holder, status.token, holders.split(status.holder)[1], status.remaining)


async def successor(core: Core[Any], name: str, known: Leader | None, scope: Scope) -> Leader | None:
    """Wait until the leader is no longer ``known``; return the new leader, or None if there is none now."""
    return await core.waiting(_successor(core, name, known.token if known else None), scope)


async def close(core: Core[Any], scope: Scope, candidates: Iterable[Candidate[Any]]) -> None:
    """End all waits of an election, and give back the terms of its candidates."""
    await scope.end(core.driver, PARTING)
    for candidate in candidates:
        term = candidate._term
        await candidate.resign()
        if term is not None and term._body is not None:
            term._body.cancel_from_elsewhere()


async def _successor(core: Core[Any], name: str, token: int | None) -> Leader | None:
    while True:
        now = await leader(core, name)
        if (now.token if now else None) != token:
            return now
        await core.backend.changed(name, token)
