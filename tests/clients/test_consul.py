"""Consul behind an ACL token that is replaced."""

import http.client
import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

import fencepost
from fencepost.errors import BackendError
from fencepost_lab.servers import Consul
from fencepost_lab.servers.processes import HOST
from tests.clients.rotation import Told, goes_on
from tests.conformance.faces import FACES
from tests.harness.servers import running
from tests.harness.waiting import until

pytestmark = pytest.mark.consul

MASTER = "11111111-1111-1111-1111-111111111111"


@dataclass
class Acl:
    """An agent that knows its tokens."""

    server: Consul
    valid: dict[str, Any] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        with closing(http.client.HTTPConnection(HOST, self.server.port, timeout=30)) as connection:
            data = None if body is None else json.dumps(body)
            connection.request(method, f"/v1/acl/{path}", data, {"X-Consul-Token": MASTER})
            answer = connection.getresponse()
            text = answer.read()
            return json.loads(text) if answer.status == 200 else None

    def token(self) -> str:
        """Another token; the one before it is refused from now on."""
        body = {"AccessorID": f"{secrets.token_hex(4)}-1111-1111-1111-{secrets.token_hex(6)}"}
        made = until(lambda: self.ask("PUT", "token", body | {"Policies": [{"Name": "global-management"}]}), "a token")
        if self.valid:
            assert self.ask("DELETE", f"token/{self.valid['AccessorID']}")
        self.valid = made
        return str(made["SecretID"])


@pytest.fixture(scope="module")
def acl() -> Iterator[Acl]:
    rules = f'acl {{ enabled = true default_policy = "allow" tokens {{ master = "{MASTER}" }} }}'
    with running(Consul(args=["-hcl", rules])) as server:
        yield Acl(server)


@pytest.mark.parametrize("face", FACES)
async def test_a_token_is_replaced_while_a_query_waits(acl: Acl, face: str) -> None:
    await goes_on(acl.server.url, face, Told(acl.token()), acl.token, ttl=60)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (lambda: "no-such-t0ken", "check what credentials= returned"),
        (lambda: ("user", "t0ken"), "Consul has none"),
        (lambda: "t0ken\r\nX-Injected: 1", "no HTTP header can carry"),
        (lambda: "t0ken ☃", "no HTTP header can carry"),
    ],
)
def test_a_token_that_cannot_be_used_is_named(acl: Acl, told: Any, why: str) -> None:
    with fencepost.connect(acl.server.url, credentials=told) as locks, pytest.raises(BackendError, match=why) as raised:
        locks.acquire("a", timeout=60)
    assert "t0ken" not in str(raised.value)
