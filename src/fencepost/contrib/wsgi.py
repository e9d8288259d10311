"""Any WSGI application: a lock around each request, without a framework.

    app = Hold(app, locks, key=lambda environ: environ["PATH_INFO"].strip("/") or None)

The guard for requests that come with a token of their own is `fencepost.guards.wsgi.Fence`.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from fencepost.contrib.web import Answer, Terms, answer, misnamed
from fencepost.errors import BackendError, LeaseLost, NotAcquired, Refused
from fencepost.guards.wsgi import App, Environ, Start
from fencepost.sync import Lease, Locks

__all__ = ["Hold"]


class Hold:
    """``app``, each request under the lock that ``key`` names, or under none if it names None.

    The lease is ``environ["fencepost.lease"]``; guards find it by themselves. The answer is collected, and the lock
    released, before anything is sent: a slow client does not hold it. A request whose lock is busy for ``timeout``
    seconds is answered ``busy`` with Retry-After, one that lost its lock 409, and 503 says that the store did not
    answer.
    """

    def __init__(
        self,
        app: App,
        locks: Locks,
        key: Callable[[Environ], str | None],
        *,
        ttl: float | timedelta | None = None,
        timeout: float | timedelta = 2.0,
        max_hold: float | timedelta | None = None,
        busy: int = 423,
        retry_after: int = 1,
    ) -> None:
        self._app = app
        self._locks = locks
        self._key = key
        self._options: dict[str, Any] = {"ttl": ttl, "max_hold": max_hold}
        self._terms = Terms.of(timeout, busy, retry_after)

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        name = self._key(environ)
        if name is None:
            return self._app(environ, start)
        if wrong := misnamed(name):
            return _answer(wrong, start)
        lease: Lease | None = None
        try:
            with self._locks.lock(name, timeout=self._terms.timeout, **self._options) as lease:
                environ["fencepost.lease"] = lease
                begun, body = self._collected(environ)
        except (BackendError, LeaseLost, NotAcquired, Refused) as error:
            found = answer(error, lease, self._terms)
            if found is None:
                raise
            return _answer(found, start)
        start(*begun)
        return [body]

    def _collected(self, environ: Environ) -> tuple[tuple[Any, ...], bytes]:
        """What the application passed to start_response, and its body."""
        begun: tuple[Any, ...] = ()
        parts: list[bytes] = []

        def start(*args: Any) -> Callable[[bytes], None]:
            nonlocal begun
            begun = args[:2]
            return parts.append

        body = self._app(environ, start)
        try:
            parts.extend(body)
        finally:
            if hasattr(body, "close"):
                body.close()
        if not begun:
            raise RuntimeError("the application did not call start_response")
        return begun, b"".join(parts)


def _answer(found: Answer, start: Start) -> Iterable[bytes]:
    body = found.detail.encode()
    headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), **found.headers}
    start(f"{found.status} {_phrase(found.status)}", list(headers.items()))
    return [body]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Busy"
