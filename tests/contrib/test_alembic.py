"""Alembic's migrations under a lock: a process that is frozen in the middle of one, replaced and refused."""

import os
import secrets
import sqlite3
import textwrap
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

import fencepost
from fencepost.contrib.alembic import include_name, migrations_lock
from fencepost.errors import ConfigError, LeaseLost, NotAcquired, StaleToken
from tests.harness.child import Child
from tests.harness.servers import Endpoint

ENV = """
    import os

    from alembic import context
    from sqlalchemy import MetaData, create_engine
    from sqlalchemy.pool import NullPool

    from fencepost.contrib.alembic import include_name, migrations_lock

    URL = os.environ["MIGRATED"]
    options = {"target_metadata": MetaData(), "include_name": include_name}

    if context.is_offline_mode():
        context.configure(url=URL, literal_binds=True, **options)
        with context.begin_transaction():
            context.run_migrations()
    else:
        engine = create_engine(URL, poolclass=NullPool)
        ttl = float(os.environ.get("TTL", "30"))
        with engine.connect() as connection, migrations_lock(connection, ttl=ttl) as fence:
            context.configure(
                connection=connection,
                on_version_apply=fence,
                transaction_per_migration="PER_MIGRATION" in os.environ,
                **options,
            )
            with context.begin_transaction():
                context.run_migrations()
"""

FIRST = """
    import sqlalchemy as sa
    from alembic import op

    from fencepost.contrib import alembic as fencepost
    from fencepost.contrib.sqlalchemy import epoch_column

    revision, down_revision = "first", None


    def upgrade():
        fencepost.prepare(op)
        op.create_table("account", sa.Column("id", sa.Integer, primary_key=True), epoch_column())
        op.create_table("payment", sa.Column("amount", sa.Integer))
        if op.get_context().dialect.name == "postgresql":
            fencepost.guard(op, "account", resource="account:{id}:x")
        else:
            fencepost.guard(op, "account", column="lock_epoch", key=["id"])


    def downgrade():
        fencepost.unguard(op, "account")
        op.drop_table("account")
        op.drop_table("payment")
"""

SECOND = """
    import os
    import sys
    import time

    from alembic import op

    revision, down_revision = "second", "first"


    def upgrade():
        if "GO" in os.environ:
            print("in the middle", flush=True)
            while not os.path.exists(os.environ["GO"]):
                time.sleep(0.01)
        op.execute("INSERT INTO payment VALUES (10)")


    def downgrade():
        pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Config:
    for name, source in {"env.py": ENV, "versions/1.py": FIRST, "versions/2.py": SECOND}.items():
        path = tmp_path / "migrations" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    (tmp_path / "migrations" / "script.py.mako").touch()
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = %(here)s/migrations\npath_separator = os\n")
    return Config(tmp_path / "alembic.ini", stdout=StringIO())


def folder(project: Config) -> Path:
    assert project.config_file_name is not None
    return Path(project.config_file_name).parent


@pytest.fixture
def database(postgres_server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty schema, the one that MIGRATED names; its locks are in there too."""
    name = f"migrated_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {name}")
    url = f"{postgres_server.url}?options=-csearch_path%3D{name}"
    monkeypatch.setenv("MIGRATED", url.replace("postgresql:", "postgresql+psycopg:"))
    monkeypatch.delenv("FENCEPOST_URL", raising=False)
    return url


def facts(url: str, query: str) -> Any:
    with psycopg.connect(url) as conn:
        return conn.execute(query).fetchall()


def test_a_process_frozen_in_the_middle_is_refused_and_changes_nothing(
    project: Config, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.upgrade(project, "first")
    monkeypatch.setenv("PER_MIGRATION", "1")
    go = folder(project) / "go"
    run = ("-m", "alembic", "-c", project.config_file_name, "upgrade", "head")
    engine = create_engine(os.environ["MIGRATED"], poolclass=NullPool)
    with Child.python(*run, env={"GO": str(go), "TTL": "0.5"}) as zombie:
        zombie.heard("in the middle")
        zombie.freeze()
        with engine.connect() as connection, migrations_lock(connection):  # once the frozen process's lease has expired
            go.touch()
            zombie.thaw()
            assert zombie.wait() != 0
            assert "StaleToken" in zombie.errors, zombie.errors
            assert facts(database, "SELECT * FROM payment") == [], "its step was rolled back"
    command.upgrade(project, "head")
    assert facts(database, "SELECT amount, version_num FROM payment, alembic_version") == [(10, "second")]


def test_tables_and_triggers_come_and_go_with_migrations(project: Config, database: str) -> None:
    command.upgrade(project, "head")
    facts(database, "INSERT INTO account VALUES (1) RETURNING id")
    with pytest.raises(psycopg.Error, match="without a fencing token for 'account:1:x'"):
        facts(database, "DELETE FROM account")
    command.downgrade(project, "base")
    left = "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = current_schema"
    assert facts(database, left) == []
    assert facts(database, "SELECT count(*) > 0 FROM fencepost_mark") == [(True,)], "marks stay"


def test_the_same_as_a_script(project: Config, database: str) -> None:
    script = StringIO()
    project.output_buffer = script
    command.upgrade(project, "first", sql=True)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(script.getvalue())
    assert facts(database, "SELECT version_num FROM alembic_version") == [("first",)]
    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO account (id) VALUES (1)")
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute("DELETE FROM account")


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_autogenerate_leaves_what_is_fenceposts_alone(project: Config, database: str) -> None:
    command.upgrade(project, "head")
    with psycopg.connect(database) as conn:
        conn.execute("DROP TABLE account, payment")
    command.check(project)  # raises if it would drop fencepost_mark, which is in no metadata
    assert [include_name(*each, {}) for each in [("account", "table"), ("fencepost_", "index")]] == [True, True]
    assert [include_name(*each, {}) for each in [("fencepost_run", "table"), ("fencepost", "schema")]] == [False, False]


def test_sqlite_is_migrated_under_a_lock_too(project: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIGRATED", f"sqlite:///{tmp_path}/app.sqlite3")
    monkeypatch.setenv("FENCEPOST_URL", "memory://")
    command.upgrade(project, "first")
    with fencepost.connect("memory://") as locks, locks.lock("sooner") as lease:
        token = lease.token
    with closing(sqlite3.connect(tmp_path / "app.sqlite3", isolation_level=None)) as conn:
        (resource, mark) = conn.execute("SELECT resource, token FROM fencepost_mark").fetchone()
        assert resource == f"alembic/{tmp_path}/app.sqlite3"
        conn.execute("UPDATE fencepost_mark SET token = ?", (mark + token + 1000,))
        with pytest.raises(StaleToken):
            command.upgrade(project, "head")
        assert conn.execute("SELECT * FROM payment").fetchall() == []
        conn.execute("UPDATE fencepost_mark SET token = ?", (mark,))
        command.upgrade(project, "head")
        assert conn.execute("SELECT * FROM payment").fetchall() == [(10,)]
        command.downgrade(project, "base")
        assert conn.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall() == []


def test_the_lock_itself(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.sqlite3", poolclass=NullPool)
    with fencepost.connect("memory://") as locks, engine.connect() as connection:
        with migrations_lock(connection, locks, name="migrations") as fence:
            assert (fence.name, fence.lease.name) == ("migrations", "migrations")
            with pytest.raises(NotAcquired), migrations_lock(connection, locks, name="migrations", timeout=0):
                raise AssertionError
        assert locks.status("migrations") is None

        def lose() -> None:
            with migrations_lock(connection, locks, name="migrations", ttl=0.1) as fence:
                locks.break_lock("migrations")
                fence.lease.ended.wait()

        with pytest.raises(LeaseLost):
            lose()
    with pytest.raises(ConfigError, match="takes the Connection"), migrations_lock(engine):  # type: ignore[arg-type]
        raise AssertionError
