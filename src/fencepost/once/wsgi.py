"""Have any WSGI service answer a repeated request with its first answer. As ``asgi``, but blocking.

    app.wsgi_app = Once(app.wsgi_app, open=lambda: closing(sqlite3.connect("app.sqlite3")))

The connection of a request's transaction is ``environ["fencepost.conn"]``.
"""

import io
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from http import HTTPStatus
from typing import Any, TypeAlias

from fencepost.errors import BackendError, ConfigError
from fencepost.guards.headers import SAFE
from fencepost.once import http, once

__all__ = ["Once"]

_DIGITS = 19  # the most that a Content-Length can have; int() raises for thousands of digits

Environ: TypeAlias = dict[str, Any]
Start: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, Start], Iterable[bytes]]


class Once:
    """``app``, whose answers are remembered and repeated; the blocking version of ``asgi.Once``."""

    def __init__(
        self,
        app: App,
        open: Callable[[], AbstractContextManager[Any]],
        *,
        key: Callable[[Environ], str | None] | None = None,
        largest: int = http.LARGEST,
    ) -> None:
        self._app = app
        self._open = open
        self._key = key or _header
        self._largest = largest

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in SAFE:
            return self._app(environ, start)
        try:
            id = self._key(environ)
        except ConfigError as error:
            return _send(http.problem(400, str(error)), start)
        if id is None:
            return self._app(environ, start)
        told = environ.get("CONTENT_LENGTH")
        if told and not (told.isascii() and told.isdigit() and len(told) <= _DIGITS):
            return _send(http.problem(400, f"Content-Length is no number: {told[:40]!r}"), start)
        length = int(told or (self._largest + 1 if environ.get("wsgi.input_terminated") else 0))
        body = environ["wsgi.input"].read(min(length, self._largest + 1))
        if len(body) > self._largest:
            return _send(http.problem(413, f"the largest body here is of {self._largest} bytes"), start)
        if told and len(body) < length:
            return _send(http.problem(400, "the request broke off in the middle of its body"), start)
        target = [environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", "")]
        request = http.fingerprint(*(part.encode("latin-1") for part in target), body)
        try:
            with self._open() as conn:
                answer = self._answer(conn, id, request, environ, body)
        except http.Undone as undone:
            answer = undone.answer
        return _send(answer, start)

    def _answer(self, conn: Any, id: str, request: str, environ: Environ, body: bytes) -> http.Answer:
        with ExitStack() as stack:
            try:
                run = stack.enter_context(once(conn, id))
            except BackendError as error:
                return http.problem(409, str(error))
            if run.done:
                return http.recalled(run.result, request)
            answer = self._serve({**environ, "fencepost.conn": conn, "wsgi.input": io.BytesIO(body)})
            if answer.status >= 400:
                raise http.Undone(answer)
            run.result = answer.kept(request)
        return answer

    def _serve(self, environ: Environ) -> http.Answer:
        status, headers, parts = "500", list[tuple[str, str]](), list[bytes]()

        def begin(line: str, lines: list[tuple[str, str]], failure: Any = None) -> Callable[[bytes], Any]:
            nonlocal status, headers
            status, headers = line, lines
            return parts.append

        given = self._app(environ, begin)
        try:
            parts += given
        finally:
            if hasattr(given, "close"):
                given.close()
        return http.Answer(int(status.partition(" ")[0]), headers, b"".join(parts))


def _header(environ: Environ) -> str:
    value = environ.get("HTTP_IDEMPOTENCY_KEY")
    return http.run_id([] if value is None else [value])


def _send(answer: http.Answer, start: Start) -> Iterable[bytes]:
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unnamed"
    start(f"{answer.status} {phrase}", answer.headers)
    return [answer.body]
