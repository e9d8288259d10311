"""ZooKeeper behind credentials that are asked for, and behind a client of kazoo."""

import secrets
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import fencepost
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.servers.processes import HOST
from tests.backends.zookeeper.tools import kazoo
from tests.clients.rotation import Told, unlogged
from tests.conformance.faces import FACES, Client
from tests.harness.servers import Endpoint
from tests.harness.waiting import until, until_async

ODD = "s3:cret ☃"


@pytest.fixture
def root() -> str:
    return f"/clients-{secrets.token_hex(4)}"


@pytest.mark.parametrize("face", FACES)
async def test_each_new_connection_of_a_session_asks(zookeeper_server: Endpoint, root: str, face: str) -> None:
    told = Told(("ann", ODD))
    locks = Client(face, zookeeper_server.url + root, credentials=told.on(face))
    with unlogged(ODD) as logged:
        hold = await locks.acquire("a")
    assert any("Auth(scheme='digest', auth=***)" in line for line in logged), "kazoo tells what it sends"
    with fencepost.connect(zookeeper_server.url + root) as stranger, pytest.raises(BackendError, match="not allowed"):
        stranger.acquire("a", timeout=10)
    calls = told.calls
    [session] = {each.session for each in locks.raw._core.backend._contenders.values()}
    session._client._connection._socket.shutdown(2)
    await until_async(lambda: told.calls > calls and session.connected, "it connects again")
    await hold.renew()
    assert await hold.release(), "the session went on, as the same user"
    await locks.close()


@pytest.mark.parametrize(
    ("told", "why"),
    [(lambda: 1 / 0, "credentials= of zookeeper:// raised ZeroDivisionError"), (lambda: "x", r"\(user, password\)")],
)
def test_a_function_that_fails_is_named_at_once(zookeeper_server: Endpoint, told: Any, why: str) -> None:
    with fencepost.connect(zookeeper_server.url, credentials=told) as locks, pytest.raises(BackendError, match=why):
        locks.acquire("a", timeout=60)


@pytest.mark.parametrize("face", FACES)
async def test_chroot_login_and_acl_of_a_client_are_copied(zookeeper_server: Endpoint, root: str, face: str) -> None:
    hosts = zookeeper_server.url.partition("://")[2]
    acl = make_digest_acl("ann", ODD, all=True)
    with kazoo(zookeeper_server.url) as other:
        other.add_auth("digest", f"ann:{ODD}")
        other.ensure_path(root)
        own = KazooClient(f"{hosts}{root}", auth_data=[("digest", f"ann:{ODD}")], default_acl=[acl])
        locks = Client(face, own, options={"parents": "keep"})
        hold = await locks.acquire("a")
        assert other.get_acls(f"{root}/a")[0] == [acl]
        assert not own.connected, "it was never started"
        assert await hold.release()
        await locks.close()
        until(lambda: other.exists(f"{root}/a"), "options= are heard")


def test_tls_and_sasl_of_a_client_are_copied(tmp_path: Path) -> None:
    sasl = {"mechanism": "DIGEST-MD5"}
    own = KazooClient(f"{HOST}:1", use_ssl=True, verify_certs=False, ca="ca.pem", sasl_options=sasl)
    with fencepost.connect(own) as locks:
        settings = locks._core.backend._settings  # type: ignore[attr-defined]
    assert settings.client["use_ssl"]
    assert settings.client["ca"] == "ca.pem"
    assert not settings.client["verify_certs"]
    assert settings.sasl == sasl
    assert settings.sasl is not sasl, "kazoo adds to it"
    with pytest.raises(ConfigError, match="copied from the client"):
        fencepost.connect(own, options={"ca": "other.pem"})
