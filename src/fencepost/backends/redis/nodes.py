"""One server: where requests go, and from where messages to this process come."""

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
"""Where requests go: blocking code does not load the stream, and asyncio with it."""
Hear = Callable[["Node", list[Any]], None]
Lost = Callable[["Node"], None]

_log = logging.getLogger("fencepost")
_LISTEN = 5.0  # seconds of silence after which a listening socket asks whether the server is still there
_ANSWER = 5.0  # seconds within which it has to hear something then


class Node(ABC):
    """One server. ``hear`` receives what is published to ``channel``; ``lost`` is told of every gap in that."""

    def __init__(self, dial: Dial, locate: Locate, channel: str, hear: Hear, lost: Lost) -> None:
        self.dial = dial
        self.locate = locate
        self.channel = channel
        self.hear = hear
        self.lost = lost
        self.failed: Callable[[Node], None] = _ignore
        """Told whenever the server could not be reached, or a connection to it broke."""
        self.transport: Transport | None = None
        """Where requests go; None if there is no connection."""

    @property
    @abstractmethod
    def listening(self) -> bool:
        """Whether messages arrive."""

    @abstractmethod
    def at_hand(self) -> Transport | None:
        """``transport``, if it can be used right now."""

    @abstractmethod
    async def ready(self) -> Transport:
        """``transport``, connected first where there is none."""

    @abstractmethod
    async def listen(self) -> None:
        """Return once messages arrive, or once they do for every request sent after this."""

    def close(self) -> None:
        """Drop the connections; the next request opens another."""
        if self.transport is not None:
            self.transport.close()

    async def end(self) -> None:
        """Return once the connections are closed."""
        self.close()

    @abstractmethod
    def forked(self) -> None:
        """Let go of the parent's connections."""


class ThreadNode(Node):
    """A server as blocking code sees it: a pool for requests, one more connection and thread for messages."""

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
    """The error of an acquire that would wait, and cannot be told of its turn."""
    return kind(f"cannot listen for grants: {why}", backend=dial.scheme, ambiguous=ambiguous)


class Listener:
    """Listens on a thread of its own, and comes back by itself after every loss of its connection."""

    def __init__(self, node: ThreadNode) -> None:
        self._node = node
        self._service = Service(Blocking(), self._keep, "fencepost-redis-listener")
        self.socket: Socket | None = None
        self.up = Flag()
        self.settled = Flag()
        """Whether there is something to say to those who wait until it listens: it does, may not, or was closed."""
        self.refused = False
        self.failure: BackendError | None = None

    def start(self) -> None:
        """Begin to listen, unless it does already."""
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
        node.lost(node)  # from now on nothing is missed; what was before has to be asked for
        self.refused = False
        self.up.set()
        self.settled.set()
        connection.allow(_LISTEN)
        silent, owed = False, 0  # PINGs that were not answered yet; messages may come before an answer
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
