"""Clients of redis-py: their servers, and how they log in there."""

import inspect
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from fencepost.address import Address
from fencepost.credentials import Secret, Source, secret
from fencepost.driver import Driver
from fencepost.errors import ConfigError

_CLASSES = {
    "Connection",
    "SSLConnection",
    "UnixDomainSocketConnection",
    "SentinelManagedConnection",
    "SentinelManagedSSLConnection",
}
"""redis-py's own connection classes. Another class may connect in any way."""
_TLS = {
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_cert_reqs",
    "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_check_hostname",
    "ssl_password",
    "ssl_min_version",
    "ssl_ciphers",
}
_COPIED = {"host", "port", "path", "db", "username", "password", "credential_provider", "client_name", "ssl"} | _TLS
_OURS = {
    "cache",
    "cache_config",
    "command_packer",
    "connection_class",
    "connection_pool",
    "connection_pool_class",
    "decode_responses",
    "driver_info",
    "encoder_class",
    "encoding",
    "encoding_errors",
    "event_dispatcher",
    "health_check_interval",
    "himport_registry",
    "legacy_responses",
    "lib_name",
    "lib_version",
    "loop",
    "max_connections",
    "nodes_flag",
    "parser_class",
    "protocol",
    "queue_class",
    "response_callbacks",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "single_connection_client",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_read_size",
    "socket_read_timeout",
    "socket_timeout",
    "timeout",
}
"""Options for the protocol and for timeouts: our connections have their own."""
_OURS_TOO = ("maint_", "maintenance_", "orig_", "oss_cluster_")
_HINTS = {
    "redis_connect_func": "log in with credential_provider= instead, or give connect() a URL and credentials=",
    "socket_type": "give connect() a URL with an address of the family that is wanted",
}


def single(client: Any, driver: Driver) -> Address:
    """The address of a client of one server, or of the master that Sentinel names."""
    pool = client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        return _sentinel(pool, manager, driver)
    made = _Settings(pool.connection_kwargs, pool.connection_class, driver)
    if "path" in made.options:
        return made.address("redis+unix", path=str(made.options["path"]))
    return made.address("redis", hosts=[made.server])


def _sentinel(pool: Any, manager: Any, driver: Driver) -> Address:
    if not pool.is_master:
        raise ConfigError("this client reads from replicas, and locks need the master: sentinel.master_for(...)")
    if manager.min_other_sentinels:
        raise ConfigError(
            "this Sentinel has min_other_sentinels=, which fencepost cannot ask for; make another one without it"
        )
    watchers = [
        _Settings(each.connection_pool.connection_kwargs, each.connection_pool.connection_class, driver)
        for each in manager.sentinels
    ]
    made = _Settings(pool.connection_kwargs, pool.connection_class, driver)
    given: dict[str, Any] = {"service": pool.service_name, "sentinel": watchers[0].address("redis")}
    if forced := getattr(manager, "_force_master_ip", None):
        given["remap"] = lambda server: (forced, server[1])
    return made.address("redis+sentinel", hosts=[each.server for each in watchers], **given)


def cluster(client: Any, driver: Driver) -> Address:
    """The address of a client of a cluster."""
    nodes = client.nodes_manager
    options = dict(nodes.connection_kwargs)
    if getattr(options.get("redis_connect_func"), "__self__", None) is client:  # redis-py's, for reading from replicas
        options["redis_connect_func"] = getattr(client, "user_on_connect_func", None)  # the user's own
    kind = options.get("connection_class")
    if kind is None and options.get("ssl"):
        from redis.connection import SSLConnection

        kind = SSLConnection
    seeds = [(node.host, node.port) for node in nodes.startup_nodes.values()]
    made = _Settings(options, kind, driver)
    return made.address("redis+cluster", hosts=seeds, remap=getattr(nodes, "address_remap", None))


class _Settings:
    """The options that a pool passes to each new connection, as far as they matter to us."""

    def __init__(self, options: Mapping[str, Any], kind: type | None, driver: Driver) -> None:
        self.options = options
        self._kind = kind
        self._driver = driver
        self._check()

    def _check(self) -> None:
        kind = self._kind
        if kind is not None and (kind.__name__ not in _CLASSES or kind.__module__.partition(".")[0] != "redis"):
            raise ConfigError(
                f"the connections of this client are of a class of their own, {kind.__module__}.{kind.__name__}, which "
                f"may connect in any way; give connect() a URL, for tests memory://"
            )
        for name, value in self.options.items():
            known = name in _COPIED or name in _OURS or name.startswith(_OURS_TOO)
            if known or value is None or self._usual(name, value):
                continue
            hint = _HINTS.get(name, "make a client without it, or give connect() a URL")
            raise ConfigError(f"this client has {name}=, which fencepost's connections cannot have; {hint}")

    def _usual(self, name: str, value: Any) -> bool:
        """Whether an option that we do not know has its usual value, as in a newer version of redis-py."""
        from redis import Redis
        from redis.asyncio import Redis as AsyncRedis

        kind: Any = Redis if self._driver.blocking else AsyncRedis
        usual = kind().connection_pool.connection_kwargs.get(name, self._default(name))
        plain = isinstance(value, bool | int | float | str | bytes | list | tuple | dict)
        return bool(value == usual or not (value or usual) or (type(value) is type(usual) and not plain))

    def _default(self, name: str) -> Any:
        """The default of an option of connections, which differs between versions of redis-py."""
        kinds: tuple[Any, ...] = self._kind.__mro__ if self._kind is not None else ()
        for each in kinds:
            found = inspect.signature(each.__init__).parameters.get(name)
            if found is not None and found.default is not found.empty:
                return found.default
        return None

    @property
    def server(self) -> tuple[str, int]:
        return self.options.get("host") or "localhost", int(self.options.get("port") or 6379)

    def address(
        self, scheme: str, *, hosts: list[tuple[str, int]] | None = None, path: str = "", **given: Any
    ) -> Address:
        """The address with these servers; ``given`` has the settings that a URL cannot express."""
        tls = self._tls()
        user, password = self._text("username"), self._text("password")
        if user is not None and password is None:
            password = ""  # as redis-py logs in
        given |= {"tls": tls, "name": self._text("client_name"), "db": int(self.options.get("db") or 0)}
        return Address(
            f"rediss{scheme.removeprefix('redis')}" if tls else scheme,
            hosts=tuple(hosts or ()),
            user=user,
            password=password,
            path=path,
            login=self._login(),
            given=given,
        )

    def _text(self, name: str) -> str | None:
        """An option that redis-py sends like an argument of a command: text encoded, bytes unchanged."""
        value, encoding = self.options.get(name), self.options.get("encoding") or "utf-8"
        try:
            sent = value if isinstance(value, bytes) else str(value or "").encode(encoding)
            return sent.decode() or None
        except (UnicodeError, LookupError):
            hint = "give it as UTF-8 bytes, or give connect() a URL"
            raise ConfigError(f"the {name} of this client, sent as {encoding!r}, is not UTF-8; {hint}") from None

    def _login(self) -> Source[Secret] | None:
        provider = self.options.get("credential_provider")
        if provider is None:
            return None
        ask: Callable[[], Any] = provider.get_credentials
        if not self._driver.blocking and hasattr(provider, "get_credentials_async"):
            ask = provider.get_credentials_async
            if type(provider).get_credentials_async.__qualname__ == "CredentialProvider.get_credentials_async":
                ask = provider.get_credentials  # redis-py's default method would call it on the event loop
        return Source(ask, secret, self._driver, scheme="redis", what="the client's credential_provider")

    def _tls(self) -> ssl.SSLContext | None:
        if self._kind is None or "SSL" not in self._kind.__name__:
            return None
        told = {name: self.options.get(name, self._default(name)) for name in _TLS}
        modes = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
        wish = told["ssl_cert_reqs"]
        if isinstance(wish, str) and wish not in modes:
            raise ConfigError(f"the client's ssl_cert_reqs is {' or '.join(modes)}, not {wish!r}")
        mode = ssl.CERT_NONE if wish is None else modes[wish] if isinstance(wish, str) else ssl.VerifyMode(wish)
        try:
            context = ssl.create_default_context()
            context.check_hostname = mode != ssl.CERT_NONE and bool(told["ssl_check_hostname"])
            context.verify_mode = mode
            for flag in told["ssl_include_verify_flags"] or ():
                context.verify_flags |= flag
            for flag in told["ssl_exclude_verify_flags"] or ():
                context.verify_flags &= ~flag
            if told["ssl_certfile"] or told["ssl_keyfile"]:
                context.load_cert_chain(told["ssl_certfile"], told["ssl_keyfile"], told["ssl_password"])
            if told["ssl_ca_certs"] or told["ssl_ca_path"] or told["ssl_ca_data"]:
                context.load_verify_locations(told["ssl_ca_certs"], told["ssl_ca_path"], told["ssl_ca_data"])
            if told["ssl_min_version"] is not None:
                context.minimum_version = told["ssl_min_version"]
            if told["ssl_ciphers"]:
                context.set_ciphers(told["ssl_ciphers"])
        except OSError as error:  # also if a file is not a certificate
            raise ConfigError(f"cannot load the TLS files of the client: {error}") from None
        return context
