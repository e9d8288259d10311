"""The page's server and its export, over real HTTP on this host."""

import http.client
import json
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from fencepost.cli.app import app
from fencepost.errors import ConfigError
from fencepost_lab.history.format import lines
from fencepost_lab.sim import parse, run
from fencepost_lab.sim.answers import answer
from fencepost_lab.sim.chaos import chaos
from fencepost_lab.sim.guided import guided
from fencepost_lab.sim.scenario import BACKENDS, FENCINGS
from fencepost_lab.sim.seeds import keep, try_seeds
from fencepost_lab.sim.serve import MAX_BODY, Page, server
from fencepost_lab.sim.site import data
from tests.harness.waiting import PATIENCE

SCENARIO = {"actions": [{"at": 0, "who": "A", "do": "acquire"}], "until": 2}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("play") / "history.jsonl"
    path.write_text(lines(run(parse(SCENARIO))))
    return path


@pytest.fixture(scope="module")
def page(history: Path) -> Iterator[ThreadingHTTPServer]:
    with server(0, history) as started:
        thread = threading.Thread(target=started.serve_forever)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def ask(
    page: ThreadingHTTPServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def test_a_posted_scenario_is_answered_with_its_trace(page: ThreadingHTTPServer) -> None:
    status, headers, body = ask(page, "POST", "/run", json.dumps(SCENARIO).encode())
    assert status == 200
    assert headers["Content-Type"].startswith("application/x-ndjson")
    assert body.decode() == lines(run(parse(SCENARIO)))


def test_a_scenario_that_cannot_be_meant_is_answered_with_the_reason(page: ThreadingHTTPServer) -> None:
    status, _, body = ask(page, "POST", "/run", b'{"settings": {"backend": "mysql"}}')
    assert (status, "backend is one of" in json.loads(body)["error"]) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"settings": {"clients": [1]}}',
        b'{"settings": {"clients": [["A"]]}}',
        b'{"settings": {"ttl": 1' + b"0" * 400 + b"}}",
        b'{"settings": {"delay": [{}, 1]}}',
        b'{"until": 1' + b"0" * 400 + b"}",
        b'{"actions": [{"do": {}}]}',
        b'{"actions": [{"do": "acquire", "who": ["A"]}]}',
        b'{"actions": [{"do": "cut", "who": "A", "from": {}}]}',
        b'{"actions": [{"do": "cut", "who": "A", "way": []}]}',
        b'{"actions": [{"do": "skew", "who": "A", "rate": null}]}',
        b'{"actions": [{"do": "acquire", "who": "A", "at": 1' + b"0" * 400 + b"}]}",
        b'{"seed": 1' + b"0" * 5000 + b"}",
        b"\xff\xfe{",
    ],
)
def test_odd_input_is_answered_with_400(page: ThreadingHTTPServer, body: bytes) -> None:
    status, _, answer = ask(page, "POST", "/run", body)
    assert (status, list(json.loads(answer))) == (400, ["error"])


def test_numbers_of_thousands_of_digits_are_answered(page: ThreadingHTTPServer) -> None:
    assert ask(page, "POST", "/run", None, **{"Content-Length": "1" * 5000})[0] == 413
    for number in ("1" * 5000, "\u0661", "9" * 19):
        assert ask(page, "GET", quote(f"/data/seeds/{number}.json"))[0] == 404
        assert ask(page, "GET", quote(f"/data/traces/pause-{number}.jsonl"))[0] == 404
    assert ask(page, "GET", f"/data/seeds/{2**63 - 1}.json")[0] == 200


def test_too_large_a_scenario_is_refused_unread(page: ThreadingHTTPServer) -> None:
    assert ask(page, "POST", "/run", None, **{"Content-Length": str(MAX_BODY + 1)})[0] == 413


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/index.html", 200),
        ("/data/options.json", 200),
        ("/data/history.jsonl", 200),
        ("/nothing", 404),
        ("/../run.py", 404),
        ("/%2e%2e/run.py", 404),
        ("/..%2frun.py", 404),
        ("//etc/passwd", 404),
        ("/data/../../run.py", 404),
        ("/data/traces/none-0.jsonl", 404),
        ("/data/traces/gc-pause-99.jsonl", 404),
    ],
)
def test_only_the_page_is_served(page: ThreadingHTTPServer, path: str, status: int) -> None:
    assert ask(page, "GET", path)[0] == status


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_other_sites_are_turned_away(page: ThreadingHTTPServer, headers: dict[str, str]) -> None:
    assert ask(page, "GET", "/data/options.json", None, **headers)[0] == 403
    assert ask(page, "POST", "/run", json.dumps(SCENARIO).encode(), **headers)[0] == 403


def test_the_options_name_everything_there_is(page: ThreadingHTTPServer) -> None:
    options: dict[str, Any] = json.loads(ask(page, "GET", "/data/options.json")[2])
    assert (options["engine"], options["play"]) == ("server", True)
    assert parse({"settings": options["settings"]}).settings == parse({}).settings
    assert {"acquire", "pause", "failover"} <= set(options["actions"])
    assert list(options["backends"]) == list(BACKENDS)
    assert all(set(store) == {"name", "token", "about"} for store in options["backends"].values())
    assert list(options["fencings"]) == list(FENCINGS)
    assert set(options["meanings"]) == {"seed", *options["settings"], "until"}


def test_every_guided_variant_has_its_scenario_and_its_trace(page: ThreadingHTTPServer) -> None:
    stories = json.loads(ask(page, "GET", "/data/scenarios.json")[2])
    assert [story["name"] for story in stories] == [story["name"] for story in guided()]
    variant = stories[0]["variants"][1]
    trace = ask(page, "GET", "/" + variant["trace"])[2].decode()
    assert trace == lines(run(parse(variant["scenario"])))


def test_a_seed_can_be_looked_at(page: ThreadingHTTPServer) -> None:
    assert parse(ask(page, "GET", "/data/seeds/7.json")[2]) == chaos(7)


def test_an_export_has_the_same_files(page: ThreadingHTTPServer, history: Path, tmp_path: Path) -> None:
    arguments = ["sim", "--export", str(tmp_path / "site"), "--recorded", "--play", str(history), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    files = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert json.loads(done.stdout) == {"files": len(files)}
    assert {"index.html", "data/options.json", "data/scenarios.json", "data/history.jsonl"} <= files
    for name in files - {"data/options.json"}:
        assert (tmp_path / "site" / name).read_bytes() == ask(page, "GET", "/" + name)[2], name
    assert json.loads((tmp_path / "site" / "data" / "options.json").read_text())["engine"] == "none"


def test_a_port_that_is_taken_is_named(page: ThreadingHTTPServer) -> None:
    with pytest.raises(ConfigError, match=f"port {page.server_port}"):
        server(page.server_port)


def test_who_closes_the_page_while_it_loads_causes_no_traceback(
    page: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: queue.SimpleQueue[None] = queue.SimpleQueue()
    answer_one = page.process_request_thread

    def watched(*connection: Any) -> None:
        answer_one(*connection)
        answered.put(None)

    def fail(self: Page) -> None:
        raise failures.pop()

    monkeypatch.setattr(page, "process_request_thread", watched)
    for request in (b"POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", b"GET /"):
        with socket.create_connection(("127.0.0.1", page.server_port)) as client:
            client.sendall(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset, not closed
        answered.get(timeout=PATIENCE)
    assert capsys.readouterr().err == ""

    failures = [ZeroDivisionError("a mistake of ours")]
    monkeypatch.setattr(Page, "do_GET", fail)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        ask(page, "GET", "/")
    answered.get(timeout=PATIENCE)
    assert "a mistake of ours" in capsys.readouterr().err


def test_a_kept_seed_is_played_with_what_it_broke(tmp_path: Path) -> None:
    failure = try_seeds(range(1000), fencing="off", stop=True).failures[0]
    kept = keep(failure, tmp_path)
    with server(0, kept):
        pass
    trace = [json.loads(line) for line in data("history.jsonl", play=kept).splitlines()]
    notes = [(line["t"], line["text"]) for line in trace if line["ev"] == "note"]
    assert notes == [(each.t, f"Broken: {each.check}: {each.what}") for each in failure.violations]
    *events, end = run(failure.scenario)
    assert [line for line in trace if line["ev"] != "note"] == [*events, end | {"lines": len(trace) - 1}]
    assert json.loads(answer("check", data("history.jsonl", play=kept)))["promises"], "the page can check it"


def test_what_is_neither_a_history_nor_a_scenario_is_named(tmp_path: Path) -> None:
    (tmp_path / "words.jsonl").write_text("words\n")
    with pytest.raises(ConfigError, match=":1 is not a line of a history"):
        server(0, tmp_path / "words.jsonl")
    (tmp_path / "other.json").write_text('{"settings": {"backend": "mysql"}}')
    with pytest.raises(ConfigError, match="backend is one of"):
        server(0, tmp_path / "other.json")


def test_a_history_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no history"):
        server(0, tmp_path / "none.jsonl")
