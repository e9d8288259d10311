"""Have any ASGI service answer a repeated request with its first answer, and make its effect once.

    app.add_middleware(Once, open=pool.connection)      # Starlette, FastAPI; psycopg's pool
    app = Once(app, open=engine.connect)                # any other; SQLAlchemy's asyncio engine

Each request that writes runs in one transaction, on the connection in ``scope["fencepost.conn"]``: what the service
does there and the answer that is remembered commit together, before the answer is sent.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeAlias

from fencepost.errors import BackendError, ConfigError
from fencepost.guards.headers import SAFE
from fencepost.once import http
from fencepost.once.aio import once

__all__ = ["Once"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Once:
    """``app``, whose answers are remembered and repeated.

    ``open`` gives an asyncio connection to SQLite or Postgres, for ``async with``. ``key`` names the run of a request,
    or None to serve it without remembering; by default every request that writes must carry an Idempotency-Key. If
    clients do not trust each other, pass a ``key`` that names the client too: a client that sends the same request
    under the same key gets the same answer. Answers: 400 without a key, 409 if an earlier attempt is still at work
    after the timeout, 413 above ``largest`` bytes, 422 for a key that belongs to another request. An answer of 400 and
    above, or an error, rolls everything back, so that the request can be tried again.
    """

    def __init__(
        self,
        app: App,
        open: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        key: Callable[[Scope], str | None] | None = None,
        largest: int = http.LARGEST,
    ) -> None:
        self._app = app
        self._open = open
        self._key = key or _header
        self._largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            return await self._app(scope, receive, send)
        try:
            id = self._key(scope)
        except ConfigError as error:
            return await _send(http.problem(400, str(error)), send)
        if id is None:
            return await self._app(scope, receive, send)
        body = await self._body(receive)
        if body is None:
            return None  # the client has disconnected
        if len(body) > self._largest:
            return await _send(http.problem(413, f"the largest body here is of {self._largest} bytes"), send)
        target = scope.get("raw_path") or scope["path"].encode()
        request = http.fingerprint(scope["method"].encode(), target, scope["query_string"], body)
        try:
            async with self._open() as conn:
                answer = await self._answer(conn, id, request, scope, body, receive)
        except http.Undone as undone:
            answer = undone.answer
        return await _send(answer, send)

    async def _answer(
        self, conn: Any, id: str, request: str, scope: Scope, body: bytes, receive: Receive
    ) -> http.Answer:
        async with AsyncExitStack() as stack:
            try:
                run = await stack.enter_async_context(once(conn, id))
            except BackendError as error:
                return http.problem(409, str(error))
            if run.done:
                return http.recalled(run.result, request)
            # Hide the server's extensions, such as sending a file itself: their answers would not pass through here.
            offers = {name: it for name, it in scope.get("extensions", {}).items() if "http.response" not in name}
            answer = await self._serve({**scope, "extensions": offers, "fencepost.conn": conn}, body, receive)
            if answer.status >= 400:
                raise http.Undone(answer)
            run.result = answer.kept(request)
        return answer

    async def _serve(self, scope: Scope, body: bytes, receive: Receive) -> http.Answer:
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])
        status, headers, parts, whole = 500, list[tuple[str, str]](), list[bytes](), False

        async def repeat() -> MutableMapping[str, Any]:
            # After the body, wait for the client itself: if we reported a disconnect, the service would stop answering.
            return next(messages, None) or await receive()

        async def collect(message: MutableMapping[str, Any]) -> None:
            nonlocal status, headers, whole
            if message["type"] == "http.response.start":
                status, lines = message["status"], message.get("headers", ())
                headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))
                whole = not message.get("more_body", False)

        await self._app(scope, repeat, collect)
        if not whole:
            raise http.Undone(http.problem(500, "the service broke off its answer; nothing was done"))
        return http.Answer(status, headers, b"".join(parts))

    async def _body(self, receive: Receive) -> bytes | None:
        """The body, or enough of it to know that it is too large; None if the client disconnected in the middle."""
        body, more = b"", True
        while more and len(body) <= self._largest:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return body


def _header(scope: Scope) -> str:
    return http.run_id([value.decode("latin-1") for name, value in scope["headers"] if name == b"idempotency-key"])


async def _send(answer: http.Answer, send: Send) -> None:
    lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": lines})
    await send({"type": "http.response.body", "body": answer.body})
