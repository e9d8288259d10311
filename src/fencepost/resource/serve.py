"""Running the service: options, the socket, and an orderly end."""

import ipaddress
import math
import signal
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

try:
    import resource
except ModuleNotFoundError:  # on Windows, where no such limit is set
    resource = None  # type: ignore[assignment]

from fencepost.address import state_file
from fencepost.errors import ConfigError
from fencepost.events import Hook
from fencepost.guards.policy import Policy, fraction
from fencepost.hooks.audit import Audit
from fencepost.registry import ours

try:
    import uvicorn
    from prometheus_client import CollectorRegistry, disable_created_metrics

    from fencepost.hooks.prometheus import Metrics
    from fencepost.resource.app import MAX_BODY, MAX_WAITING, App
    from fencepost.resource.protocol import TlsListener, kind
    from fencepost.resource.state import State
except ModuleNotFoundError as error:
    if ours(error):
        raise
    raise ConfigError(
        f"the resource service needs the package {error.name!r}: pip install 'fencepost[service]'"
    ) from error
from fencepost.resource import auth as clients
from fencepost.resource.mode import ModeFile
from fencepost.resource.store import MAX_KEYS, Store, opener
from fencepost.resource.workers import QUEUE
from fencepost.signing import Keys

_GRACE = 10  # seconds that requests under way get to finish when the service is told to stop
_SPARE = 64  # file descriptors that are not connections
_HANDSHAKE = 10.0  # seconds for a TLS handshake, or the client's time-out if that is shorter


def default_store() -> Path:
    """The file in the user's state folder that holds the values when no other is named."""
    return state_file("resource.sqlite3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the service runs. ConfigError for invalid values."""

    store: str | Path = field(default_factory=default_store)
    mode: str = "strict"
    """How far the guard goes; see `fencepost.guards.policy`."""
    mode_file: Path | None = None
    """A file that has the mode, which then may change while the service runs."""
    ceiling: bool = True
    """Refuse a token that no issuer can have come to by now; else one client can lock everybody out."""
    max_jump: int | None = None
    """How far above a mark a token may be, if issuers count from 1: else a token of the present time locks them out."""
    max_first: int | None = None
    """How high the first token of a key may be."""
    host: str = "127.0.0.1"
    port: int = 8700
    max_body: int = MAX_BODY
    max_waiting: int = MAX_WAITING
    """Bytes of bodies and answers that may be in memory; at least one body of ``max_body`` fits."""
    max_keys: int = MAX_KEYS
    """Keys that have a value or a mark."""
    max_queue: int = QUEUE
    """Requests that may wait for the store, readers and writers apart."""
    max_connections: int = 1000
    timeout: float = 30.0
    """Seconds a client gets for the head of a request, then for its body, then to take the answer."""
    clients: Path | None = None
    audit: Path | None = None
    """The audit log of every decision."""
    keys: Path | None = None
    """The file of the keys that sign tokens: an access without a good signature is refused."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"a port lies between 0 (any free one) and 65535, not {self.port}")
        # SQLite keeps a value in one piece, in memory, several times over.
        if not 0 <= self.max_body <= 256 << 20:
            raise ConfigError(f"bodies are limited to at most 256 MiB, not {self.max_body} bytes")
        fraction(self.mode)
        for name in ("max_keys", "max_queue"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is 1 or more, not {value}")
        if self.mode_file is not None and self.mode != "strict":
            raise ConfigError("the mode is in the file of --mode-file, or given by --mode: leave one of them out")
        if self.max_connections < 1:
            raise ConfigError(f"a service needs at least one connection, not {self.max_connections}")
        if not self.timeout > 0:
            raise ConfigError(f"a client needs more than {self.timeout:g} s for its request")
        if (self.tls_key or self.client_ca) and not self.tls_cert:
            raise ConfigError("a TLS key or a client CA needs the service's own certificate: add --tls-cert")

    @property
    def authenticates(self) -> bool:
        """Whether clients must show who they are."""
        return bool(self.clients or self.client_ca)

    @property
    def local(self) -> bool:
        """Whether only programs of this machine are meant to use it. Over TLS the certificate names the host."""
        return not (self.authenticates or self.tls_cert)

    @property
    def scheme(self) -> str:
        """http or https."""
        return "https" if self.tls_cert else "http"


def listen(host: str, port: int, *, public: bool) -> socket.socket:
    """A listening socket; ConfigError if the address cannot be used, or others can reach it although not ``public``."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = socket.socket(family, kind, proto)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            if not public and is_public(server):
                raise ConfigError(
                    f"{host!r} is open to other machines, where anybody could write; let in only those you know, "
                    f"with --clients or --client-ca, or listen on 127.0.0.1"
                )
            server.listen(2048)
        except (OSError, ConfigError):
            server.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host!r} port {port}: {error.strerror or error}") from error
    return server


def url(server: socket.socket, scheme: str = "http") -> str:
    """Where clients reach a listening socket."""
    host, port = server.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_public(server: socket.socket) -> bool:
    """Can other machines reach this socket?"""
    return not ipaddress.ip_address(server.getsockname()[0]).is_loopback


def open_store(options: Options, hooks: Iterable[Hook]) -> Store:
    """The store that the options name; ConfigError if it cannot be used."""
    policy = Policy(
        ModeFile(options.mode_file) if options.mode_file else options.mode,
        ceiling="on" if options.ceiling else "off",
        max_jump=options.max_jump,
        max_first=options.max_first,
        keys=Keys.load(options.keys) if options.keys else None,
    )
    return Store(opener(options.store), policy=policy, hooks=hooks, queue=options.max_queue, max_keys=options.max_keys)


def serve(
    options: Options,
    *,
    ready: Callable[[socket.socket], None],
    hooks: Iterable[Hook] = (),
    opening: Callable[[Options, Iterable[Hook]], Store] = open_store,
) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered first.

    ``ready`` is called once, as soon as clients can connect; ``opening`` makes the store.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
    registry = CollectorRegistry()
    known = clients.load(options.clients) if options.clients else None
    with listen(options.host, options.port, public=options.authenticates) as sock:
        # Do not sync each line: a client that is refused often would keep the disk busy.
        audits = (Audit(options.audit, sync="never"),) if options.audit else ()
        store = opening(options, (Metrics(registry), *audits, *hooks))
        try:
            registry.register(State(store))
            app = App(
                store,
                registry,
                max_body=options.max_body,
                clients=known,
                patience=options.timeout,
                local=options.local,
                max_waiting=options.max_waiting,
            )
            server = _Server(configure(app, options), min(options.timeout, _HANDSHAKE))

            def stop(number: int, frame: FrameType | None) -> None:
                server.should_exit = True

            # After its orderly end, uvicorn passes the signal to the handler that was installed before: to this one.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stop)
            ready(sock)
            server.run(sockets=[sock])
        finally:
            store.close()


class _Server(uvicorn.Server):
    """uvicorn's server, with handshakes that count as connections."""

    def __init__(self, config: uvicorn.Config, handshake: float) -> None:
        super().__init__(config)
        self._handshake = handshake

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        context = self.config.ssl
        if context is None or not sockets:
            await super().startup(sockets)
            return

        def make() -> Any:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        listeners: Any = [TlsListener(sock, context, make, patience=self._handshake) for sock in sockets]
        self.servers = listeners
        self.started = True


def configure(app: App, options: Options) -> uvicorn.Config:
    """uvicorn's settings; ConfigError if the certificates cannot be used."""
    most = min(options.max_connections, _descriptors(options.max_connections + _SPARE) - _SPARE)
    config = uvicorn.Config(
        app,
        http=kind(idle=options.timeout, busy=2 * options.timeout, most=max(1, most)),
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="error",  # a warning for each malformed request would let anybody fill the log
        timeout_keep_alive=math.ceil(options.timeout),
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        ssl_ca_certs=str(options.client_ca) if options.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if options.client_ca else ssl.CERT_NONE,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS certificate, key or client CA cannot be used: {error}") from error
    return config


def _descriptors(wanted: int) -> int:
    """How many files the process may open: as many as wanted, if the system allows it."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
