"""One asyncio connection for all tasks: their concurrent requests leave in one write and are answered in order.

It speaks RESP3, so it also receives published messages.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from hiredis import PushNotification, Reader, ReplyError

from fencepost.backends.fork import sever
from fencepost.backends.redis.answers import Fits, subscribed
from fencepost.backends.redis.connection import (
    GARBAGE,
    NOTHING,
    Dial,
    Endpoint,
    astray,
    garbled,
    pack,
)
from fencepost.credentials import Secret
from fencepost.driver.reply import Reply
from fencepost.driver.sockets import keep_alive
from fencepost.errors import BackendError

_ROOM = 65536  # bytes that are read at once


class Subscription(Reply):
    """The answer to SUBSCRIBE: a push message if the server accepts it, an error reply if it refuses."""

    def __init__(self, stream: "Stream") -> None:
        super().__init__(stream.loop, subscribed)
        self._stream = stream

    def bring(self, value: Any) -> None:
        self._stream.subscribed(value)
        super().bring(value)


class Stream(asyncio.BufferedProtocol):
    """One asyncio connection: requests of all tasks, answered in order, and messages whenever they arrive."""

    ordered = True

    def __init__(
        self, dial: Dial, endpoint: Endpoint, hear: Callable[[list[Any]], None], lost: Callable[["Stream"], None]
    ) -> None:
        self._dial = dial
        self._hear = hear
        self._lost = lost
        self.loop = asyncio.get_running_loop()
        self._pending: deque[Reply] = deque()
        self._held: list[bytes] = []
        self._gets: Callable[[], Any]
        # Our own buffer: for a plain Protocol asyncio allocates 256 KiB before each read, and malloc() may get them
        # from the kernel and give them back each time. A view, because asyncio's TLS writes into slices of it.
        self._buffer = memoryview(bytearray(_ROOM))
        self._watch: asyncio.TimerHandle | None = None
        self._waiting: Reply | None = None
        self._why: OSError | None = None
        self._gone = asyncio.Event()
        self.endpoint = endpoint
        self.open = False
        self.listening = ""
        """The channel of the last SUBSCRIBE, even if the server has not answered yet; '' if there is none."""
        self.refused: ReplyError | None = None
        """The server's error if it refused the last SUBSCRIBE."""
        self.transport: asyncio.Transport

    @classmethod
    async def connect(
        cls,
        dial: Dial,
        endpoint: Endpoint,
        hear: Callable[[list[Any]], None],
        lost: Callable[["Stream"], None],
        secret: Secret | None = None,
    ) -> "Stream":
        loop = asyncio.get_running_loop()
        host, port = endpoint
        secret = secret or await dial.secret()
        stream = cls(dial, endpoint, hear, lost)
        try:
            async with asyncio.timeout(dial.connect_timeout):
                if port is None:
                    await loop.create_unix_connection(lambda: stream, host)
                else:
                    name = host if dial.tls else None
                    await loop.create_connection(lambda: stream, host, port, ssl=dial.tls, server_hostname=name)
                dial.welcomed(endpoint, await stream.calls(dial.greeting(secret), dial.greets()), secret)
        except BaseException as error:
            stream.close()
            await stream.gone()
            if isinstance(error, OSError):  # TimeoutError is one
                dial.fail(endpoint, f"cannot connect: {str(error) or 'no answer in time'}", ambiguous=False)
            if isinstance(error, BackendError):  # only the greeting was sent so far
                error.ambiguous = False
            raise
        return stream

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but is no subclass
        raw = transport.get_extra_info("socket")
        if raw.family != getattr(socket, "AF_UNIX", None):
            keep_alive(raw)
        reader = Reader(notEnoughData=NOTHING)
        # Its stub does not say that it accepts any buffer.
        self._feed = cast("Callable[[memoryview, int, int], None]", reader.feed)
        self._gets = reader.gets
        self.open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._feed(self._buffer, 0, nbytes)
        gets, pending = self._gets, self._pending
        try:
            while (reply := gets()) is not NOTHING:
                kind = reply.__class__
                if kind is PushNotification and not subscribed(reply):
                    self._hear(reply)
                    continue
                if not pending or (kind is not ReplyError and not pending[0].fits(reply)):
                    return self._give_up(astray())
                pending.popleft().bring(reply)
        except GARBAGE as error:
            self._give_up(garbled(error))

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._watch is not None:
            self._watch.cancel()
        why = self._why or error or "the server closed the connection"
        for reply in self._pending:  # a new error for each: raising one object several times adds to its traceback
            reply.fail(self._dial.error(self.endpoint, why, ambiguous=True))
        self._pending.clear()
        self._gone.set()
        self._lost(self)

    # Requests

    def call(self, request: bytes, fits: Fits, reply: Reply | None = None) -> Reply:
        """Send now if the connection is idle; otherwise together with all requests of this turn of the event loop.

        A reply that does not fit ends the connection.
        """
        if not self.open:
            self._dial.fail(self.endpoint, "the connection was closed", ambiguous=False)
        if reply is None:
            reply = Reply(self.loop, fits)
        self._post(request)
        self._pending.append(reply)
        if self._watch is None:
            self._watch = self.loop.call_later(self._dial.timeout / 2, self._check)
        return reply

    async def calls(self, requests: Sequence[bytes], fits: Sequence[Fits]) -> list[Any]:
        replies = list(map(self.call, requests, fits))
        return [await reply for reply in replies]

    def _post(self, request: bytes) -> None:
        if self._held:
            self._held.append(request)
        elif self._pending:
            self._held.append(request)
            self.loop.call_soon(self._flush)
        else:
            self.transport.write(request)

    def _flush(self) -> None:
        held, self._held = self._held, []
        if self.open:
            self.transport.write(b"".join(held))

    def listen(self, channel: str) -> None:
        """Send SUBSCRIBE, before all later requests, unless the server has refused it before."""
        if self.listening != channel and self.refused is None:
            self.subscribe(channel)

    def subscribe(self, channel: str) -> Reply:
        """Subscribe; the answer is a ReplyError if the server refuses."""
        self.listening = channel
        return self.call(pack(("SUBSCRIBE", channel)), subscribed, Subscription(self))

    def subscribed(self, answer: Any) -> None:
        if answer.__class__ is ReplyError:
            self.listening = ""
            self.refused = answer
        else:
            self.refused = None

    def _check(self) -> None:
        """Give up the connection if its oldest request has waited for ``timeout``, or up to twice that.

        One timer serves all requests.
        """
        self._watch = None
        if not self._pending:
            self._waiting = None
            return
        if self._waiting is self._pending[0]:
            self._waiting = None
            self._give_up(TimeoutError("no answer in time"))
            return
        self._waiting = self._pending[0]
        self._watch = self.loop.call_later(self._dial.timeout, self._check)

    def _give_up(self, why: OSError) -> None:
        self._why = why
        self.transport.abort()

    def close(self) -> None:
        self._lost = _ignore
        if self.open and not self.loop.is_closed():
            self.transport.abort()  # all requests were answered; TLS's close_notify would take a round trip

    async def gone(self) -> None:
        """Return once the connection is closed."""
        if self.open and self.loop is asyncio.get_running_loop():
            await self._gone.wait()

    def forked(self) -> None:
        self._lost = _ignore
        sever(self.transport.get_extra_info("socket"))


def _ignore(stream: Stream) -> None:
    pass
