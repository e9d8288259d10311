"""What a forked child replaces: connections that it would share with its parent, gates that a thread may have held.

On Windows no process forks, and nothing is registered.
"""

import functools
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from fencepost.logs import logger

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


@functools.cache
def look_for_silent_forks() -> None:
    """Warn once if this process is a uWSGI master that forks without calling Python before and after.

    ``--py-call-osafterfork`` calls Python only after the fork: if another thread of the master runs at that moment, the
    worker finds Python's own locks taken, and hangs.
    """
    server: Any = sys.modules.get("uwsgi")  # there is no such module elsewhere
    options = getattr(server, "opt", None)
    if not isinstance(options, dict) or server.worker_id() != 0:
        return
    if "py-call-uwsgi-fork-hooks" in options and getattr(server, "has_threads", False):
        return
    if "py-call-osafterfork" in options:
        problem = "uWSGI forks its workers in the middle of what other threads of Python do: a worker can hang"
    else:
        problem = (
            "uWSGI forks its workers without telling Python: they would use the connections and leases of their master"
        )
    logger().warning("%s; start it with --enable-threads --py-call-uwsgi-fork-hooks, or with --lazy-apps", problem)


def in_child(owner: T, renew: Callable[[T], object]) -> None:
    """Call ``renew(owner)`` in every child that this process forks while ``owner`` is alive. It must not wait."""
    _renewals[owner] = renew


def _forked() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


at_fork(after_in_child=_forked)
