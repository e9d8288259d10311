"""One server, for asyncio code."""

import asyncio

from hiredis import ReplyError

from fencepost.backends.redis.answers import pong
from fencepost.backends.redis.connection import Denied, pack
from fencepost.backends.redis.nodes import Node, cannot_listen
from fencepost.backends.redis.stream import Stream
from fencepost.credentials import Secret
from fencepost.driver.tasks import joined, shared
from fencepost.errors import BackendError


class TaskNode(Node):
    """One connection, both for requests and for messages."""

    transport: Stream | None
    _listens = False
    _opening: "asyncio.Task[Stream] | None" = None
    _keeper: "asyncio.Task[None] | None" = None
    _ended = False

    @property
    def listening(self) -> bool:
        return self.transport is not None and self.transport.listening != ""

    def at_hand(self) -> Stream | None:
        transport = self.transport
        return (
            transport
            if transport is not None and transport.open and transport.loop is asyncio._get_running_loop()
            else None
        )

    async def ready(self, secret: Secret | None = None) -> Stream:
        if (transport := self.at_hand()) is not None:
            return transport
        try:
            return await joined(self._connecting(secret))
        except ConnectionAbortedError as error:
            raise BackendError(f"Redis: {error}", backend=self.dial.scheme, ambiguous=False) from None

    def _connecting(self, secret: Secret | None) -> "asyncio.Task[Stream]":
        """The attempt to connect that is under way. Callers must not cancel it: others wait for the same connection."""
        opening = self._opening
        if opening is None or opening.done() or opening.get_loop() is not asyncio.get_running_loop():
            opening = self._opening = shared(self._open(secret), "fencepost-redis-connect")
        return opening

    async def _open(self, secret: Secret | None) -> Stream:
        try:
            stream = await Stream.connect(
                self.dial, await self.locate(), lambda push: self.hear(self, push), self._dropped, secret
            )
            self.transport = stream
            if self._listens:
                stream.listen(self.channel)
            self._keeper = asyncio.create_task(self._keep(stream), name="fencepost-redis-connection")
            if self._ended:  # this connection is only for a clean-up
                asyncio.get_running_loop().call_later(self.dial.timeout, stream.close)
            return stream
        except BackendError:
            self.failed(self)
            raise
        finally:
            self._opening = None

    async def _keep(self, stream: Stream) -> None:
        """Close the connection when the event loop ends, if it is still open."""
        try:
            await stream.gone()
        except asyncio.CancelledError:
            # The tasks that wait for locks are cancelled as well: let them send their clean-ups first.
            await asyncio.sleep(0.05)
            try:
                await stream.call(pack(("PING",)), pong)
            except BackendError:
                pass
            stream.close()
            await stream.gone()

    def _dropped(self, stream: Stream) -> None:
        if self.transport is stream:
            self.transport = None
            self.failed(self)
            self.lost(self)

    async def listen(self) -> None:
        self._listens = True
        stream = await self.ready()
        stream.listen(self.channel)
        if stream.refused is not None:  # try again: the server's ACL may have changed
            answer = await stream.subscribe(self.channel)
            if answer.__class__ is ReplyError:
                raise cannot_listen(self.dial, answer, Denied, ambiguous=False)

    def close(self) -> None:
        super().close()
        self.transport = None

    async def end(self) -> None:
        opening = self._opening
        self._ended = True
        self.close()
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.wait([opening])
        if self._keeper is not None and self._keeper.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._keeper])

    def forked(self) -> None:
        if self.transport is not None:
            self.transport.forked()
        self.transport = self._opening = self._keeper = None
        self._listens = False
