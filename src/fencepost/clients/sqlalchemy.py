"""SQLAlchemy's engines, for Postgres and SQLite."""

import inspect
from typing import Any

from fencepost.address import Address
from fencepost.clients import postgres, sqlite
from fencepost.clients.postgres import Told
from fencepost.credentials import Unusable
from fencepost.driver import Driver
from fencepost.errors import ConfigError

_DRIVERS = ("psycopg", "psycopg_async", "psycopg2", "asyncpg", "pg8000")
_UNTOLD = "this version of SQLAlchemy does not tell how it connects; give connect() a URL"


def engine(client: Any, driver: Driver) -> Address:
    """The address of an Engine or an AsyncEngine."""
    within = getattr(client, "sync_engine", client)
    dialect = within.dialect
    if dialect.name == "sqlite":
        if dialect.driver not in ("pysqlite", "aiosqlite"):
            raise ConfigError(f"sqlite+{dialect.driver}:// opens files that only it can read; give connect() a URL")
        if _arguments(within) is None:
            raise ConfigError("this engine has a creator= of its own; give connect() the file: sqlite:///path.db")
        cargs, cparams = _arguments(within) or ([], {})
        return sqlite.address(str(cargs[0] if cargs else cparams.get("database", "")), uri=bool(cparams.get("uri")))
    if dialect.name != "postgresql" or dialect.driver not in _DRIVERS:
        raise ConfigError(
            f"this engine is for {dialect.name}+{dialect.driver}; fencepost has locks behind engines for SQLite, and "
            f"for PostgreSQL with psycopg, psycopg2, asyncpg or pg8000"
        )
    if _arguments(within) is None:
        if dialect.is_async:
            raise ConfigError(
                "this engine opens its connections by a function of its own, which only SQLAlchemy can call; give "
                "connect() a URL and credentials="
            )
    elif not _events(within):
        told = _keywords(within, *(_arguments(within) or ([], {})), ask=False)
        if not inspect.isawaitable(told):
            postgres.keywords(told)  # raises now if something cannot be copied
    return postgres.address(lambda: _tell(within), driver, "the SQLAlchemy engine")


def _arguments(engine: Any) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments for the driver's connect(), with ``connect_args``; None if a function of the user calls that."""
    creator = getattr(engine.pool, "_creator", None)
    if creator is None:
        raise ConfigError(_UNTOLD)
    if getattr(creator, "__module__", "") != "sqlalchemy.engine.create":
        return None
    # SQLAlchemy passes them only to listeners of `do_connect`, and a listener of ours would change the user's engine.
    known = inspect.getclosurevars(creator).nonlocals
    if "cparams" not in known:
        raise ConfigError(_UNTOLD)
    return list(known.get("cargs_tup", known.get("cargs", ()))), dict(known["cparams"])


def _events(engine: Any) -> list[Any]:
    return list(engine.dialect.dispatch.do_connect)


def _tell(engine: Any) -> Told:
    arguments = _arguments(engine)
    if arguments is None:
        made = engine.pool._creator() if _takes_nothing(engine.pool._creator) else engine.pool._creator(None)
        return postgres.from_connection(made)
    cargs, cparams = arguments
    for listener in _events(engine):
        made = _told(listener, engine.dialect, cargs, cparams)
        if made is not None:
            return postgres.from_connection(made)
    return _keywords(engine, cargs, cparams)


def _told(listener: Any, dialect: Any, cargs: list[Any], cparams: dict[str, Any]) -> Any:
    from sqlalchemy.exc import MissingGreenlet

    try:
        return listener(dialect, None, cargs, cparams)
    except MissingGreenlet:
        raise Unusable(
            "has a do_connect listener that awaits or connects, which only SQLAlchemy can run; give connect() a URL "
            "and a coroutine function as credentials="
        ) from None


def _takes_nothing(creator: Any) -> bool:
    try:
        inspect.signature(creator).bind()
    except TypeError:
        return False
    return True


def _keywords(engine: Any, cargs: list[Any], cparams: dict[str, Any], *, ask: bool = True) -> Told:
    if engine.dialect.driver == "pg8000":
        return postgres.from_pg8000(cparams)
    if engine.dialect.driver != "asyncpg":
        if len(cargs) > 1 or not all(isinstance(each, str) for each in cargs):
            raise Unusable("passes arguments that cannot be copied")
        return postgres.keywords(cparams, cargs[0] if cargs else "")
    if not ask and callable(cparams.get("password")):
        cparams = cparams | {"password": None}
    return postgres.from_asyncpg(cparams)
