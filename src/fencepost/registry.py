"""The backends, loaded by URL scheme, and what to install if one is missing."""

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fencepost.address import Address, hint, parse
from fencepost.backend import Backend
from fencepost.driver import Driver
from fencepost.errors import ConfigError
from fencepost.logs import logger


class Registration(NamedTuple):
    """A backend that is not loaded yet."""

    target: str
    """``module:class``."""
    store: str
    """Its name, which is also that of the extra that installs what it needs."""


# Third parties register their own through the entry point group "fencepost.backends".
SCHEMES: dict[str, Registration] = {
    "memory": Registration("fencepost.backends.memory:Memory", "memory"),
    "sqlite": Registration("fencepost.backends.sqlite.backend:SQLite", "sqlite"),
    "etcd": Registration("fencepost.backends.etcd.backend:Etcd", "etcd"),
    "redis": Registration("fencepost.backends.redis.backend:Redis", "redis"),
    "rediss": Registration("fencepost.backends.redis.backend:Redis", "redis"),
    "redis+unix": Registration("fencepost.backends.redis.backend:Redis", "redis"),
    "redis+cluster": Registration("fencepost.backends.redis.backend:Cluster", "redis"),
    "rediss+cluster": Registration("fencepost.backends.redis.backend:Cluster", "redis"),
    "redis+sentinel": Registration("fencepost.backends.redis.backend:Sentinel", "redis"),
    "rediss+sentinel": Registration("fencepost.backends.redis.backend:Sentinel", "redis"),
    "redlock": Registration("fencepost.backends.redlock.backend:Redlock", "redlock"),
    "redlocks": Registration("fencepost.backends.redlock.backend:Redlock", "redlock"),
    "valkey": Registration("fencepost.backends.redis.backend:Redis", "redis"),
    "valkeys": Registration("fencepost.backends.redis.backend:Redis", "redis"),
    "postgresql": Registration("fencepost.backends.postgres.backend:Postgres", "postgres"),
    "postgres": Registration("fencepost.backends.postgres.backend:Postgres", "postgres"),
    "consul": Registration("fencepost.backends.consul.backend:Consul", "consul"),
    "zk": Registration("fencepost.backends.zookeeper.backend:ZooKeeper", "zookeeper"),
    "zookeeper": Registration("fencepost.backends.zookeeper.backend:ZooKeeper", "zookeeper"),
}


LAB_HINT = "pip install 'fencepost-lab[stage]'"
"""How to get the commands of the lab."""


def ours(error: ModuleNotFoundError) -> bool:
    """Whether the missing module is part of fencepost, which is a bug, and not of a package to install."""
    name = error.name or ""
    return name == "fencepost" or name.startswith("fencepost.")


def find(scheme: str) -> type[Backend]:
    """The backend class of a scheme; ConfigError naming the nearest scheme, or the pip command."""
    registered = SCHEMES.get(scheme)
    if registered is None:
        from importlib.metadata import entry_points  # only here: it takes a third of the time to import fencepost

        for point in entry_points(group="fencepost.backends", name=scheme):
            return point.load()  # type: ignore[no-any-return]
        known = [*SCHEMES, *(point.name for point in entry_points(group="fencepost.backends"))]
        near = hint(scheme, known, "://") or f"; there are {', '.join(sorted(known))}"
        raise ConfigError(f"no backend for '{scheme}://'{near}")
    module, _, name = registered.target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if ours(error):
            raise
        raise ConfigError(
            f"{scheme}:// needs the package {error.name!r}: pip install 'fencepost[{registered.store}]'"
        ) from error


def sharing() -> list[str]:
    """The schemes of the installed backends that have shared locks, one for each backend."""
    found: dict[str, str] = {}
    for scheme, registered in SCHEMES.items():
        try:
            if find(scheme).promises.shared:
                found.setdefault(registered.target, scheme)
        except ConfigError:  # its extra is not installed
            continue
    return list(found.values())


def connect(
    source: Any,
    driver: Driver,
    credentials: Callable[[], Any] | None = None,
    options: Mapping[str, object] | None = None,
) -> Backend:
    """The backend for ``source``, a URL or a client; not yet connected. ConfigError if there is none.

    ``credentials`` is called before each new connection, in place of a password in the URL; ``options`` are for a
    client what follows the ? of a URL.
    """
    if source is None or isinstance(source, str):
        if options is not None:
            raise ConfigError("options= is for a client; write the options of a URL behind its ?")
        address = _parse(source)
    else:
        from fencepost import clients

        address = replace(clients.address(source, driver), params=_params(options or {}))
        if credentials is not None:
            raise ConfigError("a client brings its own credentials; set them there, or give connect() a URL")
    backend = find(address.scheme)
    if credentials is not None:
        from fencepost.credentials import Source, secret

        if not backend.credentials:
            raise ConfigError(f"{address.scheme}:// has nobody to log in; leave credentials= out")
        if address.password is not None:
            raise ConfigError("the URL has a password, and credentials= tells one too: leave one of them out")
        login = Source(credentials, secret, driver, scheme=address.scheme, what="credentials=")
        address = replace(address, login=login)
    return backend(address, driver)


def _params(options: Mapping[str, object]) -> dict[str, str]:
    """Options as a URL would have them; ConfigError for a value that no URL can have."""
    found = {}
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            kind = type(value).__name__
            raise ConfigError(f"options= has {name!r} as a {kind}; give text or a number, or leave it out")
        found[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return found


def _parse(url: str | None) -> Address:
    """The address in ``url``, else $FENCEPOST_URL, else that of the embedded SQLite file; ConfigError if it is empty.

    The file belongs to this user on this host. If the variable is unset in production by mistake, locks exclude no
    client on another host: a WARNING says so, once per process.
    """
    if url is None:
        url = os.environ.get("FENCEPOST_URL")
        if url == "":
            raise ConfigError("$FENCEPOST_URL is empty; unset it for the embedded SQLite file, or name a store in it")
    if url == "":
        raise ConfigError("the URL is empty; leave it out for $FENCEPOST_URL or the embedded SQLite file")
    if url is None:
        warn_of_default()
    return parse(url or "sqlite:")


@functools.cache
def warn_of_default() -> None:
    """Warn once that locks live in the embedded file."""
    logger().warning(
        "no URL and no $FENCEPOST_URL: locks live in an SQLite file of this user, and exclude nobody on other hosts; "
        "connect('sqlite:') says that this is meant"
    )
