"""Real stores for experiments: started by name, or used as they are by URL."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from fencepost.address import masked
from fencepost.driver.threads import Blocking
from fencepost.errors import ConfigError
from fencepost.registry import SCHEMES, connect
from fencepost_lab.servers import QUICK_ETCD, Consul, EtcdCluster, Missing, Postgres, Redis, StartFailed, ZooKeeper
from fencepost_lab.servers.programs import PROGRAMS, found_version


class Running(Protocol):
    """A server or a group of them, with an address."""

    @property
    def url(self) -> str: ...

    @property
    def durability(self) -> str: ...


def _redlock() -> AbstractContextManager[Running]:
    from fencepost_lab.servers.redis_groups import Independent

    return Independent()


SERVERS: dict[str, Callable[[], AbstractContextManager[Running]]] = {
    "redis": Redis,
    "redlock": _redlock,
    "etcd": lambda: EtcdCluster(args=QUICK_ETCD, fsync=True),
    "zookeeper": lambda: ZooKeeper(fsync=True),
    # A waiter is one connection, and Consul lets one address have 200 unless told otherwise.
    "consul": lambda: Consul(args=["-hcl", "limits { http_max_conns_per_client = 4096 }"]),
    "postgres": lambda: Postgres(fsync=True),
}
_PROGRAMS = {"redlock": ("redis",), "zookeeper": ("zookeeper", "java")}
_CLIENTS = {
    "redis": ("redis", "hiredis"),
    "redlock": ("redis", "hiredis"),
    "etcd": ("hpack",),
    "zookeeper": ("kazoo",),
    "postgres": ("psycopg",),
}
NAMES = ("sqlite", *SERVERS)
"""What ``--backend`` starts by name: one server each, but five independent Redis for redlock and three etcd members."""


@dataclass(frozen=True, slots=True)
class Store:
    """A store that answers. ``server`` is what was started for it: pause it, kill it; None for a URL or a file."""

    name: str
    url: str
    server: Any = field(default=None, repr=False)

    @property
    def min_ttl(self) -> float:
        """The shortest ttl that it takes."""
        return connect(self.url, Blocking()).promises.min_ttl

    def versions(self) -> dict[str, str]:
        """The versions of the server, if we started it, and of its client library."""
        found = {}
        if self.name == "sqlite":
            found["sqlite"] = sqlite3.sqlite_version
        elif self.server is not None:
            for program in _PROGRAMS.get(self.name, (self.name,)):
                found[program] = found_version(program, PROGRAMS[program].find() or {"": ""}) or "?"
        for package in _CLIENTS.get(self.name, ()):
            with suppress(PackageNotFoundError):
                found[f"{package} (client)"] = version(package)
        return found

    def conditions(self) -> str:
        """What its figures depend on: version, number of servers, what is synced to disk."""
        if self.name == "sqlite":
            return f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=NORMAL, FULL for tokens"
        if self.server is None:
            return f"{self.name} as it was found at the address given"
        program = _PROGRAMS.get(self.name, (self.name,))[0]
        return ", ".join(filter(None, (f"{self.name} {self.versions()[program]}", self.server.durability)))


def kind(backend: str) -> str:
    """What kind of store a name or URL means: redis for rediss://..., postgres for postgresql://..."""
    scheme, separator, _ = backend.partition("://")
    return SCHEMES[scheme].store if separator and scheme in SCHEMES else scheme


def known(backend: str) -> str:
    """The name or URL, if it can be one of a store; ConfigError otherwise."""
    if "://" in backend:
        connect(backend, Blocking())
    elif backend not in NAMES:
        raise ConfigError(f"there is no store {masked(backend)!r}; name one of {', '.join(NAMES)}, or give a URL")
    return backend


def different(backends: Sequence[str]) -> list[str]:
    """The names and URLs, if they can be stores of different kinds; ConfigError otherwise: figures go by the kind."""
    kinds: dict[str, str] = {}
    for each in backends:
        other = kinds.setdefault(kind(known(each)), each)
        if other != each:
            raise ConfigError(f"{masked(other)!r} and {masked(each)!r} are both {kind(each)}; run one after the other")
    return list(kinds.values())


@contextmanager
def store(backend: str, folder: Path) -> Iterator[Store]:
    """The store called ``backend``, started on free ports and gone afterwards, or the one behind a URL.

    Raises ConfigError, naming the next step, if there is no such name or its server is not on this machine.
    """
    if "://" in known(backend):
        yield Store(kind(backend), backend)
    elif backend == "sqlite":
        yield Store(backend, "sqlite://" + quote(str(folder / "locks.db")))
    else:
        try:
            server = SERVERS[backend]()
            running = server.__enter__()
        except (Missing, StartFailed) as error:
            raise ConfigError(f"{backend} cannot be started: {error}") from error
        try:
            yield Store(backend, running.url, running)
        finally:
            server.__exit__(None, None, None)
