"""Every block of code that `fencepost advise` can print is run as it is printed, twice, against real stores."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
import pytest
import redis
from typer.testing import CliRunner

from fencepost.cli import app as root
from fencepost.guards import etcd, file, s3
from fencepost_lab.advise import code
from fencepost_lab.servers.objects import ObjectStore, s3_client
from tests.harness.child import Child
from tests.harness.resource import Service
from tests.harness.servers import Endpoint

ANSWERS: dict[tuple[str, str], list[str]] = {
    ("avoid", "sqlite"): ["--twice", "nothing", "--resource", "sqlite"],
    ("avoid", "postgres"): ["--twice", "nothing", "--resource", "postgres"],
    ("avoid", "other"): ["--twice", "nothing"],
    ("once", "sqlite"): ["--twice", "harm", "--resource", "sqlite", "--run-id"],
    ("once", "postgres"): ["--twice", "harm", "--resource", "postgres", "--run-id"],
    ("once", "redis"): ["--twice", "harm", "--resource", "redis", "--run-id"],
    ("once", "http"): ["--twice", "harm", "--resource", "http", "--run-id"],
    ("transaction", "sqlite"): ["--twice", "harm", "--resource", "sqlite", "--together"],
    ("transaction", "postgres"): ["--twice", "harm", "--resource", "postgres", "--together"],
    ("lease", "sqlite"): ["--twice", "harm", "--resource", "sqlite"],
    ("lease", "postgres"): ["--twice", "harm", "--resource", "postgres"],
    ("lease", "redis"): ["--twice", "harm", "--resource", "redis"],
    ("lease", "etcd"): ["--twice", "harm", "--resource", "etcd"],
    ("lease", "s3"): ["--twice", "harm", "--resource", "s3"],
    ("lease", "file"): ["--twice", "harm", "--resource", "file"],
    ("lease", "http"): ["--twice", "harm", "--resource", "http"],
    ("effort", "waste"): ["--twice", "waste"],
    ("effort", "other"): ["--twice", "harm", "--resource", "other"],
}


def test_none_was_forgotten() -> None:
    assert sorted(ANSWERS) == code.names()


def printed(*options: str) -> Any:
    done = CliRunner().invoke(root.app, ["advise", "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


TWICE = """
import runpy
runpy.run_path("printed.py", run_name="__main__")
print("--- again", flush=True)
runpy.run_path("printed.py", run_name="__main__")
"""


def play(text: str, folder: Path, env: Mapping[str, str] = MappingProxyType({})) -> list[list[str]]:
    """Run the code twice as its reader would, in a folder of its own; what it printed each time."""
    (folder / "printed.py").write_text(text)
    with Child.python("-W", "error", "-c", TWICE, cwd=folder, env=env) as child:
        said = child.succeed()
    between = said.index("--- again")
    return [said[:between], said[between + 1 :]]


def sqlite_balance(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "app.sqlite3")) as conn:
        return int(conn.execute("SELECT balance FROM account").fetchone()[0])


@pytest.mark.parametrize(
    ("block", "balance"),
    [("avoid", 90), ("once", 90), ("transaction", 80), ("lease", 80)],
    ids=lambda value: str(value),
)
def test_sqlite(block: str, balance: int, tmp_path: Path) -> None:
    found = printed(*ANSWERS[block, "sqlite"])
    assert found["block"] == [block, "sqlite"]
    play(found["code"], tmp_path)
    assert sqlite_balance(tmp_path) == balance


@pytest.mark.parametrize(
    ("block", "balance"),
    [("avoid", 90), ("once", 90), ("transaction", 80), ("lease", 80)],
    ids=lambda value: str(value),
)
def test_postgres(block: str, balance: int, tmp_path: Path, postgres_server: Endpoint) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as conn:
        conn.execute(f"DROP SCHEMA IF EXISTS advised_{block} CASCADE")
        conn.execute(f"CREATE SCHEMA advised_{block}")
        url = f"{postgres_server.url}?options=-csearch_path%3Dadvised_{block}"
        found = printed(*ANSWERS[block, "postgres"], "--data", url, "--backend", postgres_server.url)
        assert found["block"] == [block, "postgres"]
        play(found["code"], tmp_path)
        assert conn.execute(f"SELECT balance FROM advised_{block}.account").fetchone() == (balance,)


@pytest.mark.parametrize(("block", "balance", "database"), [("once", b"-10", 14), ("lease", b"80", 15)])
def test_redis(block: str, balance: bytes, database: int, tmp_path: Path, redis_server: Endpoint) -> None:
    url = f"{redis_server.url.removesuffix('/0')}/{database}"  # both bill account 42, maybe at the same time
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        found = printed(*ANSWERS[block, "redis"], "--data", url, "--backend", url)
        assert found["block"] == [block, "redis"]
        play(found["code"], tmp_path)
        assert client.get("account:42") == balance


def test_etcd_from_a_consensus_store(tmp_path: Path, etcd_server: Endpoint) -> None:
    address = etcd_server.url.replace("etcd://", "http://")
    found = printed(*ANSWERS["lease", "etcd"], "--survive", "--data", address, "--backend", etcd_server.url)
    assert (found["rung"], found["block"], found["store"]) == ("consensus", ["lease", "etcd"], "etcd")
    with closing(etcd.EtcdGuard(address)) as guard:
        before = int(guard.peek("account/42") or 100)
        play(found["code"], tmp_path)
        assert guard.peek("account/42") == b"%d" % (before - 20)


def test_files_from_a_quorum(tmp_path: Path, redlock_servers: Endpoint) -> None:
    options = ["--survive", "--store", "redlock", "--backend", redlock_servers.url]
    found = printed(*ANSWERS["lease", "file"], *options)
    assert (found["rung"], found["block"]) == ("quorum", ["lease", "file"])
    play(found["code"], tmp_path)
    assert file.FileGuard(tmp_path / "state").peek("account/42") == b"80"


@pytest.mark.slow
def test_an_object_store(tmp_path: Path, object_store: ObjectStore) -> None:
    client = s3_client(object_store.url)
    client.create_bucket(Bucket="advised")
    found = printed(*ANSWERS["lease", "s3"], "--data", "advised", "--backend", f"sqlite:{tmp_path}/locks.sqlite3")
    assert found["block"] == ["lease", "s3"]
    account = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    play(found["code"], tmp_path, {**account, "AWS_ENDPOINT_URL": object_store.url})
    assert s3.S3Guard(client, "advised").peek("account/42") == b"80"


@pytest.mark.slow
def test_http(tmp_path: Path) -> None:
    once = printed(*ANSWERS["once", "http"])
    assert once["block"] == ["once", "http"]
    assert play(once["code"], tmp_path) == [["b'billed'"] * 2] * 2
    with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as conn:
        assert conn.execute("SELECT count(*) FROM bill").fetchone() == (1,)
    with Service() as service:
        found = printed(*ANSWERS["lease", "http"], "--data", service.url, "--backend", "sqlite:locks.sqlite3")
        assert found["block"] == ["lease", "http"]
        play(found["code"], tmp_path)
        assert service.ask("GET", "/r/account/42").body == b"90"


@pytest.mark.parametrize("block", [("avoid", "other"), ("effort", "waste"), ("effort", "other")], ids="-".join)
def test_without_a_guard(block: tuple[str, str], tmp_path: Path) -> None:
    found = printed(*ANSWERS[block], "--backend", "sqlite:locks.sqlite3")
    assert found["block"] == list(block)
    said = play(found["code"], tmp_path)
    assert ("best effort" in found["guarantee"]) == (block[0] == "effort")
    if block == ("avoid", "other"):
        assert (tmp_path / "report.txt").read_text() == "2026-11-15 42"
    else:
        assert all(said)


def test_the_places_it_names_by_itself_are_urls_that_connect_takes() -> None:
    import fencepost

    for place in code.LOCKS.values():
        fencepost.connect(place).close()
