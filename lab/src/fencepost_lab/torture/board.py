"""Orders for workers, in memory that all processes of a slice share: looking for one costs no system call."""

from __future__ import annotations

import mmap
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

# The words: whether all are to end, which of the stores is in use, and an order for each worker.
_OVER, _STORE, _SLOTS = range(3)


class Do(IntEnum):
    """What a worker does to itself. The signals are real; that it sends them itself puts them where they hurt."""

    PAUSE = 1
    KILL = 2
    FORK = 3


class At(IntEnum):
    """Where in its work."""

    ASKING = 0
    GRANTED = 1
    """It has the lease, and has read nothing."""
    READ = 2
    """It has read, and has not sent its write."""
    WRITING = 3
    """The write is sent, and its answer has not come."""
    WROTE = 4


class Order(NamedTuple):
    number: int
    do: Do
    at: At


class Board:
    """The orders of one slice. The crew writes, each worker reads its own slot.

    Each word is written and read in one step of the processor, so that nobody reads half of an order.
    """

    def __init__(self, path: Path, slots: int) -> None:
        size = 8 * (_SLOTS + slots)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self._words = memoryview(self._memory).cast("Q")

    @property
    def over(self) -> bool:
        return bool(self._words[_OVER])

    def end(self) -> None:
        """Have all workers finish what they do, and end."""
        self._words[_OVER] = 1

    @property
    def store(self) -> int:
        """Which of the stores is in use."""
        return self._words[_STORE]

    @store.setter
    def store(self, number: int) -> None:
        self._words[_STORE] = number

    def look(self, slot: int) -> Order | None:
        """The newest order for this slot."""
        word = self._words[_SLOTS + slot]
        return Order(word >> 16, Do(word >> 8 & 255), At(word & 255)) if word else None

    def give(self, slot: int, order: Order) -> None:
        self._words[_SLOTS + slot] = order.number << 16 | order.do << 8 | order.at

    def withdraw(self, slot: int) -> None:
        """Take back the order for a slot, unless it was carried out already."""
        self._words[_SLOTS + slot] = 0

    def close(self) -> None:
        self._words.release()
        self._memory.close()
