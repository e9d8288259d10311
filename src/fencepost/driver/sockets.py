"""Sockets: connecting them, whether an idle one can be used again, and whether the other host is still there."""

import select
import socket
import ssl

from fencepost.driver.interrupts import interruptible


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
    """Whether nothing came in on an idle connection: neither its end, nor an answer to no request."""
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return False
    # Not by a recv() that does not wait: with gevent's sockets every recv() does.
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):  # another thread has closed it meanwhile
        return False
