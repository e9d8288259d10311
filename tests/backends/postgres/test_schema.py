"""The tables and functions of the locks: made on first use, once, and by whom one likes."""

import os
import re
import secrets
from importlib import resources

import psycopg
import pytest

import fencepost
from fencepost import sync
from fencepost.driver import run as driver_run
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.servers import Postgres
from tests.backends.postgres.tools import LONG, aside, session
from tests.harness.servers import Endpoint
from tests.harness.threads import waiters_of
from tests.harness.waiting import PATIENCE


@pytest.fixture
def schema() -> str:
    return f"locks_{secrets.token_hex(4)}"


def test_many_who_come_first_at_once_all_find_it_there(server: Postgres, schema: str) -> None:
    def first() -> int:
        with fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as locks, locks.lock("one") as lease:
            return lease.token

    tokens = [task.result(PATIENCE) for task in [aside(first) for _ in range(12)]]
    assert len(set(tokens)) == 12


def test_two_schemas_are_two_worlds(server: Postgres, schema: str) -> None:
    with (
        fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as here,
        fencepost.connect(f"{server.url}?schema={schema}_too", ttl=LONG) as there,
    ):
        assert here.try_acquire("one")
        assert there.try_acquire("one")
        assert len(there.list()) == 1


def test_of_several_hosts_the_one_that_takes_writes_is_used(server: Postgres, postgres_server: Endpoint) -> None:
    name = secrets.token_hex(4)
    with session(server) as other, fencepost.connect(postgres_server.url, ttl=LONG) as primary:
        other.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")  # as a standby's is
        try:
            both = postgres_server.url.replace("@", f"@{server.address},", 1)
            with fencepost.connect(both, ttl=LONG) as locks:
                lease = locks.acquire(name)
                assert primary.try_acquire(name) is None
                assert lease.release()
        finally:
            other.execute("ALTER DATABASE postgres RESET default_transaction_read_only")


def test_another_version_is_refused_and_left_alone(server: Postgres, schema: str) -> None:
    with session(server) as other:
        other.execute(f"CREATE SCHEMA {schema}")
        other.execute(f"CREATE FUNCTION {schema}.version() RETURNS integer LANGUAGE sql AS 'SELECT 99'")
        with (
            fencepost.connect(f"{server.url}?schema={schema}") as locks,
            pytest.raises(ConfigError, match=f"{schema}.*version 99.*upgrade"),
        ):
            locks.acquire("one")
        tables = other.execute("SELECT 1 FROM pg_tables WHERE schemaname = %s", [schema])
        assert tables.fetchall() == []


def test_a_role_that_may_not_create_is_told_what_to_do(server: Postgres, schema: str) -> None:
    with session(server) as other:
        other.execute(f"CREATE ROLE {schema} LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
    url = f"{server.url.replace('postgres@', schema + '@')}?schema={schema}"
    with fencepost.connect(url) as locks, pytest.raises(BackendError, match=r"postgres/schema\.sql") as raised:
        locks.acquire("one")
    assert not raised.value.ambiguous


def file() -> str:
    return resources.files("fencepost.backends.postgres").joinpath("schema.sql").read_text("utf-8")


def named_grants(schema: str) -> list[str]:
    """What the first lines of the file have the owner grant, for a role that is called as its schema."""
    grants = re.findall(r"^--   (GRANT .*);$", file(), re.MULTILINE)
    assert len(grants) == 4
    return [each.replace("SCHEMA fencepost TO app", f"SCHEMA {schema} TO {schema}") for each in grants]


@pytest.fixture(params=["usual", "strict"])
def database(request: pytest.FixtureRequest, server: Postgres) -> str:
    """The URL of a database; in a strict one, PUBLIC may not call functions unless that is granted."""
    name = f"{request.param}_{secrets.token_hex(4)}"
    with session(server) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    url = f"{server.url.rpartition('/')[0]}/{name}"
    if request.param == "strict":
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    return url


def used(locks: sync.Locks) -> None:
    """Everything that a role of programs does."""
    lease = locks.acquire("one")
    waiter = aside(locks.acquire, "one")
    waiters_of(locks, "one", 1)
    lease.renew()
    assert lease.release()
    assert waiter.result(PATIENCE).token > lease.token
    assert locks.break_lock("one")
    locks.bump("one", above=7)
    assert locks.shared("one").acquire().release()


def test_the_grants_named_in_the_file_are_enough(database: str, schema: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {schema} LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
        with fencepost.connect(f"{database}?schema={schema}", ttl=LONG) as owning:
            assert owning.list() == []
        for grant in named_grants(schema):
            owner.execute(grant)
    with fencepost.connect(f"{database.replace('postgres@', schema + '@')}?schema={schema}", ttl=LONG) as locks:
        used(locks)


def test_a_grant_that_is_missing_is_named(database: str, schema: str) -> None:
    url = f"{database.replace('postgres@', schema + '@')}?schema={schema}"
    usage, tables, sequences, functions = named_grants(schema)
    strict = "/strict_" in database

    def told() -> str:
        with fencepost.connect(url, ttl=LONG) as locks:
            return "\n".join(
                f"{each.level}: {each.what}; {each.means}" for each in driver_run(locks._core.backend.doctor())
            )

    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {schema} LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
        with fencepost.connect(f"{database}?schema={schema}", ttl=LONG) as owning:
            assert owning.list() == []
        for grant in (usage, sequences):
            owner.execute(grant)
        if strict:
            with pytest.raises(BackendError, match=r"schema\.sql.*functions") as refused:
                told()
            assert not refused.value.ambiguous
            owner.execute(f"GRANT EXECUTE ON FUNCTION {schema}.version, {schema}.revision TO {schema}")
            assert f"risk: {schema} may not use functions of schema {schema}: admit, " in told()
            assert f"let their owner run: {functions}" in told()
            owner.execute(functions)
        assert f"risk: {schema} may not use tables of schema {schema}: lock, process, share, waiter; " in told()
        assert f"let their owner run: {tables}" in told()
        owner.execute(tables)
        assert "risk" not in told().replace("risk: fsync=off", "")


def test_the_schemas_file_is_plain_sql(server: Postgres) -> None:
    """So that the owner of a database can run it by hand, with psql."""
    with session(server) as other:
        other.execute("CREATE DATABASE by_hand")
    url = server.url.replace("/postgres", "/by_hand").replace("by_hand@", "postgres@")
    with psycopg.connect(url, autocommit=True) as by_hand:
        by_hand.execute(file())
    with fencepost.connect(url, ttl=LONG) as locks:
        assert locks.acquire("one").release()


@pytest.mark.parametrize(
    "options",
    ["schema=a%22b", "schema=Locks", "pool=0", "pool=many", "timeout=0", "poll=soon", "listen=redis://x", "sslmod=x"],
)
def test_an_option_that_cannot_be_meant_is_refused_before_anything_is_contacted(options: str) -> None:
    with pytest.raises(ConfigError):
        fencepost.connect(f"postgresql://{'127.0.0.1:1'}/x?{options}")
