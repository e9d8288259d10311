"""One Postgres schema and one SQLite file, prepared for guards, for all tests of the SQL guards."""

import secrets
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
import redis

from fencepost.guards import postgres
from tests.harness.connections import django_settings
from tests.harness.servers import Endpoint


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Endpoint) -> str:
    """A schema of its own, found by search_path."""
    name = f"guarded_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {name}")
    url = f"{postgres_server.url}?options=-csearch_path%3D{name}"
    with psycopg.connect(url) as conn:
        postgres.install(conn)
        conn.execute("CREATE TABLE account (id text PRIMARY KEY, balance int, lock_epoch bigint NOT NULL DEFAULT 0)")
    return url


@pytest.fixture(scope="session")
def sqlite_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    import sqlite3

    path = str(tmp_path_factory.mktemp("guarded") / "app.sqlite3")
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE account (id text PRIMARY KEY, balance int, lock_epoch integer NOT NULL DEFAULT 0)")
    return path


@pytest.fixture(scope="session")
def django(postgres_url: str, sqlite_path: str) -> None:
    django_settings(postgres_url, sqlite_path)


@pytest.fixture
def cluster(redis_cluster: Endpoint) -> Iterator[redis.RedisCluster]:
    """redis-py's client of the cluster; its close() leaves the connections of its pools open."""
    host, _, port = redis_cluster.url.rpartition("/")[2].partition(",")[0].partition(":")
    with redis.RedisCluster(host=host or "127.0.0.1", port=int(port.partition("/")[0])) as client:
        yield client
        client.disconnect_connection_pools()


@pytest.fixture
def thing() -> str:
    """A resource nobody has touched yet."""
    return f"account/{secrets.token_hex(6)}"


@pytest.fixture
def pg(postgres_url: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        yield conn
