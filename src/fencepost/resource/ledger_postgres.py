"""A ledger in Postgres: the values beside the guard's marks, shared by as many services as you run."""

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from fencepost.address import Address
from fencepost.backends.postgres.connection import END, LIBPQ, BlockingLink, conninfo, failure
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards import postgres
from fencepost.guards.policy import Policy
from fencepost.lease import Access
from fencepost.resource.ledger import AGAIN, Found
from fencepost.rule import Stamp

_PATIENCE = 10.0
# Set explicitly, because the role may have other defaults; LOCAL, because behind a pooler each transaction may use
# another session. READ COMMITTED: at other levels, a write that had to wait for a row fails. synchronous_commit: an
# acknowledged write survives a crash of the server. lock_timeout: while another program keeps a row locked, only the
# writes to that row fail, before the whole connection would be given up.
_BEGIN = """BEGIN ISOLATION LEVEL READ COMMITTED;
    SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '5s'"""
_CHECK = "SELECT FROM fencepost_mark WHERE false FOR UPDATE"  # fails where nothing can be written
_TABLE = """CREATE TABLE IF NOT EXISTS fencepost_value (
    resource text COLLATE "C" PRIMARY KEY,
    data     bytea NOT NULL
)"""
_KNOWS = """SELECT EXISTS (SELECT FROM fencepost_value WHERE resource = %s)
    OR EXISTS (SELECT FROM fencepost_mark WHERE resource = %s)"""
_COUNT = """SELECT greatest((SELECT count(*) FROM (SELECT FROM fencepost_mark LIMIT %s) AS marks),
    (SELECT count(*) FROM (SELECT FROM fencepost_value LIMIT %s) AS kept))"""
_DELETE = "DELETE FROM fencepost_value WHERE resource = %s"
_WRITE = """INSERT INTO fencepost_value VALUES (%s, %s)
    ON CONFLICT (resource) DO UPDATE SET data = excluded.data"""
# One statement, so that value and mark are of one moment.
_FIND = """SELECT data, token, seq, holder FROM (SELECT %s::text AS resource) AS asked
    LEFT JOIN fencepost_value USING (resource) LEFT JOIN fencepost_mark USING (resource)"""
_ANSWERED = (TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR)


class PostgresLedger:
    """A ledger in the database of ``address``, prepared on first use. ConfigError if it cannot be used."""

    name = "postgresql"

    def __init__(self, address: Address) -> None:
        address.options(**dict.fromkeys(LIBPQ, str))  # raises for a misspelt option, such as sslmode
        self._info = conninfo(address, _PATIENCE)
        self._begun = False
        self._stranded: list[int] = []
        try:
            self._link = self._connect()
            with self._link.transaction():
                postgres.install(self._link)
                self._link.execute(_TABLE)
        except psycopg.Error as error:
            said = failure(error, ambiguous=False)
            raise ConfigError(f"the store cannot be used: {said}; name another, or let its owner prepare it") from error

    @property
    def broken(self) -> bool:
        # A statement that was given up leaves the connection ACTIVE: no other statement can ever be sent over it.
        return self._link.closed or self._link.pgconn.transaction_status not in _ANSWERED

    def begin(self) -> None:
        self._ask(_BEGIN)
        self._begun = True

    def commit(self) -> None:
        ended = self._link.execute("COMMIT").statusmessage
        if ended != "COMMIT":
            raise psycopg.OperationalError(f"Postgres answered COMMIT with {ended}")
        self._begun = False

    def rollback(self) -> None:
        self._begun = False
        if self.broken:
            self._link.pgconn.finish()  # sends no goodbye, which might block
        else:
            self._link.execute("ROLLBACK")

    def admit(self, key: str, offer: Stamp | Access, data: bytes, hook: Hook, policy: Policy | None) -> bool:
        return bool(postgres.admit(self._link, key, offer, payload=data, hooks=(hook,), policy=policy))

    def enter(self, key: str, offer: Stamp | Access, hook: Hook, policy: Policy | None) -> None:
        postgres.enter(self._link, key, offer, hooks=(hook,), policy=policy)

    def keep(self, key: str, data: bytes | None) -> None:
        if data is None:
            self._link.execute(_DELETE, (key,))
        else:
            self._link.execute(_WRITE, (key, data), binary=True)

    def find(self, key: str) -> Found:
        # Inside a transaction, never use another connection: COMMIT would succeed there although the writes are lost.
        found: Any = self._link.execute(_FIND, (key,)) if self._begun else self._ask(_FIND, (key,))
        data, token, seq, holder = found.fetchone()
        return Found(data, None if token is None else Stamp(token, seq, holder))

    def knows(self, key: str) -> bool:
        return self._link.execute(_KNOWS, (key, key)).fetchone() == (True,)

    def count(self, most: int) -> int:
        found: Any = self._link.execute(_COUNT, (most, most)).fetchone()
        return int(found[0])

    def check(self) -> None:
        self._link.execute(_CHECK)

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
        try:
            if link.execute("SELECT pg_backend_pid()").fetchone() == (link.info.backend_pid,):
                link.pid = link.info.backend_pid  # else there is a pooler in between, and this is not a server's pid
            if self._stranded:
                link.execute(END, (2000, self._stranded))
                self._stranded = []
        except BaseException:
            link.pgconn.finish()
            raise
        return link

    def _reconnect(self) -> None:
        """Open another connection, and end the old one's session on the server: it may still keep rows locked."""
        self._link.pgconn.finish()
        if self._link.pid:
            self._stranded.append(self._link.pid)
            self._link.pid = 0
        self._link = self._connect()

    def _ask(self, sql: str, args: Any = None) -> Any:
        """Execute a repeatable statement; on a new connection if this one was given up, or turns out to be closed."""
        if not self.broken and self._link.pgconn.transaction_status == TransactionStatus.IDLE:
            try:
                return self._link.execute(sql, args)
            except psycopg.OperationalError:
                if not self._link.closed:
                    if self.broken:
                        self._link.pgconn.finish()
                    raise
        self._reconnect()
        return self._link.execute(sql, args)
