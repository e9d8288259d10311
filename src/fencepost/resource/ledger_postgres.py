"""A ledger in Postgres: the values beside the guard's marks, shared by as many services as you run."""

from contextlib import suppress
from typing import Any

import psycopg

from fencepost.address import Address
from fencepost.backends.postgres.connection import LIBPQ, BlockingLink, conninfo, failure
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards import postgres
from fencepost.guards.policy import Policy
from fencepost.resource.ledger import AGAIN, Found
from fencepost.rule import Stamp

_PATIENCE = 10.0
_TABLE = """CREATE TABLE IF NOT EXISTS fencepost_value (
    resource text COLLATE "C" PRIMARY KEY,
    data     bytea NOT NULL
)"""
_WRITE = """INSERT INTO fencepost_value VALUES (%s, %s)
    ON CONFLICT (resource) DO UPDATE SET data = excluded.data"""
# One statement, so that value and mark are of one moment.
_FIND = """SELECT data, token, seq, holder FROM (SELECT %s::text AS resource) AS asked
    LEFT JOIN fencepost_value USING (resource) LEFT JOIN fencepost_mark USING (resource)"""


class PostgresLedger:
    """A ledger in the database of ``address``, prepared on first use. ConfigError if it cannot be used."""

    name = "postgresql"

    def __init__(self, address: Address) -> None:
        address.options(**dict.fromkeys(LIBPQ, str))  # a misspelt sslmode is not to be overlooked
        self._info = conninfo(address, _PATIENCE)
        try:
            self._link = self._connect()
            with self._link.transaction():
                postgres.install(self._link)
                self._link.execute(_TABLE)
        except psycopg.Error as error:
            said = failure(error, ambiguous=False)
            raise ConfigError(f"the store cannot be used: {said}; name another, or let its owner prepare it") from error

    def begin(self) -> None:
        self._ask("BEGIN")

    def commit(self) -> None:
        self._link.execute("COMMIT")

    def rollback(self) -> None:
        self._link.execute("ROLLBACK")

    def admit(self, key: str, offer: Stamp, data: bytes, hook: Hook, policy: Policy | None) -> bool:
        return bool(postgres.admit(self._link, key, offer, payload=data, hooks=(hook,), policy=policy))

    def enter(self, key: str, offer: Stamp, hook: Hook, policy: Policy | None) -> None:
        postgres.enter(self._link, key, offer, hooks=(hook,), policy=policy)

    def keep(self, key: str, data: bytes) -> None:
        self._link.execute(_WRITE, (key, data), binary=True)

    def find(self, key: str) -> Found:
        data, token, seq, holder = self._ask(_FIND, key).fetchone()
        return Found(data, None if token is None else Stamp(token, seq, holder))

    def failure(self, error: Exception) -> BackendError | None:
        if isinstance(error, ConfigError):  # not the client's fault: our tables are gone
            return BackendError(f"Postgres: {error}", backend="postgresql", ambiguous=False)
        if not isinstance(error, psycopg.Error):
            return None
        said = failure(error, ambiguous=True)
        return BackendError(f"{said}; {AGAIN}", backend="postgresql", ambiguous=True)

    def close(self) -> None:
        self._link.close()

    def _connect(self) -> BlockingLink:
        link = BlockingLink.connect(**self._info, autocommit=True, prepare_threshold=None)
        link.patience = _PATIENCE
        # Whatever the role's default is: an acknowledged write survives a crash of the server.
        link.execute("SET synchronous_commit = on")
        return link

    def _ask(self, sql: str, *args: Any) -> Any:
        """Execute what may be repeated: once more, on a new connection, if this one turns out to be broken."""
        try:
            return self._link.execute(sql, args or None)
        except psycopg.OperationalError:
            if not self._link.closed:
                raise
            with suppress(psycopg.Error):
                self._link.close()
            self._link = self._connect()
            return self._link.execute(sql, args or None)
