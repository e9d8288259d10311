"""Connecting a blocking socket."""

import socket

from fencepost.driver.interrupts import interruptible


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """As ``socket.create_connection``, but Ctrl-C while it waits leaves no open socket behind."""
    failure: OSError | None = None
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(max(timeout, 0.001))
            interruptible(made.connect, place)
            return made
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
    raise failure or OSError(f"{host!r} has no address")
