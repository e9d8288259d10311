"""How to get through to a member of an etcd cluster."""

import socket
import ssl
from dataclasses import dataclass
from time import monotonic

from fencepost.backends.etcd.status import Code, Failure, cannot_connect
from fencepost.driver.interrupts import interruptible
from fencepost.driver.sockets import connect, keep_alive

_SHORTEST = 0.05  # seconds that each attempt to connect has, even if less time is left


@dataclass(frozen=True)
class Dial:
    """One member: where it is, and the TLS to use with it."""

    host: str
    port: int
    tls: ssl.SSLContext | None

    @property
    def authority(self) -> str:
        """Host and port, as URLs and HTTP have them."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def socket(self, until: float) -> socket.socket:
        """A connected non-blocking socket; Failure if there is none at ``until``, by ``time.monotonic()``."""
        try:
            raw = connect(self.host, self.port, max(until - monotonic(), _SHORTEST))
        except OSError as error:
            raise cannot_connect(error) from error
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(raw)
            if self.tls is not None:
                raw.settimeout(max(until - monotonic(), _SHORTEST))
                secured = self.tls.wrap_socket(raw, server_hostname=self.host, do_handshake_on_connect=False)
                raw = secured
                interruptible(secured.do_handshake)
                check_protocol(secured)
            raw.setblocking(False)
        except BaseException as error:
            raw.close()
            if isinstance(error, OSError):
                raise cannot_connect(error) from error
            raise
        return raw


def check_protocol(secured: ssl.SSLSocket | ssl.SSLObject) -> None:
    """Failure if the server did not agree to HTTP/2."""
    if secured.selected_alpn_protocol() != "h2":
        raise Failure(
            Code.UNAVAILABLE, "the server does not speak HTTP/2 over TLS; does the URL name an etcd?", unsent=True
        )
