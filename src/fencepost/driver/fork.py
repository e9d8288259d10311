"""What a forked child renews of its parent's: connections that both would use, gates that a thread may have held.

On Windows no process forks, and nothing is registered.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_renewals: "weakref.WeakKeyDictionary[Any, Callable[[Any], object]]" = weakref.WeakKeyDictionary()


def at_fork(
    *,
    before: Callable[[], object] = lambda: None,
    after_in_parent: Callable[[], object] = lambda: None,
    after_in_child: Callable[[], object],
) -> None:
    """As ``os.register_at_fork``, where there is one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)


def in_child(owner: T, renew: Callable[[T], object]) -> None:
    """Call ``renew(owner)`` in every child that this process forks while ``owner`` is there. It must not wait."""
    _renewals[owner] = renew


def _forked() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


at_fork(after_in_child=_forked)
