"""Blocking connections to one member: each serves one thread at a time, and is kept for the next one."""

import _socket
import socket
import ssl
import threading
from collections import deque
from time import monotonic

from fencepost.backends.etcd.dial import Dial
from fencepost.backends.etcd.http2 import Connection
from fencepost.backends.etcd.status import Code, Failure, deadline_exceeded, hung_up
from fencepost.backends.fork import sever
from fencepost.driver import interrupts
from fencepost.driver.interrupts import interruptible
from fencepost.driver.sockets import READABLE, WRITABLE, poller

_MOST = 32  # the most sockets of a pool; more threads than that take turns
_CHUNK = 1 << 16
ACKS = 1.0  # seconds that the answer to a ping may wait
_CLOSED = "the server closed the connection"


class Socket:
    """One connection over a non-blocking socket: a thread waits in ``poll``, with a timeout."""

    __slots__ = ("_acked", "_readable", "_recv", "_secure", "_send", "_writable", "connection", "raw")

    def __init__(self, dial: Dial, until: float) -> None:
        self.connection = Connection()
        self._acked = monotonic()
        self.raw = dial.socket(until)
        self._secure = isinstance(self.raw, ssl.SSLSocket)
        self._recv = self.raw.recv
        self._send = self.raw.send
        try:
            self._readable = poller()
            self._readable.register(self.raw, READABLE)
            self._writable = poller()
            self._writable.register(self.raw, WRITABLE)
        except BaseException:
            self.raw.close()
            raise

    def call(self, head: bytes, body: bytes, until: float) -> bytes:
        """The answer to a request; Failure if it has not arrived at ``until``, by ``time.monotonic()``."""
        connection = self.connection
        call = connection.start(head, body)
        wait = not self._secure  # poll() does not show bytes that TLS has decrypted already
        while not call.over:
            if connection.out:
                self.flush(until)
            if wait and not self.wait(until - monotonic()):
                raise deadline_exceeded()
            wait = not self.read() or not self._secure
        # What is left to send, such as the answer to a ping, goes with the next request.
        return call.result()

    def drain(self) -> None:
        """Read all bytes that have arrived."""
        while self.read() and self._secure and self.connection.usable:
            pass

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; return whether bytes have arrived or the connection has ended."""
        return bool(interruptible(self._readable.poll, max(0.0, seconds) * 1000))

    def read(self) -> bool:
        """Read the bytes that have arrived; return whether there were any, or the connection has ended."""
        try:
            data = self._recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self._writable.poll(1000)
            return False
        except OSError as error:
            self.connection.lost(str(error))
            return True
        if data:
            self.connection.receive(data)
        else:
            self.connection.lost(_CLOSED)
        return True

    def flush(self, until: float) -> None:
        """Send what is due; Failure if the server has not accepted it at ``until``."""
        now = monotonic()
        if acks := now - self._acked > ACKS:
            self._acked = now
        out = self.connection.take(acks=acks)
        while out:
            try:
                out = out[self._send(out) :]
                continue
            except (BlockingIOError, ssl.SSLWantWriteError):
                ready = self._writable
            except ssl.SSLWantReadError:
                ready = self._readable
            except OSError as error:
                self.connection.lost(str(error))
                return
            if not interruptible(ready.poll, max(0.0, until - monotonic()) * 1000):
                raise deadline_exceeded()

    def fresh(self) -> bool:
        """Whether an idle connection can be used again; reads what the server has sent in the meantime."""
        while self._secure or self.wait(0):
            if not self.read():
                break
            if not self.connection.usable:
                return False
        return self.connection.usable

    def shut(self) -> None:
        """Shut the connection down, from any thread; the thread that uses it closes it."""
        try:
            if isinstance(self.raw, _socket.socket):
                _socket.socket.shutdown(self.raw, socket.SHUT_RDWR)  # SSLSocket's own would make it a plain socket
            else:  # gevent's or eventlet's
                self.raw.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def forked(self) -> None:
        """In a forked child: drop the parent's connection."""
        sever(self.raw)


class Pool:
    """Blocking connections to one member, shared by all threads; a new one is opened when none is idle."""

    def __init__(self, dial: Dial, sockets: set[Socket]) -> None:
        self._dial = dial
        self._sockets = sockets
        """All open sockets, also those outside this pool: a forked child drops them."""
        self._idle: deque[Socket] = deque()
        self._room = threading.Condition()
        self._opened = 0
        self._queued = 0
        self._ended = False

    def call(self, head: bytes, body: bytes, timeout: float) -> bytes:
        """The answer to a request; Failure if it takes more than ``timeout`` seconds."""
        until = monotonic() + timeout
        connection = self._spare() or self._open(until)
        try:
            answer = connection.call(head, body, until)
            self._back(connection)
        except BaseException as error:
            # If all requests on a connection were answered, it can be used again, even if the answer was an error.
            protocol = connection.connection
            if isinstance(error, Failure) and protocol.usable and protocol.idle:
                self._back(connection)
            else:
                self._drop(connection)
            raise
        return answer

    def _spare(self) -> Socket | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            try:
                if connection.fresh():
                    return connection
            except BaseException:  # such as MemoryError: the connection would count as open forever
                self._drop(connection)
                raise
            self._drop(connection)
        return None

    def _open(self, until: float) -> Socket:
        with self._room:
            while self._opened >= _MOST:
                self._queued += 1
                try:
                    self._room.wait(0.05)  # a thread that gave one back just now may not have noticed that we wait
                finally:
                    self._queued -= 1
                if (connection := self._spare()) is not None:
                    return connection
                interrupts.check()
                if monotonic() >= until:
                    words = f"all of {_MOST} connections were in use until the timeout"
                    raise Failure(Code.UNAVAILABLE, words, unsent=True)
            if self._ended:
                raise hung_up()
            self._opened += 1
        try:
            connection = Socket(self._dial, until)
            self._sockets.add(connection)
            return connection
        except BaseException:
            with self._room:
                self._opened -= 1
                self._room.notify()
            raise

    def _back(self, connection: Socket) -> None:
        """Take back a connection on which all requests were answered."""
        self._idle.append(connection)
        if self._queued:
            with self._room:
                self._room.notify()
        if self._ended:
            self.close()

    def _drop(self, connection: Socket) -> None:
        self._sockets.discard(connection)
        connection.raw.close()
        with self._room:
            self._opened -= 1
            self._room.notify()

    def close(self) -> None:
        """Drop every idle connection; the next request opens another."""
        while self._idle:
            try:
                self._drop(self._idle.pop())
            except IndexError:
                return

    def end(self) -> None:
        """Drop every idle connection, and those in use as soon as they are given back."""
        self._ended = True
        self.close()
