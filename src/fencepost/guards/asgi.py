"""A guard in front of any ASGI service: FastAPI, Starlette, Django, Quart.

    app.add_middleware(asgi.Fence, key=lambda scope: scope["path"])      # Starlette, FastAPI
    app = asgi.Fence(app, key=lambda scope: scope["path"])               # any other

A request to a guarded resource without a token gets 428, a malformed one 400, where the policy refuses. The stamp is
handed to the service as ``scope["fencepost"]``; the service admits it in the transaction of its own write. If that
raises Refused, the middleware answers with 409, or 428 or 403 for a missing or forged token:

    fenced = request.scope["fencepost"]
    with conn:
        if fenced.sent:  # else the middleware let it pass without a token
            sqlite.admit(conn, fenced.resource, fenced.sent, policy=policy)  # the middleware's
        conn.execute(...)

A service without a database passes ``marks=``. Then each request is judged before it is served: best effort.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from fencepost.errors import ConfigError, Refused, refusal
from fencepost.events import Hook
from fencepost.guards import headers as http
from fencepost.guards.marks import Marks
from fencepost.guards.policy import Policy
from fencepost.lease import Access
from fencepost.rule import Verdict

__all__ = ["Fence", "Fenced"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Fenced(NamedTuple):
    """A guarded request: its resource, and the access that its headers describe."""

    resource: str
    sent: Access | None
    """None if the request came without a token, and the policy let it pass."""

    @property
    def access(self) -> Access:
        """The access; MissingToken, whatever the policy, if the request came without a token."""
        if self.sent is None:
            raise refusal(Verdict.MISSING, self.resource, None, None)
        return self.sent


class Fence:
    """``app`` behind a guard. ``key`` names the resource of a request, or None if it is not guarded."""

    def __init__(
        self,
        app: App,
        key: Callable[[Scope], str | None],
        *,
        marks: Marks | None = None,
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        self._app = app
        self._key = key
        self._marks = marks
        self._hooks = tuple(hooks)
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        resource = self._key(scope) if scope["type"] == "http" else None
        if resource is None:
            return await self._app(scope, receive, send)
        begun = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._judge(resource, scope)
            return await self._app(scope, receive, watched)
        except Refused as error:
            if begun:
                raise
            answer = http.refusal(error)
        except _Malformed as error:
            answer = http.malformed(error.why)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body)), **answer.headers}
        lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": lines})
        await send({"type": "http.response.body", "body": answer.body})
        return None

    async def _judge(self, resource: str, scope: Scope) -> None:
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        try:
            values = lambda name: [value for each, value in headers if each == name.lower().encode()]  # noqa: E731
            sent = http.judge(resource, values, scope["method"], self._hooks, self._policy)
            scope["fencepost"] = Fenced(resource, sent.access)
            if sent.judged and self._marks is not None and sent.access is not None:
                await asyncio.to_thread(self._marks, resource, sent.access, sent.action, self._hooks, self._policy)
        except ConfigError as error:
            raise _Malformed(error) from error


class _Malformed(Exception):
    """Separates a ConfigError of this middleware from one that the service itself raises."""

    def __init__(self, why: ConfigError) -> None:
        self.why = why
