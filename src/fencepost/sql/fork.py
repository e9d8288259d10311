"""Closes our connections to SQLite files while the process forks.

SQLite keeps this process's locks on a file in memory. A fork copies that memory, but the locks in it are not the
child's. Even with a connection of its own, a child would wait forever for a transaction of the parent, or write without
a lock. So parent and child both open their connections again on next use.
"""

import sqlite3
import threading
import weakref
from typing import Protocol

from fencepost.driver.fork import at_fork
from fencepost.driver.gate import Gate

_PATIENCE = 1.0


class Forkable(Protocol):
    """One connection, for one thread at a time; None while it is closed. Its next use opens it.

    A thread steps aside from its gate to wait for the file. Afterwards it must get the connection again.
    """

    _connection: sqlite3.Connection | None
    _gate: Gate


def register(file: Forkable) -> None:
    """Close its connection before each fork of this process."""
    _files.add(file)


_files: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_forking = threading.Lock()
_quiet: list[Forkable] = []
_leaked: list[sqlite3.Connection] = []  # never closed: that would break the parent's locks


def _before_fork() -> None:
    _forking.acquire()
    for file in list(_files):
        # Give up on a thread that is stuck in a transaction, and on this one if it forks in a signal handler.
        if file._gate.hold(_PATIENCE):
            _quiet.append(file)
            if file._connection is not None:
                file._connection.close()
                file._connection = None


def _after_in_parent() -> None:
    _go_on()
    _forking.release()


def _go_on() -> None:
    while _quiet:
        _quiet.pop()._gate.let_go()


def _after_in_child() -> None:
    global _forking
    _forking = threading.Lock()
    _go_on()
    for file in list(_files):
        file._gate.forked()
        if file._connection is not None:
            _leaked.append(file._connection)
            file._connection = None


at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
