"""Spoil bytes: change some, lose some, double some, put others in, cut them off."""

from __future__ import annotations

import random
from collections.abc import Sequence

EDGES = (0, 0x0A, 0x0D, 0x20, 0x22, 0x25, 0x7F, 0x80, 0xFF)
"""Bytes at which parsers look twice."""


def spoil(rng: random.Random, data: bytes, words: Sequence[bytes] = ()) -> bytes:
    """The same bytes, with one to three things done to them; ``words`` are pieces worth putting in."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        way = rng.randrange(7 if words else 5)
        if way == 0 and at < len(changed):
            changed[at] = rng.choice([*EDGES, rng.randrange(256)])
        elif way == 1:
            del changed[at : at + rng.randrange(1, 6)]
        elif way == 2:
            changed[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif way == 3:
            changed[at:at] = changed[at : at + rng.randrange(1, 40)]
        elif way == 4:
            del changed[at:]
        elif words:
            end = at + (rng.randrange(12) if way == 5 else 0)
            changed[at:end] = rng.choice(words)
    return bytes(changed)


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes, as a network may bring them."""
    found = []
    while data:
        size = rng.choice([1, 2, 7, 30, 200, len(data)])
        found.append(data[:size])
        data = data[size:]
    return found
