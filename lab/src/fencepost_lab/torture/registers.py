"""Guarded values with a journal: what workers read and write, and what the checker compares their word with.

The journal is written in the same atomic step as the value, so its order is the order in which writes were made. A
value counts the writes before it; each entry of the journal has the stamp it was made under, and the version that its
writer had read.
"""

from __future__ import annotations

import base64
import http.client
import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from fencepost.address import masked
from fencepost.errors import BackendError, ConfigError, Refused, ReplayMismatch, StaleToken, refusal
from fencepost.lease import Access
from fencepost.rule import Stamp, Verdict
from fencepost_lab.servers import http_json

Json: TypeAlias = dict[str, Any]

_PATIENCE = 0.4  # seconds for an answer: short, so that a write that is held back is one that got no answer
WEAKENED = ("off", "writes", "noseq", "noholder")
"""The controls: no guard; only the writes guarded; stamps whose seq is not looked at; stamps of one holder for all."""


class Seen(NamedTuple):
    """What a read found: how many writes were made, and the value."""

    version: int
    value: int


class Entry(NamedTuple):
    """One write, as its writer sent it."""

    who: str
    stamp: Stamp | None
    value: int
    base: int

    def encode(self) -> str:
        token, seq, holder = self.stamp or (None, None, None)
        return json.dumps([self.who, None if token is None else str(token), seq, holder, self.value, self.base])

    @classmethod
    def decode(cls, text: str | bytes) -> Entry:
        who, token, seq, holder, value, base = json.loads(text)
        return cls(who, None if token is None else Stamp(int(token), seq, holder), value, base)


class Register(ABC):
    """The values behind one guard, for one process. ``guard`` is ``full``, or one of WEAKENED.

    Raises Refused, and BackendError, ambiguous, where it is not known whether a write was made.
    """

    kind: str
    weakest: tuple[str, ...] = ("off", "writes", "noholder")
    """The controls that this kind can show."""

    def __init__(self, guard: str = "full") -> None:
        if guard != "full" and guard not in self.weakest:
            raise ConfigError(f"a guard of kind {self.kind!r} has no control {guard!r}; there are {self.weakest}")
        self.guard = guard

    @abstractmethod
    def _read(self, key: str, access: Access | None) -> Seen:
        """Enter if there is an access, and read, in one step."""

    @abstractmethod
    def _write(self, key: str, access: Access | None, entry: Entry) -> None:
        """Admit if there is an access, and append the entry, in one step. A replay changes nothing."""

    @abstractmethod
    def journal(self, key: str) -> list[Entry]:
        """Every write that was made, in order."""

    @abstractmethod
    def raise_mark(self, key: str, to: int) -> None:
        """As an operator does."""

    @abstractmethod
    def mark(self, key: str) -> Stamp | None:
        """The largest stamp that was admitted."""

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Once, before the first worker."""

    def read(self, key: str, access: Access | None) -> Seen:
        return self._read(key, None if self.guard in ("off", "writes") else self._weakened(access))

    def write(self, key: str, access: Access | None, entry: Entry) -> None:
        self._write(key, None if self.guard == "off" else self._weakened(access), entry)

    def _weakened(self, access: Access | None) -> Access | None:
        if access is None or self.guard != "noholder":
            return access
        return Access(access.resource, access.stamp._replace(holder="anybody"))

    def close(self) -> None:  # noqa: B027 - most need nothing
        """Disconnect."""


class SQLite(Register):
    """A database file of this host."""

    kind = "sqlite"

    def __init__(self, address: str, guard: str = "full") -> None:
        super().__init__(guard)
        self._path = address
        self._conn: sqlite3.Connection | None = None

    @property
    def conn(self) -> sqlite3.Connection:
        if self._conn is None:
            # A worker may be stopped inside a transaction; the others wait for it.
            self._conn = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
            self._conn.execute("PRAGMA synchronous = OFF")
        return self._conn

    def prepare(self) -> None:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self.conn.execute("PRAGMA journal_mode = WAL")
        self.conn.execute(
            "CREATE TABLE IF NOT EXISTS torture_journal "
            "(key TEXT, version INTEGER, entry TEXT, PRIMARY KEY (key, version)) WITHOUT ROWID"
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        conn = self.conn
        try:
            conn.execute("BEGIN IMMEDIATE")
            yield conn
            conn.execute("COMMIT")
        except sqlite3.Error as error:
            raise BackendError(f"SQLite failed: {error}", backend="sqlite", ambiguous=False) from error
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")

    def _read(self, key: str, access: Access | None) -> Seen:
        from fencepost.guards import sqlite

        with self._transaction() as conn:
            if access is not None:
                sqlite.enter(conn, key, access)
            return _last(conn.execute(_LAST.replace("%s", "?"), (key,)).fetchone())

    def _write(self, key: str, access: Access | None, entry: Entry) -> None:
        from fencepost.guards import sqlite

        text = entry.encode()
        with self._transaction() as conn:
            if access is not None and not sqlite.admit(conn, key, access, payload=text.encode()):
                return
            conn.execute(_APPEND.replace("%s", "?"), (key, key, text))

    def journal(self, key: str) -> list[Entry]:
        rows = self.conn.execute("SELECT entry FROM torture_journal WHERE key = ? ORDER BY version", (key,))
        return [Entry.decode(text) for (text,) in rows]

    def mark(self, key: str) -> Stamp | None:
        from fencepost.guards import sqlite

        return sqlite.mark(self.conn, key)

    def raise_mark(self, key: str, to: int) -> None:
        from fencepost.guards import sqlite

        with self._transaction() as conn:
            sqlite.raise_mark(conn, key, to=to)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


_LAST = "SELECT version, entry FROM torture_journal WHERE key = %s ORDER BY version DESC LIMIT 1"
_APPEND = """INSERT INTO torture_journal
    SELECT %s, 1 + coalesce((SELECT max(version) FROM torture_journal WHERE key = %s), 0), %s"""


def _last(row: tuple[int, str] | None) -> Seen:
    return Seen(0, 0) if row is None else Seen(row[0], Entry.decode(row[1]).value)


class Postgres(Register):
    """A database behind a URL of psycopg's."""

    kind = "postgres"

    def __init__(self, address: str, guard: str = "full") -> None:
        super().__init__(guard)
        self._url = address
        self._conn: Any = None

    def _connected(self) -> Any:
        import psycopg

        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._url, connect_timeout=5, options="-c synchronous_commit=on")
        return self._conn

    def prepare(self) -> None:
        from fencepost.guards import postgres

        conn = self._connected()
        with conn.transaction():
            postgres.install(conn)
            conn.execute(
                "CREATE TABLE IF NOT EXISTS torture_journal "
                "(key text, version bigint, entry text, PRIMARY KEY (key, version))"
            )

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        import psycopg

        inside = False
        try:
            with self._connected().transaction():
                inside = True
                yield self._conn
        except psycopg.Error as error:
            ambiguous = inside and (self._conn is None or self._conn.closed or self._conn.broken)
            if self._conn is not None:  # else it could not be opened
                with suppress(psycopg.Error):
                    self._conn.close()
            raise BackendError(f"Postgres failed: {error}", backend="postgres", ambiguous=bool(ambiguous)) from error

    def _read(self, key: str, access: Access | None) -> Seen:
        from fencepost.guards import postgres

        with self._transaction() as conn:
            if access is not None:
                postgres.enter(conn, key, access)
            return _last(conn.execute(_LAST, (key,)).fetchone())

    def _write(self, key: str, access: Access | None, entry: Entry) -> None:
        from fencepost.guards import postgres

        text = entry.encode()
        with self._transaction() as conn:
            if access is not None and not postgres.admit(conn, key, access, payload=text.encode()):
                return
            conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 21))", (key,))
            conn.execute(_APPEND, (key, key, text))

    def journal(self, key: str) -> list[Entry]:
        with self._transaction() as conn:
            rows = conn.execute("SELECT entry FROM torture_journal WHERE key = %s ORDER BY version", (key,)).fetchall()
        return [Entry.decode(text) for (text,) in rows]

    def mark(self, key: str) -> Stamp | None:
        from fencepost.guards import postgres

        with self._transaction() as conn:
            return postgres.mark(conn, key)

    def raise_mark(self, key: str, to: int) -> None:
        from fencepost.guards import postgres

        with self._transaction() as conn:
            postgres.raise_mark(conn, key, to=to)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


# The rule without seq: the newest token is admitted, whatever was sent under it before.
_NOSEQ = """
local seen, token = redis.call('HGET', KEYS[2], 'token'), ARGV[1]
if seen and (#token < #seen or (#token == #seen and token < seen)) then return seen end
redis.call('HSET', KEYS[2], 'token', token)
if ARGV[2] then redis.call('RPUSH', KEYS[1], ARGV[2]) end
return false
"""


class Redis(Register):
    """One Redis: each value is a list of the writes that were made, whose length is the version."""

    kind = "redis"
    weakest = WEAKENED

    def __init__(self, address: str, guard: str = "full") -> None:
        super().__init__(guard)
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        from fencepost.guards import RedisGuard

        # Without the client's own retries: each attempt of a write is the worker's, and is counted.
        self._client: Any = redis.Redis.from_url(
            address, retry=Retry(NoBackoff(), 0), socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE
        )
        self._guard = RedisGuard(self._client)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        import redis

        try:
            yield
        except redis.RedisError as error:
            ambiguous = isinstance(error, (redis.ConnectionError, redis.TimeoutError))
            raise BackendError(f"Redis failed: {error}", backend="redis", ambiguous=ambiguous) from error

    def _read(self, key: str, access: Access | None) -> Seen:
        with self._asking():
            if access is not None and self.guard == "noseq":
                self._unsequenced(key, access)
            elif access is not None:
                self._guard.enter(key, access)
            version, last = self._client.pipeline(transaction=True).llen(key).lindex(key, -1).execute()
        return Seen(version, Entry.decode(last).value if last else 0)

    def _write(self, key: str, access: Access | None, entry: Entry) -> None:
        with self._asking():
            if access is None:
                self._client.rpush(key, entry.encode())
            elif self.guard == "noseq":
                self._unsequenced(key, access, entry.encode())
            else:
                self._guard.execute("RPUSH", key, entry.encode(), lease=access)

    def _unsequenced(self, key: str, access: Access, *entry: str) -> None:
        token = access.stamp.token
        if seen := self._client.eval(_NOSEQ, 2, key, f"noseq:{key}", token, *entry):
            raise StaleToken("a newer token was here", key, access.stamp, Stamp(int(seen)))

    def journal(self, key: str) -> list[Entry]:
        with self._asking():
            return [Entry.decode(text) for text in self._client.lrange(key, 0, -1)]

    def mark(self, key: str) -> Stamp | None:
        return self._guard.mark(key)

    def raise_mark(self, key: str, to: int) -> None:
        self._guard.raise_mark(key, to=to)

    def close(self) -> None:
        self._client.close()


class Etcd(Register):
    """An etcd, by the address of its gateway: a value's version is its key's own."""

    kind = "etcd"
    weakest = ("off", "writes")

    def __init__(self, address: str, guard: str = "full") -> None:
        super().__init__(guard)
        from fencepost.guards import EtcdGuard
        from fencepost.guards.policy import Policy

        self._port = int(address.rpartition(":")[2])
        self._prefix = "torture/"
        self._guard = EtcdGuard(
            address, prefix=self._prefix, timeout=2 * _PATIENCE, policy=Policy("off") if guard == "off" else None
        )

    def _range(self, key: str, end: str = "") -> list[Json]:
        body = {"key": _text(key), "sort_target": "MOD", "sort_order": "ASCEND"}
        if end:
            body["range_end"] = _text(end)
        try:
            answer = http_json(self._port, "POST", "/v3/kv/range", json.dumps(body), timeout=2 * _PATIENCE)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BackendError(f"etcd failed: {error}", backend="etcd", ambiguous=False) from error
        found: list[Json] = answer.get("kvs", [])
        return found

    def _read(self, key: str, access: Access | None) -> Seen:
        if access is not None:
            self._guard.enter(key, access)
        found = self._range(self._prefix + key)
        return Seen(int(found[0]["version"]), _decoded(found[0]).value) if found else Seen(0, 0)

    def _write(self, key: str, access: Access | None, entry: Entry) -> None:
        text = _text(entry.encode())
        token, seq, holder = entry.stamp or (0, 0, "")
        journal = f"journal/{key}|{token}-{seq}-{holder}"
        puts = [{"requestPut": {"key": _text(each), "value": text}} for each in (self._prefix + key, journal)]
        try:
            # Where the guard is off it judges nothing, whatever it is given.
            self._guard.transact(key, Stamp(1) if access is None else access, success=puts)
        except ReplayMismatch:
            # A transaction of one's own has no digest. Only this very entry is sent under its stamp, so it was made.
            pass

    def journal(self, key: str) -> list[Entry]:
        return [_decoded(each) for each in self._range(f"journal/{key}|", f"journal/{key}}}")]

    def mark(self, key: str) -> Stamp | None:
        return self._guard.mark(key)

    def raise_mark(self, key: str, to: int) -> None:
        self._guard.raise_mark(key, to=to)

    def close(self) -> None:
        self._guard.close()


class Blobs(Register):
    """Values that are one piece of bytes each: all writes that were made, a line for each.

    So a write that overwrites another one unread also takes it out of the journal, where it is missed.
    """

    weakest: tuple[str, ...] = ("off", "writes")

    def __init__(self, guard: str = "full") -> None:
        super().__init__(guard)
        self._lines: dict[str, list[str]] = {}
        """What each value was when it was last read or written here."""

    @abstractmethod
    def _load(self, key: str, access: Access | None) -> bytes | None:
        """Enter if there is an access, and read, in one step."""

    @abstractmethod
    def _save(self, key: str, access: Access | None, data: bytes) -> None:
        """Admit if there is an access, and write, in one step."""

    def _read(self, key: str, access: Access | None) -> Seen:
        lines = self._lines[key] = (self._load(key, access) or b"").decode().splitlines()
        return Seen(len(lines), Entry.decode(lines[-1]).value) if lines else Seen(0, 0)

    def _write(self, key: str, access: Access | None, entry: Entry) -> None:
        lines = [*self._lines.get(key, [])[: max(0, entry.base)], entry.encode()]
        self._save(key, access, "\n".join(lines).encode())
        self._lines[key] = lines

    def journal(self, key: str) -> list[Entry]:
        return [Entry.decode(line) for line in (self._load(key, None) or b"").splitlines()]


class _Compared(Blobs):
    """Behind a guard that compares and swaps."""

    _guard: Any

    def _load(self, key: str, access: Access | None) -> bytes | None:
        found: bytes | None = self._guard.peek(key) if access is None else self._guard.read(key, access)
        return found

    def _save(self, key: str, access: Access | None, data: bytes) -> None:
        # Where the guard is off it judges nothing, whatever it is given.
        self._guard.write(key, data, Stamp(1) if access is None else access)

    def mark(self, key: str) -> Stamp | None:
        found: Stamp | None = self._guard.mark(key)
        return found

    def raise_mark(self, key: str, to: int) -> None:
        self._guard.raise_mark(key, to=to)


class File(_Compared):
    """A folder of this host: each value is a file."""

    kind = "file"

    def __init__(self, address: str, guard: str = "full") -> None:
        super().__init__(guard)
        from fencepost.guards import FileGuard
        from fencepost.guards.policy import Policy

        self._guard = FileGuard(address, policy=Policy("off") if guard == "off" else None)


class S3(_Compared):
    """A bucket, as boto3 finds it; or http://HOST:PORT/BUCKET of a store that speaks S3's protocol."""

    kind = "s3"

    def __init__(self, address: str, guard: str = "full") -> None:
        super().__init__(guard)
        from fencepost.guards import S3Guard
        from fencepost.guards.policy import Policy
        from fencepost_lab.servers.objects import s3_client

        parts = urlsplit(address)
        bucket = parts.path.strip("/")
        if not bucket or (parts.scheme and not parts.netloc):
            raise ConfigError(f"s3:BUCKET or s3:http://HOST:PORT/BUCKET, not {masked(address)!r}")
        if parts.scheme:
            client = s3_client(f"{parts.scheme}://{parts.netloc}", timeout=5 * _PATIENCE)
        else:
            import boto3

            client = boto3.client("s3")
        self._guard = S3Guard(client, bucket, prefix="torture/", policy=Policy("off") if guard == "off" else None)


class Http(Blobs):
    """A ``fencepost resource``, by its URL."""

    kind = "http"
    weakest = ()  # its rule is the service's own

    def __init__(self, address: str, guard: str = "full") -> None:
        super().__init__(guard)
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"http:http://HOST:PORT, not {masked(address)!r}")
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=2 * _PATIENCE)

    def _ask(self, method: str, key: str, access: Access | None, data: bytes | None = None) -> http.client.HTTPResponse:
        try:
            headers = {} if access is None else dict(access.headers)
            self._connection.request(method, "/r/" + quote(key, safe=""), data, headers)
            answer = self._connection.getresponse()
            self._body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            why = f"the service did not answer: {error}"
            raise BackendError(why, backend="http", ambiguous=method == "PUT") from error
        if verdict := answer.headers.get("X-Fence-Verdict"):
            seen = answer.headers.get("X-Fence-Mark")
            offer = None if access is None else access.stamp
            raise refusal(Verdict(verdict), key, offer, Stamp(int(seen)) if seen else None)
        if answer.status == 400:
            raise ConfigError(self._body.decode(errors="replace"))
        if answer.status not in (200, 404):
            why = f"the service answered {answer.status}: {self._body[:200]!r}"
            raise BackendError(why, backend="http", ambiguous=method == "PUT" and answer.status >= 500)
        return answer

    def _load(self, key: str, access: Access | None) -> bytes | None:
        return self._body if self._ask("GET", key, access).status == 200 else None

    def _save(self, key: str, access: Access | None, data: bytes) -> None:
        self._ask("PUT", key, access, data)

    def mark(self, key: str) -> Stamp | None:
        """Its token; the service tells neither seq nor holder."""
        token = int(self._ask("GET", key, None).headers.get("X-Fence-Mark") or 0)
        return Stamp(token) if token else None

    def raise_mark(self, key: str, to: int) -> None:
        try:
            self._ask("GET", key, Access(key, Stamp(to, 0)))
        except Refused as refused:
            if refused.seen is None or refused.seen < to:  # such as a token beyond its ceiling
                raise BackendError(f"the service refuses: {refused}", backend="http", ambiguous=False) from refused

    def close(self) -> None:
        self._connection.close()


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(found: Json) -> Entry:
    return Entry.decode(base64.b64decode(found["value"]))


KINDS: dict[str, type[Register]] = {each.kind: each for each in (SQLite, Postgres, Redis, Etcd, Http, File, S3)}


def register(spec: str, guard: str = "full") -> Register:
    """The register that KIND:ADDRESS names; ConfigError if there is no such kind."""
    kind, _, address = spec.partition(":")
    if kind not in KINDS or not address:
        raise ConfigError(
            f"--guard is KIND:ADDRESS, with a kind of {', '.join(KINDS)}, such as sqlite:/tmp/data.db or "
            f"redis:redis://localhost:6379/1, not {masked(spec)!r}"
        )
    made: Any = KINDS[kind]
    return made(address, guard)  # type: ignore[no-any-return]
