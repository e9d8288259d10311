"""Every guard behind one face, for the suite. A new guard is one class here and one line in GUARDS."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote

from fencepost.errors import ConfigError, refusal
from fencepost.guards import memory, sqlite
from fencepost.lease import Offer, entry, stamp
from fencepost.rule import Stamp, Verdict
from tests.service import Answer, Service, stamped


class Guarded(Protocol):
    """Bytes by resource, behind a guard. Any thread may call."""

    def write(self, resource: str, data: bytes, offer: Offer) -> bool:
        """True if this call wrote, False if it replayed a write made before. Raises Refused."""

    def read(self, resource: str, offer: Offer) -> bytes | None:
        """A fenced read, which enters. Raises Refused."""

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        """The value and the mark's token, past the guard."""


class Closes(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closes)


class PerThread(Generic[C]):
    """One connection for each thread; the stack closes them all."""

    def __init__(self, make: Callable[[], C], stack: ExitStack) -> None:
        self._make = make
        self._stack = stack
        self._local = threading.local()

    @property
    def mine(self) -> C:
        if not hasattr(self._local, "connection"):
            self._local.connection = self._make()
            self._stack.callback(self._local.connection.close)
        connection: C = self._local.connection
        return connection


class Memory:
    def __init__(self) -> None:
        self._guard = memory.Guard[bytes]()
        self.write = self._guard.write
        self.read = self._guard.read

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        mark = self._guard.mark(resource)
        return self._guard._values.get(resource), mark.token if mark else None


class SQLite:
    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._conns = PerThread(lambda: sqlite3.connect(path, timeout=60, check_same_thread=False), stack)
        with self._conns.mine as conn:
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute("CREATE TABLE thing (id TEXT PRIMARY KEY, data BLOB)")

    def write(self, resource: str, data: bytes, offer: Offer) -> bool:
        with self._conns.mine as conn:
            if fresh := sqlite.admit(conn, resource, offer, payload=data):
                conn.execute("INSERT OR REPLACE INTO thing VALUES (?, ?)", (resource, data))
            return fresh

    def read(self, resource: str, offer: Offer) -> bytes | None:
        with self._conns.mine as conn:
            sqlite.enter(conn, resource, offer)
            return self.peek(resource)[0]

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        row = self._conns.mine.execute("SELECT data FROM thing WHERE id = ?", (resource,)).fetchone()
        mark = sqlite.mark(self._conns.mine, resource)
        return row[0] if row else None, mark.token if mark else None


class Http:
    """The resource service, which is a guard as well."""

    def __init__(self, service: Service, stack: ExitStack) -> None:
        self._service = service
        self._connections = PerThread(service.connection, stack)

    def _ask(self, method: str, resource: str, body: bytes | None, offer: Stamp | None) -> Answer:
        headers = stamped(offer) if offer else {}
        path = f"/r/{quote(resource, safe='')}"
        answer = self._service.ask(method, path, body, headers, over=self._connections.mine)
        if answer.status == 400:
            raise ConfigError(answer.json["error"])
        if answer.status == 409:
            seen = answer.headers["X-Fence-Mark"]
            raise refusal(Verdict(answer.headers["X-Fence-Verdict"]), resource, offer, Stamp(int(seen)))
        assert answer.status in (200, 404), answer
        return answer

    def write(self, resource: str, data: bytes, offer: Offer) -> bool:
        # Checked by the service, not by us: only a lease is asked for its stamp here.
        raw = offer if isinstance(offer, Stamp) else stamp(offer)
        return not self._ask("PUT", resource, data, raw).json["replay"]

    def read(self, resource: str, offer: Offer) -> bytes | None:
        return self._found(self._ask("GET", resource, None, entry(offer)))[0]

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        return self._found(self._ask("GET", resource, None, None))

    @staticmethod
    def _found(answer: Answer) -> tuple[bytes | None, int | None]:
        mark = answer.headers["X-Fence-Mark"]
        return answer.body if answer.status == 200 else None, int(mark) if mark else None


def _memory(folder: Path, stack: ExitStack) -> Guarded:
    return Memory()


def _sqlite(folder: Path, stack: ExitStack) -> Guarded:
    return SQLite(folder / "guarded.sqlite3", stack)


def _resource(folder: Path, stack: ExitStack) -> Guarded:
    return Http(stack.enter_context(Service()), stack)


GUARDS: dict[str, Callable[[Path, ExitStack], Guarded]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "resource": _resource,
}
"""Each makes its guard in a folder of its own, and leaves what must be closed to the stack."""
