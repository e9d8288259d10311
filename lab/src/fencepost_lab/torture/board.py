"""Orders for workers, in memory that all processes of a slice share: looking for one costs no system call."""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("=QQ")  # whether all are to end; which of the stores is in use
_SLOT = struct.Struct("=QBB")  # the order's number; what; where


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
    """The orders of one slice. The crew writes, each worker reads its own slot."""

    def __init__(self, path: Path, slots: int) -> None:
        size = _HEAD.size + slots * _SLOT.size
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)

    @property
    def over(self) -> bool:
        return bool(_HEAD.unpack_from(self._memory)[0])

    def end(self) -> None:
        """Have all workers finish what they do, and end."""
        struct.pack_into("=Q", self._memory, 0, 1)

    @property
    def store(self) -> int:
        """Which of the stores is in use."""
        return int(_HEAD.unpack_from(self._memory)[1])

    @store.setter
    def store(self, number: int) -> None:
        struct.pack_into("=Q", self._memory, 8, number)

    def look(self, slot: int) -> Order | None:
        """The newest order for this slot."""
        number, do, at = _SLOT.unpack_from(self._memory, _HEAD.size + slot * _SLOT.size)
        return Order(number, Do(do), At(at)) if number else None

    def give(self, slot: int, order: Order) -> None:
        at = _HEAD.size + slot * _SLOT.size
        struct.pack_into("=BB", self._memory, at + 8, order.do, order.at)
        struct.pack_into("=Q", self._memory, at, order.number)  # last: from here on it counts

    def withdraw(self, slot: int) -> None:
        """Take back the order for a slot, unless it was carried out already."""
        struct.pack_into("=Q", self._memory, _HEAD.size + slot * _SLOT.size, 0)

    def close(self) -> None:
        self._memory.close()
