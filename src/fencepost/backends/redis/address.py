"""What a Redis URL may say: servers, database, credentials, TLS, timeouts and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fencepost.address import Address, choice, flag, seconds, secure, tls_context
from fencepost.backends.redis.connection import Dial, Endpoint, pack
from fencepost.backends.redis.scripts import Script
from fencepost.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_LONGEST_GAP = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a Redis URL, parsed."""

    endpoints: tuple[Endpoint, ...]
    service: str
    """The name by which Sentinel knows the master."""
    db: int
    prefix: str
    fence: str
    wait_replicas: int
    pollers: float
    """Seconds between two attempts of other clients that poll the same keys; 0: there are none."""
    timeout: float
    """Seconds within which a healthy server answers. No request of ours blocks in the server."""
    connect_timeout: float
    tls: "ssl.SSLContext | None"


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError("it is a number")
    return int(text)


def _pollers(text: str) -> float:
    if (found := seconds(text)) > _LONGEST_GAP:
        raise ConfigError(f"a busy lock would be left free for {found:g} s at a time; the most is {_LONGEST_GAP:g} s")
    return found


def options(address: Address) -> Options:
    """Parse the options of a URL; ConfigError if one of them is invalid."""
    found = address.options(
        prefix=str,
        fence=choice("clock", "counter"),
        wait_replicas=_number,
        pollers=_pollers,
        timeout=seconds,
        connect_timeout=seconds,
        db=_number,
        ca=str,
        cert=str,
        key=str,
        verify=flag,
    )
    address.check_given(("ca", "cert", "key", "verify", "db"))
    address.check_hosts()
    scheme = address.scheme
    path = address.path.strip("/")
    service = address.given.get("service", "")
    if not service and scheme.endswith("+sentinel"):
        service, _, path = path.partition("/")
        if not service:
            raise ConfigError(f"name the master that the sentinels watch: {scheme}://host:26379/mymaster/0")
    if scheme.endswith("+unix"):
        if address.hosts or not path:
            raise ConfigError(f"write the path of a Unix socket like {scheme}:///run/redis.sock?db=0")
        endpoints: tuple[Endpoint, ...] = ((address.path, None),)
        path = ""
    else:
        port = 26379 if service else 6379
        endpoints = tuple((host or "localhost", own or port) for host, own in address.hosts or (("", None),))
    if path and (not path.isdecimal() or "db" in found):
        raise ConfigError(f"the path of {scheme}:// is the number of a database, given once; not {path!r}")
    db = int(path) if path else found.get("db", address.given.get("db", 0))
    if db and scheme.endswith("+cluster"):
        raise ConfigError("a cluster has no database but 0")
    return Options(
        endpoints=endpoints,
        service=service,
        db=db,
        prefix=found.get("prefix", "fencepost:lock:"),
        fence=found.get("fence", "clock"),
        wait_replicas=found.get("wait_replicas", 0),
        pollers=found.get("pollers", 0.0),
        timeout=found.get("timeout", 3.0),
        connect_timeout=found.get("connect_timeout", 2.0),
        tls=_tls(address, found),
    )


_SECURE = {"redlock": "redlocks", "valkey": "valkeys"}


def _tls(address: Address, options: Mapping[str, Any]) -> "ssl.SSLContext | None":
    if "tls" in address.given:
        return address.given["tls"]  # type: ignore[no-any-return]
    wanted = secure(options) or "verify" in options
    if not address.scheme.startswith(("rediss", "valkeys", "redlocks")):
        if wanted:
            raise ConfigError(f"{address.scheme}:// does not use TLS; {_SECURE.get(address.scheme, 'rediss')}:// does")
        return None
    from ssl import CERT_NONE

    context = tls_context(address.scheme, options)
    if not options.get("verify", True):
        context.check_hostname = False
        context.verify_mode = CERT_NONE
    return context


def dial(address: Address, options: Options, scripts: Sequence[Script]) -> Dial:
    """How to connect to the servers of a URL; ``scripts`` are loaded into each server first."""
    return Dial(
        scheme=address.scheme,
        user=address.user,
        password=address.password,
        db=options.db,
        tls=options.tls,
        connect_timeout=options.connect_timeout,
        timeout=options.timeout,
        name=address.given.get("name") or "fencepost",
        login=address.login,
        opening=tuple(pack(("SCRIPT", "LOAD", each.text)) for each in scripts),
    )
