"""Leadership in blocking code."""

from collections.abc import Generator
from types import TracebackType

from fencepost import ambient, holders
from fencepost import election as terms
from fencepost.drive import call
from fencepost.errors import LeaseLost
from fencepost.interrupts import protected
from fencepost.sync import Lease, Locks


class Term(Lease):
    """A lease held for leadership; its token is the epoch, for every write that is made in it.

    ``with term:`` lets guards find it, and ends it: losing it, or a LeaseLost of its own, is no error there, for
    the next election follows.
    """

    __slots__ = ()

    @property
    def metadata(self) -> str:
        """What this candidate told of itself."""
        return holders.split(self.holder)[1]

    def resign(self) -> bool:
        """Step down; False if it had been replaced already."""
        return self.release()

    def __enter__(self) -> "Term":
        ambient.push(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            protected(self._leave)
        except BaseException:
            protected(self._leave)  # it may have been interrupted before it began; leaving twice does no harm
            raise
        return isinstance(error, LeaseLost) and (error.name, error.token) == (self.name, self.token)

    def _leave(self) -> None:
        ambient.pop(self)
        call(self._core.finish, self)


def lead(candidate: terms.Candidate[Term]) -> Generator[Term, None, None]:
    """Term after term; leaving the loop resigns."""
    try:
        while True:
            yield call(candidate.elect)
    finally:
        call(candidate.resign)


class Leadership:
    """Who leads, seen from outside."""

    def __init__(self, locks: Locks, name: str) -> None:
        self._core = locks._core
        self.name = name

    def current(self) -> terms.Leader | None:
        """The leader now; None while there is none."""
        return call(terms.leader, self._core, self.name)

    def changes(self) -> Generator[terms.Leader | None, None, None]:
        """The leader now, then each that follows; None while there is none. Ends when the loop is left."""
        known = self.current()
        while True:
            yield known
            known = call(terms.successor, self._core, self.name, known)
