"""Leadership in asyncio code."""

from collections.abc import AsyncGenerator
from types import TracebackType

from fencepost import election as terms
from fencepost import holders
from fencepost.aio import Body, Lease, Locks
from fencepost.errors import LeaseLost
from fencepost.locks import GIVEN_BACK


class Term(Lease):
    """A lease held for leadership; its token is the epoch, for every write that is made in it.

    A loop cannot cancel its own body; ``async with term:`` can: losing the term cancels the block at once,
    ends it without an error, and the next election follows. Guards find the term in there.
    """

    __slots__ = ("_body",)

    @property
    def metadata(self) -> str:
        """What this candidate told of itself."""
        return holders.split(self.holder)[1]

    async def resign(self) -> bool:
        """Step down; False if it had been replaced already."""
        return await self.release()

    async def __aenter__(self) -> "Term":
        self._body = Body(self)
        if self.ended and self.ended not in GIVEN_BACK:  # lost on the way here, when there was no block to cancel
            self._body._cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            await self._body.leave(error)
        except LeaseLost as lost:
            return (lost.name, lost.token) == (self.name, self.token)
        return isinstance(error, LeaseLost) and (error.name, error.token) == (self.name, self.token)


async def lead(candidate: terms.Candidate[Term]) -> AsyncGenerator[Term, None]:
    """Term after term; leaving the loop resigns."""
    try:
        while True:
            yield await candidate.elect()
    finally:
        await candidate.resign()


class Leadership:
    """Who leads, seen from outside."""

    def __init__(self, locks: Locks, name: str) -> None:
        self._core = locks._core
        self.name = name

    async def current(self) -> terms.Leader | None:
        """The leader now; None while there is none."""
        return await terms.leader(self._core, self.name)

    async def changes(self) -> AsyncGenerator[terms.Leader | None, None]:
        """The leader now, then each that follows; None while there is none. Ends when the loop is left."""
        known = await self.current()
        while True:
            yield known
            known = await terms.successor(self._core, self.name, known)
