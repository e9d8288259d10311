"""Who of a lock's contenders hold it, in stores that queue those who share it and those who do not together.

``limit`` says of a contender how many may hold beside it, with it; None if it wants the lock alone.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def blocking(before: Sequence[T], most: int | None, limit: Callable[[T], int | None]) -> list[T]:
    """Of those before a contender, who is in its way; one who shares minds others only if there is no room."""
    alone = [each for each in before if most is None or limit(each) is None]
    return alone or (list(before) if most is not None and len(before) >= most else [])


def waiting(contenders: Sequence[T], limit: Callable[[T], int | None]) -> list[T]:
    """Of all contenders, who does not hold yet: all behind the first, or behind those who share."""
    for place, each in enumerate(contenders):
        most = limit(each)
        if place and (most is None or limit(contenders[0]) is None or place >= most):
            return list(contenders[place:])
    return []
