"""Every store in a program that gevent, or eventlet, has patched. `scripts/greenlets` runs the whole suite there."""

import secrets
from pathlib import Path

import pytest

from tests.harness.child import Child

SERVERS = ["redis_server", "redlock_servers", "etcd_server", "zookeeper_server", "consul_server", "postgres_server"]

MORE = {"consul_server": "?session_ttl_min=500ms", "redlock_servers": "?node_timeout=30s"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.experiment
@pytest.mark.parametrize("kind", ["gevent", "eventlet"])
@pytest.mark.parametrize("store", ["memory", "sqlite", *SERVERS])
def test_greenlets_wait_renew_lose_and_are_ended_without_stopping_each_other(
    request: pytest.FixtureRequest, kind: str, store: str, tmp_path: Path
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite://{tmp_path}/locks.db"}
    url = urls.get(store) or request.getfixturevalue(store).url + MORE.get(store, "")
    with Child.python("-m", "tests.programs.in_greenlets", kind, url, f"{kind}-{secrets.token_hex(4)}", 2) as child:
        child.succeed()


SILENT = """
import socket, threading
import fencepost

silent = socket.create_server(("127.0.0.1", 0))  # connections are accepted by the kernel, and nobody answers
said = []

def ask():
    url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0?timeout=300ms"
    with fencepost.connect(url) as locks:
        try:
            locks.acquire("a")
        except fencepost.BackendError as error:
            said.append(error)

greenlet = threading.Thread(target=ask, daemon=True)
greenlet.start()
greenlet.join(20)
assert said, "it waits without end"
"""
PATCH = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import warnings; warnings.simplefilter('ignore'); import eventlet; eventlet.monkey_patch()",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PATCH)
def test_a_greenlet_gives_up_a_server_that_does_not_answer(kind: str) -> None:
    with Child.python("-c", PATCH[kind] + SILENT) as child:
        child.succeed()
