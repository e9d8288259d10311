"""What a worker writes to: the resource service, a row of Postgres, or an object of a store that speaks S3's protocol.

    http://127.0.0.1:8700                       the service; it has a guard of its own
    postgresql://user@host/database             a row, with its mark in the guard's table
    column+postgresql://user@host/database      a row with an epoch of its own: UPDATE ... WHERE epoch < token
    s3+http://user:password@host:9000/bucket    an object, written by conditional puts

An access is given where the fence is on; without one, the write is made whatever was there.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.parse import urlsplit

from fencepost.address import masked
from fencepost.errors import BackendError, ConfigError, Refused
from fencepost.lease import Access
from fencepost_lab.stage.client import Client, Reply

REFUSED = 409
"""The status of a refusal, also where there is no HTTP."""
TABLE = "fencepost_lab_rows"
_SCHEMA = f"CREATE TABLE IF NOT EXISTS {TABLE} (key text PRIMARY KEY, value text NOT NULL, lock_epoch bigint)"


class Target(Protocol):
    """One connection to what is protected. Raises BackendError if it does not answer."""

    http: bool
    """Whether its answers have a status of HTTP."""

    def read(self, key: str, access: Access | None) -> Reply:
        """The value; with an access, this enters."""

    def send(self, key: str, data: bytes, access: Access | None) -> None:
        """Send a write, if that can be done without waiting for its answer."""

    def answer(self) -> Reply:
        """The answer to what was sent last."""

    def close(self) -> None:
        """Disconnect."""


class Service:
    """The resource service."""

    http = True

    def __init__(self, url: str, patience: float) -> None:
        self._client = Client(url, timeout=patience)

    def read(self, key: str, access: Access | None) -> Reply:
        return self._client.read(key, access.headers if access else None)

    def send(self, key: str, data: bytes, access: Access | None) -> None:
        self._client.send(key, data, access.headers if access else None)

    def answer(self) -> Reply:
        return self._client.answer()

    def close(self) -> None:
        self._client.close()


class _Direct:
    """What is written to through a library, which sends and waits in one call."""

    http = False

    def __init__(self) -> None:
        self._sent: Callable[[], bool] | None = None

    def send(self, key: str, data: bytes, access: Access | None) -> None:
        self._sent = lambda: self._write(key, data, access)

    def answer(self) -> Reply:
        if self._sent is None:
            raise ConfigError("nothing was sent, so there is no answer")
        write, self._sent = self._sent, None
        try:
            return Reply(200, json.dumps({"replay": not write()}).encode(), "")
        except Refused as refused:
            return _refusal(refused)

    def _write(self, key: str, data: bytes, access: Access | None) -> bool:
        """False if it was a replay."""
        raise NotImplementedError


class Row(_Direct):
    """A row whose mark is in the table of ``fencepost.guards.postgres``, in the same transaction."""

    def __init__(self, url: str, patience: float) -> None:
        super().__init__()
        _require("psycopg", "postgres")
        self._url = url
        self._patience = patience
        self._conn: Any = None

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        import psycopg

        try:
            if self._conn is None:
                self._conn = psycopg.connect(self._url, connect_timeout=max(1, round(self._patience)))
                with self._conn.transaction():
                    # Two that make a table at once fail; so one after the other.
                    self._conn.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (TABLE,))
                    self._prepare(self._conn)
            with self._conn.transaction():
                yield self._conn
        except psycopg.Error as error:
            unknown = self._conn is not None and bool(self._conn.broken)
            raise BackendError(f"Postgres failed: {error}", backend="postgres", ambiguous=unknown) from error

    def _prepare(self, conn: Any) -> None:
        from fencepost.guards import postgres

        postgres.install(conn)
        conn.execute(_SCHEMA)

    def read(self, key: str, access: Access | None) -> Reply:
        from fencepost.guards import postgres

        try:
            with self._transaction() as conn:
                if access is not None:
                    postgres.enter(conn, key, access)
                return _found(conn.execute(f"SELECT value FROM {TABLE} WHERE key = %s", (key,)).fetchone())
        except Refused as refused:
            return _refusal(refused)

    def _write(self, key: str, data: bytes, access: Access | None) -> bool:
        from fencepost.guards import postgres

        with self._transaction() as conn:
            if access is not None and not postgres.admit(conn, key, access, payload=data):
                return False
            conn.execute(
                f"INSERT INTO {TABLE} (key, value) VALUES (%s, %s) "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, data.decode()),
            )
        return True

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()


class Column(Row):
    """A row that carries its own epoch: one statement, and any language can make it. A read cannot enter."""

    def __init__(self, url: str, patience: float) -> None:
        super().__init__(url.removeprefix("column+"), patience)

    def _prepare(self, conn: Any) -> None:
        conn.execute(_SCHEMA)

    def read(self, key: str, access: Access | None) -> Reply:
        return super().read(key, None)

    def _write(self, key: str, data: bytes, access: Access | None) -> bool:
        from fencepost.guards import column

        value = data.decode()
        with self._transaction() as conn:
            conn.execute(f"INSERT INTO {TABLE} (key, value) VALUES (%s, '') ON CONFLICT DO NOTHING", (key,))
            if access is None:
                conn.execute(f"UPDATE {TABLE} SET value = %s WHERE key = %s", (value, key))
            else:
                column.write(conn, TABLE, {"key": key}, {"value": value}, access.stamp)
        return True


class Object(_Direct):
    """An object of a bucket. Without an access it is put plainly, as a program does that knows of no fence."""

    def __init__(self, url: str, patience: float) -> None:
        super().__init__()
        _require("boto3", "s3")
        import boto3
        from botocore.config import Config

        from fencepost.guards import S3Guard

        parts = urlsplit(url.removeprefix("s3+"))
        self._bucket = parts.path.strip("/")
        if not parts.hostname or not self._bucket:
            raise ConfigError(f"a bucket's address is s3+http://user:password@host:9000/bucket, not {masked(url)!r}")
        account = {"aws_access_key_id": parts.username, "aws_secret_access_key": parts.password or ""}
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
            region_name="us-east-1",
            config=Config(
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
                connect_timeout=patience,
                read_timeout=patience,
            ),
            **(account if parts.username else {}),
        )
        self._guard = S3Guard(self._client, self._bucket)

    def read(self, key: str, access: Access | None) -> Reply:
        try:
            return _found((self._guard.peek(key) if access is None else self._guard.read(key, access),))
        except Refused as refused:
            return _refusal(refused)

    def _write(self, key: str, data: bytes, access: Access | None) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        if access is not None:
            return self._guard.write(key, data, access)
        try:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)
        except (BotoCoreError, ClientError) as error:
            raise BackendError(f"the object store failed: {error}", backend="s3", ambiguous=True) from error
        return True

    def close(self) -> None:
        self._client.close()


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"this --resource needs the package {package!r}: pip install 'fencepost[{extra}]'")


def _found(row: tuple[str | bytes | None] | None) -> Reply:
    value = row[0] if row else None
    if value is None:
        return Reply(404, b"", "")
    return Reply(200, value.encode() if isinstance(value, str) else value, "")


def _refusal(refused: Refused) -> Reply:
    facts = {"seen": refused.seen, "got": refused.token}
    said = {name: number for name, number in facts.items() if number is not None}
    return Reply(REFUSED, json.dumps(said).encode(), refused.verdict.value)


SCHEMES: dict[str, Callable[[str, float], Target]] = {
    "http": Service,
    "postgresql": Row,
    "column+postgresql": Column,
    "s3+http": Object,
    "s3+https": Object,
}


def open_target(url: str, *, patience: float = 60.0) -> Target:
    """What a worker of this --resource writes to; ConfigError if it is no address of any kind."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise ConfigError(
            f"--resource is the address of the service, of a database or of a bucket, such as http://127.0.0.1:8700, "
            f"postgresql://... or s3+http://..., not {masked(url)!r}"
        )
    return SCHEMES[scheme](url, patience)
