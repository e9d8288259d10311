"""What travels over HTTP: keys in paths, stamps in headers, and answers as JSON."""

import base64
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost import check
from fencepost.errors import ConfigError, Refused
from fencepost.guards import headers as http
from fencepost.lease import Access
from fencepost.rule import Stamp

MAX_HEAD = 16 << 10
"""The bytes that a path and the headers of a request may have in all."""
_PIECE = 1 << 16
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::[0-9]*)?")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")


def key(raw: bytes) -> str:
    """The key a raw path spells, percent-decoded exactly once; ConfigError if it spells none.

    Bytes that are not UTF-8 are refused rather than replaced: two keys never become one.
    """
    if _BROKEN_ESCAPE.search(raw):
        raise ConfigError("a resource's key has a '%' without two hexadecimal digits; write it as %25")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise ConfigError("a resource's key is percent-encoded UTF-8, and this one is not") from None
    return check.name(text, "resource")


def offer(key: str, headers: Headers, *, reads: bool) -> Access | None:
    """The access that a request's headers describe, None without a token; ConfigError if they are malformed."""
    return http.access(key, headers.getlist, reads=reads)


def too_large(scope: Scope) -> bool:
    """Whether the head of a request is larger than any honest one."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    return size + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > MAX_HEAD


def from_here(headers: Headers) -> bool:
    """Whether a request addresses the service by a name of this machine, and does not come from another site's page.

    A browser sends the host name that it was given. So it shows when another site's name was made to point here (DNS
    rebinding).
    """
    hosts, origins = headers.getlist("Host"), headers.getlist("Origin")
    if not hosts:
        return not origins
    named = _HOST.fullmatch(hosts[0].lower())
    return (
        len(hosts) == 1
        and named is not None
        and _loopback(named[1] or named[2])
        and all(origin == f"http://{hosts[0]}" for origin in origins)
    )


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def wants_json(headers: Headers) -> bool:
    """Does the client ask for JSON by name, and for nothing better?"""
    quality = dict.fromkeys(("application/json", "application/octet-stream"), 0.0)
    for part in ",".join(headers.getlist("Accept")).lower().split(","):
        kind, *params = (piece.strip() for piece in part.split(";"))
        if kind in quality:
            quality[kind] = max(quality[kind], _quality(params))
    return quality["application/json"] > 0 and (quality["application/json"] >= quality["application/octet-stream"])


def _quality(params: Iterable[str]) -> float:
    for param in params:
        if match := re.fullmatch(r"q\s*=\s*([01](?:\.[0-9]{0,3})?)", param):
            return float(match[1])
    return 1.0


class Value(Response):
    """A value, sent in pieces: before each, the server waits until the client has taken most of those before it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= _PIECE:
            return await super().__call__(scope, receive, send)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), _PIECE):
            await send({"type": "http.response.body", "body": self.body[start : start + _PIECE], "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return None


def answer(status: int, body: Mapping[str, Any], mark: Stamp | None = None, **headers: str) -> Response:
    """A JSON answer that names the mark, if there is one."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    if mark is not None:
        names["X-Fence-Mark"] = str(mark.token)
    return Response(encode(body), status, names, "application/json")


def encode(body: Mapping[str, Any]) -> bytes:
    """JSON without a byte too many."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def refusal(error: Refused) -> Response:
    """The answer to a refused access: 428 without a token, 403 for a forged one, else 409; a header has the verdict."""
    status, headers, body = http.refusal(error)
    return Response(body, status, headers, "application/json")


def value(data: bytes, mark: Stamp | None, *, as_json: bool) -> Value:
    """A value as it is, or as JSON: text if it is UTF-8, else base64."""
    headers = {"X-Fence-Mark": str(mark.token if mark else 0), "Vary": "Accept"}
    if not as_json:
        return Value(data, 200, headers, "application/octet-stream")
    try:
        text, encoding = data.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(data).decode(), "base64"
    fence = check.json_number(mark.token) if mark else 0
    body = encode({"value": text, "encoding": encoding, "max_fence": fence})
    return Value(body, 200, headers, "application/json")
