"""The metrics page of a command: the same as prometheus_client makes, and a server that no client can stop."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fencepost.cli import metrics
from fencepost.errors import ConfigError
from fencepost.events import Event
from fencepost.hooks import page as pages
from fencepost.hooks.page import Page, Server
from fencepost.hooks.prometheus import Metrics
from fencepost.rule import Verdict
from tests.harness.waiting import PATIENCE


def event(kind: str, **facts: object) -> Event:
    return Event(kind=kind, name="a", source="memory", **facts)  # type: ignore[arg-type]


EVENTS = [
    event("attempt"),
    event("acquired", seconds=0.001),
    event("acquired", seconds=99.0),
    event("renewed", ratio=0.66),
    event("unrenewed"),
    event("at_risk", seconds=8.0),
    event("recovered"),
    event("lost"),
    event("released", seconds=2.0),
    event("decision", verdict=Verdict.STALE, enforced=True, action="write", token=4, seen=7),
    event("decision", verdict=Verdict.MISSING, enforced=False, action="write"),
]


def samples(text: str) -> dict[tuple[str, str], object]:
    found: dict[tuple[str, str], object] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        found[family.name, "about"] = family.type, family.documentation
        for sample in family.samples:
            found[sample.name, str(sorted(sample.labels.items()))] = sample.value
    return found


def test_it_counts_as_prometheus_client_does_also_for_several_processes() -> None:
    registry, page, all = CollectorRegistry(), Page(), Page()
    hook = Metrics(registry)
    for each in EVENTS:
        hook(each)
        page(each)
    assert samples(page.text().decode()) == samples(generate_latest(registry).decode())
    for each in EVENTS:
        hook(each)
    for _ in range(2):
        all.merge(page.data())
    assert samples(all.text().decode()) == samples(generate_latest(registry).decode())


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server(Page().text)) as server:
        yield server


def address(server: Server) -> tuple[str, int]:
    found = urlsplit(server.url)
    assert found.hostname == "127.0.0.1", "of this machine only"
    assert found.port
    return found.hostname, found.port


def test_no_client_stops_the_page(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server's patience with each client, in the order in which they connect: one that asks may stall for seconds.
    patiences: list[float] = []
    serve = server._answer

    def serve_in_order(client: socket.socket) -> None:
        monkeypatch.setattr(pages, "_PATIENCE", patiences.pop(0))
        serve(client)

    monkeypatch.setattr(server, "_answer", serve_in_order)

    def ask(method: str, path: str = "/metrics") -> tuple[int, bytes]:
        patiences.append(PATIENCE)
        with closing(http.client.HTTPConnection(*address(server), timeout=PATIENCE)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    assert ask("HEAD") == (200, b"")
    assert ask("POST")[0] == 405
    assert [ask("GET", path)[0] for path in ("/", "/metrics/", "/..%2f")] == [404] * 3
    for sent in (b"", b"\r\n\r\n", b"GET", b"\0\xff" * 50, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000):
        patiences.append(0.05)
        with socket.create_connection(address(server), PATIENCE) as client:
            try:
                client.sendall(sent)  # and it neither ends nor reads
            except OSError:
                pass  # it was given up already
            status, body = ask("GET", "/metrics?again")
            assert (status, b"fencepost_lock_acquire_attempts_total 0.0" in body) == (200, True)


def test_an_address_is_named_or_free_or_off(server: Server) -> None:
    taken = address(server)[1]
    assert metrics.where("off") is None
    assert metrics.where("auto") == ("127.0.0.1", 0, False)
    assert metrics.where("9109") == ("127.0.0.1", 9109, True)
    assert metrics.where("[::1]:9109") == ("::1", 9109, True)
    for wrong in ("", "on", ":9109", "65536", "-1", "host:", "9109 ", "\u0661"):
        with pytest.raises(ConfigError, match="auto, off"):
            metrics.where(wrong)
    with pytest.raises(ConfigError, match="choose another"):
        metrics.serve(str(taken), Page().text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_server", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
        assert metrics.serve("auto", Page().text) is None, "a command runs all the same"
