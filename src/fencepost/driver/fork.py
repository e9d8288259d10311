"""What a forked child renews of its parent's: connections that both would use, gates that a thread may have held."""

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_renewals: "weakref.WeakKeyDictionary[Any, Callable[[Any], object]]" = weakref.WeakKeyDictionary()


def in_child(owner: T, renew: Callable[[T], object]) -> None:
    """Call ``renew(owner)`` in every child that this process forks while ``owner`` is there. It must not wait."""
    _renewals[owner] = renew


def _forked() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


os.register_at_fork(after_in_child=_forked)
