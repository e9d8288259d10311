"""The protected resource as its clients meet it: a real process, asked over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fencepost.cli.app import app
from fencepost.errors import BackendError
from fencepost.rule import MAX_TOKEN, Stamp
from fencepost_lab.servers.processes import HOST
from fencepost_lab.torture.registers import Entry, register
from tests.harness.child import Child
from tests.harness.resource import Answer, Service, stamped
from tests.harness.waiting import PATIENCE, until
from tests.lab.test_torment import keeps_a_journal

LIMIT = 1 << 20
TOKEN = "X-Fence-Token"
_serial = itertools.count()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture(scope="module")
def unlimited() -> Iterator[Service]:
    with Service(args=["--ceiling", "off"]) as service:
        yield service


@pytest.fixture(scope="module")
def unfenced() -> Iterator[Service]:
    with Service(args=["--fence", "off"]) as service:
        yield service


@pytest.fixture
def key() -> str:
    return f"key-{next(_serial)}"


def test_a_write_is_accepted_and_read_back_with_its_mark(service: Service, key: str) -> None:
    wrote = service.put(key, b"hello", 7)
    assert (wrote.status, wrote.headers["X-Fence-Mark"]) == (200, "7")
    read = service.get(key)
    assert (read.status, read.body, read.headers["X-Fence-Mark"]) == (200, b"hello", "7")
    assert read.headers["Content-Type"] == "application/octet-stream"


def test_a_stale_write_gets_409_with_both_tokens_and_nothing_else(service: Service, key: str) -> None:
    service.put(key, b"hello", 7)
    refused = service.put(key, b"zombie", 6)
    assert refused.status == 409
    assert refused.body == b'{"error":"stale fencing token","seen":7,"got":6}'
    assert service.get(key).body == b"hello"


def test_a_delete_is_a_write_whose_mark_stays(service: Service, key: str) -> None:
    def delete(offer: Stamp) -> Answer:
        return service.ask("DELETE", f"/r/{key}", headers=stamped(offer))

    assert delete(Stamp(5, 1, "ann")).status == 200, "there was nothing, and there is nothing"
    assert service.put(key, b"hello", Stamp(5, 2, "ann")).status == 200
    assert service.ask("DELETE", f"/r/{key}").status == 428
    assert delete(Stamp(4, 1, "zombie")).status == 409
    assert service.get(key).body == b"hello"
    for replay in (False, True):
        answer = delete(Stamp(5, 3, "ann"))
        assert (answer.status, answer.json) == (200, {"deleted": True, "replay": replay, "max_fence": 5})
    gone = service.get(key)
    assert (gone.status, gone.headers["X-Fence-Mark"]) == (404, "5")
    assert service.put(key, b"zombie", Stamp(4, 2, "zombie")).status == 409
    assert service.put(key, b"", Stamp(5, 3, "ann")).status == 409, "an empty value is not the same as none"
    assert service.put(key, b"", Stamp(5, 4, "ann")).status == 200
    assert service.get(key).status == 200


def test_the_same_bare_token_again_is_stale(service: Service, key: str) -> None:
    service.put(key, b"hello", 7)
    assert service.put(key, b"hello", 7).body == b'{"error":"stale fencing token","seen":7,"got":7}'


@pytest.mark.parametrize(
    ("offer", "verdict"),
    [
        (Stamp(7, 4, "ann"), "late"),
        (Stamp(7, 5, "ann"), "replay"),
        (Stamp(7, 6, "bob"), "clash"),
        (Stamp(6, 1, "bob"), "stale"),
    ],
)
def test_every_refusal_says_which_it_is(service: Service, key: str, offer: Stamp, verdict: str) -> None:
    service.put(key, b"hello", Stamp(7, 5, "ann"))
    refused = service.put(key, b"other", offer)
    assert (refused.status, refused.headers["X-Fence-Verdict"]) == (409, verdict)
    assert (refused.json["error"] == "stale fencing token") == (verdict == "stale")
    assert refused.json.get("verdict", "stale") == verdict
    assert refused.json["seen"] == 7
    assert service.get(key).body == b"hello"


def test_a_retry_of_the_same_write_is_answered_as_done(service: Service, key: str) -> None:
    before = service.metric("fencepost_resource_writes_replayed_total")
    first, again = (service.put(key, b"hello", Stamp(7, 1, "ann")) for _ in range(2))
    assert (first.status, first.json["replay"]) == (200, False)
    assert (again.status, again.json["replay"]) == (200, True)
    assert service.metric("fencepost_resource_writes_replayed_total") == before + 1


def test_a_write_without_a_token_gets_428(service: Service, key: str) -> None:
    before = service.metric("fencepost_critical_write_without_token_total")
    refused = service.ask("PUT", f"/r/{key}", b"x")
    assert (refused.status, refused.headers["X-Fence-Verdict"]) == (428, "missing")
    assert service.get(key).status == 404
    assert service.metric("fencepost_critical_write_without_token_total") == before + 1


@pytest.mark.parametrize(
    "headers",
    [
        *({TOKEN: token} for token in ("", "0", "-1", "+1", "1.0", "1e3", "0x1", "abc", "007", "1,2", "1 2")),
        *({TOKEN: token} for token in (str(MAX_TOKEN + 1), "9" * 19, "9" * 5000, "\u00b2", "NaN")),
        {"X-Fence-Seq": "1"},
        {"X-Fence-Holder": "ann"},
        {TOKEN: "5", "X-Fence-Seq": "2"},
        {TOKEN: "5", "X-Fence-Seq": "0", "X-Fence-Holder": "ann"},
        {TOKEN: "5", "X-Fence-Seq": "-1", "X-Fence-Holder": "ann"},
        {TOKEN: "5", "X-Fence-Seq": "x", "X-Fence-Holder": "ann"},
        {TOKEN: "5", "X-Fence-Seq": "1", "X-Fence-Holder": "a" * 600},
        {TOKEN: "5", "X-Fence-Seq": "1", "X-Fence-Holder": "\u00ff"},
    ],
    ids=lambda headers: repr(headers)[:60],
)
def test_a_malformed_stamp_gets_400(service: Service, key: str, headers: dict[str, str]) -> None:
    refused = service.ask("PUT", f"/r/{key}", b"x", headers)
    assert refused.status == 400
    assert refused.json["error"]
    assert service.get(key).status == 404


def test_a_token_given_twice_gets_400(service: Service, key: str) -> None:
    connection = service.connection()
    with contextlib.closing(connection):
        connection.putrequest("PUT", f"/r/{key}")
        for token in ("5", "6"):
            connection.putheader(TOKEN, token)
        connection.endheaders()
        assert connection.getresponse().status == 400


@pytest.mark.parametrize("path", ["/r/", "/r/%00", "/r/a%0Ab", "/r/%ff", "/r/%zz", "/r/%", "/r/" + "x" * 513])
def test_a_key_that_cannot_be_one_gets_400(service: Service, path: str) -> None:
    assert service.ask("PUT", path, b"x", {TOKEN: "5"}).status == 400
    assert service.ask("GET", path).status == 400


@pytest.mark.parametrize("path", ["/", "/r", "/rx", "/metrics/", "/healthz/x", "/R/a", "/%72/a"])
def test_an_unknown_path_gets_404(service: Service, path: str) -> None:
    for method in ("GET", "PUT", "POST"):
        assert service.ask(method, path).status == 404


@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "OPTIONS", "PROPFIND", "TRACE"])
@pytest.mark.parametrize("path", ["/r/a", "/r/%ff", "/metrics", "/healthz"])
def test_another_method_gets_405(service: Service, method: str, path: str) -> None:
    refused = service.ask(method, path, headers={TOKEN: "5"})
    assert refused.status == 405
    assert "GET" in refused.headers["Allow"]


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/openapi.json"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_page_cannot_be_changed(service: Service, method: str, path: str) -> None:
    assert service.ask(method, path, headers={TOKEN: "5"}).status == 405


def test_a_key_means_the_same_however_it_is_escaped(service: Service, key: str) -> None:
    service.ask("PUT", f"/r/{key}/%C3%A4%2Fb?ignored=1", b"x", {TOKEN: "5"})
    assert service.ask("GET", f"/r/{key}/%c3%a4/%62").body == b"x"
    assert service.ask("GET", f"/r/{key}/%C3%A4%252Fb").status == 404


def test_an_unknown_key_gets_404(service: Service, key: str) -> None:
    missing = service.get(key)
    assert (missing.status, missing.headers["X-Fence-Mark"]) == (404, None)


def test_a_fenced_read_enters(service: Service, key: str) -> None:
    service.put(key, b"hello", 5)
    read = service.get(key, X_Fence_Token="7")
    assert (read.status, read.body, read.headers["X-Fence-Mark"]) == (200, b"hello", "7")
    assert service.put(key, b"zombie", 6).status == 409
    stale = service.get(key, X_Fence_Token="6")
    assert stale.status == 409
    assert stale.body == b'{"error":"stale fencing token","seen":7,"got":6}'
    assert service.get(key).body == b"hello"


def test_a_fenced_read_of_an_unknown_key_enters_too(service: Service, key: str) -> None:
    read = service.get(key, X_Fence_Token="7")
    assert (read.status, read.headers["X-Fence-Mark"]) == (404, "7")
    assert service.put(key, b"zombie", 6).status == 409


def test_an_unfenced_read_does_not_enter(service: Service, key: str) -> None:
    service.put(key, b"hello", 5)
    assert service.get(key).headers["X-Fence-Mark"] == "5"
    assert service.put(key, b"more", 6).status == 200


@pytest.mark.parametrize(
    ("body", "value", "encoding"),
    [
        (b"hello", "hello", "utf-8"),
        ("grüß 🔒".encode(), "grüß 🔒", "utf-8"),
        (b"", "", "utf-8"),
        (b"\0\n", "\0\n", "utf-8"),
        (b"\xff\xfe", "//4=", "base64"),
    ],
)
def test_a_value_as_json(service: Service, key: str, body: bytes, value: str, encoding: str) -> None:
    service.put(key, body, 7)
    answer = service.get(key, Accept="application/json")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json == {"value": value, "encoding": encoding, "max_fence": 7}
    assert service.get(key).body == body


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        ("application/json", True),
        ("text/html, Application/JSON;q=0.9, */*;q=0.1", True),
        ("*/*", False),
        ("application/json;q=0", False),
        ("application/octet-stream, application/json;q=0.5", False),
        ("application/jsonx", False),
        ("", False),
        (";;,,q=", False),
    ],
)
def test_json_is_for_those_who_ask_for_it(service: Service, key: str, accept: str, is_json: bool) -> None:
    service.put(key, b"hello", 7)
    answer = service.get(key, Accept=accept)
    assert answer.status == 200
    assert (answer.headers["Content-Type"] == "application/json") == is_json


def test_where_the_issuer_counts_a_closer_limit_keeps_tokens_of_the_present_time_out(key: str) -> None:
    with Service(args=["--max-jump", "1000", "--max-first", "500"]) as service:
        now = str(time.time_ns() // 1000)
        for token in (1, 500, 1500):
            assert service.put(key, b"honest", token).status == 200
            refused = service.get(key, X_Fence_Token=now)
            assert (refused.status, refused.headers["X-Fence-Verdict"]) == (409, "leap")
        assert service.put(key, b"too far", 2501).status == 409
        for first in ("501", now):
            assert service.get(f"{key}/new", X_Fence_Token=first).status == 409
    done = CliRunner().invoke(app, ["resource", "--max-jump", "0"])
    assert (done.exit_code, "between 1 and 2^63-1" in done.stderr) == (2, True)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_token_that_no_issuer_can_have_come_to_locks_nobody_out(service: Service, key: str, method: str) -> None:
    wild = service.ask(method, f"/r/{key}", b"x" if method == "PUT" else None, {TOKEN: str(MAX_TOKEN)})
    assert (wild.status, wild.headers["X-Fence-Verdict"]) == (409, "leap")
    assert service.put(key, b"x", 34).status == 200


def test_a_token_beyond_a_double_is_text_in_json(unlimited: Service, key: str) -> None:
    service = unlimited

    def shown(answer: Answer, field: str) -> object:
        return answer.json[field]

    assert shown(service.put(key, b"x", 2**53 - 1), "max_fence") == 2**53 - 1
    assert shown(service.put(key, b"x", 2**53), "max_fence") == str(2**53)
    service.put(key, b"x", MAX_TOKEN)
    stale = service.put(key, b"x", MAX_TOKEN - 1)
    assert (shown(stale, "seen"), shown(stale, "got")) == (str(MAX_TOKEN), str(MAX_TOKEN - 1))
    assert shown(service.get(key, Accept="application/json"), "max_fence") == str(MAX_TOKEN)
    assert service.get(key).headers["X-Fence-Mark"] == str(MAX_TOKEN)


def test_a_body_may_be_as_large_as_the_limit(service: Service, key: str) -> None:
    body = os.urandom(LIMIT)
    assert service.put(key, body, 5).status == 200
    assert service.get(key).body == body
    assert service.put(key, body + b"x", 6).status == 413
    assert service.get(key).headers["X-Fence-Mark"] == "5"


def test_too_large_a_length_is_refused_before_a_byte_is_sent(service: Service, key: str) -> None:
    connection = service.connection()
    with contextlib.closing(connection):
        connection.putrequest("PUT", f"/r/{key}")
        connection.putheader(TOKEN, "5")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_too_large_a_stream_is_refused_before_it_ends(service: Service, key: str) -> None:
    connection = service.connection()
    with contextlib.closing(connection):
        connection.putrequest("PUT", f"/r/{key}")
        connection.putheader(TOKEN, "5")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        chunk = b"%x\r\n%b\r\n" % (1 << 16, bytes(1 << 16))
        for _ in range(17):
            connection.send(chunk)
        assert connection.getresponse().status == 413
    assert service.get(key).status == 404


def test_a_client_that_leaves_in_the_middle_of_a_body_has_written_nothing(service: Service, key: str) -> None:
    with socket.create_connection((HOST, service.port), 30) as half:
        half.sendall(
            f"PUT /r/{key} HTTP/1.1\r\nHost: localhost\r\n{TOKEN}: 9\r\nContent-Length: 10\r\n\r\nhalf".encode()
        )
    assert service.put(key, b"whole", 5).status == 200


def test_metrics_count_by_verdict_and_name_no_key(service: Service, key: str) -> None:
    names = ['fencepost_fencing_reject_total{verdict="stale"}', "fencepost_resource_stale_token_rejections_total"]
    names += ["fencepost_resource_writes_accepted_total", "fencepost_token_gap_count"]
    before = [service.metric(name) for name in names]
    service.put(key, b"hello", 7)
    service.put(key, b"hello", 6)
    assert [service.metric(name) - then for name, then in zip(names, before, strict=True)] == [1, 1, 1, 1]
    page = service.ask("GET", "/metrics")
    assert page.headers["Content-Type"].startswith("text/plain")
    assert key.encode() not in page.body


def test_it_is_healthy(service: Service) -> None:
    assert service.ask("GET", "/healthz").json == {"status": "ok", "mode": "strict"}


def test_with_fencing_off_everything_is_accepted_and_what_is_wrong_is_counted(unfenced: Service, key: str) -> None:
    assert unfenced.ask("PUT", f"/r/{key}", b"bare").status == 200
    assert unfenced.get(key, Accept="application/json").json["max_fence"] == 0
    assert unfenced.put(key, b"new holder", Stamp(7, 1, "new")).status == 200
    assert unfenced.put(key, b"zombie", Stamp(6, 1, "old")).status == 200
    read = unfenced.get(key, Accept="application/json")
    assert read.json == {"value": "zombie", "encoding": "utf-8", "max_fence": 7}
    assert unfenced.get(key, X_Fence_Token="5").status == 200
    assert unfenced.metric('fencepost_fencing_would_reject_total{verdict="stale"}') == 2
    assert unfenced.metric('fencepost_fencing_would_reject_total{verdict="missing"}') == 1
    assert unfenced.metric('fencepost_fencing_reject_total{verdict="stale"}') == 0
    assert unfenced.metric("fencepost_critical_write_without_token_total") == 1
    assert unfenced.metric("fencepost_resource_writes_accepted_total") == 3


@pytest.mark.slow
def test_told_to_stop_it_answers_the_request_under_way_and_exits_with_0() -> None:
    with Service() as service:
        with socket.create_connection((HOST, service.port), 30) as slow:
            headers = f"Host: localhost\r\n{TOKEN}: 5\r\nContent-Length: 8\r\nExpect: 100-continue"
            slow.sendall(f"PUT /r/slow HTTP/1.1\r\n{headers}\r\n\r\n".encode())
            assert slow.recv(65536).startswith(b"HTTP/1.1 100 "), "the service now waits for the body"
            slow.sendall(b"half")
            os.kill(service.pid, signal.SIGTERM)
            until(lambda: refuses(service.port), "no new connections")
            assert service.running
            slow.sendall(b"half")
            assert slow.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert service.process is not None
        assert service.process.wait(PATIENCE) == 0
        service.start()
        assert service.get("slow").body == b"halfhalf"


def refuses(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 30).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_its_first_line_says_where_it_is_and_it_stops_in_order(tmp_path: Path, number: signal.Signals) -> None:
    store = tmp_path / "new" / "folder" / "store.sqlite3"
    with Child.fencepost("resource", "--json", "--port", "0", "--store", store) as process:
        said = process.json()
        port = int(said["url"].removeprefix(f"http://{HOST}:"))
        with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
        assert said["mode"] == "strict"
        process.signal(number)
        assert process.wait() == 0, process.story
        assert (process.output[1:], process.errors) == ([], "")


def test_its_store_may_be_named_in_the_environment(tmp_path: Path) -> None:
    """Everybody on the host sees a command's arguments, and a store's URL may have a password."""
    place = tmp_path / "values.sqlite3"
    with Child.fencepost("resource", "--port", 0, "--json", env={"FENCEPOST_STORE": str(place)}) as process:
        assert process.json()["store"] == str(place)
    assert place.exists()


@pytest.mark.slow
def test_a_store_or_port_that_cannot_be_used_is_one_line_and_exit_code_2(service: Service, tmp_path: Path) -> None:
    (tmp_path / "not.sqlite3").write_bytes(b"this is no database" * 100)
    for options in (["--port", "0", "--store", str(tmp_path / "not.sqlite3")], ["--port", str(service.port)]):
        with Child.fencepost("resource", "--store", tmp_path / "x", *options) as process:
            assert (process.wait(), process.output, process.errors.count("\n")) == (2, [], 1), process.story
            assert process.errors.startswith("fencepost: ")


def test_the_torture_s_values_live_behind_it_too(service: Service) -> None:
    keeps_a_journal(register(f"http:{service.url}"), "torture/1/2")
    service_is_gone = register("http:http://127.0.0.1:1")
    with pytest.raises(BackendError) as unknown:
        service_is_gone.write("k", None, Entry("w", None, 1, 0))
    assert unknown.value.ambiguous
