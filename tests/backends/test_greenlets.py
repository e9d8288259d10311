"""Every store in a program that gevent, or eventlet, has patched. `scripts/greenlets` runs the whole suite there."""

import secrets
from pathlib import Path

import pytest

from tests.harness.child import Child

SERVERS = ["redis_server", "etcd_server", "zookeeper_server", "consul_server", "postgres_server"]

MORE = {"consul_server": "?session_ttl_min=500ms"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gevent", "eventlet"])
@pytest.mark.parametrize("store", ["memory", "sqlite", *SERVERS])
def test_greenlets_wait_renew_lose_and_are_ended_without_stopping_each_other(
    request: pytest.FixtureRequest, kind: str, store: str, tmp_path: Path
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite://{tmp_path}/locks.db"}
    url = urls.get(store) or request.getfixturevalue(store).url + MORE.get(store, "")
    with Child.python("-m", "tests.programs.in_greenlets", kind, url, f"{kind}-{secrets.token_hex(4)}", 2) as child:
        child.succeed()
