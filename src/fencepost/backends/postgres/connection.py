"""One connection to Postgres: where it leads, what is called over it, and what its errors mean."""

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
"""What is not copied from a client."""
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
"""Options that a URL may carry for libpq."""
OLDEST = 14
"""The server's oldest major version that will do: END waits, which older ones do not."""
# Waits so many milliseconds for their end. Ends only sessions of ours: a pid may be somebody else's by now.
END = """SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
    WHERE pid = ANY(%s) AND application_name = current_setting('application_name') AND usename = current_user"""


def conninfo(address: Address, patience: float) -> dict[str, Any]:
    """What libpq needs to connect to ``address``."""
    address.check_hosts()
    given: dict[str, Any] = {
        # An idle connection that was cut is noticed within half a minute, an unanswered one within ``patience``.
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
    """Where connections lead, and who logs in there, which may be another at each of them."""

    def __init__(self, address: Address, patience: float) -> None:
        self.patience = patience
        self._fixed = conninfo(address, patience)
        self._login: Source[Secret] | None = address.login
        self._client: Source[dict[str, str]] | None = address.given.get("conninfo")
        self._login_of: Source[dict[str, str]] | None = address.given.get("login_of")
        """A client whose user and password are taken, and nothing else."""

    async def parameters(self) -> dict[str, Any]:
        """libpq's keywords for the next connection; BackendError if the caller's function fails."""
        if self._client is not None:
            # The time-outs are ours: those of a client are made for other work.
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
    """What a driver's error, or the system's, means to a user of locks."""
    said = str(error).strip().splitlines()
    text = said[0] if said else type(error).__name__
    if "no error details" in text:  # as libpq leaves it when it cannot open a socket
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
    """psycopg's protocol generator, given up once the server has been silent for too long."""
    until = boottime() + patience
    try:
        state = next(work)
        while True:
            ready = yield state
            if not ready and boottime() > until:  # psycopg sends 0 every now and then while nothing comes
                raise psycopg.OperationalError(f"no answer within {patience:g} s")
            state = work.send(ready)
    except StopIteration as end:
        return end.value
    finally:
        work.close()  # or a connection that is being made lives as long as the error that ended it


def _cause(error: psycopg.Error) -> BaseException:
    """What ended a statement: psycopg asks the server to end one that is interrupted, whose silence is no cause."""
    hidden = error.__context__
    return hidden if isinstance(hidden, (asyncio.CancelledError, KeyboardInterrupt)) else error


class BlockingLink(psycopg.Connection[Any]):
    """A connection whose statements are given up after ``patience`` seconds of silence."""

    patience = 10.0
    pid = 0

    def __del__(self, *_: object) -> None:
        """Say nothing: who drops the locks unclosed has never seen this connection, which ends with them."""

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
        # libpq keeps whole seconds, and those for each host: the caller may not wait so long. asyncio cancels it.
        return _bounded(super()._connect_gen(*args, **options), within(inf))

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        try:
            bounded = _bounded(gen, within(self.patience))
            if hasattr(select, "poll"):
                return interruptible(partial(super().wait, bounded, *args, **options))
            # With eventlet, psycopg would wait in C and stop all other greenlets; on Windows this is its own way.
            return interruptible(partial(waiting.wait_selector, bounded, self.pgconn.socket, *args, **options))
        except psycopg.Error as error:
            raise _cause(error) from None


class AsyncioLink(psycopg.AsyncConnection[Any]):
    """The same, for asyncio."""

    patience = 10.0
    pid = 0

    def __del__(self, *_: object) -> None:
        """Say nothing, as above."""

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        try:
            return await super().wait(_bounded(gen, within(self.patience)), *args, **options)
        except psycopg.Error as error:
            raise _cause(error) from None


Link: TypeAlias = BlockingLink | AsyncioLink


async def connect(kind: type[Link], target: Target) -> Link:
    """A new connection; BackendError if the server gives none."""
    info = await target.parameters()
    try:
        opened: Any = interruptible(partial(kind.connect, **info, autocommit=True, prepare_threshold=None))
        link: Link = await settle(opened)
    except (psycopg.Error, OSError) as error:  # the latter where no descriptor is left
        # Without its traceback, which keeps a connection that was given up open as long as somebody has the error.
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
    """What to raise for an answer to something else than was asked; the connection is of no more use."""
    link.pgconn.finish()
    return psycopg.OperationalError("the server sent an answer to another statement")


async def ask(
    link: Any, sql: str, args: Sequence[Any] | None = None, kinds: Sequence[type | UnionType] | None = None
) -> list[Any]:
    """All rows that one statement answers; their columns are of these ``kinds``."""
    cursor = await settle(link.execute(sql, args))
    if kinds is not None and cursor.description is None:
        raise astray(link)
    rows: list[Any] = await settle(cursor.fetchall()) if cursor.description else []
    for row in rows if kinds is not None else ():
        if len(row) != len(kinds or ()) or not all(map(isinstance, row, kinds or ())):
            raise astray(link)
    return rows


async def one(link: Any, sql: str, kinds: Sequence[type | UnionType]) -> Any:
    """The row of a statement that answers one."""
    rows = await ask(link, sql, kinds=kinds)
    if len(rows) != 1:
        raise astray(link)
    return rows[0]


async def tell(link: Any, sql: str) -> None:
    """Carry out a statement that answers with its own first word."""
    cursor = await settle(link.execute(sql))
    if cursor.statusmessage != sql.partition(" ")[0]:
        raise astray(link)


async def pooled(link: Link) -> bool:
    """Whether a pooler stands in between: it cannot know the pid of the session that a statement will meet."""
    return bool(await one(link, "SELECT pg_backend_pid()", (int,)) != (link.info.backend_pid,))


class Call:
    """A statement that answers one value, sent by the shortest way that libpq has."""

    def __init__(self, name: str, sql: str, answer: str) -> None:
        self._name = name.encode()
        self._sql = sql.encode()
        self._fits = re.compile(answer).fullmatch

    @classmethod
    def of(cls, schema: str, function: str, arity: int, answer: str) -> "Call":
        """The call of a function of the schema, whose answer looks so."""
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
    """The names of the tables or functions that a schema has."""
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
        # One creates it; the others wait, and then find it there.
        await ask(link, f"SELECT pg_advisory_xact_lock(hashtextextended('create {schema}', 0))")
        if not await _there(link, schema):
            await ask(link, sql)
        await tell(link, "COMMIT")
    except (psycopg.Error, ConfigError):
        if not link.closed:
            await tell(link, "ROLLBACK")
        raise


async def _there(link: Link, schema: str) -> bool:
    """Whether the schema has all that is used here, asked so that nothing fails if it has nothing."""
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
