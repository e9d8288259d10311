"""No connection of ours to an SQLite file is open while the process forks.

SQLite keeps which locks this process has on a file in memory that a fork copies and that no child can use, not even
for a connection of its own: it would wait without end for a transaction of the parent's, or write without a lock. So
both sides open their connection again on next use.
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

    A thread steps aside from its gate to wait for the file. It uses the connection only as it finds it afterwards.
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
        # A thread that is stuck in a transaction, or this one if it forks in a signal handler, is not waited for.
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
