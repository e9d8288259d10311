"""What a ZooKeeper URL says."""

from dataclasses import dataclass, field
from typing import Any

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from fencepost.address import TLS, Address, choice, seconds, secure
from fencepost.backends.zookeeper import names
from fencepost.credentials import Secret, Source
from fencepost.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """Where the ensemble is, and how to behave there."""

    hosts: str
    root: str
    """The path of the node below which the locks are."""
    layout: str
    container: bool
    """Whether the server removes a lock's own node when it is no longer used."""
    patience: float
    """Seconds to wait for a connection."""
    acl: Any
    client: dict[str, Any] = field(repr=False)
    """More options for kazoo's client: credentials and TLS."""
    sasl: dict[str, Any] | None = field(default=None, repr=False)
    login: Source[Secret] | None = None
    """Returns user and password for each new connection, if they are not fixed."""
    user: str | None = None
    """The user, if ``login`` returns none."""


def read(address: Address) -> Settings:
    """The settings in a URL; ConfigError if one of them is invalid."""
    options = address.options(
        **TLS,
        layout=names.layout,
        parents=choice("container", "keep"),
        acl=choice("open", "creator"),
        connect_timeout=seconds,
    )
    address.check_given(TLS)
    address.check_hosts()
    acl, client = OPEN_ACL_UNSAFE, dict[str, Any](address.given.get("client", {}))
    if address.user is not None and address.login is None:
        client["auth_data"] = [("digest", f"{address.user}:{address.password or ''}")]
    known = address.login or client.get("auth_data") or address.given.get("sasl")
    if address.user is not None or known:
        acl = OPEN_ACL_UNSAFE if options.get("acl") == "open" else CREATOR_ALL_ACL
    elif options.get("acl") == "creator":
        raise ConfigError("acl=creator needs somebody whom the nodes belong to: write zk://user:password@host")
    if secure(options):
        client |= {"use_ssl": True, "check_hostname": True, "ca": options.get("ca")}
        # A certificate and its key may be in one file; kazoo uses neither unless it is given both.
        client |= {"certfile": options.get("cert"), "keyfile": options.get("key", options.get("cert"))}
    hosts = [(host or "localhost", port or 2181) for host, port in address.hosts or (("", None),)]
    return Settings(
        hosts=",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts),
        root="/" + address.path.strip("/"),
        layout=options.get("layout", "kazoo"),
        container=options.get("parents") != "keep",
        patience=options.get("connect_timeout", 10.0),
        acl=acl if "acl" in options else address.given.get("acl") or acl,
        client=client,
        sasl=address.given.get("sasl"),
        login=address.login,
        user=address.user,
    )
