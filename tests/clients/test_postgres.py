"""Postgres behind a password that changes, SQLAlchemy's engines, psycopg's pools and Django's connections."""

import asyncio
import secrets
import sqlite3
import ssl
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

import fencepost
from fencepost import aio
from fencepost.clients import postgres
from fencepost.errors import BackendError, ConfigError
from tests.clients.rotation import Told, goes_on
from tests.conformance.faces import FACES, Client
from tests.harness.isolated import isolated
from tests.harness.servers import Endpoint
from tests.harness.waiting import until_async

ODD = "p@ss:/?#[]% ☃'\"\\"


@dataclass
class Role:
    """A user of the shared server's own, with a schema for its locks."""

    server: str
    name: str = field(default_factory=lambda: f"app_{secrets.token_hex(4)}")
    password: str = ODD

    def tell(self, sql: str) -> list[Any]:
        with psycopg.connect(self.server, autocommit=True) as conn:
            cursor = conn.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def change(self, password: str) -> str:
        quoted = password.replace("'", "''")
        self.tell(f"ALTER ROLE {self.name} PASSWORD '{quoted}'")
        self.password = password
        return password

    @property
    def sessions(self) -> list[str]:
        """The application_name of each."""
        found = self.tell(f"SELECT application_name FROM pg_stat_activity WHERE usename = '{self.name}'")
        return sorted(name for (name,) in found)

    @property
    def place(self) -> str:
        return urlsplit(self.server).netloc.rpartition("@")[2]

    @property
    def url(self) -> str:
        return f"postgresql://{self.name}@{self.place}/postgres"

    def engine(self, driver: str, *, password: bool = True) -> str:
        """The URL as SQLAlchemy has it."""
        login = f"{self.name}:{quote(self.password, safe='')}" if password else self.name
        return f"postgresql+{driver}://{login}@{self.place}/postgres"

    @property
    def options(self) -> dict[str, str]:
        return {"schema": self.name}


@pytest.fixture
def role(postgres_server: Endpoint) -> Iterator[Role]:
    made = Role(postgres_server.url)
    made.tell(f"CREATE ROLE {made.name} LOGIN IN ROLE postgres")  # the database's owner: it may create a schema
    made.change(ODD)
    yield made
    made.tell(f"DROP OWNED BY {made.name}; DROP ROLE {made.name}")


async def works(face: str, client: Any, role: Role, named: str = "fencepost") -> None:
    """A lock is acquired through a copy of the client, as this role and under this application_name."""
    locks = Client(face, client, options=role.options)
    hold = await locks.acquire("a", timeout=60)
    assert named in role.sessions
    assert await hold.release()
    await locks.close()


# Credentials


@pytest.mark.parametrize("face", FACES)
async def test_a_password_is_replaced_while_a_listener_is_connected(role: Role, face: str) -> None:
    told = Told(role.password)

    def rotate() -> str:
        role.change("next")
        ended = role.tell(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role.name}'")
        assert len(ended) >= 3, "those of the holder, the waiter, and its listener"
        return "next"

    await goes_on(f"{role.url}?schema={role.name}", face, told, rotate)


async def test_the_function_may_name_the_user(role: Role) -> None:
    url = role.url.replace(f"{role.name}@", "")
    async with aio.connect(f"{url}?schema={role.name}", credentials=lambda: (role.name, role.password)) as locks:
        assert await (await locks.acquire("a")).release()


def test_a_nul_is_refused() -> None:
    locks = fencepost.connect("postgresql://h", credentials=lambda: "a\0b")
    with locks, pytest.raises(BackendError, match="NUL"):
        locks.acquire("a", timeout=1)


# SQLAlchemy


@pytest.mark.parametrize(("face", "driver"), [("blocking", "psycopg"), ("asyncio", "psycopg"), ("asyncio", "asyncpg")])
async def test_an_engine_s_url_and_connect_args_are_copied(role: Role, face: str, driver: str) -> None:
    make: Any = sqlalchemy.create_engine if face == "blocking" else create_async_engine
    named: dict[str, Any] = {"application_name": "the shop"}
    arguments = {"server_settings": named | {"work_mem": "1MB"}} if driver == "asyncpg" else named
    await works(face, make(role.engine(driver), connect_args=arguments), role, "the shop")


async def test_do_connect_is_heard_for_each_connection(role: Role) -> None:
    engine = sqlalchemy.create_engine(role.engine("psycopg", password=False))
    calls: list[str] = []

    @sqlalchemy.event.listens_for(engine, "do_connect")
    def token(dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> None:
        calls.append(role.password)
        cparams["password"] = role.password

    await works("blocking", engine, role)
    role.change("next")
    await works("blocking", engine, role)
    assert set(calls) == {ODD, "next"}


def test_what_do_connect_adds_and_cannot_be_copied_is_named() -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://h")
    sqlalchemy.event.listen(engine, "do_connect", lambda dialect, record, cargs, cparams: cparams.update(tunnel=1))
    said = r"the SQLAlchemy engine of postgresql:// cannot be copied: libpq has no option 'tunnel'"
    with fencepost.connect(engine) as locks, pytest.raises(BackendError, match=said):
        locks.acquire("a", timeout=10)


class _Token:
    def __await__(self) -> Generator[Any, Any, str]:
        yield
        return "password"


async def test_a_listener_of_do_connect_that_awaits_is_named() -> None:
    engine = create_async_engine("postgresql+asyncpg://h")

    @sqlalchemy.event.listens_for(engine.sync_engine, "do_connect")
    def token(dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> None:
        cparams["password"] = await_only(_Token())

    async with aio.connect(engine) as locks:
        with pytest.raises(BackendError, match=r"do_connect listener that awaits.*coroutine function as credentials="):
            await locks.acquire("a", timeout=10)


@pytest.mark.parametrize("takes_record", [False, True])
async def test_a_creator_s_connection_is_looked_at_and_closed(role: Role, takes_record: bool) -> None:
    made: list[psycopg.Connection[Any]] = []

    def create() -> Any:
        made.append(psycopg.connect(role.url, password=role.password, application_name="made"))
        return made[-1]

    creator: Any = (lambda record: create()) if takes_record else create
    await works("blocking", sqlalchemy.create_engine("postgresql+psycopg://", creator=creator), role, "made")
    assert made
    assert all(each.closed for each in made)


async def test_a_creator_s_connection_goes_back_to_its_pool(role: Role) -> None:
    with psycopg_pool.ConnectionPool(role.url, kwargs={"password": role.password}, max_size=1, min_size=1) as pool:
        await works("blocking", sqlalchemy.create_engine("postgresql+psycopg://", creator=pool.getconn), role)
        pool.wait()
        assert pool.get_stats()["pool_available"] == 1


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_password_that_asyncpg_would_ask_for(role: Role, awaited: bool) -> None:
    told = Told(role.password)
    engine = create_async_engine(
        role.engine("asyncpg", password=False), connect_args={"password": told.awaited if awaited else told}
    )
    await works("asyncio", engine, role)
    assert told.calls >= 1


def test_what_other_drivers_are_given_is_said_in_libpq_s_words() -> None:
    place = {"host": "h", "port": 1, "database": "d", "user": "u", "password": "p"}
    said = {"host": "h", "port": 1, "dbname": "d", "user": "u", "password": "p"}
    settings = {"application_name": "a b", "search_path": "a,\tb\\", "work_mem": "1MB"}
    assert postgres.from_asyncpg(place | {"server_settings": settings, "timeout": 3, "ssl": "verify-ca"}) == said | {
        "application_name": "a b",
        "options": "-c search_path=a,\\\tb\\\\ -c work_mem=1MB",
        "sslmode": "verify-ca",
    }
    assert postgres.from_asyncpg({"host": ["a", "b"], "port": [1, 2], "ssl": False}) == {
        "host": "a,b",
        "port": "1,2",
        "sslmode": "disable",
    }
    assert postgres.from_asyncpg({"ssl": True}) == {"sslmode": "verify-full", "sslrootcert": "system"}
    assert postgres.from_pg8000(place | {"password": b"p", "timeout": 3, "ssl_context": None}) == said
    with pytest.raises(ConfigError, match="pg8000's 'ssl_context'"):
        postgres.from_pg8000(place | {"ssl_context": True})


async def _made() -> Any: ...


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: create_async_engine("postgresql+asyncpg://h", async_creator=_made), "only SQLAlchemy can call"),
        (
            lambda: create_async_engine(
                "postgresql+asyncpg://h", connect_args={"ssl": ssl.create_default_context(), "timeout": 3}
            ),
            "SSLContext, which libpq cannot take",
        ),
        (lambda: create_async_engine("postgresql+asyncpg://h", connect_args={"dsn": "x"}), "asyncpg's 'dsn'"),
        (lambda: create_async_engine("postgresql+asyncpg://h").connect(), "give its engine"),
        (lambda: sqlalchemy.create_engine("postgresql+psycopg://h"), r"fencepost.connect\(\).*create_async_engine"),
        (lambda: psycopg_pool.ConnectionPool(open=False), "AsyncConnectionPool"),
        (lambda: create_async_engine("sqlite+aiosqlite://"), "in memory"),
    ],
)
async def test_what_cannot_be_copied_for_asyncio_is_refused_with_the_next_step(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        aio.connect(make())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: sqlalchemy.create_engine("postgresql+psycopg://h", connect_args={"nonsense": 1}), "no option 'nons"),
        (lambda: sqlalchemy.create_engine("sqlite://"), "in memory"),
        (lambda: sqlalchemy.create_engine("sqlite://", creator=lambda: None), "creator="),
        (
            lambda: sqlalchemy.create_engine("sqlite:///file:x?mode=memory&uri=true", poolclass=sqlalchemy.QueuePool),
            "not a file",
        ),
        (lambda: sqlalchemy.create_engine("mysql+pymysql://h", module=sqlite3), r"this engine is for mysql\+pymysql"),
        (lambda: create_async_engine("postgresql+psycopg://h"), r"fencepost.aio.connect\(\)"),
        (lambda: psycopg_pool.AsyncConnectionPool(open=False), r"fencepost.aio.connect\(\)"),
        (lambda: psycopg_pool.ConnectionPool("no conninfo = s3cret", open=False), "cannot be parsed$"),
        (lambda: psycopg_pool.ConnectionPool(kwargs={"nonsense": 1}, open=False), "no option 'nonsense'"),
    ],
)
def test_what_cannot_be_copied_is_refused_with_the_next_step(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        fencepost.connect(make())


def test_what_psycopg_itself_spells_is_taken() -> None:
    told = {"connect_timeout": 2.5, "sslrootcert": Path("/ca.pem"), "hostaddr": ip_address("127.0.0.1")}
    spelled = {"connect_timeout": "2.5", "sslrootcert": "/ca.pem", "hostaddr": "127.0.0.1"}
    assert postgres.keywords(told) == spelled
    with pytest.raises(ConfigError, match="option 'password' is a bytes"):
        postgres.keywords({"password": b"x"})


async def test_a_listener_beside_the_pooler_logs_in_as_the_client_does(role: Role) -> None:
    engine = sqlalchemy.create_engine(role.engine("psycopg"))
    locks = Client("blocking", engine, options=role.options | {"listen": role.url, "connect_timeout": 60})
    hold = await locks.acquire("a", timeout=60)
    waiting = asyncio.create_task(locks.acquire("a", timeout=60))
    listens = f"SELECT 1 FROM {role.name}.process WHERE listens"
    await until_async(lambda: role.tell(listens), "it listens", watching=[waiting])
    assert await hold.release()
    assert await (await waiting).release()
    await locks.close()


def test_options_beside_an_engine_cannot_contradict_it() -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://h")
    with pytest.raises(ConfigError, match="'sslmode', which is copied from the client"):
        fencepost.connect(engine, options={"sslmode": "disable"})


# psycopg's pools


@pytest.mark.parametrize("face", FACES)
async def test_a_pool_s_conninfo_and_kwargs_are_copied(role: Role, face: str) -> None:
    kind: Any = psycopg_pool.ConnectionPool if face == "blocking" else psycopg_pool.AsyncConnectionPool
    named = {"password": role.password, "application_name": "the shop", "row_factory": dict_row, "autocommit": True}
    await works(face, kind(role.url, kwargs=named, open=False), role, "the shop")


@pytest.mark.parametrize("face", FACES)
async def test_a_pool_s_functions_are_called_for_each_connection(role: Role, face: str) -> None:
    told = Told({"password": role.password})
    kind: Any = psycopg_pool.ConnectionPool if face == "blocking" else psycopg_pool.AsyncConnectionPool
    pool = kind(lambda: role.url, kwargs=told.on(face), open=False)
    await works(face, pool, role)
    before = told.calls
    told.credentials = {"password": role.change("next")}
    await works(face, pool, role)
    assert told.calls > before >= 1


@pytest.mark.parametrize("face", FACES)
async def test_a_class_of_connections_that_fetches_its_token_itself(role: Role, face: str) -> None:
    class Fetching(psycopg.Connection[Any]):
        @classmethod
        def connect(cls, *args: Any, **options: Any) -> Any:
            return super().connect(*args, **options, password=role.password)

    class AsyncFetching(psycopg.AsyncConnection[Any]):
        @classmethod
        async def connect(cls, *args: Any, **options: Any) -> Any:
            return await super().connect(*args, **options, password=role.password)

    pool: Any
    if face == "blocking":
        pool = psycopg_pool.ConnectionPool(role.url, connection_class=Fetching, open=False)
    else:
        pool = psycopg_pool.AsyncConnectionPool(role.url, connection_class=AsyncFetching, open=False)
    await works(face, pool, role)


# Django


@isolated
async def test_a_database_of_django_s_as_it_is_when_the_connection_is_opened(
    postgres_server: Endpoint, tmp_path: Path
) -> None:
    from tests.contrib.django import site

    url = f"{postgres_server.url}?options=-csearch_path%3Dpublic"
    site.begin(url, {"DATABASE": "default", "OPTIONS": {"schema": "django_locks"}, "TTL": 30})

    from django.core.checks import run_checks
    from django.db import connection, connections
    from django.db.backends.postgresql.base import DatabaseWrapper
    from django.test import override_settings

    from fencepost.contrib.django import locks

    with locks.lock("a", timeout=60) as lease:
        assert lease.ttl == 30
    role = Role(postgres_server.url)
    role.tell(f"CREATE ROLE {role.name} NOLOGIN IN ROLE postgres")
    default = connections["default"]
    default.settings_dict["OPTIONS"] |= {"assume_role": role.name, "application_name": "site"}
    for each in (default, connection):
        with fencepost.connect(each, options={"schema": role.name}) as own, own.lock("a", timeout=60):
            owner = f"SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = '{role.name}'"
            assert role.tell(owner) == [(role.name,)], "it assumes the role"
    async with aio.connect(default, options={"schema": role.name}) as awaited:
        assert await (await awaited.acquire("a", timeout=60)).release()

    class Counting(DatabaseWrapper):  # type: ignore[misc]  # Django has no types
        """A backend that does something when it connects, as django-prometheus does."""

        def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
            return super().get_new_connection(conn_params)

    counting = Counting(default.settings_dict, "counting")
    schema = f"{role.name}_too"
    with fencepost.connect(counting, options={"schema": schema}) as own, own.lock("a", timeout=60):
        assert role.tell(owner.replace(role.name, schema)) == [(role.name,)], "it assumes the role"
    options = {"options": "-csearch_path=public", "pool": {"min_size": 1, "max_size": 1, "timeout": 10}}
    counting = Counting(default.settings_dict | {"OPTIONS": options}, "counting")
    for _ in range(2):
        with fencepost.connect(counting) as own, own.lock("a", timeout=60):
            assert counting.pool.get_stats()["pool_available"] == 1, "its connection is back"
    counting.close_pool()
    role.tell(f"DROP OWNED BY {role.name}; DROP ROLE {role.name}")
    assert default.connection is None, "its own connection was not opened"

    def said(value: Any) -> str:
        with override_settings(FENCEPOST=value):
            return " ".join(str(each.msg) for each in run_checks() if "FENCEPOST" in str(each.msg))

    fine = said({"DATABASE": "default"})
    assert not fine, fine
    assert "settings.DATABASES has no 'other'" in said({"DATABASE": "other"})
    assert "both URL and DATABASE" in said({"DATABASE": "default", "URL": "memory://"})
    assert not said({"URL": "redis://h", "CREDENTIALS": "tests.clients.test_postgres.told"})
    assert "leave credentials= out" in said({"URL": "memory://", "CREDENTIALS": "tests.clients.test_postgres.told"})
    assert "no_such" in said({"URL": "redis://h", "CREDENTIALS": "tests.clients.test_postgres.no_such"})


def told() -> str:
    return "s3cret"
