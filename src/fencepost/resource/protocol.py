"""One client's connection, with deadlines: slow clients are disconnected, so that others can be served."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fencepost.resource.http import MAX_HEAD


class _Refused(Exception):
    """What the parser turns into a 400."""


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection, with a deadline for each step of the client.

    A client has ``idle`` seconds to send the head of a request, from when it connected or got its last answer, and
    ``busy`` seconds to send the body and take the answer; if its body is late, it is told so before it is disconnected.
    When there are more than ``most`` connections, including those in a TLS handshake, the one that has kept us waiting
    longest is closed, so that half-open ones cannot lock others out. A head, or the trailers of a body, have at most
    ``MAX_HEAD`` bytes.
    """

    handshaking: ClassVar[set["Connection"]]

    idle = 15.0
    busy = 60.0
    most = 1000

    _close: Callable[[], object]
    _timer: asyncio.TimerHandle | None = None
    _working: bool | None = None
    _since = 0.0
    _head = 0
    _unread = 0
    _in_body = False
    _ended = False
    _malformed: str | None = None

    def handshake(self, close: Callable[[], object]) -> None:
        """The client has connected, and the TLS handshake begins; ``close`` aborts it."""
        self._since = time.monotonic()
        self._close = close
        self.handshaking.add(self)
        self._make_room()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.handshaking.discard(self)
        self._close = transport.abort
        self.app_state = {
            **self.app_state,
            "certificate": _common_name(transport),
            "gone": transport.is_closing,
        }
        self._watch()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._malformed is not None:
            return
        self._ended = False
        super().data_received(data)
        self._watch()
        # Accept the rest of a body that was answered early: the client may not have read the answer yet.
        self._unread = 0 if self._working or self._in_body or self._ended else self._unread + len(data)
        if self._unread > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, but only after the requests before it are answered: the client takes the next
        answer for that of its first open request."""
        if self.pipeline and self.cycle is self.pipeline[0][0] and self.cycle.more_body:
            self.pipeline.popleft()  # this is the malformed request: its head was valid, its body is not
            self._malformed = msg
        elif self.pipeline or (self._working_on() and not self.cycle.more_body):
            self._malformed = msg
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_body = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # a large body has paused it; reading shows when the client disconnects
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
        if not self._in_body:  # else it is a trailer: ignore it, the request may be answered already
            super().on_header(name, value)

    def on_response_complete(self) -> None:
        last = not self.pipeline
        super().on_response_complete()
        if last and self._malformed is not None and not self.transport.is_closing():
            super().send_400_response(self._malformed)
        self._working = None  # the next request, if it has already come, has a deadline of its own
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Set a new deadline when what we wait for changes; not at each byte, or a trickle would never end."""
        working = self._working_on()
        if working is self._working:
            return
        self._working = working
        self._since = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.busy if working else self.idle, self._give_up)

    def _give_up(self) -> None:
        """Close the connection, unless the app is about to answer that the body is incomplete.

        If this process got no CPU time for a while, both deadlines have passed, and the app has not answered yet.
        """
        awaits_body = self._working and not self.pipeline and self.cycle.more_body and not self.cycle.response_started
        if awaits_body and not self.flow.write_paused:
            self._timer = self.loop.call_later(self.idle, self._give_up)
        else:
            self.transport.abort()

    def _working_on(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _make_room(self) -> None:
        """If there are too many connections, close the one whose client has kept us waiting longest."""
        if len(self.connections) + len(self.handshaking) <= self.most:
            return
        open = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        if len(open) + len(self.handshaking) > self.most:
            waiting = [each for each in open if each._keeps_waiting]
            min((*waiting, *self.handshaking), key=lambda each: each._since, default=self)._close()

    @property
    def _keeps_waiting(self) -> bool:
        """Whether it is the client's turn: to ask, to send the rest of a body, or to read its answers."""
        return not self._working or self.cycle.more_body or self.flow.write_paused


class TlsListener:
    """Accepts connections for uvicorn, as an asyncio Server does, and gives each ``patience`` seconds for TLS.

    asyncio's own server tells the protocol about its connection only after the handshake, so we could neither count
    nor close connections that never finish it.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, make: Callable[[], Connection], *, patience: float
    ) -> None:
        self._sock = sock
        self._context = context
        self._make = make
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept())

    def close(self) -> None:
        for task in (self._accepting, *self._tasks):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait((self._accepting, *self._tasks))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._sock)
            except OSError:
                await asyncio.sleep(0.1)  # the client left, or no file descriptor is free until other connections end
                continue
            connection = self._make()
            task = loop.create_task(self._shake_hands(client, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            connection.handshake(task.cancel)
            await asyncio.sleep(0)  # if many clients connect at once, let other tasks run too

    async def _shake_hands(self, client: socket.socket, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._context, ssl_handshake_timeout=self._patience
            )
        except OSError:
            pass  # it broke off, took too long, or does not speak TLS
        finally:
            connection.handshaking.discard(connection)


def _common_name(transport: asyncio.Transport) -> str | None:
    """The common name of the client's certificate, which the handshake has verified."""
    link: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate: Any = link.getpeercert() if link is not None else None
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else None


def kind(*, idle: float, busy: float, most: int) -> type[Connection]:
    """The class of the connections of a service with these limits."""
    return type("Connection", (Connection,), {"idle": idle, "busy": busy, "most": most, "handshaking": set()})
