"""Answers in parts, by a real server and a real framework: remembered whole, or not at all."""

import asyncio
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from fencepost.once import asgi
from fencepost_lab.servers.processes import HOST
from tests.guards.test_http import ask_asgi
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until

KEY = {"Idempotency-Key": "1"}


class Service:
    """Adds a line, and answers in parts; while it stands the second one does not come."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.sqlite3"
        self.begun, self.told = threading.Event(), threading.Event()
        self.stands = False
        with closing(sqlite3.connect(self.path)) as conn:
            conn.execute("CREATE TABLE line (text TEXT)")
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}", poolclass=NullPool)
        routes = [Route("/parts", self.parts, methods=["POST"]), Route("/file", self.file, methods=["POST"])]
        self.app = asgi.Once(Starlette(routes=routes), open=engine.connect)

    def lines(self) -> int:
        with closing(sqlite3.connect(self.path)) as conn:
            return int(conn.execute("SELECT count(*) FROM line").fetchone()[0])

    async def parts(self, request: Request) -> Response:
        await request.body()
        await request.scope["fencepost.conn"].execute(text("INSERT INTO line VALUES ('x')"))

        async def stream() -> AsyncIterator[bytes]:
            yield b"first, "
            self.begun.set()
            try:
                await asyncio.sleep(PATIENCE if self.stands else 0)
            except asyncio.CancelledError:
                self.told.set()
                raise
            yield b"second"

        return StreamingResponse(stream())

    async def file(self, request: Request) -> Response:
        await request.scope["fencepost.conn"].execute(text("INSERT INTO line VALUES ('x')"))
        return FileResponse(__file__)


@contextmanager
def serving(app: Any) -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        running = background(lambda: server.run(sockets=[listener]))
        try:
            until(lambda: server.started, "the server starts", watching=[running])
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            running.result()


def post(port: int, path: str) -> tuple[int, bytes, str | None]:
    with closing(HTTPConnection(HOST, port, timeout=PATIENCE)) as connection:
        connection.request("POST", path, b"body", KEY)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Idempotency-Replayed")


def test_an_answer_in_parts_is_sent_and_remembered_whole(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with serving(service.app) as port:
        assert post(port, "/parts") == (200, b"first, second", None)
        assert post(port, "/parts") == (200, b"first, second", "true")
    assert service.lines() == 1


def test_an_answer_that_breaks_off_as_its_client_leaves_is_forgotten_with_its_effect(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with serving(service.app) as port:
        service.stands = True
        with closing(HTTPConnection(HOST, port, timeout=PATIENCE)) as connection:
            connection.request("POST", "/parts", b"body", KEY)
            assert service.begun.wait(PATIENCE)
        assert service.told.wait(PATIENCE), "the service was told that nobody is there any more"
        service.stands = False
        assert post(port, "/parts") == (200, b"first, second", None)
        assert post(port, "/parts") == (200, b"first, second", "true")
    assert service.lines() == 1


def test_a_file_is_remembered_by_its_bytes_also_where_the_server_would_send_it_itself(tmp_path: Path) -> None:
    service = Service(tmp_path)

    async def offering(scope: Any, receive: Any, send: Any) -> None:
        once = iter([await receive()])

        async def stays() -> Any:
            return next(once, None) or await asyncio.Event().wait()

        await service.app({**scope, "extensions": {"http.response.pathsend": {}}}, stays, send)

    for _ in range(2):
        answer = ask_asgi(offering)("POST", "/file", KEY)
        assert (answer.status, answer.body) == (200, Path(__file__).read_bytes())
    assert service.lines() == 1


def test_an_answer_without_headers_is_one(tmp_path: Path) -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    service = Service(tmp_path)
    engine = create_async_engine(f"sqlite+aiosqlite:///{service.path}", poolclass=NullPool)
    for _ in range(2):
        assert ask_asgi(asgi.Once(bare, open=engine.connect))("POST", "/", KEY).status == 204


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_service_that_ends_in_the_middle_of_its_answer_has_done_nothing(tmp_path: Path, sent: int) -> None:
    service = Service(tmp_path)

    async def ends(scope: Any, receive: Any, send: Any) -> None:
        await scope["fencepost.conn"].execute(text("INSERT INTO line VALUES ('x')"))
        messages = [{"type": "http.response.start", "status": 200}, {"type": "http.response.body", "more_body": True}]
        for message in messages[:sent]:
            await send(message)

    engine = create_async_engine(f"sqlite+aiosqlite:///{service.path}", poolclass=NullPool)
    assert ask_asgi(asgi.Once(ends, open=engine.connect))("POST", "/", KEY).status == 500
    assert service.lines() == 0
