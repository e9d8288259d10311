"""The connections that the SQL guards take, behind one interface, each used as people really use it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import django
import psycopg
import sqlalchemy
from django.conf import settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from fencepost.driver import settle
from fencepost.guards import aio, postgres, sqlite

Opened = AbstractAsyncContextManager[Any]


@dataclass(frozen=True)
class Kind:
    """A kind of connection to one kind of database; ``begin`` is how its users open a transaction."""

    guard: ModuleType
    """The guard for it: of `fencepost.guards`, or its twin for asyncio."""
    open: Callable[[str], Opened]
    begin: Callable[[Any], Any]
    loose: bool = False
    """Whether a connection can be in no transaction at all."""

    @property
    def twin(self) -> ModuleType:
        """The guard that must refuse such a connection."""
        pairs = {postgres: aio.postgres, sqlite: aio.sqlite}
        return pairs.get(self.guard) or {there: here for here, there in pairs.items()}[self.guard]

    @asynccontextmanager
    async def transaction(self, conn: Any) -> AsyncIterator[None]:
        begun = self.begin(conn)
        if hasattr(begun, "__aenter__"):
            async with begun:
                yield
        else:
            with begun:
                yield


async def execute(conn: Any, sql: str) -> list[Any]:
    """All rows of a statement, however this connection takes it."""
    if hasattr(conn, "in_atomic_block"):
        with conn.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []
    statement: Any = sqlalchemy.text(sql) if hasattr(conn, "in_nested_transaction") else sql
    found = await settle(conn.execute(statement))
    if getattr(found, "returns_rows", False) or getattr(found, "description", None):
        rows: list[Any] = await settle(found.fetchall())
        return [tuple(row) for row in rows]
    return []


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as conn:
        conn.row_factory = psycopg.rows.tuple_row  # type: ignore[assignment]  # as any caller may
        yield conn


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        yield conn


@asynccontextmanager
async def _sqlite3(path: str) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(path, timeout=30)) as conn:
        yield conn


def _alchemy(dialect: str, *, session: bool = False) -> Callable[[str], Opened]:
    @asynccontextmanager
    async def open(address: str) -> AsyncIterator[Any]:
        engine = sqlalchemy.create_engine(_address(dialect, address), poolclass=NullPool)
        try:
            with Session(engine) if session else engine.connect() as conn:
                yield conn
        finally:
            engine.dispose()

    return open


def _alchemy_async(dialect: str, *, session: bool = False) -> Callable[[str], Opened]:
    @asynccontextmanager
    async def open(address: str) -> AsyncIterator[Any]:
        engine = create_async_engine(_address(dialect, address), poolclass=NullPool)
        try:
            async with AsyncSession(engine) if session else engine.connect() as conn:
                yield conn
        finally:
            await engine.dispose()

    return open


def _address(dialect: str, address: str) -> str:
    if dialect.startswith("sqlite"):
        return f"{dialect}:///{address}"
    return f"{dialect}://{address.partition('://')[2]}"


def django_settings(postgres_url: str, sqlite_path: str) -> None:
    """Django has one set of databases for a whole process, and must be told that a test's event loop may block."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    info = psycopg.conninfo.conninfo_to_dict(postgres_url)
    pg = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": info["dbname"],
        "USER": info["user"],
        "HOST": info["host"],
        "PORT": info["port"],
        "OPTIONS": {"options": info["options"]},
    }
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": sqlite_path}
    settings.configure(DATABASES={"default": {}, "postgres": pg, "sqlite": lite})
    django.setup()


def _django(alias: str) -> Callable[[str], Opened]:
    @asynccontextmanager
    async def open(_: str) -> AsyncIterator[Any]:
        from django.db import connections

        try:
            yield connections[alias]
        finally:
            connections[alias].close()

    return open


def _atomic(conn: Any) -> Any:
    from django.db import transaction

    return transaction.atomic(using=conn.alias)


def _own(conn: Any) -> Any:
    return conn.transaction()


def _begin(conn: Any) -> Any:
    return conn.begin()


def _plain(conn: sqlite3.Connection) -> Any:
    conn.execute("BEGIN")
    return conn


KINDS: dict[str, Kind] = {
    "psycopg": Kind(postgres, _psycopg, _own, loose=True),
    "psycopg-async": Kind(aio.postgres, _psycopg_async, _own, loose=True),
    "postgres-alchemy": Kind(postgres, _alchemy("postgresql+psycopg"), _begin),
    "postgres-alchemy-session": Kind(postgres, _alchemy("postgresql+psycopg", session=True), _begin),
    "postgres-alchemy-async": Kind(aio.postgres, _alchemy_async("postgresql+psycopg"), _begin),
    "postgres-alchemy-async-session": Kind(aio.postgres, _alchemy_async("postgresql+psycopg", session=True), _begin),
    "postgres-django": Kind(postgres, _django("postgres"), _atomic, loose=True),
    "sqlite3": Kind(sqlite, _sqlite3, _plain),
    "sqlite-alchemy": Kind(sqlite, _alchemy("sqlite"), _begin),
    "sqlite-alchemy-session": Kind(sqlite, _alchemy("sqlite", session=True), _begin),
    "sqlite-alchemy-async": Kind(aio.sqlite, _alchemy_async("sqlite+aiosqlite"), _begin),
    "sqlite-alchemy-async-session": Kind(aio.sqlite, _alchemy_async("sqlite+aiosqlite", session=True), _begin),
    "sqlite-django": Kind(sqlite, _django("sqlite"), _atomic, loose=True),
}
