"""A guard in front of any WSGI service: Flask, Django, Bottle. As ``asgi``, but blocking.

    app.wsgi_app = wsgi.Fence(app.wsgi_app, key=lambda environ: environ["PATH_INFO"])

The stamp is handed to the service as ``environ["fencepost"]``. A framework that turns every error of a view into an
answer of its own, as Flask does, needs a handler for Refused that uses ``fencepost.guards.headers.refusal``.
"""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from itertools import chain
from typing import Any, TypeAlias

from fencepost.errors import ConfigError, Refused
from fencepost.events import Hook
from fencepost.guards import headers as http
from fencepost.guards.asgi import Fenced
from fencepost.guards.marks import Marks
from fencepost.guards.policy import Policy

__all__ = ["Fence"]

Environ: TypeAlias = dict[str, Any]
Start: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, Start], Iterable[bytes]]


class Fence:
    """``app`` behind a guard. ``key`` names the resource of a request, or None if it is not guarded."""

    def __init__(
        self,
        app: App,
        key: Callable[[Environ], str | None],
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

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        resource = self._key(environ)
        if resource is None:
            return self._app(environ, start)
        try:
            self._judge(resource, environ)
        except Refused as error:
            return _answer(http.refusal(error), start)
        except ConfigError as error:
            return _answer(http.malformed(error), start)
        begun: list[bool] = []

        def watched(*args: Any) -> Any:
            begun.append(True)
            return start(*args)

        body: Any = None
        try:
            body = self._app(environ, watched)
            parts = iter(body)
            # A service that is a generator function runs only now, and may raise Refused.
            first = [part for _, part in zip(range(1), parts, strict=False)]
        except BaseException as error:
            _close(body)
            if begun or not isinstance(error, Refused):
                raise
            return _answer(http.refusal(error), start)
        return _Body(chain(first, parts), body)

    def _judge(self, resource: str, environ: Environ) -> None:
        def values(name: str) -> list[str]:
            value = environ.get("HTTP_" + name.upper().replace("-", "_"))
            return [] if value is None else [value]

        sent = http.judge(resource, values, environ["REQUEST_METHOD"], self._hooks, self._policy)
        environ["fencepost"] = Fenced(resource, sent.access)
        if sent.judged and self._marks is not None and sent.access is not None:
            self._marks(resource, sent.access, sent.action, self._hooks, self._policy)


class _Body:
    """A service's answer, including the part that was already read."""

    def __init__(self, parts: Iterator[bytes], body: Any) -> None:
        self._parts = parts
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        _close(self._body)


def _close(body: Any) -> None:
    if hasattr(body, "close"):
        body.close()


def _answer(answer: http.Answer, start: Start) -> Iterable[bytes]:
    headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body)), **answer.headers}
    start(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(headers.items()))
    return [answer.body]
