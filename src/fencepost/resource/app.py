"""The service's HTTP face: ``PUT`` and ``GET /r/{key}``, ``/metrics``, ``/healthz``."""

from collections.abc import Awaitable, Callable
from logging import getLogger

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost import check
from fencepost.errors import BackendError, ConfigError, Refused
from fencepost.resource import wire
from fencepost.resource.store import Store

MAX_BODY = 1 << 20
_PREFIX = b"/r/"
_log = getLogger("fencepost")


class _TooLarge(Exception):
    pass


class App:
    """An ASGI application over one store. A bad request never gets a 5xx."""

    def __init__(self, store: Store, registry: CollectorRegistry, *, max_body: int = MAX_BODY) -> None:
        self._store = store
        self._registry = registry
        self._max_body = max_body
        self._pages: dict[bytes, Callable[[], Awaitable[Response]]] = {
            b"/metrics": self._metrics,
            b"/healthz": self._health,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except Refused as error:
            response = wire.refusal(error)
        except ConfigError as error:
            response = wire.answer(400, {"error": str(error)})
        except _TooLarge:
            response = wire.answer(413, {"error": f"a body has at most {self._max_body} bytes"})
        except BackendError as error:
            response = wire.answer(503, {"error": str(error)})
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("%s %r failed", request.method, scope["path"])
            response = wire.answer(500, {"error": "internal error; the service's log has the details"})
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        # The raw path: Starlette's own is decoded leniently, and two keys could become one.
        raw: bytes = request.scope["raw_path"]
        if raw.startswith(_PREFIX):
            if request.method == "PUT":
                return await self._put(request, wire.key(raw[len(_PREFIX) :]))
            if request.method == "GET":
                return await self._get(request, wire.key(raw[len(_PREFIX) :]))
            return _not_allowed("GET, PUT")
        if page := self._pages.get(raw):
            return await page() if request.method == "GET" else _not_allowed("GET")
        return wire.answer(404, {"error": "no such page; resources live under /r/"})

    async def _put(self, request: Request, key: str) -> Response:
        offer = wire.offer(request.headers)
        if offer is not None:
            check.stamp(offer)
        self._store.require(key, offer)
        written = await self._store.write(key, await self._body(request), offer)
        fence = check.json_number(written.mark.token) if written.mark else 0
        return wire.answer(200, {"written": True, "replay": written.replay, "max_fence": fence}, written.mark)

    async def _get(self, request: Request, key: str) -> Response:
        offer = wire.offer(request.headers)
        data, mark = await (self._store.read(key) if offer is None else self._store.enter(key, offer))
        if data is None:
            return wire.answer(404, {"error": "no such resource"}, mark)
        if wire.wants_json(request.headers):
            return wire.value(data, mark)
        headers = {"X-Fence-Mark": str(mark.token if mark else 0), "Vary": "Accept"}
        return Response(data, 200, headers, "application/octet-stream")

    async def _body(self, request: Request) -> bytes:
        """The body, of which never more than the limit is kept."""
        length = request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self._max_body:
            raise _TooLarge
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body:
                raise _TooLarge
        return bytes(body)

    async def _metrics(self) -> Response:
        return Response(generate_latest(self._registry), 200, media_type=CONTENT_TYPE_LATEST)

    async def _health(self) -> Response:
        await self._store.read("healthz")
        return wire.answer(200, {"status": "ok"})


def _not_allowed(methods: str) -> Response:
    return wire.answer(405, {"error": f"this page takes {methods}"}, Allow=methods)
