"""What a Consul URL says."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from fencepost import check
from fencepost.address import TLS, Address, seconds, secure, tls_context
from fencepost.credentials import Secret, Source
from fencepost.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """Where the agent is, and how to behave there."""

    hosts: tuple[tuple[str, int], ...]
    root: str
    """The prefix of the keys of all locks."""
    token: str | None = field(repr=False)
    login: Source[Secret] | None
    """Returns the ACL token for each new connection, if the token is not fixed."""
    query: Mapping[str, str]
    """Query parameters that are added to every request."""
    tls: ssl.SSLContext | None
    lock_delay: float
    min_ttl: float | None
    """The servers' own session_ttl_min, if the URL says it."""
    connect_timeout: float
    timeout: float


def read(address: Address) -> Settings:
    """The settings in a URL; ConfigError if one of them is invalid."""
    options = address.options(
        **TLS,
        dc=str,
        lock_delay=check.duration,
        session_ttl_min=seconds,
        connect_timeout=seconds,
        timeout=seconds,
    )
    address.check_hosts()
    if address.user:
        raise ConfigError("Consul has no users; write its ACL token as consul://:TOKEN@host")
    if address.password and not address.password.isprintable():
        raise ConfigError("the ACL token of consul:// contains a control character, such as a line break")
    lock_delay = options.get("lock_delay", 0.0)
    if lock_delay > 60:
        raise ConfigError(f"lock_delay is at most 60s in Consul, not {lock_delay:g}s")
    return Settings(
        hosts=tuple((host or "localhost", port or 8500) for host, port in address.hosts or (("", None),)),
        root=address.path.strip("/"),
        token=address.password,
        login=address.login,
        query={"dc": options["dc"]} if "dc" in options else {},
        tls=tls_context("consul", options) if secure(options) else None,
        lock_delay=lock_delay,
        min_ttl=options.get("session_ttl_min"),
        connect_timeout=options.get("connect_timeout", 5.0),
        timeout=options.get("timeout", 10.0),
    )


_NOTHING = "%00"  # stands for an empty part of a name; no name contains a NUL character


def encode(name: str) -> str:
    """The prefix that ``consul lock`` would be given for a lock's name, never the same for two names.

    Names of ASCII letters, digits, ``-``, ``_``, ``.``, ``~`` and ``/`` stay as they are; every other byte
    of its UTF-8 is written ``%XX``. A part between slashes that is ``.``, ``..`` or empty, which no URL
    can carry, becomes ``%2E``, ``%2E%2E`` or ``%00``.
    """
    parts = (quote(part, safe="") or _NOTHING for part in name.split("/"))
    return "/".join(part.replace(".", "%2E") if part in (".", "..") else part for part in parts)


def decode(prefix: str) -> str | None:
    """The lock's name for a prefix; None if ``encode`` gives this prefix for no name."""
    name = "/".join("" if part == _NOTHING else unquote(part, errors="replace") for part in prefix.split("/"))
    return name if name and encode(name) == prefix else None
