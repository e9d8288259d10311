"""Blocking connections: hiredis packs and parses, directly on a socket."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import Any, NoReturn

from hiredis import Reader, ReplyError

from fencepost.backends.fork import sever
from fencepost.backends.redis.answers import Fits
from fencepost.backends.redis.connection import GARBAGE, NOTHING, Dial, Endpoint, Locate, astray, fitting, garbled
from fencepost.credentials import Secret
from fencepost.driver import interrupts, run
from fencepost.driver.interrupts import interruptible
from fencepost.driver.scope import deadline, patience
from fencepost.driver.sockets import READABLE, limit, poller
from fencepost.errors import BackendError

_MOST = 32  # the most sockets of a pool; more threads than that take turns


class Socket:
    """One blocking connection, for one thread at a time."""

    __slots__ = (
        "_feed",
        "_gets",
        "_limit",
        "_more",
        "_patience",
        "_poll",
        "_recv",
        "_send",
        "_timeout",
        "_tls",
        "endpoint",
        "raw",
    )

    def __init__(self, dial: Dial, endpoint: Endpoint, secret: Secret | None = None) -> None:
        secret = secret or run(dial.secret())
        try:
            self.raw = dial.socket(endpoint)
        except OSError as error:
            dial.fail(endpoint, f"cannot connect: {error}", ambiguous=False)
        try:
            self.endpoint = endpoint
            reader = Reader(notEnoughData=NOTHING)
            self._feed = reader.feed
            self._gets = reader.gets
            self._more = reader.has_data
            self._recv = self.raw.recv
            self._timeout = self._patience = dial.timeout
            self._limit = dial.timeout if self.raw.gettimeout() is None else 0.0  # 0: Python enforces the timeout
            self._send = self.raw.sendall
            self._poll = poller()
            self._tls: Any = None if dial.tls is None else self.raw
            self._poll.register(self.raw, READABLE)
            dial.welcomed(endpoint, self.calls(dial.greeting(secret), dial.greets()), secret)
        except BaseException as error:
            self.raw.close()
            if isinstance(error, OSError):
                dial.fail(endpoint, f"no answer: {error}", ambiguous=False)
            raise

    def call(self, request: bytes, fits: Fits) -> Any:
        """One round trip; OSError if the connection broke, or the reply does not fit: it may have been executed."""
        self._send(request)
        until = None
        while True:
            data = self._receive(until)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._feed(data)
            try:
                reply = self._gets()
            except GARBAGE as error:
                raise garbled(error) from error
            if reply is not NOTHING:
                if (reply.__class__ is not ReplyError and not fits(reply)) or self._more():
                    raise astray()
                return reply
            until = until or monotonic() + self._timeout

    def _receive(self, until: float | None) -> bytes:
        """The next bytes, at ``until`` at the latest, or within the time that an answer may take."""
        if self._limit and (until is not None or interrupts.on_main_thread() or deadline.get() is not None):
            # The kernel restarts its timeout after every signal: with many signals, recv() would never end. Also, the
            # kernel does not know how long the caller is willing to wait.
            if not interruptible(self._poll.poll, self._left(until) * 1000):
                raise TimeoutError("timed out")
        elif not self._limit:
            self.raw.settimeout(max(self._left(until), 0.001))
        return interruptible(self._recv, 4096)

    def _left(self, until: float | None) -> float:
        return patience(self._patience if until is None else max(0.0, until - monotonic()))

    def allow(self, seconds: float) -> None:
        """From now on, each reply or message may take ``seconds`` to begin."""
        self._patience = seconds
        if self._limit:
            limit(self.raw, seconds)

    def calls(self, requests: Sequence[bytes], fits: Sequence[Fits]) -> list[Any]:
        """Several requests in one write."""
        self._send(b"".join(requests))
        return self.replies(fits)

    def replies(self, fits: Sequence[Fits]) -> list[Any]:
        """The replies to requests that were posted, and nothing else."""
        replies = []
        for each in fits:
            reply = self.read()
            if not fitting(reply, each):
                raise astray()
            replies.append(reply)
        if self._more():
            raise astray()
        return replies

    def post(self, request: bytes) -> None:
        """Send without reading the reply."""
        self._send(request)

    def shut(self) -> None:
        """Make the reader stop."""
        try:
            self.raw.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def read(self) -> Any:
        """The next reply or message. After its first bytes, the rest must arrive within the timeout."""
        until = None
        try:
            while (reply := self._gets()) is NOTHING:
                data = self._receive(until)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                self._feed(data)
                until = until or monotonic() + self._timeout
        except GARBAGE as error:
            raise garbled(error) from error
        return reply

    def fresh(self) -> bool:
        """Whether nothing has arrived on an idle connection: neither its end, nor a reply that the next request would
        take for its own."""
        # A non-blocking recv() would not do: with gevent's sockets every recv() waits.
        if self.raw.fileno() < 0:  # another thread has closed it; another file may have its number by now
            return False
        return not (self._poll.poll(0) or (self._tls is not None and self._tls.pending()))


class Pool:
    """Blocking connections to one server, shared by all threads; a new one is opened when none is idle."""

    ordered = False
    refused: ReplyError | None = None

    def __init__(self, dial: Dial, locate: Locate, failed: Callable[[], None] = lambda: None) -> None:
        self._dial = dial
        self._locate = locate
        self._failed = failed
        self._reset()

    def _reset(self) -> None:
        self._idle: deque[Socket] = deque()
        self._sockets: set[Socket] = set()
        """All open sockets, also those in use: a forked child drops all of them."""
        self._room = threading.Condition()
        self._opened = 0
        self._queued = 0
        self._ended = False

    async def call(self, request: bytes, fits: Fits) -> Any:
        connection = self.spare() or await self.open()
        try:
            reply = connection.call(request, fits)
            self.back(connection)
        except BaseException as error:
            self.broken(connection, error)
        return reply

    async def calls(self, requests: Sequence[bytes], fits: Sequence[Fits]) -> list[Any]:
        connection = self.spare() or await self.open()
        try:
            replies = connection.calls(requests, fits)
            self.back(connection)
        except BaseException as error:
            self.broken(connection, error)
        return replies

    def spare(self) -> Socket | None:
        """An idle connection, for this caller alone until it calls ``back`` or ``drop``; None if there is none."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            try:
                if connection.fresh():
                    return connection
            except BaseException:  # such as MemoryError: the connection would count as open forever
                self.drop(connection)
                raise
            self.drop(connection)
        return None

    async def open(self, secret: Secret | None = None) -> Socket:
        """A new connection, for this caller alone; the caller waits for its turn if there are too many.

        It logs in with ``secret``, or with the present credentials.
        """
        with self._room:
            while self._opened >= _MOST:
                self._queued += 1
                try:
                    self._room.wait(0.05)  # a thread that gave one back just now may not have noticed that we wait
                finally:
                    self._queued -= 1
                if (connection := self.spare()) is not None:
                    return connection
                interrupts.check()
                if not patience(inf):
                    raise BackendError(
                        f"Redis: all of {_MOST} connections were in use until the timeout",
                        backend=self._dial.scheme,
                        ambiguous=False,
                    )
            self._opened += 1
        try:
            connection = Socket(self._dial, await self._locate(), secret)
            self._sockets.add(connection)
            return connection
        except BaseException as error:
            with self._room:
                self._opened -= 1
                self._room.notify()
            if isinstance(error, BackendError):
                self._failed()
            raise

    def back(self, connection: Socket) -> None:
        """Take back a connection on which all requests were answered."""
        self._idle.append(connection)
        if self._queued:
            with self._room:
                self._room.notify()
        if self._ended:
            self.close()

    def drop(self, connection: Socket) -> None:
        self._sockets.discard(connection)
        connection.raw.close()
        with self._room:
            self._opened -= 1
            self._room.notify()

    def broken(self, connection: Socket, error: BaseException) -> NoReturn:
        self.drop(connection)
        if isinstance(error, OSError):
            silent = isinstance(error, (BlockingIOError, TimeoutError))
            self.suspect(silent)
            why = "no answer in time" if silent else error
            raise self._dial.error(connection.endpoint, why, ambiguous=True) from error
        raise error

    def suspect(self, silent: bool) -> None:
        """Note that a connection failed. If it was ``silent``, close the idle ones: they may be dead too, unnoticed."""
        if silent:
            self.close()
        self._failed()

    def close(self) -> None:
        """Drop every idle connection; the next request opens a new one."""
        while self._idle:
            try:
                self.drop(self._idle.pop())
            except IndexError:
                return

    def end(self) -> None:
        """Drop every idle connection, and those in use as soon as they are given back."""
        self._ended = True
        self.close()

    def forked(self) -> None:
        for connection in self._sockets:
            sever(connection.raw)
        self._reset()
