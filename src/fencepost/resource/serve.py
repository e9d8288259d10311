"""Running the service: options, the socket, and an orderly end."""

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from fencepost.errors import ConfigError
from fencepost.events import Hook

try:
    import uvicorn
    from prometheus_client import CollectorRegistry, disable_created_metrics

    from fencepost.metrics import Metrics
    from fencepost.resource.app import MAX_BODY, App
except ModuleNotFoundError as error:
    if (error.name or "").startswith("fencepost"):
        raise
    raise ConfigError(
        f"the resource service needs the package {error.name!r}: pip install 'fencepost[service]'"
    ) from error
from fencepost.resource.store import Store

_GRACE = 10  # seconds that requests under way get to finish when the service is told to stop


def default_store() -> Path:
    """The file in the user's state folder that holds the values when no other is named."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fencepost" / "resource.sqlite3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the service runs. ConfigError for what cannot be meant."""

    store: Path = field(default_factory=default_store)
    fence: bool = True
    host: str = "127.0.0.1"
    port: int = 8700
    max_body: int = MAX_BODY

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"a port lies between 0 (any free one) and 65535, not {self.port}")
        # SQLite keeps a value in one piece, in memory, several times over.
        if not 0 <= self.max_body <= 256 << 20:
            raise ConfigError(f"bodies are limited to at most 256 MiB, not {self.max_body} bytes")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError if the address cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = socket.socket(family, kind, proto)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen(2048)
        except OSError:
            server.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host!r} port {port}: {error.strerror or error}") from error
    return server


def url(server: socket.socket) -> str:
    """Where clients reach a listening socket."""
    host, port = server.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_public(server: socket.socket) -> bool:
    """Can other machines reach this socket?"""
    return not ipaddress.ip_address(server.getsockname()[0]).is_loopback


def serve(options: Options, *, ready: Callable[[socket.socket], None], hooks: Iterable[Hook] = ()) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered first.

    ``ready`` is called once, as soon as clients can connect.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
    registry = CollectorRegistry()
    with listen(options.host, options.port) as sock:
        store = Store(options.store, fence=options.fence, hooks=(Metrics(registry), *hooks))
        try:
            app = App(store, registry, max_body=options.max_body)
            config = uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_level="warning",
                timeout_graceful_shutdown=_GRACE,
            )
            server = uvicorn.Server(config)

            def stop(number: int, frame: FrameType | None) -> None:
                server.should_exit = True

            # uvicorn hands a signal back to the handler it found, after its orderly end: to this one.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stop)
            ready(sock)
            asyncio.run(server.serve(sockets=[sock]))
        finally:
            store.close()
