"""A two-way stream to etcd, read by its own thread."""

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic

from fencepost.backends.etcd.http2 import Call, framed
from fencepost.backends.etcd.methods import Fault, Method, Q, R
from fencepost.backends.etcd.pool import ACKS, Socket
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.status import Failure, deadline_exceeded
from fencepost.errors import BackendError

# Seconds of silence until we ping a member, and then until we give it up. etcd closes the connection of a client that
# pings more often than every 5 s.
_SILENCE = 10.0
_ANSWER = 3.0
# Seconds that a sender waits for a server that reads nothing.
_ROOM = 2.0


class Stream(Generic[Q, R]):
    """A two-way stream, read by its own thread, which calls ``over`` when the stream ends for any reason.

    ``settled`` is called once the stream has a connection, and in any case before ``over``.
    """

    def __init__(
        self,
        rpc: Rpc,
        method: Method[Q, R],
        heard: Callable[["Stream[Q, R]", R], None],
        over: Callable[["Stream[Q, R]", str], None],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._rpc = rpc
        self._method = method
        self._heard = heard
        self._over = over
        self._settled = settled
        self._gate = threading.Lock()  # one thread at a time uses the protocol and the socket
        self._opened: tuple[Socket, Call] | None = None
        self._closed = False
        self.heard = False
        """Whether a message has arrived: the server can be reached, and supports such streams."""
        self._requests: deque[bytes] = deque()
        threading.Thread(target=self._read, name="fencepost-etcd", daemon=True).start()

    def send(self, request: Q) -> None:
        """Send a message, now or once the stream is open; from any thread."""
        self._requests.append(framed(request.encode()))
        self._flush()

    def close(self) -> None:
        self._closed = True
        if (opened := self._opened) is not None:
            opened[0].shut()

    def _flush(self) -> None:
        # If the gate is taken, its owner sends the request: another thread, or this one, interrupted by the garbage
        # collector.
        while self._requests and (opened := self._opened) is not None and self._gate.acquire(False):
            socket, call = opened
            try:
                while self._requests and not call.over:
                    socket.connection.send(call, self._requests.popleft())
                socket.flush(monotonic() + _ROOM)
                if call.over:
                    return
            except Failure:
                socket.shut()  # the server does not read; the requests that were taken out are lost
                return
            except BaseException:
                socket.shut()
                raise
            finally:
                self._gate.release()

    def _read(self) -> None:
        why, member = "etcd ended the stream", self._rpc.channels.member
        socket: Socket | None = None
        try:
            socket, call = self._rpc.stream(self._method, member)
            self._opened = socket, call
            if self._closed:
                socket.shut()
            self._settled()
            self._listen(socket, call)
            if call.failure is not None:
                raise call.failure
        except Failure as error:
            fault = Fault.of(error)
            why = fault.words
            if fault.login:
                self._rpc.forget_login()
            elif not self._closed:
                self._rpc.channels.turn(member)
        except BackendError as error:
            why = str(error)
        except (RuntimeError, MemoryError) as error:
            why = str(error)
        finally:
            self._opened = None
            if socket is not None:
                with self._gate:  # a sender may be using the socket
                    self._rpc.channels.drop(socket)
            self._settled()
            self._over(self, why)

    def _listen(self, socket: Socket, call: Call) -> None:
        connection = socket.connection
        with self._gate:
            socket.flush(monotonic() + _ROOM)
        while not call.over:
            self._flush()
            came = socket.wait(ACKS if connection.acks else _ANSWER if connection.pinged else _SILENCE)
            with self._gate:
                if came:
                    socket.drain()
                elif connection.acks:
                    pass  # the answers to pings are sent below
                elif connection.pinged:
                    raise deadline_exceeded()
                else:
                    connection.ping()
                messages, call.messages = call.messages, []
                if connection.out or connection.acks:
                    socket.flush(monotonic() + _ROOM)
            for message in messages:
                self.heard = True
                self._heard(self, self._method.read(None, message))
