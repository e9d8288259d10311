"""libpq's keywords, from the arguments with which a client connects to Postgres."""

import inspect
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from typing import Any

from fencepost.address import Address
from fencepost.credentials import Source, Unusable
from fencepost.driver import Driver
from fencepost.errors import ConfigError

Keywords = dict[str, str]
Told = Mapping[str, Any] | Awaitable[Mapping[str, Any]]
"""The arguments with which a client connects; in asyncio code they may have to be awaited."""

_OF_PYTHON = {
    "async_",
    "autocommit",
    "connection_factory",
    "context",
    "cursor_factory",
    "prepare_threshold",
    "row_factory",
    "server_cursor_factory",
}
"""Arguments of psycopg's connect() that are not libpq's: they only matter to Python code."""
_SPELLED = (str, int, float, PurePath, IPv4Address, IPv6Address)
"""The types that psycopg converts with str() for libpq."""
_ASYNCPG = {"dbname": "database"} | {
    name: name
    for name in ("host", "port", "user", "password", "passfile", "target_session_attrs", "krbsrvname", "gsslib")
}
_OF_ASYNCPG = {
    "async_fallback",
    "command_timeout",
    "connection_class",
    "loop",
    "max_cacheable_statement_size",
    "max_cached_statement_lifetime",
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "record_class",
    "server_settings",
    "ssl",
    "statement_cache_size",
    "timeout",
}


def address(tell: Callable[[], Told], driver: Driver, what: str) -> Address:
    """The address of a client; ``tell`` returns the arguments with which it would open its next connection."""

    def ask() -> Told:
        with _readable():
            return tell()

    def read(told: Any) -> Keywords:
        with _readable():
            return keywords(told)

    source = Source(ask, read, driver, scheme="postgresql", what=what)
    return Address("postgresql", given={"conninfo": source})


@contextmanager
def _readable() -> Iterator[None]:
    """Report what cannot be copied, also if that is found only when a connection is opened."""
    try:
        yield
    except ConfigError as error:
        raise Unusable(f"cannot be copied: {error}") from None


def keywords(told: Mapping[str, Any], dsn: str = "") -> Keywords:
    """libpq's keywords among the arguments of psycopg's connect(); ConfigError for unknown ones."""
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import ProgrammingError
    from psycopg.pq import Conninfo

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    kept = {}
    for name, value in told.items():
        if name in _OF_PYTHON or value is None:
            continue
        if name == "database":
            name = "dbname"  # psycopg2 takes both
        if name not in known:
            raise ConfigError(f"libpq has no option {name!r}; leave it out, or give connect() a postgresql:// URL")
        if not isinstance(value, _SPELLED):
            raise ConfigError(f"option {name!r} is a {type(value).__name__}, which libpq cannot take")
        kept[name] = str(int(value)) if isinstance(value, bool) else str(value)
        if "\0" in kept[name]:
            raise ConfigError(f"option {name!r} has a NUL character in it")
    try:
        given = conninfo_to_dict(dsn)
    except ProgrammingError:  # its text repeats the whole conninfo, with the password
        raise ConfigError("the conninfo of the client cannot be parsed") from None
    return {name: str(value) for name, value in given.items() if value is not None} | kept


def from_connection(made: Any) -> Keywords:
    """The keywords of a connection that the caller's function opened; closes it, or gives it back to its pool."""
    try:
        return opened_with(made)
    finally:
        pool: Any = getattr(made, "_pool", None)
        if hasattr(pool, "putconn"):  # psycopg's pool would wait forever for a connection that was closed
            pool.putconn(made)
        else:
            made.close()


def opened_with(made: Any) -> Keywords:
    """The keywords with which a connection was opened; leaves it open."""
    info: Any = getattr(made, "info", None)
    if hasattr(info, "get_parameters"):  # psycopg
        told = dict(info.get_parameters())
    elif hasattr(info, "dsn_parameters"):  # psycopg2
        told = dict(info.dsn_parameters)
    else:
        raise Unusable(
            f"makes connections of {type(made).__module__}, which do not tell how they were opened; give connect() a "
            f"URL and credentials="
        )
    told["password"] = info.password or None
    return keywords(told)


def from_asyncpg(told: Mapping[str, Any]) -> Told:
    """The arguments of asyncpg's connect() as libpq's keywords; an awaitable if the password must be awaited."""
    for name in told:
        if name not in _ASYNCPG.values() and name not in _OF_ASYNCPG and told[name] is not None:
            raise ConfigError(f"asyncpg's {name!r} cannot be copied; give connect() a URL and credentials=")
    kept = {name: told[theirs] for name, theirs in _ASYNCPG.items() if told.get(theirs) is not None}
    for name in ("host", "port"):
        if isinstance(kept.get(name), Sequence) and not isinstance(kept[name], str):
            kept[name] = ",".join(map(str, kept[name]))
    kept |= _asyncpg_tls(told.get("ssl"))
    settings = dict(told.get("server_settings") or {})
    if "application_name" in settings:
        kept["application_name"] = settings.pop("application_name")
    if settings:
        kept["options"] = " ".join(setting(name, value) for name, value in settings.items())
    if not callable(kept.get("password")):
        return kept
    password = kept["password"]()
    if inspect.isawaitable(password):
        return _with_password(kept, password)
    return kept | {"password": password}


def from_pg8000(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of pg8000's connect() as libpq's keywords."""
    known = {"dbname": "database", "host": "host", "port": "port", "user": "user", "password": "password"}
    known["application_name"] = "application_name"
    kept = {name: told[theirs] for name, theirs in known.items() if told.get(theirs) is not None}
    for name in told.keys() - set(known.values()) - {"timeout", "tcp_keepalive"}:
        if told[name]:
            raise ConfigError(f"pg8000's {name!r} cannot be copied; give connect() a postgresql:// URL")
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in kept.items()}


async def _with_password(kept: dict[str, Any], password: Awaitable[Any]) -> Mapping[str, Any]:
    return kept | {"password": await password}


def _asyncpg_tls(wish: Any) -> dict[str, str]:
    if isinstance(wish, ssl.SSLContext):
        raise ConfigError(
            "asyncpg's ssl= is an SSLContext, which libpq cannot take; give it sslmode's words, such as "
            "ssl='verify-full', or give connect() a postgresql:// URL with sslmode= and sslrootcert="
        )
    if wish is None:
        return {}
    if isinstance(wish, bool):  # True verifies, with the certificates that the system trusts
        return {"sslmode": "verify-full", "sslrootcert": "system"} if wish else {"sslmode": "disable"}
    return {"sslmode": str(getattr(wish, "name", wish)).replace("_", "-")}


def setting(name: str, value: object) -> str:
    """A setting of the server, in the syntax of libpq's ``options``."""
    return f"-c {name}=" + re.sub(r"([\\\s])", r"\\\1", str(value))
