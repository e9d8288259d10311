"""A store that held locks are laid into, and what it says of itself."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from fencepost_lab.gen.keys import Batch

Facts: TypeAlias = dict[str, int]
"""What a store says of its own size."""


class Laid(NamedTuple):
    """A batch that the store has confirmed: how many locks it has, and how many of them were free."""

    locks: int
    free: int


class Ground(Protocol):
    """A store that locks are laid into, in order. ``size`` names the fact that grows with each lock."""

    size: str

    def progress(self, seed: int) -> int:
        """How many locks of the seed's list were laid, and confirmed, and have not all expired since."""
        ...

    def lay(self, batches: Iterable[Batch], seed: int, ttl: float) -> Iterator[Laid]:
        """Lay down batches, several under way at once; each is told of when it is confirmed."""
        ...

    def facts(self) -> Facts: ...

    def close(self) -> None: ...
