"""What a Redis URL may say: servers, database, credentials, TLS, timeouts and options."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from fencepost import check
from fencepost.address import Address
from fencepost.backends.redis.connection import Dial, Place, pack
from fencepost.backends.redis.scripts import Script
from fencepost.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A Redis URL, understood."""

    places: tuple[Place, ...]
    service: str
    """The name by which Sentinel knows the master."""
    db: int
    prefix: str
    fence: str
    wait_replicas: int
    timeout: float
    """Seconds within which a server that is well has answered. No request of ours blocks in the server."""
    connect_timeout: float
    tls: ssl.SSLContext | None


def _fence(text: str) -> str:
    if text not in ("clock", "counter"):
        raise ConfigError("it is 'clock' or 'counter'")
    return text


def _switch(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigError("it is 'yes' or 'no'")
    return text == "yes"


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError("it is a number")
    return int(text)


def patient(text: str) -> float:
    seconds = check.duration(text)
    if not seconds:
        raise ConfigError("it must be greater than 0")
    return seconds


def options(address: Address) -> Options:
    """Understand a URL; ConfigError for what cannot be meant."""
    found = address.options(
        prefix=str,
        fence=_fence,
        wait_replicas=_number,
        timeout=patient,
        connect_timeout=patient,
        db=_number,
        tls_ca=str,
        tls_cert=str,
        tls_key=str,
        tls_verify=_switch,
    )
    scheme = address.scheme
    path = address.path.strip("/")
    service = ""
    if scheme.endswith("+sentinel"):
        service, _, path = path.partition("/")
        if not service:
            raise ConfigError(f"name the master that the sentinels watch: {scheme}://host:26379/mymaster/0")
    if scheme.endswith("+unix"):
        if address.hosts or not path:
            raise ConfigError(f"write the path of a Unix socket like {scheme}:///run/redis.sock?db=0")
        places: tuple[Place, ...] = ((address.path, None),)
        path = ""
    else:
        port = 26379 if service else 6379
        places = tuple((host or "localhost", own or port) for host, own in address.hosts or (("", None),))
    if path and (not path.isdecimal() or "db" in found):
        raise ConfigError(f"the path of {scheme}:// is the number of a database, given once; not {path!r}")
    db = int(path) if path else found.get("db", 0)
    if db and scheme.endswith("+cluster"):
        raise ConfigError("a cluster has no database but 0")
    return Options(
        places=places,
        service=service,
        db=db,
        prefix=found.get("prefix", "lock:"),
        fence=found.get("fence", "clock"),
        wait_replicas=found.get("wait_replicas", 0),
        timeout=found.get("timeout", 3.0),
        connect_timeout=found.get("connect_timeout", 2.0),
        tls=_tls(address, found.get("tls_ca"), found.get("tls_cert"), found.get("tls_key"), found.get("tls_verify")),
    )


_SECURE = {"redlock": "redlocks", "valkey": "valkeys"}


def _tls(
    address: Address, ca: str | None, cert: str | None, key: str | None, verify: bool | None
) -> ssl.SSLContext | None:
    if not address.scheme.startswith(("rediss", "valkeys", "redlocks")):
        if ca or cert or key or verify is not None:
            raise ConfigError(f"{address.scheme}:// does not use TLS; {_SECURE.get(address.scheme, 'rediss')}:// does")
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot load the TLS files of {address.scheme}://: {error}") from None
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def dial(address: Address, options: Options, scripts: Sequence[Script]) -> Dial:
    """How to get through to the servers of a URL; each of them is taught ``scripts`` first."""
    return Dial(
        scheme=address.scheme,
        user=address.user,
        password=address.password,
        db=options.db,
        tls=options.tls,
        connect_timeout=options.connect_timeout,
        timeout=options.timeout,
        opening=tuple(pack(("SCRIPT", "LOAD", each.text)) for each in scripts),
    )
