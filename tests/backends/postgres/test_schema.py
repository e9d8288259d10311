"""The tables and functions of the locks: made on first use, once, and by whom one likes."""

import os
import secrets
from importlib import resources

import psycopg
import pytest

import fencepost
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


def test_the_grants_named_in_the_file_are_enough(server: Postgres, schema: str) -> None:
    with session(server) as other:
        other.execute(f"CREATE ROLE {schema} LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
        with fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as owner:
            assert owner.list() == []
        other.execute(f"GRANT USAGE ON SCHEMA {schema} TO {schema}")
        other.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}")
        other.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {schema}")
    url = f"{server.url.replace('postgres@', schema + '@')}?schema={schema}"
    with fencepost.connect(url, ttl=LONG) as locks:
        lease = locks.acquire("one")
        waiter = aside(locks.acquire, "one")
        waiters_of(locks, "one", 1)
        lease.renew()
        assert lease.release()
        assert waiter.result(PATIENCE).token > lease.token
        assert locks.break_lock("one")
        locks.bump("one", above=7)


def test_the_schemas_file_is_plain_sql(server: Postgres) -> None:
    """So that the owner of a database can run it by hand, with psql."""
    sql = resources.files("fencepost.backends.postgres").joinpath("schema.sql").read_text("utf-8")
    with session(server) as other:
        other.execute("CREATE DATABASE by_hand")
    url = server.url.replace("/postgres", "/by_hand").replace("by_hand@", "postgres@")
    with psycopg.connect(url, autocommit=True) as by_hand:
        by_hand.execute(sql)
    with fencepost.connect(url, ttl=LONG) as locks:
        assert locks.acquire("one").release()


@pytest.mark.parametrize(
    "options",
    ["schema=a%22b", "schema=Locks", "pool=0", "pool=many", "timeout=0", "poll=soon", "listen=redis://x", "sslmod=x"],
)
def test_an_option_that_cannot_be_meant_is_refused_before_anything_is_contacted(options: str) -> None:
    with pytest.raises(ConfigError):
        fencepost.connect(f"postgresql://{'127.0.0.1:1'}/x?{options}")
