"""Marks each test with the stores that it uses, so that a run can be limited to one store, or need no server at all.

    pytest -m redis          what runs on Redis            (make test STORE=redis)
    pytest -m "not server"   what needs nothing but Python (make quick)

The marks come from the fixtures a test asks for, its row of the conformance suite, and its module's name. A test that
starts a server by itself says so: ``pytestmark = pytest.mark.redis``, or ``server`` for what belongs to no store.
A forgotten mark is an error, in every run: a test without the mark can start no program beyond Python, as in a run
under FENCEPOST_NO_SERVERS=1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

STORES = {
    "memory": "runs on memory://",
    "sqlite": "runs on SQLite",
    "redis": "needs Redis",
    "redlock": "needs several independent Redis servers",
    "etcd": "needs etcd",
    "zookeeper": "needs ZooKeeper",
    "consul": "needs Consul",
    "postgres": "needs Postgres",
    "s3": "needs an object store",
    "browser": "needs Chromium",
}
MARKS = STORES | {
    "server": "needs a program beyond Python: a server, a browser, a compiler, network namespaces",
    "slow": "needs no server, but takes too long for make quick",
}
NO_SERVER = {"memory", "sqlite"}
ALIASES = {"redis+cluster": "redis", "redis+sentinel": "redis", "postgresql": "postgres", "zk": "zookeeper"}

FIXTURES = {
    "redis_server": "redis",
    "redis_cluster": "redis",
    "own_redis": "redis",
    "redlock_servers": "redlock",
    "etcd_server": "etcd",
    "etcd_cluster": "etcd",
    "zookeeper_server": "zookeeper",
    "consul_server": "consul",
    "postgres_server": "postgres",
    "pgbouncer_server": "postgres",
    "object_store": "s3",
    "chromium": "browser",
}
FOLDERS = {"backends", "conformance", "fleet", "guards", "once", "resource", "saga"}
"""Where a parameter that is called as a store means that store."""

_FILE = re.compile(rf"tests/(\w+)/(?:\w+/)*test_(?:\w+_)?({'|'.join(STORES)})(?:_\w+)?\.py$")
_FOLDER = re.compile(rf"tests/(\w+)/({'|'.join(STORES)})/test_\w+\.py$")


def _named(path: Path) -> re.Match[str] | None:
    """The store that a test file, or the folder that it is in, is named after."""
    return _FOLDER.search(path.as_posix()) or _FILE.search(path.as_posix())


def needs(item: pytest.Item) -> set[str]:
    """The marks of one test."""
    said = {mark.name for mark in item.iter_markers()} & MARKS.keys()
    found = said | set(_stores(item))
    named = _named(item.path)
    if named and named[1] != "unit":
        found.add(named[2])
    if found & STORES.keys() - NO_SERVER:
        found.add("server")
    if named:  # a unit test of one store's code needs no server
        found.add(named[2])
    return found


def _stores(item: pytest.Item) -> Iterator[str]:
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in FIXTURES:
            yield FIXTURES[fixture]
    if (call := getattr(item, "callspec", None)) is None:
        return
    for value in call.params.values():
        # A row of the conformance suite, alone or with its face, or a fixture's name.
        row = value[0] if isinstance(value, tuple) and value and hasattr(value[0], "scheme") else value
        if scheme := getattr(row, "scheme", None):
            yield ALIASES.get(scheme, scheme)
        elif isinstance(value, str) and value in FIXTURES:
            yield FIXTURES[value]
    # Elsewhere a store's name may be just a word.
    if item.path.parent.name in FOLDERS and item.path.name != "test_compose.py":
        yield from STORES.keys() & set(call.id.split("-"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fencepost").addoption("--store", choices=list(STORES), help="only what runs on this store")


def pytest_configure(config: pytest.Config) -> None:
    for mark, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    if store := config.option.store:
        config.option.markexpr = f"{store} and ({config.option.markexpr})" if config.option.markexpr else store


def no_servers() -> bool:
    """Whether this run promised to start none."""
    return os.environ.get("FENCEPOST_NO_SERVERS") == "1"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    named = _named(collection_path)
    if no_servers() and named and named[1] != "unit" and named[2] not in NO_SERVER:
        return True  # reading what will not run takes a third of the time that collecting does
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in sorted(needs(item)):
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Start no server for a test that is not marked with one: it would fail in ``make quick``."""
    if item.get_closest_marker("server") or no_servers():
        return (yield)
    os.environ["FENCEPOST_NO_SERVERS"] = "1"
    try:
        return (yield)
    finally:
        del os.environ["FENCEPOST_NO_SERVERS"]
