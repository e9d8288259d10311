"""One asyncio connection for all tasks: their concurrent requests leave in one write and are answered in order.

It speaks RESP3, so it also receives what is published to it.
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
    """The answer to SUBSCRIBE: a message if the server complies, a reply if it refuses."""

    def __init__(self, stream: "Stream") -> None:
        super().__init__(stream.loop, subscribed)
        self._stream = stream

    def bring(self, value: Any) -> None:
        self._stream.subscribed(value)
        super().bring(value)


class Stream(asyncio.BufferedProtocol):
    """One asyncio connection: requests of all tasks, answered in order, and messages as they come."""

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
        # Of its own: for a plain Protocol asyncio makes room for 256 KiB before each read, which malloc() may well take
        # from the kernel and give back to it each time. A view, because asyncio's TLS writes into slices of it.
        self._buffer = memoryview(bytearray(_ROOM))
        self._watch: asyncio.TimerHandle | None = None
        self._waiting: Reply | None = None
        self._why: OSError | None = None
        self._gone = asyncio.Event()
        self.endpoint = endpoint
        self.open = False
        self.listening = ""
        """The channel that it subscribed to, also while the server has not answered yet."""
        self.refused: ReplyError | None = None
        """Why the server refused to let it subscribe, if it did so last."""
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
            if isinstance(error, BackendError):  # nothing was asked for yet but to be let in
                error.ambiguous = False
            raise
        return stream

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # as uvloop's is in all but its class
        raw = transport.get_extra_info("socket")
        if raw.family != getattr(socket, "AF_UNIX", None):
            keep_alive(raw)
        reader = Reader(notEnoughData=NOTHING)
        # Its stub leaves out that it takes any buffer.
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
        for reply in self._pending:  # to each its own: what raises an error adds to its traceback
            reply.fail(self._dial.error(self.endpoint, why, ambiguous=True))
        self._pending.clear()
        self._gone.set()
        self._lost(self)

    # Requests

    def call(self, request: bytes, fits: Fits, reply: Reply | None = None) -> Reply:
        """Send soon: at once on an idle connection, else together with all that is asked in this turn of the loop.

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
        """Subscribe before anything that is sent after this, unless the server has refused that."""
        if self.listening != channel and self.refused is None:
            self.subscribe(channel)

    def subscribe(self, channel: str) -> Reply:
        """Subscribe; the answer is a ReplyError if the server refuses that."""
        self.listening = channel
        return self.call(pack(("SUBSCRIBE", channel)), subscribed, Subscription(self))

    def subscribed(self, answer: Any) -> None:
        if answer.__class__ is ReplyError:
            self.listening = ""
            self.refused = answer
        else:
            self.refused = None

    def _check(self) -> None:
        """One watch for all requests: a server that answers none of them for ``timeout`` is given up."""
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
            self.transport.abort()  # everything was answered; a TLS good-bye would take a round trip

    async def gone(self) -> None:
        """Return once the connection is closed."""
        if self.open and self.loop is asyncio.get_running_loop():
            await self._gone.wait()

    def forked(self) -> None:
        self._lost = _ignore
        sever(self.transport.get_extra_info("socket"))


def _ignore(stream: Stream) -> None:
    pass
