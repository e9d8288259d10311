"""One server: the connections for requests to it, and for its messages to this process."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from hiredis import PushNotification, ReplyError

from fencepost.backends.fork import sever
from fencepost.backends.redis.answers import pong, subscribed
from fencepost.backends.redis.connection import LATER, Denied, Dial, Locate, astray, pack
from fencepost.backends.redis.pool import Pool, Socket
from fencepost.driver.backoff import Backoff
from fencepost.driver.scope import patience
from fencepost.driver.service import Run, Service
from fencepost.driver.threads import Blocking, Flag
from fencepost.errors import BackendError

if TYPE_CHECKING:
    from fencepost.backends.redis.stream import Stream

Transport: TypeAlias = Union[Pool, "Stream"]
"""What sends requests. Blocking code does not load the stream, and so does not load asyncio."""
Hear = Callable[["Node", list[Any]], None]
Lost = Callable[["Node"], None]

_log = logging.getLogger("fencepost")
_LISTEN = 5.0  # after this many seconds of silence, the listener sends a PING
_ANSWER = 5.0  # seconds within which something must arrive then


class Node(ABC):
    """One server. ``hear`` receives what is published to ``channel``; ``lost`` is called if messages may be missing."""

    def __init__(self, dial: Dial, locate: Locate, channel: str, hear: Hear, lost: Lost) -> None:
        self.dial = dial
        self.locate = locate
        self.channel = channel
        self.hear = hear
        self.lost = lost
        self.failed: Callable[[Node], None] = _ignore
        """Called whenever the server could not be reached, or a connection to it broke."""
        self.transport: Transport | None = None
        """What sends requests; None if there is no connection."""

    @property
    @abstractmethod
    def listening(self) -> bool:
        """Whether messages arrive."""

    @abstractmethod
    def at_hand(self) -> Transport | None:
        """``transport``, if it can be used right now."""

    @abstractmethod
    async def ready(self) -> Transport:
        """``transport``, connected first if there is none."""

    @abstractmethod
    async def listen(self) -> None:
        """Return once we are subscribed, or once every request sent after this will arrive after the subscription."""

    def close(self) -> None:
        """Drop the connections; the next request opens another."""
        if self.transport is not None:
            self.transport.close()

    async def end(self) -> None:
        """Return once the connections are closed."""
        self.close()

    @abstractmethod
    def forked(self) -> None:
        """In a forked child: drop the parent's connections."""


class ThreadNode(Node):
    """A server for blocking code: a pool for requests, and another connection with its own thread for messages."""

    transport: Pool

    def __init__(self, dial: Dial, locate: Locate, channel: str, hear: Hear, lost: Lost) -> None:
        super().__init__(dial, locate, channel, hear, lost)
        self.transport = Pool(dial, locate, lambda: self.failed(self))
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._listener: Listener | None = None
        self._ended = False

    @property
    def listening(self) -> bool:
        return self._listener is not None and self._listener.up.is_set()

    def at_hand(self) -> Pool:
        return self.transport

    async def ready(self) -> Pool:
        return self.transport

    async def listen(self) -> None:
        until = None
        while True:
            listener = self._listener
            if listener is None:
                if self._ended:
                    raise cannot_listen(self.dial, "the connection was closed", ambiguous=False)
                with self._gate:
                    listener = self._listener = self._listener or Listener(self)
            if listener.up.is_set():
                return
            listener.start()
            until = until or time.monotonic() + patience(self.dial.patience)
            listener.settled.clear()
            if listener.refused or (
                not listener.up.is_set()
                and listener is self._listener
                and not listener.settled.wait(until - time.monotonic())
            ):
                kind = Denied if listener.refused else BackendError
                raise cannot_listen(self.dial, listener.failure or "no answer in time", kind, ambiguous=False)

    def close(self) -> None:
        super().close()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    async def end(self) -> None:
        self._ended = True
        self.close()
        self.transport.end()

    def forked(self) -> None:
        self.transport.forked()
        if self._listener is not None and self._listener.socket is not None:
            sever(self._listener.socket.raw)
        self._gate = threading.RLock()
        self._listener = None


def cannot_listen(dial: Dial, why: object, kind: type[BackendError] = BackendError, *, ambiguous: bool) -> BackendError:
    """The error for an acquire that would have to wait, but cannot be notified of its grant."""
    return kind(f"cannot listen for grants: {why}", backend=dial.scheme, ambiguous=ambiguous)


class Listener:
    """Listens on its own thread, and connects again whenever its connection is lost."""

    def __init__(self, node: ThreadNode) -> None:
        self._node = node
        self._service = Service(Blocking(), self._keep, "fencepost-redis-listener")
        self.socket: Socket | None = None
        self.up = Flag()
        self.settled = Flag()
        """Set once the callers of ``Node.listen`` can go on: it listens, or was refused, or was closed."""
        self.refused = False
        self.failure: BackendError | None = None

    def start(self) -> None:
        """Begin to listen, unless it listens already."""
        self._service.start()

    async def _keep(self, run: Run) -> None:
        node = self._node
        pauses = Backoff(0.01, 1.0)
        while run.current:
            try:
                self.socket = connection = Socket(node.dial, await node.locate())
                with connection.raw:
                    run.interrupt = connection.shut
                    self._listen(connection, run)
            except BackendError as error:
                self.failure = error
            except OSError:
                pass
            except Exception:
                _log.exception("the listener of a Redis connection failed; it starts again")
            finally:
                run.interrupt = None
                heard = self.up.is_set()
                self.up.clear()
            if not run.current:
                return
            if heard:
                pauses.reset()
            elif self.refused:
                self.settled.set()
            node.failed(node)
            await run.nudge.wait(pauses.next())

    def _listen(self, connection: Socket, run: Run) -> None:
        node = self._node
        connection.post(pack(("SUBSCRIBE", node.channel)))
        answer = connection.read()
        if answer.__class__ is ReplyError:
            self.failure = node.dial.error(connection.endpoint, answer, ambiguous=False)
            self.refused = not str(answer).startswith(LATER)
            return
        if not subscribed(answer):
            raise astray()
        node.lost(node)  # from now on no message is missed; for earlier grants the waiters have to ask
        self.refused = False
        self.up.set()
        self.settled.set()
        connection.allow(_LISTEN)
        silent, owed = False, 0  # owed: PINGs that were not answered yet; messages may arrive before the answer
        while run.current:
            try:
                push = connection.read()
            except (BlockingIOError, TimeoutError):
                if silent:
                    return
                silent, owed = True, owed + 1
                connection.allow(_ANSWER)
                connection.post(pack(("PING",)))
                continue
            if silent:
                silent = False
                connection.allow(_LISTEN)
            if push.__class__ is PushNotification:
                node.hear(node, push)
            elif owed and pong(push):
                owed -= 1
            else:
                raise astray()

    def close(self) -> None:
        self._service.close()
        self.settled.set()


def _ignore(node: Node) -> None:
    pass
