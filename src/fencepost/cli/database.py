"""The user's own database, SQLite or Postgres, where marks, runs and sagas are kept."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fencepost.address import libpq, parse
from fencepost.errors import BackendError, ConfigError
from fencepost.registry import find

Database = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="FENCEPOST_DATABASE",
        help="postgresql://... or sqlite:///path; default: $FENCEPOST_DATABASE.",
    ),
]


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """A connection, committed at the end of the block. Raises BackendError for the driver's errors; ConfigError."""
    if url.startswith("sqlite:"):
        with _sqlite(url) as conn:
            yield conn
    elif url.startswith(("postgres://", "postgresql://")):
        with _postgres(url) as conn:
            yield conn
    else:
        raise ConfigError(f"name the database as postgresql://... or sqlite:///path, not {url.partition(':')[0]!r}")


@asynccontextmanager
async def connected_async(url: str) -> AsyncIterator[Any]:
    """The same for asyncio; only for Postgres, since the standard library has no SQLite for asyncio."""
    if not url.startswith(("postgres://", "postgresql://")):
        raise ConfigError("what is made for asyncio is driven from here in Postgres only; call it in your own program")
    with _postgres_errors() as psycopg:
        async with await psycopg.AsyncConnection.connect(**_libpq(url)) as conn:
            yield conn


def _libpq(url: str) -> dict[str, Any]:
    address = parse(url)
    # From a database of encoding SQL_ASCII, psycopg gives text as bytes unless told what it is.
    return {"client_encoding": "UTF8", **libpq(address), **address.params}


@contextmanager
def _postgres(url: str) -> Iterator[Any]:
    with _postgres_errors() as psycopg, psycopg.connect(**_libpq(url)) as conn:
        yield conn


@contextmanager
def _postgres_errors() -> Iterator[Any]:
    find("postgresql")  # names the pip command if psycopg is missing
    import psycopg

    try:
        yield psycopg
    except psycopg.Error as error:
        # libpq's messages name host and user, never the password.
        raise BackendError(f"Postgres: {error}", backend="postgres", ambiguous=False) from None


@contextmanager
def _sqlite(url: str) -> Iterator[Any]:
    import sqlite3

    path = url.removeprefix("sqlite:").removeprefix("//")
    if not path:
        raise ConfigError("name the file: sqlite:///path/to/app.sqlite3")
    if not Path(path).exists():  # SQLite would make an empty one
        raise ConfigError(f"there is no SQLite file {path!r}; name the one that the program writes to")
    try:
        with closing(sqlite3.connect(path, timeout=30)) as conn, conn:
            yield conn
    except sqlite3.Error as error:
        raise BackendError(f"SQLite: {error}", backend="sqlite", ambiguous=False) from None
