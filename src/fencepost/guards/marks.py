"""Marks without data, in an SQLite file: for services that keep nothing themselves.

A mark apart from the data is **best effort**: it refuses a holder that was replaced before its request came, but a
newer holder can still overtake an admitted request before that takes effect. If the effect is a transaction, call
``admit`` in that transaction instead.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TypeVar

from fencepost.driver.gate import Gate
from fencepost.driver.interrupts import protected
from fencepost.errors import ConfigError
from fencepost.events import Action, Hook
from fencepost.guards import sqlite
from fencepost.guards.policy import Policy
from fencepost.lease import Fence
from fencepost.sql import fork
from fencepost.sql.connections import begin
from fencepost.sql.sqlite import nap, patiently

__all__ = ["Marks"]

T = TypeVar("T")

_BUSY = 30.0


class Marks:
    """The marks of one service; threads, and processes on one host, may share the file.

    A forked child may go on using its parent's object: it opens the file again.

        app = asgi.Fence(app, key=lambda scope: scope["path"], marks=Marks("marks.sqlite3"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)
        self._closed = False
        self._gate = Gate("sqlite")
        self._connection: sqlite3.Connection | None = None
        with self._gate:
            self._patiently(self._open)
        fork.register(self)

    def __call__(
        self, resource: str, lease: Fence, action: Action, hooks: Iterable[Hook] = (), policy: Policy | None = None
    ) -> None:
        """Raise the mark, durably. Raises the Refused of the verdict; a repeated stamp is refused too."""
        call = sqlite.admit if action == "write" else sqlite.enter

        def judge() -> None:
            with self._gate, ExitStack() as transaction:
                conn = self._patiently(lambda: self._begin(transaction))
                call(conn, resource, lease, hooks=hooks, policy=policy)

        protected(judge)

    def close(self) -> None:
        """Close the file."""
        with self._gate:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _patiently(self, attempt: Callable[[], T]) -> T:
        def sleep(seconds: float) -> None:
            self._gate.step_aside(f"SQLite file {self._path!r}: database is locked", lambda: nap(seconds))

        return patiently(attempt, busy=_BUSY, sleep=sleep)

    def _begin(self, transaction: ExitStack) -> sqlite3.Connection:
        conn = self._open()
        transaction.enter_context(begin(conn))
        return conn

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise ConfigError(f"the marks in {self._path!r} are closed; make another Marks")
        if self._connection is None:
            conn = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                conn.execute("PRAGMA journal_mode = WAL")
            except BaseException:
                conn.close()
                raise
            self._connection = conn
        return self._connection
