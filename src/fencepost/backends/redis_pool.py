"""Blocking connections: hiredis packs and parses, nothing else stands between us and the socket."""

import socket
import ssl
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NoReturn

from hiredis import Reader

from fencepost.backends.fork import sever
from fencepost.backends.redis_dial import NOTHING, Dial, Locate, Place

_MOST = 32  # sockets of a pool: more threads than that take turns


class Socket:
    """One blocking connection, for one thread at a time."""

    __slots__ = ("_feed", "_gets", "_recv", "_send", "place", "raw")

    def __init__(self, dial: Dial, place: Place) -> None:
        try:
            self.raw = dial.socket(place)
        except OSError as error:
            dial.fail(place, f"cannot connect: {error}", ambiguous=False)
        self.place = place
        reader = Reader(notEnoughData=NOTHING)
        self._feed = reader.feed
        self._gets = reader.gets
        self._recv = self.raw.recv
        self._send = self.raw.sendall
        try:
            dial.welcomed(place, self.calls(dial.greeting()))
        except BaseException as error:
            self.raw.close()
            if isinstance(error, OSError):
                dial.fail(place, f"no answer: {error}", ambiguous=False)
            raise

    def call(self, request: bytes) -> Any:
        """One round trip; OSError if the connection broke: what was asked may have happened."""
        self._send(request)
        return self.read()

    def calls(self, requests: Sequence[bytes]) -> list[Any]:
        """Several requests in one write."""
        self._send(b"".join(requests))
        return [self.read() for _ in requests]

    def post(self, request: bytes) -> None:
        """Send without reading the reply."""
        self._send(request)

    def shut(self) -> None:
        """Make whoever reads stop."""
        try:
            self.raw.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def read(self) -> Any:
        """The next reply or message."""
        while (reply := self._gets()) is NOTHING:
            data = self._recv(4096)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._feed(data)
        return reply

    def fresh(self) -> bool:
        """Whether the server has not closed an idle connection in the meantime."""
        if isinstance(self.raw, ssl.SSLSocket):
            return True
        try:
            self.raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


class Pool:
    """Blocking connections to one server, shared by all threads; each opened when no other is free."""

    ordered = False

    def __init__(self, dial: Dial, locate: Locate) -> None:
        self._dial = dial
        self._locate = locate
        self._idle: deque[Socket] = deque()
        self._turns: SimpleQueue[None] = SimpleQueue()  # counts like a semaphore, in C
        for _ in range(_MOST):
            self._turns.put(None)

    async def call(self, request: bytes) -> Any:
        self._turns.get()
        try:
            wire = self._spare() or Socket(self._dial, await self._locate())
            try:
                reply = wire.call(request)
            except BaseException as error:
                self._broken(wire, error)
            self._idle.append(wire)
            return reply
        finally:
            self._turns.put(None)

    async def calls(self, requests: Sequence[bytes]) -> list[Any]:
        self._turns.get()
        try:
            wire = self._spare() or Socket(self._dial, await self._locate())
            try:
                replies = wire.calls(requests)
            except BaseException as error:
                self._broken(wire, error)
            self._idle.append(wire)
            return replies
        finally:
            self._turns.put(None)

    def _spare(self) -> Socket | None:
        while self._idle:
            try:
                wire = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if wire.fresh():
                return wire
            wire.raw.close()
        return None

    def _broken(self, wire: Socket, error: BaseException) -> NoReturn:
        wire.raw.close()
        if isinstance(error, OSError):
            why = "no answer in time" if isinstance(error, (BlockingIOError, TimeoutError)) else error
            raise self._dial.error(wire.place, why, ambiguous=True) from error
        raise error

    def close(self) -> None:
        """Drop every idle connection; the next request opens a new one."""
        while self._idle:
            try:
                self._idle.pop().raw.close()
            except IndexError:
                return

    def forked(self) -> None:
        for wire in self._idle:
            sever(wire.raw)
        self.__init__(self._dial, self._locate)  # type: ignore[misc]
