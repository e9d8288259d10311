"""Marks without data, in an SQLite file: for services that keep nothing themselves.

A mark beside the data is **best effort**: it refuses a holder that was replaced before its request came, but one that
is let in here can still be overtaken before its effect takes place. Where the effect is a transaction, admit there.
"""

import os
import sqlite3
import threading
from collections.abc import Iterable

from fencepost.events import Action, Hook
from fencepost.guards import sqlite
from fencepost.guards.policy import Policy
from fencepost.lease import Fence
from fencepost.sql.sqlite import patiently

__all__ = ["Marks"]

_BUSY = 30.0


class Marks:
    """The marks of one service; threads, and processes on one host, may share the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._gate = threading.Lock()
        self._conn = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            patiently(self._conn, "PRAGMA journal_mode = WAL", busy=_BUSY)
        except BaseException:
            self._conn.close()
            raise

    def __call__(
        self, resource: str, lease: Fence, action: Action, hooks: Iterable[Hook] = (), policy: Policy | None = None
    ) -> None:
        """Raise the mark, durably. Raises the Refused of the verdict; a repeated stamp is refused too."""
        call = sqlite.admit if action == "write" else sqlite.enter
        with self._gate:
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                call(self._conn, resource, lease, hooks=hooks, policy=policy)
            finally:
                self._conn.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        with self._gate:
            self._conn.close()
