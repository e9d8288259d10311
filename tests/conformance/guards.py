"""Every guard behind one face, for the suite. A new guard is one class here and one line in GUARDS.

A guard is opened by its address, so that several processes can meet at one.
"""

from __future__ import annotations

import http.client
import secrets
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import psycopg
import redis as redis_py
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.errors import ConfigError, refusal
from fencepost.guards import cas, etcd, file, memory, postgres, redis, s3, sqlite
from fencepost.guards.policy import Policy
from fencepost.lease import Fence, entering_stamp, stamp
from fencepost.rule import MAX_TOKEN, Stamp, Verdict
from fencepost_lab.servers.objects import s3_client
from tests.harness.resource import Answer, Service, stamped


class Guarded(Protocol):
    """Bytes by resource, behind a guard. Any thread may call."""

    def write(self, resource: str, data: bytes, offer: Fence) -> bool:
        """True if this call wrote, False if it replayed a write made before. Raises Refused."""

    def read(self, resource: str, offer: Fence) -> bytes | None:
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
    def __init__(self, _: str, stack: ExitStack, policy: Policy | None) -> None:
        self._guard = memory.MemoryGuard[bytes](policy=policy)
        self.write = self._guard.write
        self.read = self._guard.read

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        value = self._guard._values.get(resource)  # first: the mark of a value that was there can only be larger
        mark = self._guard.mark(resource)
        return value, mark.token if mark else None


class SQLite:
    def __init__(self, path: str, stack: ExitStack, policy: Policy | None) -> None:
        self._policy = policy
        self._conns = PerThread(lambda: sqlite3.connect(path, timeout=60, check_same_thread=False), stack)

    def write(self, resource: str, data: bytes, offer: Fence) -> bool:
        with self._conns.mine as conn:
            if fresh := sqlite.admit(conn, resource, offer, payload=data, policy=self._policy):
                conn.execute("INSERT OR REPLACE INTO thing VALUES (?, ?)", (resource, data))
            return fresh

    def read(self, resource: str, offer: Fence) -> bytes | None:
        with self._conns.mine as conn:
            sqlite.enter(conn, resource, offer, policy=self._policy)
            return self.peek(resource)[0]

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        row = self._conns.mine.execute("SELECT data FROM thing WHERE id = ?", (resource,)).fetchone()
        mark = sqlite.mark(self._conns.mine, resource)
        return row[0] if row else None, mark.token if mark else None


class Postgres:
    WRITE = "INSERT INTO thing VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET data = excluded.data"

    def __init__(self, url: str, stack: ExitStack, policy: Policy | None) -> None:
        self._policy = policy
        self._conns = PerThread(lambda: psycopg.connect(url, autocommit=True), stack)
        with self._conns.mine.transaction():
            postgres.install(self._conns.mine)
            self._conns.mine.execute('CREATE TABLE IF NOT EXISTS thing (id text COLLATE "C" PRIMARY KEY, data bytea)')

    def write(self, resource: str, data: bytes, offer: Fence) -> bool:
        conn = self._conns.mine
        with conn.transaction():
            fresh: bool = postgres.admit(conn, resource, offer, payload=data, policy=self._policy)
            if fresh:
                conn.execute(self.WRITE, (resource, data))
            return fresh

    def read(self, resource: str, offer: Fence) -> bytes | None:
        with self._conns.mine.transaction():
            postgres.enter(self._conns.mine, resource, offer, policy=self._policy)
            return self.peek(resource)[0]

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        # One statement, so that both are of one moment.
        found = self._conns.mine.execute(
            "SELECT (SELECT data FROM thing WHERE id = %s), (SELECT token FROM fencepost_mark WHERE resource = %s)",
            (resource, resource),
        ).fetchone()
        assert found is not None
        return found[0], found[1]


class Redis:
    def __init__(self, address: str, stack: ExitStack, policy: Policy | None) -> None:
        url, self._prefix = address.split("#")
        self._client = redis_py.from_url(url, retry=Retry(NoBackoff(), 1))  # by default it sleeps for seconds
        stack.callback(self._client.close)
        self._guard = redis.RedisGuard(self._client, prefix=f"{self._prefix}:mark:", policy=policy)

    def write(self, resource: str, data: bytes, offer: Fence) -> bool:
        done: redis.Done = self._guard.execute("SET", self._data(resource), data, lease=offer, resource=resource)
        return not done.replayed

    def read(self, resource: str, offer: Fence) -> bytes | None:
        found: bytes | None = self._guard.read("GET", self._data(resource), lease=offer, resource=resource)
        return found

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        value: Any = self._client.get(self._data(resource))
        mark = self._guard.mark(resource)
        return value, mark.token if mark else None

    def _data(self, resource: str) -> str:
        return f"{self._prefix}:data:{resource}"


class Swapped:
    """What the guards that compare and swap have in common."""

    def __init__(self, guard: cas.Guard) -> None:
        self._guard = guard
        self.write = guard.write
        self.read = guard.read

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        content = self._guard._load(resource).content
        return content.value, content.mark.token if content.mark else None


def File(folder: str, stack: ExitStack, policy: Policy | None) -> Guarded:
    return Swapped(file.FileGuard(folder, policy=policy))


def Etcd(address: str, stack: ExitStack, policy: Policy | None) -> Guarded:
    url, prefix = address.split("#")
    guard = etcd.EtcdGuard(
        url.replace("etcd:", "http:"), prefix=f"{prefix}/data/", marks=f"{prefix}/mark/", policy=policy
    )
    stack.callback(guard.close)
    return Swapped(guard)


def S3(address: str, stack: ExitStack, policy: Policy | None) -> Guarded:
    url, bucket = address.split("#")
    client = s3_client(url)
    stack.callback(client.close)
    return Swapped(s3.S3Guard(client, bucket, policy=policy))


_PATIENT = ("--timeout", "10m")
"""The service closes connections that are idle for so long. Here one is, while tests of another fixture run."""


class Http:
    """The resource service, which is a guard as well."""

    def __init__(self, address: str, stack: ExitStack, policy: Policy | None) -> None:
        if policy is not None and policy.limits(MAX_TOKEN) == (None, None):
            address = stack.enter_context(Service(args=["--ceiling", "off", *_PATIENT])).url
        host = address.removeprefix("http://")
        self._connections = PerThread(lambda: http.client.HTTPConnection(host, timeout=30), stack)

    def _ask(self, method: str, resource: str, body: bytes | None, offer: Stamp | None) -> Answer:
        connection = self._connections.mine
        connection.request(method, f"/r/{quote(resource, safe='')}", body, stamped(offer) if offer else {})
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        if answer.status == 400:
            raise ConfigError(answer.json["error"])
        if answer.status == 409:
            seen = answer.headers["X-Fence-Mark"]
            mark = Stamp(int(seen)) if seen else None
            raise refusal(Verdict(answer.headers["X-Fence-Verdict"]), resource, offer, mark)
        assert answer.status in (200, 404), answer
        return answer

    def write(self, resource: str, data: bytes, offer: Fence) -> bool:
        # Checked by the service, not by us: only a lease is asked for its stamp here.
        raw = offer if isinstance(offer, Stamp) else stamp(offer)
        return not self._ask("PUT", resource, data, raw).json["replay"]

    def read(self, resource: str, offer: Fence) -> bytes | None:
        return self._found(self._ask("GET", resource, None, entering_stamp(offer)))[0]

    def peek(self, resource: str) -> tuple[bytes | None, int | None]:
        return self._found(self._ask("GET", resource, None, None))

    @staticmethod
    def _found(answer: Answer) -> tuple[bytes | None, int | None]:
        mark = answer.headers["X-Fence-Mark"]
        return answer.body if answer.status == 200 else None, int(mark) if mark else None


Fixture = Callable[[str], Any]
"""Gives a pytest fixture by its name."""


class Row(NamedTuple):
    """A guard: where a new store of it is, how to open it there, and how many examples its speed allows.

    ``ordered``: a lease's stamp is taken where the mark is judged, so that its threads never come late.
    """

    place: Callable[[Fixture, ExitStack], str]
    open: Callable[[str, ExitStack, Policy | None], Guarded]
    examples: int = 150
    ordered: bool = True


def _folder(fixture: Fixture) -> Path:
    folder: Path = fixture("tmp_path_factory").mktemp("guard")
    return folder


def _file(fixture: Fixture, stack: ExitStack) -> str:
    """A file in WAL mode. Nobody has it open yet: SQLite does not wait for others when it changes the mode."""
    path = f"{_folder(fixture)}/guarded.sqlite3"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE thing (id TEXT PRIMARY KEY, data BLOB)")
    return path


def _schema(fixture: Fixture, stack: ExitStack) -> str:
    """A schema of its own, found by search_path."""
    url, name = fixture("postgres_server").url, f"guard_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {name}")
    return f"{url}?options=-csearch_path%3D{name}"


def _bucket(fixture: Fixture, stack: ExitStack) -> str:
    url, name = fixture("shared_object_store").url, f"guard-{secrets.token_hex(4)}"
    with closing(s3_client(url)) as client:
        client.create_bucket(Bucket=name)
    return f"{url}#{name}"


GUARDS: dict[str, Row] = {
    "memory": Row(lambda fixture, stack: "", Memory),
    "sqlite": Row(_file, SQLite),
    "postgres": Row(_schema, Postgres),
    "redis": Row(lambda fixture, stack: f"{fixture('redis_server').url}#{secrets.token_hex(4)}", Redis),
    "etcd": Row(lambda fixture, stack: f"{fixture('etcd_server').url}#{secrets.token_hex(4)}", Etcd, examples=60),
    "s3": Row(_bucket, S3, examples=25),
    "file": Row(lambda fixture, stack: str(_folder(fixture)), File, examples=100),
    "resource": Row(lambda fixture, stack: stack.enter_context(Service(args=_PATIENT)).url, Http, ordered=False),
}
