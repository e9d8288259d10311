"""Which contenders of a lock hold it, in stores that keep sharers and exclusive contenders in one queue.

``limit`` returns how many sharers a contender allows, itself included; None if it wants the lock alone.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def blocking(before: Sequence[T], most: int | None, limit: Callable[[T], int | None]) -> list[T]:
    """The contenders that block one with the limit ``most``, out of those ``before`` it in the queue.

    Every one of them blocks an exclusive contender. A sharer is blocked by the exclusive ones; or, if there are none,
    by all of them once they are ``most`` or more.
    """
    alone = [each for each in before if most is None or limit(each) is None]
    return alone or (list(before) if most is not None and len(before) >= most else [])


def waiting(contenders: Sequence[T], limit: Callable[[T], int | None]) -> list[T]:
    """The contenders that do not hold yet: all behind the first one, or behind the sharers at the head of the queue."""
    for place, each in enumerate(contenders):
        most = limit(each)
        if place and (most is None or limit(contenders[0]) is None or place >= most):
            return list(contenders[place:])
    return []
