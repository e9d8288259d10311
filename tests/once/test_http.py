"""A service that remembers its answers: the effect of a request once, and the same answer to each repetition."""

import os
import secrets
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import fencepost
from fencepost.once import asgi, wsgi
from tests.guards.test_http import Ask, ask_asgi, ask_wsgi
from tests.harness.isolated import isolated
from tests.harness.mortal import Fate, sqlite_file
from tests.harness.waiting import PATIENCE

Serve = Callable[..., tuple[Ask, Callable[[], int]]]


def wsgi_service(environ: Any, start: Any) -> Iterable[bytes]:
    """Adds a line and answers how many there are; /fail is 503, /deny 403, /raise raises, after their effect."""
    if conn := environ.get("fencepost.conn"):
        conn.execute("INSERT INTO line VALUES (?)", (environ["wsgi.input"].read().decode(),))
    if environ["PATH_INFO"] == "/raise":
        raise LookupError
    status = {"/fail": "503 Service Unavailable", "/deny": "403 Forbidden"}.get(environ["PATH_INFO"], "201 Created")
    start(status, [("Vary", "a"), ("Vary", "b"), ("Set-Cookie", "session=1")])
    yield b"" if conn is None else b"line %d" % conn.execute("SELECT count(*) FROM line").fetchone()


async def asgi_service(scope: Any, receive: Any, send: Any) -> None:
    """The same, for any asyncio connection."""
    body, lines = (await receive())["body"], b""
    if conn := scope.get("fencepost.conn"):
        args: Any = {"line": body.decode()}
        psy = isinstance(conn, psycopg.AsyncConnection)
        await conn.execute(
            "INSERT INTO line VALUES (%(line)s)" if psy else text("INSERT INTO line VALUES (:line)"), args
        )
        found = await conn.execute("SELECT count(*) FROM line" if psy else text("SELECT count(*) FROM line"))
        row = await found.fetchone() if psy else found.fetchone()
        lines = b"line %d" % row[0]
    if scope["path"] == "/raise":
        raise LookupError
    status = {"/fail": 503, "/deny": 403}.get(scope["path"], 201)
    headers = [(b"vary", b"a"), (b"vary", b"b"), (b"set-cookie", b"session=1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": lines[:4], "more_body": True})
    await send({"type": "http.response.body", "body": lines[4:]})


@pytest.fixture(params=["wsgi-sqlite", "asgi-sqlite", "asgi-postgres"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Serve:
    """Starts the service behind the middleware: how to ask it, and how many lines it has."""
    path = str(tmp_path / "app.sqlite3")

    def count_sqlite() -> int:
        with closing(sqlite3.connect(path)) as conn:
            return int(conn.execute("SELECT count(*) FROM line").fetchone()[0])

    if request.param == "asgi-postgres":
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url) as fresh:
            fresh.execute("DROP TABLE IF EXISTS line")
            fresh.execute("CREATE TABLE line (text text)")

        def count() -> int:
            with psycopg.connect(url) as conn:
                return int(conn.execute("SELECT count(*) FROM line").fetchone()[0])  # type: ignore[index]

        class Opened:
            async def __aenter__(self) -> Any:
                self.conn = await psycopg.AsyncConnection.connect(url)
                return self.conn

            async def __aexit__(self, *_: object) -> None:
                await self.conn.close()

        return lambda **options: (ask_asgi(asgi.Once(asgi_service, Opened, **options)), count)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE line (text)")
    if request.param == "asgi-sqlite":
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
        return lambda **options: (ask_asgi(asgi.Once(asgi_service, engine.connect, **options)), count_sqlite)
    opened = lambda: closing(sqlite3.connect(path))  # noqa: E731  # as its user would write it
    return lambda **options: (ask_wsgi(wsgi.Once(wsgi_service, opened, **options)), count_sqlite)


def test_a_repeated_request_gets_the_first_answer_and_no_second_effect(serve: Serve) -> None:
    ask, lines = serve()
    key = {"Idempotency-Key": f'"{secrets.token_hex(8)}"'}
    first = ask("POST", "/lines", key, b"hello")
    assert (first.status, first.body) == (201, b"line 1")
    assert "idempotency-replayed" not in first.headers
    again = ask("POST", "/lines", key, b"hello")
    assert (again.status, again.body) == (201, b"line 1")
    assert again.headers["idempotency-replayed"] == "true"
    assert first.headers["vary"] == again.headers["vary"]
    assert "b" in again.headers["vary"]
    assert first.headers["set-cookie"] == "session=1"
    assert "set-cookie" not in again.headers, "a client that repeats a request is not logged in by it"
    assert ask("POST", "/lines", {"Idempotency-Key": secrets.token_hex(8)}, b"hello").body == b"line 2"
    assert lines() == 2


def test_a_lease_s_headers_carry_such_a_key(serve: Serve) -> None:
    ask, lines = serve()
    with fencepost.connect("memory://") as locks, locks.lock("lines") as lease:
        headers = lease.access().headers
        assert ask("POST", "/lines", headers, b"hello").status == 201
        assert ask("POST", "/lines", headers, b"hello").headers["idempotency-replayed"]
    assert lines() == 1


def test_a_key_belongs_to_one_request(serve: Serve) -> None:
    ask, lines = serve()
    key = {"Idempotency-Key": secrets.token_hex(8)}
    assert ask("POST", "/lines", key, b"hello").status == 201
    for method, path, body in (("POST", "/lines", b"other"), ("PUT", "/lines", b"hello"), ("POST", "/other", b"hello")):
        answer = ask(method, path, key, body)
        assert (answer.status, "another request" in answer.json["error"]) == (422, True)
    assert lines() == 1


def test_an_answer_that_says_it_failed_changed_nothing_and_can_be_asked_for_again(serve: Serve) -> None:
    ask, lines = serve()
    for path, status in (("/fail", 503), ("/deny", 403)):
        key = {"Idempotency-Key": secrets.token_hex(8)}
        for _ in range(2):
            answer = ask("POST", path, key, b"hello")
            assert (answer.status, "idempotency-replayed" in answer.headers) == (status, False)
    with pytest.raises(LookupError):
        ask("POST", "/raise", {"Idempotency-Key": secrets.token_hex(8)}, b"hello")
    assert lines() == 0


def test_without_a_key_400_but_whoever_only_reads_needs_none(serve: Serve) -> None:
    ask, lines = serve()
    assert ask("POST", "/lines", {}, b"hello").status == 400
    assert ask("POST", "/lines", {"Idempotency-Key": "x" * 600}, b"hello").status == 400
    assert ask("GET", "/lines").status == 201
    assert lines() == 0


def test_other_keys_and_larger_bodies(serve: Serve) -> None:
    ask, lines = serve(key=lambda _: None)
    assert (ask("POST", "/lines", {}, b"hello").status, lines()) == (201, 0)
    client = secrets.token_hex(4)
    ask, lines = serve(key=lambda _: f"client/{client}", largest=5)
    assert ask("POST", "/lines", {}, b"hello").status == 201
    assert ask("POST", "/lines", {}, b"hello").headers["idempotency-replayed"]
    assert ask("POST", "/lines", {}, b"hello!").status == 413
    assert lines() == 1


def test_while_the_first_is_at_work_for_too_long_the_second_gets_409(tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"
    ask = ask_wsgi(wsgi.Once(wsgi_service, lambda: closing(sqlite3.connect(path, timeout=0.05))))
    with closing(sqlite3.connect(path)) as busy:
        busy.execute("CREATE TABLE line (text)")
        busy.execute("BEGIN IMMEDIATE")
        answer = ask("POST", "/lines", {"Idempotency-Key": "k"}, b"hello")
        assert (answer.status, answer.headers["retry-after"]) == (409, "1")


async def test_a_request_that_breaks_off_is_not_served(tmp_path: Path) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("not to be called")

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(b"idempotency-key", b"k")],
        "path": "/",
        "query_string": b"",
    }
    await asgi.Once(never, never)(scope, receive, never)

    environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "CONTENT_LENGTH": "9"}
    with open(os.devnull, "rb") as empty:
        told: list[str] = []
        wsgi.Once(never, never)({**environ, "wsgi.input": empty}, lambda status, _: told.append(status))
    assert told == ["400 Bad Request"]


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@isolated
def test_a_server_killed_around_its_commit_serves_the_request_once(tmp_path: Path, when: str) -> None:
    path = str(tmp_path / "app.sqlite3")
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE line (text)")

    def ask(port: int) -> tuple[int, bytes]:
        with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as http:
            http.request("POST", "/lines", b"hello", {"Idempotency-Key": "k"})
            answer = http.getresponse()
            return answer.status, answer.read()

    def server(fate: Fate) -> tuple[int, int]:
        connect = sqlite_file(path)
        served = make_server(
            "127.0.0.1", 0, wsgi.Once(wsgi_service, lambda: closing(connect(fate))), handler_class=_Quiet
        )
        child = os.fork()
        if child == 0:
            served.serve_forever()
        port: int = served.server_address[1]
        served.socket.close()
        return child, port

    mortal, port = server(Fate((when, 1)))
    with pytest.raises((ConnectionError, HTTPException, socket.timeout)):
        ask(port)
    assert os.waitstatus_to_exitcode(os.waitpid(mortal, 0)[1]) == -signal.SIGKILL
    immortal, port = server(Fate())
    try:
        assert ask(port) == (201, b"line 1")
    finally:
        os.kill(immortal, signal.SIGKILL)
        os.waitpid(immortal, 0)
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT count(*) FROM line").fetchone() == (1,)


@pytest.mark.parametrize("key", ["", '""', '" "'])
def test_an_empty_key_is_none(serve: Serve, key: str) -> None:
    ask, lines = serve()
    answer = ask("POST", "/lines", {"Idempotency-Key": key}, b"hello")
    assert (answer.status, "send one Idempotency-Key" in answer.json["error"]) == (400, True)
    assert lines() == 0


def test_a_status_without_a_name_is_sent_and_sent_again(tmp_path: Path) -> None:
    def service(environ: Any, start: Any) -> Iterable[bytes]:
        start("299 Odd", [])
        return [b"odd"]

    ask = ask_wsgi(wsgi.Once(service, lambda: closing(sqlite3.connect(tmp_path / "app.sqlite3"))))
    for _ in range(2):
        answer = ask("POST", "/", {"Idempotency-Key": "odd"}, b"")
        assert (answer.status, answer.body) == (299, b"odd")


@pytest.mark.parametrize(
    "length", ["-5", "ten", "\N{SUPERSCRIPT TWO}", "9" * 5000], ids=["minus", "word", "two", "long"]
)
def test_a_length_that_is_no_number_is_refused_before_anything_is_read(length: str, tmp_path: Path) -> None:
    said: list[str] = []
    app = wsgi.Once(wsgi_service, lambda: closing(sqlite3.connect(tmp_path / "app.sqlite3")))
    environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "key", "CONTENT_LENGTH": length}
    app(environ, lambda status, headers: said.append(status))
    assert said == ["400 Bad Request"]


def test_an_answer_of_400_is_the_first_that_is_not_remembered(tmp_path: Path) -> None:
    said = iter([400, 399, 500, 400, 399, 500])

    async def asgi_odd(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": next(said), "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def wsgi_odd(environ: Any, start: Any) -> Iterable[bytes]:
        start(f"{next(said)} Odd", [])
        return [b""]

    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'asgi.sqlite3'}", poolclass=NullPool)
    for ask in (
        ask_asgi(asgi.Once(asgi_odd, engine.connect)),
        ask_wsgi(wsgi.Once(wsgi_odd, lambda: closing(sqlite3.connect(tmp_path / "wsgi.sqlite3")))),
    ):
        assert [ask("POST", "/", {"Idempotency-Key": "k"}, b"").status for _ in range(3)] == [400, 399, 399]
        assert next(said) == 500, "the third was not asked of the service"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/lines?account=2", b"hello"), ("/lines?account=", b"1hello"), ("/lines", b"account=1hello")],
)
def test_requests_with_another_query_or_parts_that_only_add_up_to_the_same_are_two(
    serve: Serve, path: str, body: bytes
) -> None:
    ask, lines = serve()
    key = {"Idempotency-Key": secrets.token_hex(8)}
    assert ask("POST", "/lines?account=1", key, b"hello").status == 201
    assert ask("POST", path, key, body).status == 422
    assert ask("POST", "/lines?account=1", key, b"hello").headers["idempotency-replayed"]
    assert lines() == 1
