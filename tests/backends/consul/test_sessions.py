"""What Consul's sessions mean for leases: one each, of at least 10 s, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import secrets
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import sync
from fencepost.backend import Hold, Renewal
from fencepost.backends.consul import address
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError, ConfigError
from fencepost.registry import connect
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import Consul, http_json
from fencepost_lab.servers.processes import HOST, Port
from tests.harness.certificate import self_signed
from tests.harness.isolated import in_fork, isolated
from tests.harness.servers import Endpoint
from tests.harness.waiting import PATIENCE, until

FAST = ["-hcl", 'session_ttl_min = "500ms"']
OPTIONS = "session_ttl_min=500ms"


@pytest.fixture(scope="module")
def server() -> Iterator[Consul]:
    with Consul(args=FAST) as started:
        yield started


def sessions(server: Consul) -> list[Any]:
    found: list[Any] = http_json(server.port, "GET", "/v1/session/list")
    return found


@pytest.mark.parametrize("ttl", [9.9, 86401])
def test_a_ttl_that_consul_does_not_take_is_refused(ttl: float) -> None:
    with fencepost.connect("consul://localhost:8500") as locks, pytest.raises(ConfigError, match="from 10 to 86400 s"):
        locks.acquire("x", ttl=ttl)


def test_holders_of_one_process_exclude_each_other(server: Consul) -> None:
    """A session may lock its key again, so no two holders may share one."""
    with fencepost.connect(f"{server.url}/same", ttl=15) as locks, ThreadPoolExecutor(8) as crowd:
        held: list[int] = []

        def turn(_: int) -> None:
            with locks.lock("x", timeout=PATIENCE) as lease:
                held.append(lease.token)
                assert len(held) == 1
                assert locks.try_acquire("x") is None
                held.remove(lease.token)

        list(crowd.map(turn, range(40)))


def test_sessions_are_used_again_and_none_is_left(server: Consul) -> None:
    def new() -> set[str]:
        return {each["ID"] for each in sessions(server)} - before

    before = {each["ID"] for each in sessions(server)}
    with fencepost.connect(f"{server.url}/again", ttl=15) as locks:
        tokens = [lease.token for lease in (locks.acquire("x") for _ in range(20)) if lease.release()]
        assert len(tokens) == 20
        assert len(new()) == 1
    assert not new()


def test_a_released_lock_leaves_no_key(server: Consul) -> None:
    with fencepost.connect(f"{server.url}/tidy", ttl=15) as locks:
        lease = locks.acquire("a/b")
        [pair] = http_json(server.port, "GET", "/v1/kv/tidy/a/b/.lock")
        assert (pair["ModifyIndex"], pair["Flags"]) == (lease.token, 0x2DDCCBC058A50C18)
        assert lease.release()
        with pytest.raises(OSError, match="404"):
            http_json(server.port, "GET", "/v1/kv/tidy/?recurse")


def test_a_lock_delay_is_kept_where_it_was_asked_for(server: Consul) -> None:
    """It closes the lock after a lost session, though not after a release; waiting gets over it."""
    url = f"{server.url}/delay?{OPTIONS}"
    with fencepost.connect(f"{url}&lock_delay=6s", ttl=15) as here, fencepost.connect(url, ttl=15) as there:
        assert here.acquire("x").release()
        lease = here.acquire("x")
        [found] = [each for each in sessions(server) if each["LockDelay"] == 6_000_000_000]
        http_json(server.port, "PUT", f"/v1/session/destroy/{found['ID']}")
        assert there.try_acquire("x") is None
        assert there.acquire("x", timeout=PATIENCE).token > lease.token
        with pytest.raises(ConfigError, match="at most 60s"):
            fencepost.connect("consul://localhost?lock_delay=2m")


def test_a_destroyed_session_ends_its_lease(server: Consul) -> None:
    url = f"{server.url}/destroyed?{OPTIONS}"
    with fencepost.connect(url, ttl=3) as locks:
        lease = locks.acquire("x")
        for each in sessions(server):
            http_json(server.port, "PUT", f"/v1/session/destroy/{each['ID']}")
        assert lease.ended.wait(PATIENCE)
        assert lease.release() is False
        assert locks.acquire("x", timeout=PATIENCE).token > lease.token


@pytest.mark.parametrize("name", ["plain/Name_1.~-x", "a//b", "/", ".", "..", "a/../b", "%00", "ü ☃", "x/.lock"])
def test_a_name_is_one_prefix_and_back(name: str) -> None:
    prefix = address.encode(name)
    assert address.decode(prefix) == name
    assert (prefix == name) == (name in ("plain/Name_1.~-x", "x/.lock"))
    assert not {"", ".", ".."} & set(prefix.split("/"))


def test_doctor_tells_what_the_server_takes(server: Consul) -> None:
    backend = connect(server.url, Blocking())
    findings = run(backend.doctor())
    run(backend.close())
    assert any("session_ttl_min=0.5s" in finding.means for finding in findings)
    assert any(finding.level == "risk" and "one server" in finding.what for finding in findings)


@pytest.mark.parametrize(("host", "exposed"), [(HOST, False), ("0.0.0.0", True)])
def test_doctor_tells_of_a_token_in_the_clear_and_of_the_way_back_after_a_restore(
    server: Consul, host: str, exposed: bool
) -> None:
    backend = connect(f"consul://:s3cret@{host}:{server.port}", Blocking())
    findings = run(backend.doctor())
    run(backend.close())
    told = [each.what for each in findings if "clear" in each.what]
    assert told == (["the password goes to 0.0.0.0 in the clear"] if exposed else [])
    assert any("fencepost bump" in each.means for each in findings)


def test_an_acl_token_goes_where_a_password_goes() -> None:
    settings = {"acl": {"enabled": True, "default_policy": "deny", "tokens": {"master": "s3cret", "agent": "s3cret"}}}
    guarded = Guarded(args=["-hcl", json.dumps(settings)])
    with guarded as server:
        with fencepost.connect(server.url) as locks, pytest.raises(BackendError, match="ACL") as refused:
            locks.acquire("x", timeout=1)
        assert not refused.value.ambiguous
        with fencepost.connect(f"consul://:s3cret@{server.address}") as locks, locks.lock("x") as lease:
            lease.renew()
        with fencepost.connect(f"consul://:wr0ng@{server.address}") as locks, pytest.raises(BackendError) as wrong:
            locks.acquire("x", timeout=1)
        assert "wr0ng" not in str(wrong.value)


class Guarded(Consul):
    """A server with ACLs, which tells a stranger only that it leads."""

    def ping(self) -> bool:
        # It refuses sessions until it knows the token, and has registered its own node.
        return bool(http_json(self.port, "GET", "/v1/health/node/fencepost?token=s3cret"))


def test_tls_with_a_ca_of_ones_own(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    port = Port()
    config = {"ports": {"https": port.number}, "cert_file": str(certificate), "key_file": str(key)}
    try:
        with Consul(args=["-hcl", json.dumps(config)]):
            address = f"{HOST}:{port.number}"
            with fencepost.connect(f"consul://{address}?ca={certificate}") as locks, locks.lock("x") as lease:
                lease.renew()
            with (
                fencepost.connect(f"consul://{address}?tls=1") as locks,
                pytest.raises(BackendError, match="certificate"),
            ):
                locks.acquire("x", timeout=1)
    finally:
        port.close()


@contextlib.contextmanager
def always(said: bytes) -> Iterator[sync.Locks]:
    """Locks at a server that says the same to everything."""

    class Stranger(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(65536):
                self.request.sendall(said)

    with socketserver.ThreadingTCPServer((HOST, 0), Stranger) as stranger:
        stranger.daemon_threads = True
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        try:
            with fencepost.connect(f"consul://{HOST}:{stranger.server_address[1]}") as locks:
                yield locks
        finally:
            stranger.shutdown()


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", b"what?\r\n\r\n"])
def test_somebody_else_at_the_port_is_an_error_that_names_it(said: bytes) -> None:
    """Such as a proxy that shows a page of its own while it has no Consul behind it."""
    with always(said) as locks:
        for ask in (locks.try_acquire, locks.status):
            with pytest.raises(BackendError, match="onsul") as failed:
                ask("x")
            assert failed.value.ambiguous


@pytest.mark.parametrize(("status", "ambiguous"), [(500, True), (429, False)])
def test_only_a_failure_inside_consul_leaves_it_open_whether_a_request_was_carried_out(
    status: int, ambiguous: bool
) -> None:
    """A leader that is lost meanwhile may have carried it out; a request that was refused is not."""
    with always(b"HTTP/1.1 %d Why\r\nContent-Length: 8\r\n\r\nsome why" % status) as locks:
        with pytest.raises(BackendError, match="some why") as failed:
            locks.try_acquire("x")
        assert failed.value.ambiguous is ambiguous


@isolated
async def test_a_forked_child_lends_none_of_its_parents_sessions(consul_server: Endpoint) -> None:
    """A session may lock its key again: parent and child would both hold it."""
    with fencepost.connect(f"{consul_server.url}/fork-{secrets.token_hex(4)}", ttl=60) as locks:
        assert locks.acquire("first").release(), "its session is idle now"

        async def hold() -> int:
            return locks.acquire("x").token

        token = await in_fork(hold, PATIENCE)
        status = locks.status("x")
        assert status is not None
        assert status.token == token, "the child's session outlives it"
        assert locks.try_acquire("x") is None
        assert locks.break_lock("x")


def test_a_release_that_never_arrived_can_be_tried_again(server: Consul) -> None:
    with (
        Proxy(server.port) as proxy,
        fencepost.connect(f"{server.url}/again", ttl=PATIENCE) as others,
        fencepost.connect(f"consul://{HOST}:{proxy.port}/again", ttl=PATIENCE) as locks,
        ThreadPoolExecutor(1) as aside,
    ):
        lease = locks.acquire("x")
        proxy.cut()
        released = aside.submit(lease.release)
        until(lambda: proxy.holds(b'"Verb":"delete"'), "the request was on its way")
        proxy.drop()
        with pytest.raises(BackendError):
            released.result(PATIENCE)
        proxy.heal()
        assert others.try_acquire("x") is None
        assert lease.release()
        assert others.acquire("x").release()
        # Its session is lent to nobody else: it is still to be ended.
        assert all(locks.acquire(f"y{number}").release() for number in range(3))


def test_a_holder_whose_session_ends_leaves_no_key_behind(server: Consul) -> None:
    with fencepost.connect(f"{server.url}/left?{OPTIONS}", ttl=60) as locks:
        locks.acquire("x", renew=False)
        [held] = http_json(server.port, "GET", "/v1/kv/left/x/.lock")
        http_json(server.port, "PUT", f"/v1/session/destroy/{held['Session']}")
        assert locks.status("x") is None
        with pytest.raises(OSError, match="404"):
            http_json(server.port, "GET", "/v1/kv/left/x/.lock")


@pytest.mark.parametrize("body", [b"{}", b"null", b'"ok"', b"[]", b"[1]", b'{"Results": [{}]}'])
def test_json_that_is_not_consuls_is_a_failing_store(body: bytes) -> None:
    class Other(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.readline():
                length = 0
                while head.strip():
                    if head.lower().startswith(b"content-length:"):
                        length = int(head.split(b":")[1])
                    head = self.rfile.readline()
                self.rfile.read(length)
                said = b'{"ID": "s"}' if length and not asked else body
                asked.append(length)
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    asked: list[int] = []
    with socketserver.ThreadingTCPServer((HOST, 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with fencepost.connect(f"consul://{HOST}:{other.server_address[1]}/x", ttl=60) as locks:
            for ask in (
                lambda: locks.acquire("x", timeout=0),
                lambda: locks.status("x"),
                lambda: locks.bump("x", above=5),
            ):
                with pytest.raises(BackendError):
                    ask()
        other.shutdown()


def test_a_token_that_may_not_write_keys_is_told_so() -> None:
    """Consul says it with the status of a transaction that lost a race."""
    settings = {"acl": {"enabled": True, "default_policy": "deny", "tokens": {"master": "s3cret", "agent": "s3cret"}}}
    rules = (
        'key_prefix "" { policy = "read" } session_prefix "" { policy = "write" } node_prefix "" { policy = "read" }'
    )
    with Guarded(args=["-hcl", json.dumps(settings)]) as server:

        def make(what: str, body: dict[str, Any]) -> Any:
            return http_json(server.port, "PUT", f"/v1/acl/{what}?token=s3cret", json.dumps(body))

        policy = make("policy", {"Name": "reader", "Rules": rules})
        token = make("token", {"Policies": [{"ID": policy["ID"]}]})["SecretID"]
        with fencepost.connect(f"consul://:{token}@{server.address}") as locks:
            for call in (lambda: locks.acquire("x"), lambda: locks.bump("x", above=10)):
                with pytest.raises(BackendError, match="ACL") as refused:
                    call()
                assert not refused.value.ambiguous
            # One that may no longer be used costs the others nothing, even if it is looked at together with them.
            make(f"policy/{policy['ID']}", {"Name": "reader", "Rules": rules.replace("read", "write", 1)})
            until(lambda: allowed(lambda: locks.acquire("x").release()), "the new rules are known")
            leases = [locks.acquire(f"lock-{number}", ttl=300) for number in range(10)]
            theirs = f'key_prefix "{leases[3].name}" {{ policy = "deny" }} {rules.replace("read", "write", 1)}'
            make(f"policy/{policy['ID']}", {"Name": "reader", "Rules": theirs})
            until(lambda: not allowed(leases[3].renew), "the new rules are known")
            locks.break_lock(leases[5].name)
            holds = [Hold(each.name, each._stored, each.token, each.ttl) for each in leases]
            expected = [Renewal.RENEWED] * 10
            expected[3], expected[5] = Renewal.UNKNOWN, Renewal.LOST
            assert run(locks._core.backend.renew(holds)) == expected
            with pytest.raises(BackendError, match="ACL"):
                leases[3].renew()


def allowed(call: Callable[[], object]) -> bool:
    try:
        call()
    except BackendError:
        return False
    return True
