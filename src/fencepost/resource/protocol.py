"""One client's connection: what it sends in time is served, and slow ones give way to the others."""

import asyncio
import ssl
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fencepost.resource.http import MAX_HEAD


class _Refused(Exception):
    """What the parser turns into a 400."""


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection, with a deadline for whatever the client is to do next.

    A client has ``idle`` seconds to send the head of a request, from when it connected or got its last answer, and
    ``busy`` seconds to send the body and take the answer. When there are more than ``most`` connections, the
    one that has kept us waiting longest is closed, so that half-open ones cannot lock others out. A head, or the
    trailers of a body, have at most ``MAX_HEAD`` bytes.
    """

    idle = 15.0
    busy = 60.0
    most = 1000

    _timer: asyncio.TimerHandle | None = None
    _working: bool | None = None
    _since = 0.0
    _head = 0
    _unread = 0
    _in_body = False
    _ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "certificate": _common_name(transport)}
        self._watch()
        if len(self.connections) > self.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        self._ended = False
        super().data_received(data)
        self._watch()
        # The rest of a body that was answered early is let run, for a client that has not looked up yet.
        self._unread = 0 if self._working or self._in_body or self._ended else self._unread + len(data)
        if self._unread > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_body = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._ended = True

    def on_url(self, url: bytes) -> None:
        if b"#" in url:
            raise _Refused("a fragment is never sent; uvicorn would cut it off, and two keys would become one")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + 4
        if self._head > MAX_HEAD:
            raise _Refused("too many headers")
        super().on_header(name, value)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._working = None  # the next request, if it came along already, has a deadline of its own
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Set the deadline anew when what we wait for changes; not at each byte, or a trickle would last for ever."""
        working = self.cycle is not None and not self.cycle.response_complete
        if working is self._working:
            return
        self._working = working
        self._since = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.busy if working else self.idle, self.transport.abort)

    def _make_room(self) -> None:
        """Close the connection that has kept us waiting longest, for a request or for the rest of one."""
        open = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        waiting = [each for each in open if not each._working or each.cycle.more_body]
        if len(open) > self.most:
            min(waiting, key=lambda each: each._since, default=self).transport.abort()


def _common_name(transport: asyncio.Transport) -> str | None:
    """The common name of the client's certificate, which the handshake has verified."""
    link: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate: Any = link.getpeercert() if link is not None else None
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else None


def kind(*, idle: float, busy: float, most: int) -> type[Connection]:
    """The class of the connections of a service with these limits."""
    return type("Connection", (Connection,), {"idle": idle, "busy": busy, "most": most})
