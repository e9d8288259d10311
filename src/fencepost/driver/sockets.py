"""Sockets: connecting them, waiting for them, whether an idle one can be used again, whether the other host is there.

Each function checks what the system has when it is called: Windows has no ``select.poll``, and eventlet removes it;
gevent and eventlet replace the system's sockets by their own.
"""

import _socket
import select
import socket
import struct
from time import monotonic
from typing import Protocol

from fencepost.driver.interrupts import interruptible

READABLE = getattr(select, "POLLIN", 1)
WRITABLE = getattr(select, "POLLOUT", 4)


class Poller(Protocol):
    """Waits for sockets, as ``select.poll`` does."""

    def register(self, fd: "int | socket.socket", eventmask: int, /) -> None: ...
    def unregister(self, fd: "int | socket.socket", /) -> None: ...
    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """The sockets that are ready, or closed, within so many milliseconds."""


def poller() -> Poller:
    """A new poller. With gevent or eventlet, other greenlets run while it waits."""
    return select.poll() if hasattr(select, "poll") else _Select()


class _Select:
    """A poller that uses ``select.select``."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, fd: int | socket.socket, eventmask: int, /) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        if number < 0:
            raise ValueError("the socket is closed")
        self._wanted[number] = eventmask

    def unregister(self, fd: int | socket.socket, /) -> None:
        del self._wanted[fd if isinstance(fd, int) else fd.fileno()]

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        readers = [number for number, mask in self._wanted.items() if mask & READABLE]
        writers = [number for number, mask in self._wanted.items() if mask & WRITABLE]
        end = None if timeout is None or timeout < 0 else monotonic() + timeout / 1000
        while True:
            left = None if end is None else max(0.0, end - monotonic())
            try:
                # Windows reports a failed connection only in the third list, the exceptional conditions.
                readable, writable, failed = select.select(readers, writers, writers, left)
            except (OSError, ValueError):  # one of them was closed: the caller's next read will fail
                return list(self._wanted.items())
            ready = dict.fromkeys(readable, READABLE)
            for number in {*writable, *failed}:
                ready[number] = ready.get(number, 0) | WRITABLE
            if ready.keys() <= self._wanted.keys() and (ready or left == 0.0):
                return list(ready.items())
            # With eventlet, a wait may return the sockets of the wait before it in the same greenlet: wait again.


def limit(raw: socket.socket, seconds: float) -> bool:
    """Have the kernel limit each read and write to so many seconds, without a system call each; False if it cannot."""
    # Not for greenlets: their sockets never block in the kernel. Windows uses another unit, and rounds up.
    if not isinstance(raw, _socket.socket) or not hasattr(select, "poll"):
        return False
    pair = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pair)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pair)
    return True


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """As ``socket.create_connection``, but Ctrl-C while it waits leaves no open socket behind."""
    failure: OSError | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(max(timeout, 0.001))
            interruptible(made.connect, target)
            return made
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
    raise failure or OSError(f"{host!r} has no address")


def keep_alive(raw: socket.socket) -> None:
    """Let the kernel notice within half a minute that the other host is gone."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def silent(sock: socket.socket | int) -> bool:
    """Whether nothing came in on an idle connection: neither its end, nor data that nobody asked for."""
    pending = getattr(sock, "pending", None)  # of a TLS socket
    if pending is not None and pending():
        return False
    # Not by a non-blocking recv(): on gevent's sockets every recv() waits.
    poll = poller()
    try:
        poll.register(sock, READABLE)
        return not poll.poll(0)
    except (OSError, ValueError):  # another thread has closed it meanwhile
        return False
