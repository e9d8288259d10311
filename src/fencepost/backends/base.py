"""A base for the tokens of a store that numbers its grants itself: nobody can raise a revision, an index or a zxid.

A token is the store's number plus the lock's base. The base is kept in the store, only grows, and is read in the same
step as the grant. It holds for numbers after the one at which it was written; so every reader, at any time, finds
the same token for a number. A contender that queued before the base was raised has too small a number. It joins the
queue again before it is granted the lock.
"""

import json
from dataclasses import dataclass
from typing import Self

from fencepost.errors import BackendError
from fencepost.rule import MAX_TOKEN

_KEPT = 50  # earlier bases that are remembered, for holders from before the last one


@dataclass(frozen=True, slots=True)
class Base:
    """What is added to the numbers of one lock."""

    store: str
    name: str
    added: int = 0
    since: int = 0
    """The number of the write that made it; 0 if there is none yet."""
    earlier: tuple[tuple[int, int], ...] = ()
    """Since when, and how much, before that; oldest first."""

    @classmethod
    def read(cls, store: str, name: str, data: bytes, since: int) -> Self:
        """The base as the store has it."""
        try:
            told = json.loads(data)
            earlier = tuple((int(number), int(added)) for number, added in told["earlier"])
            return cls(store, name, int(told["added"]), since, earlier)
        except (ValueError, TypeError, KeyError):
            raise BackendError(
                f"the base of the tokens of {name!r} is damaged: {data[:80]!r}; remove it, and raise it again with "
                f"'fencepost bump'",
                backend=store,
                ambiguous=False,
            ) from None

    def token(self, number: int) -> int:
        """The token of who was given this number; BackendError if it is too large for one."""
        past = ((self.since, self.added), *reversed(self.earlier))
        token = number + next((added for since, added in past if number > since), 0)
        if token > MAX_TOKEN:
            raise BackendError(
                f"the last token of {self.name!r} was {MAX_TOKEN}, and there is no larger one; lock under another name",
                backend=self.store,
                ambiguous=False,
            )
        return token

    def raised(self, above: int, number: int) -> bytes | None:
        """What to write so that each number after ``number`` means a token above ``above``; None if it does already."""
        added = above - number
        if added <= self.added:
            return None
        earlier = [*self.earlier, (self.since, self.added)] if self.since else []
        return json.dumps({"added": added, "earlier": earlier[-_KEPT:]}).encode()
