"""One connection to Postgres: its target, the calls over it, and the meaning of its errors."""

import asyncio
import re
import select
from collections.abc import Generator, Sequence
from functools import partial
from importlib import resources
from math import inf
from types import UnionType
from typing import Any, TypeAlias

import psycopg
from psycopg import errors, waiting
from psycopg.generators import execute
from psycopg.pq import ExecStatus

from fencepost.address import Address, libpq
from fencepost.credentials import Secret, Source
from fencepost.driver import boottime, settle
from fencepost.driver.interrupts import interruptible
from fencepost.driver.scope import patience as within
from fencepost.errors import BackendError, ConfigError

_VERSION, _REVISION = 1, 5
_NO_SCHEMA = (errors.InvalidSchemaName, errors.UndefinedFunction)
OURS = frozenset(
    {
        "client_encoding",
        "connect_timeout",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "tcp_user_timeout",
    }
)
"""Options that are not copied from a caller's client."""
LIBPQ = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "host",
        "krbsrvname",
        "passfile",
        "port",
        "require_auth",
        "service",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslpassword",
        "sslrootcert",
        "target_session_attrs",
        "user",
    }
)
"""libpq's options that a URL may have."""
OLDEST = 14
"""The oldest major version of the server that is supported: END needs pg_terminate_backend with a timeout."""
# Ends sessions, and waits at most %s milliseconds for that. Only our own sessions: a pid may have been reused by now.
END = """SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
    WHERE pid = ANY(%s) AND application_name = current_setting('application_name') AND usename = current_user"""


def conninfo(address: Address, patience: float) -> dict[str, Any]:
    """The options with which libpq connects to ``address``."""
    address.check_hosts()
    given: dict[str, Any] = {
        # We notice within half a minute that an idle connection was cut, and within ``patience`` if data is unanswered.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": int(patience * 1000),
        "connect_timeout": max(2, int(patience)),
        "application_name": "fencepost",
        "client_encoding": "UTF8",
    }
    if len(address.hosts) > 1:
        given["target_session_attrs"] = "read-write"
    return given | libpq(address) | {key: value for key, value in address.params.items() if key in LIBPQ}


class Target:
    """The server to connect to, and the credentials, which may be different for each connection."""

    def __init__(self, address: Address, patience: float) -> None:
        self.patience = patience
        self._fixed = conninfo(address, patience)
        self._login: Source[Secret] | None = address.login
        self._client: Source[dict[str, str]] | None = address.given.get("conninfo")
        self._login_of: Source[dict[str, str]] | None = address.given.get("login_of")
        """A client of which only the user and the password are used."""

    async def parameters(self) -> dict[str, Any]:
        """libpq's keywords for the next connection; BackendError if the caller's function fails."""
        if self._client is not None:
            # Keep our own timeouts: those of a client were chosen for other work.
            theirs = {key: value for key, value in (await self._client.get()).items() if key not in OURS}
            several = "," in theirs.get("host", "") and "target_session_attrs" not in theirs
            return self._fixed | ({"target_session_attrs": "read-write"} if several else {}) | theirs
        if self._login_of is not None:
            login = await self._login_of.get()
            return {key: login[key] for key in ("user", "password") if key in login} | self._fixed
        if self._login is None:
            return self._fixed
        found = await self._login.get()
        if "\0" in found.password or "\0" in (found.user or ""):
            self._login.fail("returned a NUL character, which Postgres cannot take")
        return self._fixed | {"password": found.password} | ({"user": found.user} if found.user else {})


def failure(error: psycopg.Error | OSError, *, ambiguous: bool) -> BackendError:
    """The BackendError for an error of the driver or the system, with advice."""
    said = str(error).strip().splitlines()
    text = said[0] if said else type(error).__name__
    if "no error details" in text:  # as libpq reports that it cannot open a socket
        text += "; has this process reached its limit of open files?"
    elif isinstance(error, errors.ReadOnlySqlTransaction):
        text += "; this is a standby: name the primary, or several hosts, of which the writable one is taken"
    elif isinstance(error, errors.InsufficientPrivilege):
        text += (
            "; let the database's owner run fencepost/backends/postgres/schema.sql, and grant what its top names: "
            "the schema, its tables, sequences and functions"
        )
    return BackendError(f"Postgres: {text}", backend="postgresql", ambiguous=ambiguous)


def _bounded(work: Generator[Any, Any, Any], patience: float) -> Generator[Any, Any, Any]:
    """psycopg's protocol generator; it is given up if the server is silent after ``patience`` seconds."""
    until = boottime() + patience
    try:
        state = next(work)
        while True:
            ready = yield state
            if not ready and boottime() > until:  # psycopg sends 0 now and then while nothing arrives
                raise psycopg.OperationalError(f"no answer within {patience:g} s")
            state = work.send(ready)
    except StopIteration as end:
        return end.value
    finally:
        work.close()  # or a connection that is being opened would live as long as the error that ended it


def _cause(error: psycopg.Error) -> BaseException:
    """What really ended a statement: the interruption, if there was one.

    psycopg then asks the server to cancel the statement. If the server does not answer that, psycopg raises an error
    that hides the interruption.
    """
    hidden = error.__context__
    return hidden if isinstance(hidden, (asyncio.CancelledError, KeyboardInterrupt)) else error


class BlockingLink(psycopg.Connection[Any]):
    """A connection that gives up a statement if the server is silent after ``patience`` seconds."""

    patience = 10.0
    pid = 0

    def __del__(self, *_: object) -> None:
        """Do not warn: a caller that drops its locks unclosed never saw this connection, which ends with them."""

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
        # libpq's timeout has whole seconds and counts for each host; the caller may want to wait less. asyncio needs no
        # such limit: it cancels the attempt.
        return _bounded(super()._connect_gen(*args, **options), within(inf))

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        try:
            bounded = _bounded(gen, within(self.patience))
            if hasattr(select, "poll"):
                return interruptible(partial(super().wait, bounded, *args, **options))
            # With eventlet, psycopg would wait in C and block all other greenlets. On Windows psycopg waits like this.
            return interruptible(partial(waiting.wait_selector, bounded, self.pgconn.socket, *args, **options))
        except psycopg.Error as error:
            raise _cause(error) from None


class AsyncioLink(psycopg.AsyncConnection[Any]):
    """The same as ``BlockingLink``, for asyncio."""

    patience = 10.0
    pid = 0

    def __del__(self, *_: object) -> None:
        """Do not warn, as in ``BlockingLink``."""

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        try:
            return await super().wait(_bounded(gen, within(self.patience)), *args, **options)
        except psycopg.Error as error:
            raise _cause(error) from None


Link: TypeAlias = BlockingLink | AsyncioLink


async def connect(kind: type[Link], target: Target) -> Link:
    """A new connection; BackendError if it cannot be opened."""
    info = await target.parameters()
    try:
        opened: Any = interruptible(partial(kind.connect, **info, autocommit=True, prepare_threshold=None))
        link: Link = await settle(opened)
    except (psycopg.Error, OSError) as error:  # OSError if no descriptor is left
        # Without its traceback: that would keep a connection that was given up open for as long as the error lives.
        raise failure(error, ambiguous=False) from error.with_traceback(None)
    if link.info.server_version < OLDEST * 10_000:
        found = link.info.parameter_status("server_version")
        link.pgconn.finish()
        text = f"Postgres: this is version {found}; fencepost needs Postgres {OLDEST} or newer"
        raise BackendError(text, backend="postgresql", ambiguous=False)
    link.patience = target.patience
    link.pid = link.info.backend_pid  # libpq forgets it when the connection breaks
    return link


def astray(link: Any) -> psycopg.OperationalError:
    """The error for an answer that does not belong to the statement; closes the connection, which is out of step."""
    link.pgconn.finish()
    return psycopg.OperationalError("the server sent an answer to another statement")


async def ask(
    link: Any, sql: str, args: Sequence[Any] | None = None, kinds: Sequence[type | UnionType] | None = None
) -> list[Any]:
    """All rows that one statement returns; their columns must be of these ``kinds``."""
    cursor = await settle(link.execute(sql, args))
    if kinds is not None and cursor.description is None:
        raise astray(link)
    rows: list[Any] = await settle(cursor.fetchall()) if cursor.description else []
    for row in rows if kinds is not None else ():
        if len(row) != len(kinds or ()) or not all(map(isinstance, row, kinds or ())):
            raise astray(link)
    return rows


async def one(link: Any, sql: str, kinds: Sequence[type | UnionType]) -> Any:
    """The row of a statement that returns exactly one."""
    rows = await ask(link, sql, kinds=kinds)
    if len(rows) != 1:
        raise astray(link)
    return rows[0]


async def tell(link: Any, sql: str) -> None:
    """Execute a statement that the server confirms with the statement's first word, such as LISTEN."""
    cursor = await settle(link.execute(sql))
    if cursor.statusmessage != sql.partition(" ")[0]:
        raise astray(link)


async def pooled(link: Link) -> bool:
    """Whether a pooler is in between: it cannot tell the client the pid of the session that will run a statement."""
    return bool(await one(link, "SELECT pg_backend_pid()", (int,)) != (link.info.backend_pid,))


class Call:
    """A statement that returns one value, sent with libpq's fastest function."""

    def __init__(self, name: str, sql: str, answer: str) -> None:
        self._name = name.encode()
        self._sql = sql.encode()
        self._fits = re.compile(answer).fullmatch

    @classmethod
    def of(cls, schema: str, function: str, arity: int, answer: str) -> "Call":
        """The call of a function of the schema; ``answer`` is a regular expression for what it returns."""
        return cls(function, f"SELECT {schema}.{function}({', '.join(f'${n}' for n in range(1, arity + 1))})", answer)

    async def prepare(self, link: Link) -> None:
        await tell(link, f"PREPARE {self._name.decode()} AS {self._sql.decode()}")

    async def make(self, link: Any, args: Sequence[str | None], *, prepared: bool) -> str | None:
        """The value as Postgres writes it; None for a null."""
        sent = [None if arg is None else arg.encode() for arg in args]
        if prepared:
            link.pgconn.send_query_prepared(self._name, sent)
        else:
            link.pgconn.send_query_params(self._sql, sent)
        *_, result = await settle(link.wait(execute(link.pgconn)))
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result, "utf-8")
        value: bytes | None = result.get_value(0, 0)
        text = None if value is None else value.decode()
        if (result.ntuples, result.nfields) != (1, 1) or not self._fits(text or ""):
            raise astray(link)
        return text


def _schema() -> str:
    return resources.files("fencepost.backends.postgres").joinpath("schema.sql").read_text("utf-8")


def contents(kind: str) -> list[str]:
    """The names of the tables or functions in a schema."""
    return sorted(set(re.findall(rf"^CREATE .*{kind} .*fencepost\.(\w+) ?\(", _schema(), re.MULTILINE)))


async def create(link: Link, schema: str) -> None:
    """Create the schema, or bring an earlier revision of it up to date; ConfigError if it is of another version."""
    try:
        if _known(schema, *await one(link, f"SELECT {schema}.version(), {schema}.revision()", (int, int))):
            return
    except _NO_SCHEMA:
        pass
    sql = _schema().replace("fencepost.", f"{schema}.").replace("EXISTS fencepost", f"EXISTS {schema}")
    await tell(link, "BEGIN")
    try:
        # One client creates the schema; the others wait, and then find it.
        await ask(link, f"SELECT pg_advisory_xact_lock(hashtextextended('create {schema}', 0))")
        if not await _there(link, schema):
            await ask(link, sql)
        await tell(link, "COMMIT")
    except (psycopg.Error, ConfigError):
        if not link.closed:
            await tell(link, "ROLLBACK")
        raise


async def _there(link: Link, schema: str) -> bool:
    """Whether the schema has all that is used here; this also works if the schema does not exist."""
    found = []
    for function in ("version", "revision"):
        if await one(link, f"SELECT to_regprocedure('{schema}.{function}()')", (str | None,)) == (None,):
            found.append(0)
        else:
            found += await one(link, f"SELECT {schema}.{function}()", (int,))
    return found[0] != 0 and _known(schema, *found)


def _known(schema: str, version: int, revision: int) -> bool:
    """Whether a schema has all that is used here; later revisions have it too."""
    if version != _VERSION:
        raise ConfigError(
            f"schema {schema!r} is of version {version}, this fencepost knows {_VERSION}: upgrade the older one"
        )
    return revision >= _REVISION
