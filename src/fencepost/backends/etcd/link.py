"""One asyncio connection to a member, which all tasks share for their concurrent requests."""

import asyncio
from collections.abc import Callable
from typing import cast

from fencepost.backends.etcd.dial import Dial, check_protocol
from fencepost.backends.etcd.http2 import Call, Connection
from fencepost.backends.etcd.status import Code, cannot_connect
from fencepost.backends.fork import sever
from fencepost.driver.reply import Reply
from fencepost.driver.sockets import keep_alive

_ACKS = 1.0  # seconds that the answer to a ping may wait
_GRACE = 1.0  # seconds that in-flight requests have when their event loop ends


class Link(asyncio.Protocol):
    """One connection of an event loop. It passes each call to the call's ``owner`` once the call is over."""

    def __init__(self, lost: Callable[["Link"], None]) -> None:
        self._lost = lost
        self.loop = asyncio.get_running_loop()
        self._connection = Connection()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._later: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._why = ""

    @classmethod
    async def connect(cls, dial: Dial, timeout: float, lost: Callable[["Link"], None]) -> "Link":
        """A new connection; Failure if that takes more than ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        link = cls(lost)
        name = dial.host if dial.tls else None
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda: link, dial.host, dial.port, ssl=dial.tls, server_hostname=name)
            assert link._transport is not None
            if dial.tls is not None:
                check_protocol(link._transport.get_extra_info("ssl_object"))
        except BaseException as error:
            link.close()
            await link.gone()
            if isinstance(error, OSError):  # TimeoutError is one
                raise cannot_connect(error) from error
            raise
        return link

    @property
    def usable(self) -> bool:
        """Whether requests can be made on it."""
        return self._transport is not None and self._connection.usable

    # Requests

    def call(self, head: bytes, body: bytes, timeout: float) -> Call:
        """Send now if the connection is idle; otherwise together with all requests of this turn of the event loop."""
        connection, loop = self._connection, self.loop
        call = connection.start(head, body)
        call.owner = Reply(loop)
        call.until = until = loop.time() + timeout
        if len(connection.calls) <= 1:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush)
        if self._watch is None:
            self._watch = loop.call_at(until, self._check)
        elif self._watch.when() > until:
            self._watch.cancel()
            self._watch = loop.call_at(until, self._check)
        return call

    def cancel(self, call: Call) -> None:
        """Cancel a call whose answer is no longer needed."""
        self._connection.cancel(call)
        self._settle()

    def _flush(self) -> None:
        self._flushing = False
        connection = self._connection
        if connection.out and self._transport is not None:
            self._transport.write(connection.take(acks=False))

    def _check(self) -> None:
        """Fail the requests whose timeout is over: one timer serves all requests."""
        self._watch = None
        now, connection = self.loop.time(), self._connection
        waiting = [*connection.calls.values(), *connection.waiting]
        for call in waiting:
            if call.until <= now:
                connection.cancel(call, Code.DEADLINE_EXCEEDED, "no answer in time")
                if call.failure is not None:
                    call.owner.fail(call.failure)
        left = min((call.until for call in waiting if not call.over), default=0.0)
        if left:
            self._watch = self.loop.call_at(left, self._check)
        self._settle()

    def _settle(self) -> None:
        """After calls have ended: send what is due, and close the connection if the server accepts no more calls."""
        connection = self._connection
        if connection.out and not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        if connection.acks and self._later is None:
            self._later = self.loop.call_later(_ACKS, self._answer_pings)
        if (connection.draining and connection.idle) or connection.failure is not None:
            self._abort("the server closed the connection")

    def _answer_pings(self) -> None:
        self._later = None
        if self._transport is not None:
            self._transport.write(self._connection.take())

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but is no subclass
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        for call in self._connection.receive(data):
            call.owner.bring(call)  # the task that waits for it continues, and may begin another call
        connection = self._connection
        if connection.out or connection.acks or not connection.usable:
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for timer in (self._watch, self._later):
            if timer is not None:
                timer.cancel()
        for call in self._connection.lost(self._why or str(error or "the server closed the connection")):
            if call.failure is not None:
                call.owner.fail(call.failure)
        self._gone.set()
        self._lost(self)

    # Its end

    def _abort(self, why: str) -> None:
        self._why = self._why or why
        if self._transport is not None and not self.loop.is_closed():
            self._transport.abort()

    def close(self) -> None:
        """End it, and every call on it; from any thread."""
        if self.loop is asyncio._get_running_loop():
            self._abort("the connection was closed")
        else:
            try:
                self.loop.call_soon_threadsafe(self._abort, "the connection was closed")
            except RuntimeError:
                pass  # the loop is closed, and so is the connection

    async def gone(self) -> None:
        """Return once the connection is closed."""
        if self._transport is not None and self.loop is asyncio.get_running_loop():
            await self._gone.wait()

    async def keep(self) -> None:
        """Close the connection when its event loop ends, if it is still open."""
        try:
            await self.gone()
        except asyncio.CancelledError:
            # The tasks that wait for locks are cancelled as well: let them send their clean-ups first.
            until = self.loop.time() + _GRACE
            await asyncio.sleep(0.05)
            while not self._connection.idle and self.loop.time() < until:  # noqa: ASYNC110 - for a moment only
                await asyncio.sleep(0.01)
            self.close()
            await self.gone()

    def forked(self) -> None:
        """In a forked child: drop the parent's connection."""
        self._lost = _ignore
        if self._transport is not None:
            sever(self._transport.get_extra_info("socket"))


def _ignore(link: Link) -> None:
    pass
