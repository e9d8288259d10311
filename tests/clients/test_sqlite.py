"""SQLAlchemy's engines and Django's connections for SQLite: the locks live in a file beside the database."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import fencepost
from tests.conformance.faces import FACES, Client
from tests.harness.isolated import isolated


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("spelling", ["{path}", "{link}", "file:{path}?uri=true", "file://{path}?mode=rwc&uri=true"])
async def test_engines_of_one_database_share_its_locks(tmp_path: Path, face: str, spelling: str) -> None:
    path = tmp_path / "a shop.db"
    link = tmp_path / "current.db"  # as each release of a program may have its own
    link.symlink_to(path)
    here = f"/{spelling.format(path=path, link=link)}"
    engine: Any = (
        sqlalchemy.create_engine(f"sqlite://{here}")
        if face == "blocking"
        else create_async_engine(f"sqlite+aiosqlite://{here}")
    )
    locks = Client(face, engine)
    hold = await locks.acquire("a")
    assert Path(f"{path}.locks").exists()
    with fencepost.connect(f"sqlite:{path}.locks") as others:
        assert others.try_acquire("a") is None
    blocking = engine if face == "blocking" else sqlalchemy.create_engine(f"sqlite:///{path}")
    with blocking.begin() as conn:  # the only writer of the database: a renewal does not wait for it
        conn.execute(sqlalchemy.text("CREATE TABLE t (x)"))
        await hold.renew()
    assert await hold.release()
    await locks.close()
    blocking.dispose()


@pytest.mark.slow
@isolated
def test_a_database_of_django_s(tmp_path: Path) -> None:
    from tests.contrib.django import site

    site.begin(str(tmp_path / "site.sqlite3"), {"DATABASE": "default"})

    from fencepost.contrib.django import locks

    with locks.lock("a"), fencepost.connect(f"sqlite:{tmp_path / 'site.sqlite3.locks'}") as others:
        assert others.try_acquire("a") is None
