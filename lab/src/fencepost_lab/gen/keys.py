"""Which locks a seed stands for: an endless list, the same however it is cut into batches."""

from collections.abc import Iterator
from hashlib import shake_128
from typing import NamedTuple

PREFIX = "account/"
"""How every name begins."""
_BLOCK = 1024
_NAME, _HOLDER = 20, 32  # hex digits: 80 bits keep a billion names apart, a holder is what a client would choose
_EACH = _NAME + _HOLDER


class Batch(NamedTuple):
    """Some consecutive locks; ``end`` is where the next batch begins."""

    names: list[str]
    holders: list[str]
    end: int


def batches(seed: int, start: int, end: int, size: int) -> Iterator[Batch]:
    """The locks from ``start`` up to ``end`` of a seed's list, at most ``size`` at a time."""
    block, text = -1, ""
    while start < end:
        names: list[str] = []
        holders: list[str] = []
        until = min(start + size, end)
        while start < until:
            if start // _BLOCK != block:
                block = start // _BLOCK
                text = shake_128(b"fencepost gen %d %d" % (seed, block)).hexdigest(_BLOCK * _EACH // 2)
            first = start % _BLOCK
            count = min(until - start, _BLOCK - first)
            offsets = range(first * _EACH, (first + count) * _EACH, _EACH)
            names += [PREFIX + text[offset : offset + _NAME] for offset in offsets]
            holders += [text[offset + _NAME : offset + _EACH] for offset in offsets]
            start += count
        yield Batch(names, holders, until)
