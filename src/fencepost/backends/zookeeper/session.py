"""A ZooKeeper session: kazoo's connection, for blocking and asyncio code."""

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import SASL, Auth, Connect, Create2, Sync
from kazoo.protocol.states import KazooState, KeeperState

from fencepost.backends.zookeeper.address import Settings
from fencepost.driver import Driver, Signal, boottime, run
from fencepost.driver.scope import patience
from fencepost.driver.sockets import READABLE, WRITABLE, poller
from fencepost.errors import BackendError

_log = logging.getLogger("fencepost")

FRACTION = 2 / 3
"""The part of its session's timeout that a lease lasts.

The leader counts a session's timeout from the last ping that reached it, not from a grant. Kazoo pings whenever nothing
was sent for a third of the timeout. A lease is shorter by that third, so that it ends before its session can.
"""

_HOPELESS = 5.0  # after the servers have closed each connection for at least so many seconds, give up the session
_PAUSE = 3.0  # longer than the pause between two attempts to connect
_CHUNK = 65536  # the most bytes to read from a connection at once
_BURST = 64  # the most requests to send at once, before answers are read again

DOUBTFUL = (ConnectionLoss, ConnectionClosedError, SessionExpiredError)


class Container(Create2):  # type: ignore[misc]  # kazoo has no types
    """Creates a node that the server removes by itself once its last child is gone."""

    type = 19


class _Login(Auth):  # type: ignore[misc]  # kazoo has no types
    """A login that does not show its password: kazoo logs each request that it sends."""

    def __repr__(self) -> str:
        return f"Auth(scheme={self.scheme!r}, auth=***)"


class _Response(SASL):  # type: ignore[misc]  # kazoo has no types
    """A step of SASL that does not show its content, which may be a password."""

    def __repr__(self) -> str:
        return "SASL(***)"


class Reply:
    """The answer to one request, set by kazoo's connection thread; ``era`` is that of the session at that time."""

    __slots__ = ("_session", "_then", "done", "era", "error", "value")

    def __init__(self, session: "Session", then: Callable[["Reply"], None] | None = None) -> None:
        self._session = session
        self._then = then
        self.done = False
        self.era = -1
        self.value: Any = None
        self.error: Exception | None = None

    def set(self, value: object = None) -> None:
        self._settle(value, None)

    def set_exception(self, error: Exception) -> None:
        self._settle(None, error)

    def _settle(self, value: object, error: Exception | None) -> None:
        if self.done:
            return
        self.value, self.error, self.era, self.done = value, error, self._session.era, True
        if self._then is not None:
            try:
                self._then(self)
            except Exception:  # it must not end kazoo's connection thread
                _log.exception("a ZooKeeper answer could not be handled")

    def get(self) -> Any:
        """The value; raises a BackendError with advice if the request failed."""
        if self.error is not None:
            raise self._session.failure(self.error)
        return self.value


def sets(signal: Signal) -> Callable[[Reply], None]:
    """A callback for an answer that sets ``signal``."""
    return lambda reply: signal.set()


class _Bell:
    """Wakes kazoo's connection thread. Kazoo uses it as both ends of a pair of sockets.

    Kazoo writes a byte for each new request, and reads one for each request that it sends, but only while it is
    connected. Without a connection, a few hundred requests would fill a real pair, and the next one would block its
    thread, perhaps the connection thread itself. Here one byte is in the pair while there are requests.
    """

    def __init__(self, here: socket.socket, there: socket.socket, queued: Callable[[], bool]) -> None:
        self._here, self.there = here, there
        for each in (here, there):
            each.setblocking(False)
        self._queued = queued
        self.gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self.rung = False

    def fileno(self) -> int:
        return self._here.fileno()

    def send(self, data: bytes) -> int:
        with self.gate:
            if not self.rung:
                self.there.send(data)
                self.rung = True  # in this order: an interruption in between causes one wake-up too many, not too few
        return len(data)

    def recv(self, size: int) -> bytes:
        """Called for each request that was sent: the byte stays in the pair while there are other requests."""
        with self.gate:
            if self._queued():
                return b"\0"
            self.rung = False
            with suppress(BlockingIOError):
                return self._here.recv(64)
            return b""

    def close(self) -> None:
        self._here.close()
        self.there.close()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Runs callbacks on the connection's own thread: ours only set signals and send, and never wait."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.queued: Callable[[], bool] = lambda: False
        """Whether requests wait to be sent."""

    def create_connection(self, *args: Any, **options: Any) -> Any:
        return super().create_connection(*args, **options | {"timeout": min(options["timeout"], self.limit)})

    def select(self, readers: Any, writers: Any, _: object, timeout: float | None = None) -> Any:
        """Like kazoo's, but without its own descriptor: a process without free descriptors would lose its session."""
        poll = poller()
        for each in readers:
            poll.register(each, READABLE)
        for each in writers:
            poll.register(each, WRITABLE)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [each for each in readers if each.fileno() in ready],
            [each for each in writers if each.fileno() in ready],
            [],
        )

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def create_socket_pair(self) -> "tuple[_Bell, _Bell]":
        here, there = super().create_socket_pair()
        try:
            bell = _Bell(here, there, lambda: self.queued())
        except BaseException:  # such as MemoryError
            here.close()
            there.close()
            raise
        return bell, bell

    def dispatch_callback(self, callback: Any) -> None:
        try:
            callback.func(*callback.args)
        except Exception:
            _log.exception("a ZooKeeper event could not be handled")


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """Notes the timeout that the server granted, which kazoo does not expose.

    Kazoo would wait a whole session timeout for a server that does not answer, and so lose the session,
    although other servers would accept it. We try the next server, or try again, sooner.
    """

    granted = 0.0
    over = False
    """Its thread has ended, so it never connects again."""
    refused: AuthFailedError | None = None
    trouble = ""
    """Why the last attempt to connect failed."""
    unnamed: BackendError | None = None
    """Why there were no credentials for it."""
    authenticate: Callable[[], None] = staticmethod(lambda: None)
    on_unnamed: Callable[[], None] = staticmethod(lambda: None)
    on_beat: Callable[[], None] = staticmethod(lambda: None)
    on_over: Callable[[], None] = staticmethod(lambda: None)
    _due = 0.0
    _unread: bytearray
    """The bytes that were received but not parsed yet; a new buffer for each connection."""
    _unsent: bytearray | None = None
    """The requests of a burst, while they are collected."""
    _turned_away = (0.0, 0.0)
    """When servers began to close each connection without an answer, and when one did so last."""

    def start(self) -> None:
        try:
            super().start()
        except (RuntimeError, MemoryError):  # no thread can be started now: free the sockets that were made for it
            self.connection_stopped.set()
            self.close()
            raise

    def zk_loop(self) -> None:
        try:
            super().zk_loop()
        except Exception as error:
            _log.warning("a ZooKeeper session ended, the next request opens another: %r", error)
        finally:
            self.over = True
            self.on_over()

    def _expand_client_hosts(self) -> Any:
        try:
            return super()._expand_client_hosts()
        except OSError as error:  # for example, no descriptor is left to resolve names with
            self.trouble = f"cannot resolve names: {error}"
            return []  # kazoo tries again

    def _connect(self, *args: Any) -> Any:
        try:
            self._unread, self._unsent = bytearray(), None
            self.unnamed = None
            self.authenticate()
            return super()._connect(*args)
        except BackendError as error:
            self.unnamed, self.trouble = error, str(error)
            self.on_unnamed()
            raise ConnectionDropped(self.trouble) from error
        except AuthFailedError as error:
            self.refused = error
            raise
        except (ConnectionDropped, self.handler.timeout_exception) as error:
            self.trouble = str(error)
            raise

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        pending = self.client._pending
        if pending and pending[0][2] != header.xid:
            # Kazoo would fail that request before it drops the connection, and would then fail the requests that are
            # made in between, too.
            raise ConnectionDropped(f"the server answered request {header.xid} once more, or one that nobody made")
        return super()._read_response(header, buffer, offset)

    def _read_socket(self, read_timeout: float) -> Any:
        """Like kazoo's, but for all bytes that have arrived: kazoo makes two system calls per half of an answer."""
        try:
            chunk = self._socket.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not chunk:
            raise ConnectionDropped("socket connection broken")
        self._unread += chunk
        pending = getattr(self._socket, "pending", int)  # of TLS: the bytes already decrypted, which poll does not show
        try:
            while self._unread or pending():
                if super()._read_socket(read_timeout) == CLOSE_RESPONSE:
                    return CLOSE_RESPONSE
        except (RuntimeError, LookupError, ValueError, struct.error) as error:
            # These bytes are no answer, or answer no request. Kazoo would give up the session, and its nodes would stay
            # until it expires.
            raise ConnectionDropped(f"the server sent what answers no request: {error!r}") from error
        return None

    def _read(self, length: int, timeout: float) -> bytes:
        if length < 0:
            raise ConnectionDropped("the server sent a negative length")
        found = bytes(self._unread[:length])
        del self._unread[:length]
        if len(found) < length:
            found += super()._read(length - len(found), timeout)
        return found

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Like kazoo's, but for all requests that wait to be sent, in one write."""
        self._unsent = bytearray()
        try:
            for _ in range(_BURST):
                super()._send_request(read_timeout, connect_timeout)
                if not self.client._queue:
                    break
        finally:
            burst, self._unsent = self._unsent, None
        self._write(burst, connect_timeout)
        self._beat()

    def _write(self, message: bytes | bytearray, timeout: float) -> None:
        if self._unsent is None:
            super()._write(message, timeout)
        else:
            self._unsent += message

    def _send_ping(self, connect_timeout: float) -> None:
        super()._send_ping(connect_timeout)
        self._beat()

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        kind = {Auth: _Login, SASL: _Response}.get(type(request))
        super()._submit(request if kind is None else kind(*request), timeout, xid)

    def _beat(self) -> None:
        """Every request keeps the session alive: from time to time, check whether its waiters still need it."""
        now = boottime()
        if now >= self._due:
            self._due = now + self.granted / 3
            self.on_beat()

    def _invoke(self, timeout: float, request: object, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        try:
            answer = super()._invoke(min(timeout, self.handler.limit), request, xid)
        except ConnectionDropped as error:
            if request.last_zxid_seen and self._hopeless():
                raise SessionExpiredError from error
            raise
        self._turned_away = (0.0, 0.0)
        self.granted = answer[0].time_out / 1000
        return answer

    def _hopeless(self) -> bool:
        """Whether servers have turned us away for so long that this session is over, and another one is needed.

        A server that was restored from a backup always refuses a client that has seen later changes than the server
        has. By then all leases of the session are over.
        """
        now = boottime()
        since, last = self._turned_away
        if now > last + _PAUSE:  # in the meantime no server was reached, which does not count as a refusal
            since = now
        self._turned_away = since, now
        return now - since > max(_HOPELESS, 2 * self.granted)


_ENDED = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.CLOSED: ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}


class _Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """When the connection is lost, fails the requests made before that, but not those made because of it."""

    def _call(self, request: object, reply: Reply) -> bool:
        """Like kazoo's, but it never waits, and a request that fails here is not queued."""
        if (error := _ENDED.get(self._state)) is not None:
            reply.set_exception(error())
            return False
        bell = self._connection._write_sock
        if bell is None:
            reply.set_exception(ConnectionClosedError())
            return False
        try:
            # Inline, because a function call could fail in between: a request that is queued must be sent.
            with bell.gate:
                self._queue.append((request, reply))
                if not bell.rung:
                    bell.there.send(b"\0")
                    bell.rung = True
        except OSError:  # it was closed in the meantime
            reply.set_exception(ConnectionClosedError())
            return False
        return True

    def _notify_pending(self, state: str) -> None:
        error = ConnectionLoss if state == KeeperState.CLOSED else _ENDED.get(state, ConnectionLoss)
        lost = []
        while self._pending:
            lost.append(self._pending.popleft()[1])
        while self._queue:
            lost.append(self._queue.popleft()[1])
        for reply in lost:
            if reply is not None:  # the request to close has no reply object
                reply.set_exception(error())


class Session:
    """One session, kept alive by kazoo; after a loss kazoo opens another one, under a new ``era``."""

    def __init__(self, settings: Settings, timeout: float, driver: Driver) -> None:
        self.hosts = settings.hosts
        self.timeout = timeout
        self.era = 0
        self.on_lost: Callable[[Session], None] = lambda session: None
        self.on_connected: Callable[[Session], None] = lambda session: None
        self.on_beat: Callable[[Session], None] = lambda session: None
        """Called from time to time while the session is kept alive, on kazoo's connection thread."""
        self._driver = driver
        self._settings = settings
        self._patience = settings.patience
        self._waiting: set[Signal] = set()
        self._watching: dict[str, set[Callable[[Any], None]]] = {}
        self._watch_gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        handler = _Handler(min(max(timeout / 6, 1.0), 5.0))
        self._client = _Client(
            hosts=settings.hosts,
            timeout=timeout,
            handler=handler,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": min(1.0, timeout / 6)},
            **settings.client,
        )
        self._connection = _Connection(
            self._client, self._client._conn_retry.copy(), self._client.logger, sasl_options=settings.sasl
        )
        self._connection.on_unnamed = self._rouse
        if settings.login is not None:
            self._connection.authenticate = self._authenticate
        self._connection.on_beat = lambda: self.on_beat(self)
        self._connection.on_over = self._rouse
        self._client._connection = self._connection
        handler.queued = lambda: bool(self._client._queue)
        self._client.add_listener(self._changed)

    def _authenticate(self) -> None:
        """Let the next connection log in with the present credentials; called on kazoo's connection thread."""
        login, user = self._settings.login, self._settings.user
        assert login is not None, "this is for credentials that change"
        self._connection.trouble = "credentials= has not answered yet"
        found = run(login.get())
        self._connection.trouble = ""
        name = found.user or user
        if not name or ":" in name:
            login.fail("must return (user, password), with a user that has no ':' in it, or the URL must name the user")
        self._client.auth_data = {("digest", f"{name}:{found.password}")}

    def start(self) -> None:
        """Begin to connect; BackendError if this process has no descriptors left for it."""
        if self._settings.login is not None:
            self._settings.login.note_loop()  # kazoo's thread asks
        try:
            self._client.start_async()
        except OSError as error:
            raise self.failure(error, ambiguous=False) from error

    @property
    def over(self) -> bool:
        """Whether kazoo has given up the session for good: it never connects again."""
        return bool(self._connection.over)

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    @property
    def limit(self) -> float:
        """Seconds to wait for an answer; without a connection, for the connection and the answer.

        Kazoo gives up a silent server after two thirds of the timeout; this limit is for cases that kazoo misses.
        """
        return self._patience + (float(self._connection.granted) if self.connected else 0.0)

    def lasts(self, ttl: float) -> float:
        """For how many seconds a lease of this session lasts: ``ttl``, unless the server granted another timeout."""
        granted = float(self._connection.granted)
        return ttl if abs(granted - self.timeout) < 0.002 else granted * FRACTION

    @property
    def id(self) -> int:
        return int(self._client._session_id or 0)

    def _changed(self, state: str) -> None:
        """Called by kazoo's connection thread when the connection is up or down, or its session is lost."""
        if state == KazooState.LOST:
            self.era += 1
            self.on_lost(self)
        elif state == KazooState.CONNECTED:
            self.on_connected(self)
        self._rouse()

    def _rouse(self) -> None:
        for signal in self._waiting.copy():
            signal.set()

    async def ready(self, within: float = inf) -> None:
        """Wait for the connection; BackendError if it cannot be opened. No request was sent then."""
        if self._client.connected:
            return
        now = self._driver.now
        allowed = patience(min(self._patience, within))
        until = now() + allowed
        known = self._connection.unnamed  # an old error does not count: kazoo tries again by itself
        while not self._client.connected:
            signal = self._driver.signal()
            self._waiting.add(signal)
            try:
                if self._client.connected:
                    return
                if (unnamed := self._connection.unnamed) is not None and unnamed is not known:
                    raise BackendError(str(unnamed), backend="zookeeper", ambiguous=False) from unnamed.__cause__
                if self.over:
                    raise self.failure(self._connection.refused or ConnectionClosedError(), ambiguous=False)
                if (left := until - now()) <= 0:
                    why = f": {self._connection.trouble}" if self._connection.trouble else ""
                    raise BackendError(
                        f"ZooKeeper at {self.hosts} was not reached within {allowed:.3g} s{why}; is it running, "
                        f"and does it have a majority?",
                        backend="zookeeper",
                        ambiguous=False,
                    )
                await signal.wait(left)
            finally:
                self._waiting.discard(signal)

    @contextmanager
    def watching(self, path: str, wake: Callable[[Any], None]) -> Iterator[Callable[[Any], None]]:
        """The watch to give to requests for ``path``: inside the block, ``wake`` is called with each event.

        All waiters use the same watch function: kazoo keeps each watch until it fires, even if its waiter is gone.
        """
        with self._watch_gate:
            self._watching.setdefault(path, set()).add(wake)
        try:
            yield self._fired
        finally:
            with self._watch_gate:
                wakes = self._watching[path]
                wakes.discard(wake)
                if not wakes:
                    del self._watching[path]

    def _fired(self, event: Any) -> None:
        with self._watch_gate:
            # An event without a path is about the connection.
            paths = list(self._watching) if event.path is None else [event.path]
            wakes = [wake for path in paths for wake in self._watching.get(path, ())]
        for wake in wakes:
            wake(event)

    def send(self, request: object, then: Callable[[Reply], None] | None = None) -> Reply:
        """Send without waiting, from any thread; requests are executed in the order in which they were sent."""
        reply = Reply(self, then)
        # Kazoo's public methods use another thread for each create, and cannot create container nodes.
        self._client._call(request, reply)
        return reply

    async def ask(self, *requests: object, within: float | None = None) -> list[Reply]:
        """Send all requests at once, and wait for the last answer; BackendError if it does not arrive."""
        signal = self._driver.signal()
        replies = [self.send(request) for request in requests[:-1]]
        replies.append(self.send(requests[-1], lambda reply: signal.set()))
        await self.answered(signal, within)
        return replies

    async def read(self, request: object) -> Reply:
        """The answer as the leader sees it; if the sync failed, the reply to that.

        A follower that is cut off still answers reads, so a sync comes first: only the leader answers it.
        """
        synced, reply = await self.ask(Sync("/"), request)
        return synced if synced.error else reply

    async def answered(self, signal: Signal, within: float | None = None) -> None:
        limit = patience(self.limit if within is None else within)
        if not await signal.wait(limit):
            raise BackendError(
                f"ZooKeeper at {self.hosts} did not answer within {limit:.3g} s", backend="zookeeper", ambiguous=True
            )

    async def make(self, folder: str) -> None:
        """Create a lock's node and all nodes above it, if they do not exist."""
        acl, container = self._settings.acl, self._settings.container
        kind = Container if container else Create2
        parts = folder.strip("/").split("/")
        paths = ["/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        above = [Create2(path, b"", acl, 0) for path in paths[:-1]]
        replies = await self.ask(*above, kind(folder, b"", acl, 4 if container else 0))
        unknown = next((reply for reply in replies if isinstance(reply.error, UnimplementedError)), None)
        if unknown is replies[-1]:
            replies = await self.ask(Create2(folder, b"", acl, 0))
        for reply in replies:
            # A NoAuthError for a node above may mean that it exists, below a node that we may not write to.
            if reply.error and not isinstance(reply.error, (NodeExistsError, NoAuthError)):
                # ZooKeeper ends the session after a request that it does not know, so the later requests fail.
                (unknown if unknown and isinstance(reply.error, DOUBTFUL) else reply).get()
        if isinstance(replies[-1].error, NoAuthError):
            replies[-1].get()

    def failure(self, error: Exception, *, ambiguous: bool | None = None) -> BackendError:
        """The BackendError for a request's error, with advice."""
        if isinstance(error, NoAuthError):
            next_step = "not allowed; give zk://user:password@..., or open the node's ACL"
        elif isinstance(error, AuthFailedError):
            next_step = "it did not accept the credentials"
        elif isinstance(error, SessionExpiredError):
            next_step = "the session expired; ask again"
        elif isinstance(error, (ConnectionLoss, ConnectionClosedError)):
            next_step = "the connection was lost before the answer came"
        elif isinstance(error, UnimplementedError):  # Create2, whose answer has the czxid
            next_step = "the server is too old; fencepost needs ZooKeeper 3.5 or newer"
        else:
            next_step = f"{type(error).__name__} {error}".strip()
        doubt = isinstance(error, DOUBTFUL) or not isinstance(error, KazooException)
        unsure = doubt if ambiguous is None else ambiguous
        return BackendError(f"ZooKeeper at {self.hosts}: {next_step}", backend="zookeeper", ambiguous=unsure)

    def command(self, word: bytes) -> str:
        """The server's answer to a four-letter word, on another connection; it blocks."""
        try:
            return str(self._client.command(word))
        except KazooException as error:
            raise self.failure(error) from error

    def close(self) -> threading.Thread:
        """End the session, and with it all its nodes; return the thread that does it."""

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:
                _log.debug("ZooKeeper session left to expire: %s", error)

        thread = threading.Thread(target=stop, name="fencepost-zookeeper-close", daemon=True)
        thread.start()
        return thread
