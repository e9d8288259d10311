"""The middleware in front of a service: what it answers, and what it hands on."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import Client as WsgiClient

import fencepost
from fencepost.errors import StaleToken, refusal
from fencepost.events import Event
from fencepost.guards import asgi, sqlite, wsgi
from fencepost.guards.marks import Marks
from fencepost.guards.policy import Policy
from fencepost.lease import Access
from fencepost.once.http import run_id
from fencepost.rule import Stamp, Verdict
from fencepost.signing import Keys
from tests.harness.threads import background
from tests.harness.waiting import run

KEYS = Keys({"k1": b"secret " * 5})


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Ask = Callable[..., Answer]


def ask_asgi(app: Any) -> Ask:
    """Requests to an ASGI application, as a server would make them."""

    def ask(method: str, path: str, headers: Any = (), body: bytes | tuple[bytes, ...] = b"") -> Answer:
        pairs = headers.items() if isinstance(headers, dict) else headers
        parts = list(body) if isinstance(body, tuple) else [body]
        scope = {
            "type": "http",
            "method": method,
            "path": path.partition("?")[0],
            "raw_path": path.partition("?")[0].encode(),
            "query_string": path.partition("?")[2].encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            if not parts:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        run(app(scope, receive, send))
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(part.get("body", b"") for part in sent[1:]))

    return ask


def ask_wsgi(app: Any) -> Ask:
    def ask(method: str, path: str, headers: Any = (), body: bytes = b"") -> Answer:
        pairs = headers.items() if isinstance(headers, dict) else headers
        answer = WsgiClient(app).open(path, method=method, headers=list(pairs), data=body)
        found = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status_code, found, answer.get_data())

    return ask


def asgi_service(handle: Callable[[Any, str], str], **options: Any) -> Any:
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse(handle(request.scope.get("fencepost"), request.method))

    return Starlette(
        routes=[Route("/{path:path}", endpoint, methods=["GET", "PUT", "POST"])],
        middleware=[Middleware(asgi.Fence, key=key_asgi, **options)],
    )


def wsgi_service(handle: Callable[[Any, str], str]) -> Any:
    def service(environ: Any, start: Any) -> Iterable[bytes]:
        text = handle(environ.get("fencepost"), environ["REQUEST_METHOD"])
        start("200 OK", [("Content-Type", "text/plain")])
        yield text.encode()

    return service


def key_asgi(scope: Any) -> str | None:
    path: str = scope["path"]
    return path[1:] if path.startswith("/account/") else None


def key_wsgi(environ: Any) -> str | None:
    path: str = environ["PATH_INFO"]
    return path[1:] if path.startswith("/account/") else None


@pytest.fixture(params=["asgi", "wsgi"])
def serve(request: pytest.FixtureRequest) -> Callable[..., Ask]:
    """Puts a service behind the middleware."""

    def serve(handle: Callable[[Any, str], str], **options: Any) -> Ask:
        if request.param == "asgi":
            return ask_asgi(asgi_service(handle, **options))
        return ask_wsgi(wsgi.Fence(wsgi_service(handle), key_wsgi, **options))

    return serve


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[Marks]:
    with closing(Marks(tmp_path / "marks.sqlite3")) as marks:
        yield marks


def test_a_file_for_marks_that_somebody_writes_to_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "marks.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = background(lambda: Marks(path))
        time.sleep(0.1)
        opening.check()
        other.execute("COMMIT")
        opening.result().close()


def told(fenced: Any, method: str) -> str:
    return f"{method} {fenced and tuple(fenced)}"


def token(number: int, seq: int = 1, holder: str = "ann") -> dict[str, str]:
    return {"X-Fence-Token": str(number), "X-Fence-Seq": str(seq), "X-Fence-Holder": holder}


def test_the_service_is_handed_the_stamp(serve: Callable[..., Ask]) -> None:
    ask = serve(told)
    answer = ask("PUT", "/account/42", token(7, 2))
    assert (answer.status, answer.body.decode()) == (
        200,
        f"PUT {('account/42', Access('account/42', Stamp(7, 2, 'ann')))}",
    )
    assert ask("PUT", "/elsewhere").body == b"PUT None", "what has no key is not guarded"
    assert ask("GET", "/account/42").status == 200, "a plain read needs no token"


def test_without_a_token_a_write_is_428_and_a_malformed_one_400(serve: Callable[..., Ask]) -> None:
    ask = serve(told)
    answer = ask("PUT", "/account/42")
    assert (answer.status, answer.headers["x-fence-verdict"]) == (428, "missing")
    for bad in ({"X-Fence-Token": "0"}, {"X-Fence-Token": "x"}, {"X-Fence-Token": "-1"}, {"X-Fence-Seq": "1"}):
        assert ask("PUT", "/account/42", bad).status == 400, bad
    for bad in ({"X-Fence-Token": "5", "X-Fence-Seq": "2"}, token(5, 0)):
        assert ask("PUT", "/account/42", bad).status == 400, (bad, "it stamps no write")
    twice = [("X-Fence-Token", "5"), ("X-Fence-Token", "6")]
    assert ask("PUT", "/account/42", twice).status == 400


MALFORMED: list[Any] = [
    {"X-Fence-Token": ""},
    {"X-Fence-Token": "x"},
    {"X-Fence-Token": "5", "X-Fence-Seq": "2"},
    {"X-Fence-Seq": "1"},
    [("X-Fence-Token", "5"), ("X-Fence-Token", "6")],
    token(5, 10**19 - 1),
]
LONG = "/account/" + "x" * 600


@pytest.mark.parametrize("mode", ["off", "passive", "shadow", "canary:0%"])
def test_a_mode_that_refuses_nothing_serves_what_is_malformed_too(
    serve: Callable[..., Ask], marks: Marks, mode: str
) -> None:
    events: list[Event] = []
    ask = serve(told, marks=marks, policy=Policy(mode), hooks=[events.append])
    requests = [("/account/42", bad) for bad in MALFORMED] + [(LONG, {}), (LONG, token(5)), ("/account/\x07", {})]
    for path, headers in requests:
        assert ask("GET", path, headers).status == 200, headers
        answer = ask("PUT", path, headers)
        assert (answer.status, "None" in answer.body.decode()) == (200, True), headers
    counted = [(event.verdict, event.enforced) for event in events if event.action == "write"]
    enforced = None if mode == "passive" else False
    assert counted == ([] if mode == "off" else [("missing", enforced)] * len(requests))
    assert mode == "off" or events[0].name == "account/42"
    assert all(len(event.name) <= 512 and event.name.isprintable() for event in events)


def test_to_enforce_counts_a_write_without_a_token_and_refuses_a_malformed_one(serve: Callable[..., Ask]) -> None:
    ask = serve(told, policy=Policy("enforce"))
    assert [ask("PUT", path).status for path in ("/account/42", LONG)] == [200, 200]
    assert [ask("PUT", "/account/42", bad).status for bad in MALFORMED] == [400] * len(MALFORMED)
    assert ask("PUT", LONG, token(5)).status == 400
    assert serve(told)("PUT", LONG).status == 400, "strict wants to know the resource"


def test_a_service_admits_what_the_request_sent_under_its_own_policy(serve: Callable[..., Ask], tmp_path: Path) -> None:
    policy = Policy("shadow")

    def handle(fenced: Any, method: str) -> str:
        with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as conn, conn:
            if fenced.sent:
                sqlite.admit(conn, fenced.resource, fenced.sent, policy=policy)
        return "done"

    ask = serve(handle, policy=policy)
    assert [ask("PUT", "/account/42", headers).status for headers in (token(7), token(6), {})] == [200] * 3
    policy.mode = "strict"
    assert [ask("PUT", "/account/42", headers).status for headers in (token(8), token(6), {})] == [200, 409, 428]


def test_with_marks_a_stale_holder_gets_409_and_never_reaches_the_service(
    serve: Callable[..., Ask], marks: Marks
) -> None:
    served: list[str] = []

    def handle(fenced: Any, method: str) -> str:
        served.append(method)
        return "done"

    ask = serve(handle, marks=marks)
    assert ask("PUT", "/account/42", token(7)).status == 200
    assert ask("GET", "/account/42", token(8, holder="bob")).status == 200, "a fenced read enters"
    answer = ask("PUT", "/account/42", token(7, 2))
    assert (answer.status, answer.json, answer.headers["x-fence-mark"]) == (
        409,
        {"error": "stale fencing token", "seen": 8, "got": 7},
        "8",
    )
    assert ask("GET", "/account/42", token(7)).status == 409
    assert ask("PUT", "/account/42", token(8, 2, "bob")).status == 200
    replay = ask("PUT", "/account/42", token(8, 2, "bob"))
    assert (replay.status, replay.headers["x-fence-verdict"]) == (409, "replay"), (
        "nobody knows what became of the first"
    )
    assert served == ["PUT", "GET", "PUT"]


def test_what_the_service_refuses_in_its_own_transaction_is_409(serve: Callable[..., Ask], tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"

    def handle(fenced: Any, method: str) -> str:
        with closing(sqlite3.connect(path)) as conn, sqlite.fenced(conn, fenced.resource, fenced.access):
            conn.execute("CREATE TABLE IF NOT EXISTS done (token INTEGER)")
            conn.execute("INSERT INTO done VALUES (?)", (fenced.access.stamp.token,))
        return "done"

    ask = serve(handle)
    assert [ask("PUT", "/account/42", token(number)).status for number in (7, 6, 8)] == [200, 409, 200]
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT token FROM done").fetchall() == [(7,), (8,)]


def test_a_lease_s_headers_are_all_it_takes(serve: Callable[..., Ask], marks: Marks) -> None:
    ask = serve(told, marks=marks, policy=Policy(keys=KEYS))
    with fencepost.connect("memory://http", keys=KEYS) as locks, locks.lock("account/42") as lease:
        assert ask("PUT", "/account/42", lease.access().headers).status == 200
        headers = lease.access().headers
        for wrong in (
            {name: value for name, value in headers.items() if name != "X-Fence-Signature"},
            {**headers, "X-Fence-Token": str(2**63 - 1)},
        ):
            answer = ask("PUT", "/account/42", wrong)
            assert (answer.status, answer.headers["x-fence-verdict"]) == (403, "forged")
        assert ask("PUT", "/account/7", headers).status == 403, "a signature holds for its own resource"
        assert ask("PUT", "/account/42", headers).status == 200


def test_two_different_writes_never_share_an_idempotency_key() -> None:
    stamps = [Stamp(5), Stamp(6), Stamp(5, 0), Stamp(5, 1, "ann"), Stamp(6, 1, "ann"), Stamp(5, 2, "ann"), Stamp(51)]
    accesses = [Access(resource, stamp) for resource in ("account/42", "account/7", "x" * 512) for stamp in stamps]
    keys = [access.headers["Idempotency-Key"] for access in accesses]
    assert len({run_id([key]) for key in keys}) == len(accesses)
    again = [Access(access.resource, access.stamp, "signed") for access in accesses]
    assert [access.headers["Idempotency-Key"] for access in again] == keys, "a retry has the same one"


def test_the_policy_and_the_hooks_hold_here_too(serve: Callable[..., Ask], marks: Marks) -> None:
    events: list[Event] = []
    policy = Policy("shadow")
    ask = serve(told, marks=marks, policy=policy, hooks=[events.append])
    assert [ask("PUT", "/account/42", headers).status for headers in (token(7), token(6), {})] == [200] * 3
    assert [(event.verdict, event.enforced) for event in events] == [
        ("admit", None),
        ("stale", False),
        ("missing", False),
    ]
    policy.mode = "enforce"
    assert [ask("PUT", "/account/42", headers).status for headers in (token(6), {})] == [409, 200]


def test_a_lease_held_by_the_server_does_not_speak_for_its_clients(serve: Callable[..., Ask]) -> None:
    with fencepost.connect("memory://http") as locks, locks.lock("account/42"):
        assert serve(told)("PUT", "/account/42").status == 428


def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    async def service(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise refusal(Verdict.STALE, "account/42", Stamp(1), Stamp(2))

    with pytest.raises(StaleToken):
        ask_asgi(asgi.Fence(service, key_asgi))("PUT", "/account/42", token(1))


@pytest.mark.parametrize("error", [RuntimeError("boom"), refusal(Verdict.STALE, "account/42", Stamp(1), Stamp(2))])
def test_an_answer_that_fails_at_its_first_part_is_closed(error: Exception) -> None:
    class Body:
        closed = False

        def __iter__(self) -> Iterator[bytes]:
            raise error

        def close(self) -> None:
            self.closed = True

    body = Body()
    ask = ask_wsgi(wsgi.Fence(lambda environ, start: body, key_wsgi))
    if isinstance(error, StaleToken):
        assert ask("PUT", "/account/42", token(1)).status == 409
    else:
        with pytest.raises(RuntimeError):
            ask("PUT", "/account/42", token(1))
    assert body.closed


def test_the_example_receiver_takes_a_payment_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples import receiver

    def balance() -> int:
        with closing(sqlite3.connect(receiver.DATABASE)) as conn:
            (found,) = conn.execute("SELECT balance FROM account").fetchone()
            return int(found)

    monkeypatch.setattr(receiver, "DATABASE", tmp_path / "payments.sqlite3")
    ask = ask_asgi(receiver.app)
    assert ask("POST", "/account/42/pay", token(7, 1, "ann"), b"10").status == 204
    assert ask("POST", "/account/42/pay", token(7, 1, "ann"), b"10").status == 204, "a retry is answered as done"
    assert balance() == 90
    assert ask("POST", "/account/42/pay", token(7, 1, "ann"), b"20").status == 409, "another payment, the same stamp"
    assert ask("POST", "/account/42/pay", token(6, 1, "zombie"), b"10").status == 409
    assert ask("POST", "/account/42/pay", {}, b"10").status == 428
    assert ask("GET", "/account/42", {}).status == 404
    for body in (b"", b"0", b"-10", b"ten", b"1" * 1000):
        assert ask("POST", "/account/42/pay", token(7, 2, "ann"), body).status == 400
    assert balance() == 90
    assert ask("POST", "/account/42/pay", token(7, 2, "ann"), (b"1", b"", b"0")).status == 204, "a body in parts"
    assert balance() == 80
    monkeypatch.setattr(receiver.POLICY, "mode", "shadow")
    for headers in ({}, {"X-Fence-Token": "x"}, token(6, 1, "zombie")):
        assert ask("POST", "/account/42/pay", headers, b"1").status == 204, "nothing is refused"
    assert balance() == 77


def test_an_answer_that_has_begun_behind_wsgi_is_not_begun_again_either() -> None:
    def service(environ: Any, start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        raise refusal(Verdict.STALE, "account/42", Stamp(1), Stamp(2))

    with pytest.raises(StaleToken):
        ask_wsgi(wsgi.Fence(service, key_wsgi))("PUT", "/account/42", token(1))


@pytest.mark.parametrize("scope", [{"type": "lifespan"}, {"type": "websocket", "path": "/account/42", "headers": []}])
async def test_what_is_no_request_has_no_resource(scope: dict[str, Any]) -> None:
    served: list[Any] = []

    async def service(scope: Any, receive: Any, send: Any) -> None:
        served.append((scope, receive, send))

    async def channel(*_: Any) -> Any: ...

    await asgi.Fence(service, key_asgi)(scope, channel, channel)
    assert served == [(scope, channel, channel)]
