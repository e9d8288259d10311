"""What SQLite refuses at the commit is gone, also from a connection of SQLAlchemy that takes it for ended."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

import fencepost
from fencepost.guards import aio, sqlite
from fencepost.once import once
from fencepost.once.aio import once as aio_once
from fencepost.saga import Compensated, Saga, Step, Task

MADE = (
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
)
ORPHAN = text("INSERT INTO child VALUES (7)")
PARENT = text("INSERT INTO parent VALUES (7)")
COUNT = text("SELECT count(*) FROM child")


def strict(conn: Any, _: object) -> None:
    conn.execute("PRAGMA foreign_keys = ON")


def orphan(task: Task) -> None:
    task.conn.execute(ORPHAN)


def test_nothing_of_it_is_committed_by_what_comes_next(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.sqlite3'}")
    event.listen(engine, "connect", strict)
    undone: list[str] = []
    saga = Saga("order", [Step("a", lambda task: None, lambda task: undone.append("a")), Step("b", orphan)])
    with engine.connect() as conn, fencepost.connect("memory://") as locks:
        for statement in MADE:
            conn.execute(text(statement))
        conn.commit()
        with pytest.raises(IntegrityError), once(conn, "1"):
            conn.execute(ORPHAN)
        with pytest.raises(Compensated):
            saga.run(locks, conn, "1")
        assert undone == ["a"]
        with pytest.raises(IntegrityError), sqlite.fenced(conn, "thing", 5):
            conn.execute(ORPHAN)
        with conn.begin():
            conn.execute(PARENT)
            assert conn.execute(COUNT).scalar() == 0
        with once(conn, "1") as run:
            assert not run.done
    engine.dispose()


async def test_nor_in_asyncio(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.sqlite3'}")
    event.listen(engine.sync_engine, "connect", strict)
    async with engine.connect() as conn:
        for statement in MADE:
            await conn.execute(text(statement))
        await conn.commit()
        with pytest.raises(IntegrityError):
            async with aio_once(conn, "1"):
                await conn.execute(ORPHAN)
        with pytest.raises(IntegrityError):
            async with aio.sqlite.fenced(conn, "thing", 5):
                await conn.execute(ORPHAN)
        async with conn.begin():
            await conn.execute(PARENT)
            assert (await conn.execute(COUNT)).scalar() == 0
        async with aio_once(conn, "1") as run:
            assert not run.done
    await engine.dispose()
