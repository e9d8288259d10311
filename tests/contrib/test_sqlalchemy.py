"""Sessions of SQLAlchemy under a guard, and what create_all makes for it: Postgres by three drivers, and SQLite."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine, MetaData, Table, Text, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

import fencepost
from fencepost.contrib import sqlalchemy as contrib
from fencepost.contrib.sqlalchemy import Epoch, admit, aio, enter, fenced, guard, mark, prepare
from fencepost.errors import ConfigError, MissingToken, StaleToken
from fencepost.guards import column
from tests.harness.servers import Endpoint


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Stock(Epoch, Base):
    __tablename__ = "stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    pieces: Mapped[int]


prepare(Base.metadata)
guard(Stock, column="lock_epoch")


@pytest.fixture(scope="module")
def schema(postgres_server: Endpoint) -> str:
    """The URL of an empty schema."""
    name = f"alchemy_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {name}")
    return f"{postgres_server.url}?options=-csearch_path%3D{name}"


@pytest.fixture(scope="module", params=[pytest.param("postgres", marks=pytest.mark.postgres), "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if request.param == "postgres":
        url = request.getfixturevalue("schema").replace("postgresql://", "postgresql+psycopg://")
    else:
        url = f"sqlite:///{tmp_path_factory.mktemp('alchemy')}/app.sqlite3"
    made = create_engine(url, poolclass=NullPool)
    Base.metadata.create_all(made)
    Base.metadata.create_all(made)  # does no harm
    with Session(made) as session, session.begin():
        session.add(Account(id=1, balance=100))
        session.add(Stock(id=1, pieces=100))
    yield made
    made.dispose()


@pytest.fixture
def locks() -> Iterator[fencepost.Locks]:
    with fencepost.connect("memory://") as locks:
        yield locks


def zombie(locks: fencepost.Locks, name: str) -> fencepost.Lease:
    """A lease whose holder was paused past its ttl."""
    lease = locks.acquire(name, ttl=0.01, renew=False)
    lease.ended.wait()
    return lease


def balance(engine: Engine, id: int = 1) -> int:
    with Session(engine) as session:
        return session.get_one(Account, id).balance


def test_a_session_is_admitted_before_it_reads_and_a_zombie_changes_nothing(
    engine: Engine, locks: fencepost.Locks
) -> None:
    name = f"account/{secrets.token_hex(4)}"
    before = balance(engine)
    old = zombie(locks, name)
    with Session(engine) as session, locks.lock(name) as lease, fenced(session, name, lease) as same:
        assert same is session
        session.get_one(Account, 1).balance -= 10
    assert balance(engine) == before - 10
    with Session(engine) as session:

        def write() -> None:
            with fenced(session, name, old):
                session.get_one(Account, 1).balance -= 1000

        with pytest.raises(StaleToken):
            write()
        assert not session.in_transaction()
        found = mark(session, name)
        assert found is not None
        assert found.token == lease.token
    assert balance(engine) == before - 10


def test_a_body_that_raises_is_rolled_back_with_its_mark(engine: Engine, locks: fencepost.Locks) -> None:
    name = f"account/{secrets.token_hex(4)}"
    before = balance(engine)
    with locks.lock(name), Session(engine) as session:

        def write() -> None:
            with fenced(session, name):
                session.get_one(Account, 1).balance -= 1000
                session.flush()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write()
        assert mark(session, name) is None
    assert balance(engine) == before


def test_a_transaction_of_the_callers_own(engine: Engine, locks: fencepost.Locks) -> None:
    name = f"account/{secrets.token_hex(4)}"
    sessions = scoped_session(sessionmaker(engine))
    before = balance(engine)
    with locks.lock(name) as lease:
        with sessions.begin():
            enter(sessions, name)
            row = sessions.get_one(Account, 1)
            assert admit(sessions, name, lease) is True
            row.balance -= 10
        with fenced(sessions, name):
            sessions.get_one(Account, 1).balance -= 100
        with engine.begin() as conn:
            assert admit(conn, name)
            conn.execute(text("UPDATE account SET balance = balance - 1"))
    sessions.remove()
    assert balance(engine) == before - 111
    with Session(engine) as session:
        session.get_one(Account, 1)
        with pytest.raises(ConfigError, match="in a transaction already"), fenced(session, name, lease):
            raise AssertionError
        with pytest.raises(MissingToken):
            admit(session, name, None)  # type: ignore[arg-type]
        with pytest.raises(MissingToken):
            admit(session, name)


def test_the_triggers_of_a_column_come_with_its_table(engine: Engine, locks: fencepost.Locks) -> None:
    with Session(engine) as session:
        session.get_one(Stock, 1).pieces = 0
        with pytest.raises(DBAPIError, match="fencing token"):
            session.commit()
    with locks.lock("stock/1") as lease, Session(engine) as session, session.begin():
        found = column.read(session, "stock", {"id": 1}, ["pieces"], lease)
        column.write(session, "stock", {"id": 1}, {"pieces": found["pieces"] - 1}, lease)
    with Session(engine) as session:
        stock = session.get_one(Stock, 1)
        assert (stock.pieces, stock.lock_epoch) == (99, lease.token)


def asynchronous(url: str) -> dict[str, Callable[[], AsyncEngine]]:
    """The engines that people use with asyncio."""
    plain, _, options = url.partition("?options=-csearch_path%3D")
    return {
        "psycopg": lambda: create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool),
        "asyncpg": lambda: create_async_engine(
            plain.replace("postgresql:", "postgresql+asyncpg:"),
            poolclass=NullPool,
            connect_args={"server_settings": {"search_path": options}},
        ),
    }


@pytest.mark.parametrize(
    "driver", [*(pytest.param(each, marks=pytest.mark.postgres) for each in ("psycopg", "asyncpg")), "aiosqlite"]
)
async def test_an_asyncio_session(
    driver: str, request: pytest.FixtureRequest, locks: fencepost.Locks, tmp_path: Path
) -> None:
    if driver == "aiosqlite":
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.sqlite3", poolclass=NullPool)
    else:
        engine = asynchronous(request.getfixturevalue("schema"))[driver]()
    id = secrets.randbelow(10**9)
    name = f"account/{id}"
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session, session.begin():
        session.add(Account(id=id, balance=100))
    old = locks.acquire(name, ttl=0.01, renew=False)
    old.ended.wait()
    with locks.lock(name) as lease:
        async with AsyncSession(engine) as session, aio.fenced(session, name, lease):
            (await session.get_one(Account, id)).balance -= 10
    async with AsyncSession(engine) as session:
        with pytest.raises(StaleToken):
            async with session.begin():
                await aio.admit(session, name, old)
        with pytest.raises(StaleToken):
            await aio.enter(session, name, old)
        await session.rollback()
        found = await aio.mark(session, name)
        assert found is not None
        assert found.token == lease.token
        assert (await session.get_one(Account, id)).balance == 90
        with pytest.raises(ConfigError, match=r"use fencepost\.contrib\.sqlalchemy\.aio"):
            admit(session, name, lease)  # type: ignore[arg-type]
    await engine.dispose()


def test_a_trigger_that_asks_for_a_token_of_the_row(schema: str, locks: fencepost.Locks) -> None:
    engine = create_engine(schema.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    metadata = MetaData()
    table = Table("ledger", metadata, sqlalchemy.Column("id", Text, primary_key=True), contrib.epoch_column("epoch"))
    guard(table, resource="ledger/{id}")
    table.create(engine)
    with engine.begin() as conn:
        conn.execute(table.insert().values(id="a"))
    with engine.connect() as conn, pytest.raises(DBAPIError, match="without a fencing token"):
        conn.execute(table.update().values(epoch=1))
    with engine.connect() as conn, locks.lock("ledger/a"), fenced(conn, "ledger/a"):
        conn.execute(table.update().values(epoch=1))
    with engine.begin() as conn:
        for statement in contrib.removal("postgresql", "ledger"):
            conn.exec_driver_sql(statement)
        conn.execute(table.update().values(epoch=2))
        assert triggers(conn) == []
    engine.dispose()


def triggers(conn: Any) -> list[Any]:
    """The triggers of ours that are left on ledgers."""
    found = conn.execute(text("SELECT tgname FROM pg_trigger WHERE tgrelid = 'ledger'::regclass AND NOT tgisinternal"))
    return list(found)


def test_removal_takes_every_trigger_off_in_sqlite(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.sqlite3", poolclass=NullPool)
    metadata = MetaData()
    table = Table("ledger", metadata, sqlalchemy.Column("id", Text, primary_key=True), contrib.epoch_column())
    guard(table, column="lock_epoch", key=["id"])
    metadata.create_all(engine)
    count = text("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'")
    with engine.begin() as conn:
        assert conn.scalar(count)
        for statement in contrib.removal("sqlite", "ledger"):
            conn.exec_driver_sql(statement)
        assert conn.scalar(count) == 0


def test_what_cannot_be_meant_is_refused() -> None:
    table = Table("thing", MetaData(), sqlalchemy.Column("id", Text, primary_key=True))
    for options, why in [
        ({}, "either resource="),
        ({"resource": "thing/{id}", "column": "id"}, "either resource="),
        ({"resource": "thing/{other}"}, "no column 'other'"),
        ({"column": "lock_epoch"}, "no column 'lock_epoch'"),
    ]:
        with pytest.raises(ConfigError, match=why):
            guard(table, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a Table or a mapped class"):
        guard("thing", column="id")
    with pytest.raises(ConfigError, match="not for 'mysql'"):
        contrib.ddl("mysql")
    with pytest.raises(ConfigError, match="for Postgres"):
        contrib.ddl("sqlite", "thing", resource="thing/{id}")
    with pytest.raises(ConfigError, match="for SQLite"):
        contrib.ddl("postgresql", "thing", column="id", key=["id"])
    with pytest.raises(ConfigError, match="of SQLAlchemy"):
        admit(object(), "thing", 1)  # type: ignore[arg-type]
    joined = "\n".join(contrib.ddl("postgresql"))
    assert joined.count("$$") % 2 == 0
    assert all(each.count("$$") in (0, 2) and each.endswith(";") for each in contrib.ddl("postgresql"))
