"""A base for the tokens of a store that numbers its grants itself: no client can raise a revision, an index or a zxid.

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
    """The amount that is added to the store's numbers to make the tokens of one lock."""

    store: str
    name: str
    added: int = 0
    since: int = 0
    """The store's number of the write that set this base; 0 if the lock has no base yet."""
    earlier: tuple[tuple[int, int], ...] = ()
    """The earlier bases as pairs of ``since`` and ``added``, oldest first."""

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
        """The token of the holder whose grant has this number; BackendError if the token would be too large."""
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
        """The base to write, so that numbers after ``number`` give tokens above ``above``; None if they do already."""
        added = above - number
        if added <= self.added:
            return None
        earlier = [*self.earlier, (self.since, self.added)] if self.since else []
        return json.dumps({"added": added, "earlier": earlier[-_KEPT:]}).encode()
