"""The library on Windows and macOS, as far as it can be tried here: without what those systems do not have."""

import secrets
from pathlib import Path

import pytest

from tests.harness.child import Child

SERVERS = ["redis_server", "postgres_server", "etcd_server", "zookeeper_server"]


def run(system: str, url: str) -> None:
    with Child.python("-m", "tests.programs.elsewhere", system, url, f"elsewhere-{secrets.token_hex(4)}") as child:
        child.succeed()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", *SERVERS])
def test_locks_without_what_windows_lacks(request: pytest.FixtureRequest, store: str) -> None:
    run("windows", "memory://" if store == "memory" else request.getfixturevalue(store).url)


@pytest.mark.slow
def test_locks_without_what_macos_lacks(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    run("macos", f"sqlite://{deep}/locks.db")


@pytest.mark.slow
def test_nothing_asks_at_import_for_what_windows_lacks() -> None:
    run("windows", "modules")
