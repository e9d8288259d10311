"""etcd behind a password that changes."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.errors import BackendError
from fencepost_lab.servers import QUICK_ETCD, Etcd
from fencepost_lab.servers.processes import program
from tests.backends.etcd.tools import etcdctl
from tests.clients.rotation import Told, goes_on
from tests.conformance.faces import FACES
from tests.harness.servers import running

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def server() -> Iterator[Etcd]:
    """An etcd that asks who is there."""
    with running(Etcd(args=[*QUICK_ETCD])) as started:
        for command in ("user add root:top", "user grant-role root root", "role add part"):
            etcdctl(started.url, *command.split())
        etcdctl(started.url, "role", "grant-permission", "part", "--prefix=true", "readwrite", "mine/")
        for command in ("user add me:first", "user grant-role me part", "auth enable"):
            etcdctl(started.url, *command.split())
        yield started


def change(server: Etcd, password: str) -> tuple[str, str]:
    """Give the user another password, by which etcd ends its logins."""
    command = [program("ETCDCTL"), "--endpoints", server.address, "--user", "root:top", "user", "passwd", "me"]
    subprocess.run([*command, "--interactive=false"], input=f"{password}\n", text=True, check=True, capture_output=True)
    return "me", password


@pytest.mark.parametrize("face", FACES)
async def test_a_password_is_replaced_while_a_watch_is_open(server: Etcd, face: str) -> None:
    told = Told(change(server, "s3cret"))
    await goes_on(server.url, face, told, lambda: change(server, "n3xt"), name="mine/")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (lambda: ("me", "wr0ng"), "check user and password in what credentials= returned for 'me'"),
        (lambda: "s3cret", "returned no user"),
        (lambda: 1 / 0, "credentials= of etcd:// raised ZeroDivisionError"),
    ],
)
def test_a_login_that_fails_is_named_at_once(server: Etcd, told: Any, why: str) -> None:
    with fencepost.connect(server.url, credentials=told) as locks, pytest.raises(BackendError, match=why) as raised:
        locks.acquire("mine/1", timeout=60)
    assert not raised.value.ambiguous
    assert "wr0ng" not in str(raised.value)
