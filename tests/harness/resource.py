"""The protected resource as a process of its own, and a client that sees its answers as they are."""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from fencepost.rule import Stamp
from fencepost_lab.servers import HOST, Resource


def stamped(offer: Stamp) -> dict[str, str]:
    """A stamp as headers."""
    return {"X-Fence-Token": str(offer.token), "X-Fence-Seq": str(offer.seq)} | (
        {"X-Fence-Holder": offer.holder} if offer.holder else {}
    )


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Service(Resource):
    """The service, and what to ask it."""

    def limited(self, soft: int, hard: int) -> Self:
        """Start with so few file descriptors."""
        limits, command = f"ulimit -Sn {soft}; ulimit -Hn {hard}; exec ", self.command
        self.command = lambda: ["/bin/sh", "-c", limits + shlex.join(command())]  # type: ignore[method-assign]
        return self

    def ping(self) -> bool:
        return self.ask("GET", "/healthz").status == 200

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self.port, timeout=30)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        over: http.client.HTTPConnection | None = None,
    ) -> Answer:
        """One request, over a connection of its own or `over` an open one."""
        connection = over or self.connection()
        with contextlib.nullcontext() if over else contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def put(self, key: str, body: bytes, offer: int | Stamp) -> Answer:
        headers = stamped(offer) if isinstance(offer, Stamp) else {"X-Fence-Token": str(offer)}
        return self.ask("PUT", f"/r/{quote(key)}", body, headers)

    def get(self, key: str, **headers: str) -> Answer:
        """GET; header names take _ for -."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("GET", f"/r/{quote(key)}", headers=names)

    def metric(self, name: str) -> float:
        """One sample's value, by its name and labels as the text format writes them."""
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise KeyError(name)


class Secure(Service):
    """The service behind TLS, asked by the holder of a certificate."""

    context: ssl.SSLContext

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(HOST, self.port, timeout=30, context=self.context)
