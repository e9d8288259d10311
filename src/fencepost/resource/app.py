"""The service's HTTP face: ``PUT``, ``GET`` and ``DELETE /r/{key}``, ``/metrics``, ``/healthz``, ``/openapi.json``."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any, TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost import check
from fencepost.errors import BackendError, ConfigError, Refused
from fencepost.lease import Access
from fencepost.resource import http, openapi
from fencepost.resource.auth import ANYBODY, Client, Clients
from fencepost.resource.census import NoRoom
from fencepost.resource.ledger import AGAIN
from fencepost.resource.store import Store, Written
from fencepost.resource.workers import never

MAX_BODY = 1 << 20
MAX_WAITING = 256 << 20
_PREFIX = b"/r/"
Take: TypeAlias = Callable[[int], None]
"""Reserves so many bytes of memory for a request, until it is answered."""
_log = getLogger("fencepost")


class _TooLarge(Exception):
    pass


class _Unknown(Exception):
    pass


class _Full(Exception):
    pass


class _Room:
    """Limits the bytes in memory: bodies that come in or wait for the store, and answers not yet taken by clients."""

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit

    @contextmanager
    def reserve(self) -> Iterator[Take]:
        """Yield a function that reserves so many bytes more, until the end of the block; it raises _Full.

        A value that is larger than the whole room fits if nothing else is reserved.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if count > self._free and self._free < self._limit:
                raise _Full
            self._free -= count
            taken += count

        try:
            yield take
        finally:
            self._free += taken


class App:
    """An ASGI application over one store. A bad request never gets a 5xx.

    ``clients`` may use it, each within its prefixes; None lets everybody in, except that a ``local`` service refuses
    pages of other sites. A body that is incomplete after ``patience`` seconds is given up, and one that would make the
    bodies and answers in memory larger than ``max_waiting`` bytes is refused.
    """

    def __init__(
        self,
        store: Store,
        registry: CollectorRegistry,
        *,
        max_body: int = MAX_BODY,
        clients: Clients | None = None,
        patience: float = 30.0,
        local: bool = False,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._store = store
        self._registry = registry
        self._max_body = max_body
        self._clients = clients
        self._patience = patience
        self._local = local
        self._room = _Room(max(max_waiting, max_body))
        self._document = http.encode(openapi.document(secured=clients is not None, max_body=max_body))
        self._accesses: dict[str, Callable[[Request, str, Take], Awaitable[Response]]] = {
            "GET": self._get,
            "PUT": self._put,
            "DELETE": self._delete,
        }
        self._pages: dict[bytes, Callable[[], Awaitable[Response]]] = {
            b"/metrics": self._metrics,
            b"/healthz": self._health,
            b"/openapi.json": self._openapi,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")
        with self._room.reserve() as take:
            response = await self._answer(Request(scope, receive), take)
            if response is not None:
                await response(scope, receive, send)

    async def _answer(self, request: Request, take: Take) -> Response | None:
        """The answer, also for an error; None if the client has disconnected."""
        try:
            return await self._respond(request, take)
        except Refused as error:
            return http.refusal(error)
        except ConfigError as error:
            return http.answer(400, {"error": str(error)})
        except _Unknown:
            return http.answer(401, {"error": "send Authorization: Bearer TOKEN"}, WWW_Authenticate="Bearer")
        except TimeoutError:
            said = {"error": f"the body did not come whole within {self._patience:g} s"}
            return http.answer(408, said, Connection="close")
        except _TooLarge:
            return http.answer(413, {"error": f"a body has at most {self._max_body} bytes"})
        except _Full:
            return http.answer(503, {"error": f"too many bodies and answers are in memory; {AGAIN}"}, Retry_After="1")
        except NoRoom:
            most = self._store.census.limit
            return http.answer(507, {"error": f"this key is new, and there are {most} already, the most (--max-keys)"})
        except BackendError as error:
            return http.answer(503, {"error": str(error)}, Retry_After="1")
        except ClientDisconnect:
            return None
        except Exception:
            _log.exception("%s %r failed", request.method, request.scope["path"])
            return http.answer(500, {"error": "internal error; the service's log has the details"})

    async def _respond(self, request: Request, take: Take) -> Response:
        # The raw path: Starlette's own is decoded leniently, and two keys could become one.
        raw: bytes = request.scope["raw_path"]
        if http.too_large(request.scope):
            return http.answer(
                431, {"error": f"path and headers have at most {http.MAX_HEAD} bytes"}, Connection="close"
            )
        if self._local and not http.from_here(request.headers):
            return http.answer(403, {"error": "without --clients this service answers only to 127.0.0.1 or localhost"})
        if raw.startswith(_PREFIX):
            if (access := self._accesses.get(request.method)) is None:
                return _not_allowed(", ".join(self._accesses))
            client = self._client(request)
            key = http.key(raw[len(_PREFIX) :])
            if not client.may(key):
                return http.answer(403, {"error": f"client {client.name!r} may not use this key"})
            return await access(request, key, take)
        if page := self._pages.get(raw):
            if request.method != "GET":
                return _not_allowed("GET")
            if page == self._metrics:
                self._client(request)
            return await page()
        return http.answer(404, {"error": "no such page; resources live under /r/"})

    def _client(self, request: Request) -> Client:
        if self._clients is None:
            return ANYBODY
        given = request.headers.getlist("Authorization")
        certificate = request.scope.get("state", {}).get("certificate")
        client = self._clients.find(given[0] if given else None, certificate) if len(given) < 2 else None
        if client is None:
            raise _Unknown
        return client

    async def _put(self, request: Request, key: str, take: Take) -> Response:
        offer = self._writer(request, key)
        async with asyncio.timeout(self._patience):
            body = await self._body(request, take)
        written = await self._store.write(key, body, offer, gone=_gone(request))
        return http.answer(200, {"written": True, **_made(written)}, written.mark)

    async def _delete(self, request: Request, key: str, take: Take) -> Response:
        written = await self._store.write(key, None, self._writer(request, key), gone=_gone(request))
        return http.answer(200, {"deleted": True, **_made(written)}, written.mark)

    def _writer(self, request: Request, key: str) -> Access | None:
        """The access of a write; MissingToken without one where the rule is enforced."""
        offer = http.offer(key, request.headers, reads=False)
        self._store.require(key, offer)
        return offer

    async def _get(self, request: Request, key: str, take: Take) -> Response:
        offer = http.offer(key, request.headers, reads=True)
        gone = _gone(request)
        data, mark = await (
            self._store.read(key, gone=gone) if offer is None else self._store.enter(key, offer, gone=gone)
        )
        if data is None:
            return http.answer(404, {"error": "no such resource"}, mark)
        value = http.value(data, mark, as_json=http.wants_json(request.headers))
        take(len(value.body))
        return value

    async def _body(self, request: Request, take: Take) -> bytes:
        """The body, of which never more than the limit is kept."""
        length = request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self._max_body:
            raise _TooLarge
        body = bytearray()
        async for chunk in request.stream():
            if len(body) + len(chunk) > self._max_body:
                raise _TooLarge
            take(len(chunk))
            body += chunk
        return bytes(body)

    async def _metrics(self) -> Response:
        return Response(generate_latest(self._registry), 200, media_type=CONTENT_TYPE_LATEST)

    async def _health(self) -> Response:
        await self._store.check()
        return http.answer(200, {"status": "ok", "mode": self._store.policy.mode})

    async def _openapi(self) -> Response:
        return Response(self._document, 200, media_type="application/json")


def _made(written: Written) -> dict[str, Any]:
    return {"replay": written.replay, "max_fence": check.json_number(written.mark.token) if written.mark else 0}


def _gone(request: Request) -> Callable[[], bool]:
    """A function that says whether the client has closed its connection."""
    found: Callable[[], bool] = request.scope.get("state", {}).get("gone", never)
    return found


def _not_allowed(methods: str) -> Response:
    return http.answer(405, {"error": f"this page takes {methods}"}, Allow=methods)
