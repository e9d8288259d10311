"""The resource's connections: TLS handshakes, file descriptors, and clients that do not read their answers."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
import trustme

from fencepost_lab.servers.processes import HOST
from tests.harness.resource import Secure, Service
from tests.harness.waiting import until
from tests.resource.test_hostile import ended, established, half_open, honest


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "service.pem"
    trustme.CA().issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


def secure(pem: Path, *args: str) -> Secure:
    service = Secure(args=["--tls-cert", str(pem), *args])
    service.context = ssl._create_unverified_context()
    return service


def test_handshakes_that_do_not_end_give_way(pem: Path) -> None:
    with secure(pem, "--timeout", "10m", "--max-connections", "40") as service, half_open(service, 20, b"") as first:
        honest(service, 3)
        assert ended(first) == 0, "there is room for all of them"
        with half_open(service, 100, b"\x16\x03\x01") as others:
            honest(service, 5, first=100)
            until(lambda: ended(first) == 20, "the first ones give way", deadline=20)
            until(lambda: 60 <= ended(others) < 100, "the others give way, but not all of them", deadline=20)


@pytest.mark.slow
def test_silent_sockets_do_not_use_up_the_file_descriptors(pem: Path) -> None:
    with secure(pem).limited(160, 160) as service, half_open(service, 300, b"") as silent:
        honest(service, 5)
        used = len(list(Path(f"/proc/{service.pid}/fd").iterdir()))
        assert used < 160
        assert ended(silent) > 0, "there were more than there are descriptors for"


def test_a_handshake_has_a_deadline(pem: Path) -> None:
    with (
        secure(pem, "--timeout", "500ms") as service,
        half_open(service, 3, b"", b"\x16", b"GET / HTTP/1.1\r\n") as clients,
    ):
        until(lambda: ended(clients) == 3, "they are given up", deadline=20)
        until(lambda: served(service), "others are served")


@pytest.mark.slow
def test_many_clients_at_once_shake_hands(pem: Path) -> None:
    with secure(pem) as service, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(service.connection())) for _ in range(30)]
        for token, connection in enumerate(connections, 1):
            headers = {"X-Fence-Token": str(token)}
            assert service.ask("PUT", "/r/thing", bytes(100_000), headers, over=connection).status == 200
        for connection in connections:
            assert len(service.ask("GET", "/r/thing", over=connection).body) == 100_000
        connections[0].request("PUT", "/r/thing", bytes(100_000), {"X-Fence-Token": "99"})
        answered = connections[0].getresponse()
        service.stop()
        assert answered.status == 200
        assert service.process is not None
        assert service.process.returncode == 0


def test_as_many_connections_as_were_asked_for_fit_where_the_system_allows_it() -> None:
    service = Service(args=["--timeout", "10m", "--max-connections", "300"]).limited(128, 4096)
    with service, half_open(service, 250, b"") as idle:
        honest(service, 5)
        assert ended(idle) == 0, "all of them were there the whole time"


def served(service: Service) -> bool:
    with contextlib.suppress(OSError):
        return service.ask("GET", "/healthz").status == 200
    return False


@pytest.mark.slow
def test_clients_that_do_not_read_their_answers_give_way() -> None:
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
    with (
        Service(args=["--timeout", "10m", "--max-connections", "20"]) as service,
        half_open(service, 20, asked, receive=4096) as silent,
    ):
        until(lambda: ended(silent) == 20, "each has got the beginning of its answers")
        until(lambda: served(service), "an honest client gets in")
        honest(service, 5)
        ports = [each.getsockname()[1] for each in silent]
        assert not all(established(service.port, port) for port in ports), "some of them made room"
