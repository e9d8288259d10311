"""Whose locks are put to the test: a table of clients, and fencepost's own two faces behind the contract they share."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import inf
from typing import Any, ClassVar, NamedTuple

from fencepost import address, aio, sync
from fencepost.driver import Driver
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking
from fencepost.errors import ConfigError
from fencepost.events import Hook
from fencepost.lease import BaseLease
from fencepost.locks import Core
from fencepost.registry import ours


class Held(NamedTuple):
    """A lock that a contender has; ``lease`` is whatever its client needs to free it.

    What a client does not tell is None: its token, or until when it may count on the lock.
    """

    holder: str
    lease: Any
    token: int | None = None
    ttl: float | None = None
    until: float | None = None

    def headers(self) -> dict[str, str]:
        """The next access's stamp, if there is a token."""
        return self.lease.access().headers if isinstance(self.lease, BaseLease) else {}


class Client(ABC):
    """One process's connection. It is written as ``async def``; a blocking one never suspends, and serves threads."""

    tasks: ClassVar[bool]
    """Whether contenders are tasks of one event loop, or threads."""
    events: ClassVar[bool] = False
    """Whether it tells the hooks what happens by itself."""

    @abstractmethod
    async def acquire(self, name: str, timeout: float) -> Held | None:
        """Wait for the lock; None once ``timeout`` has passed."""

    @abstractmethod
    async def release(self, held: Held) -> bool:
        """Free it; False if it was no longer the holder's."""

    async def close(self) -> None:  # noqa: B027 - a client without connections has nothing to close
        """Disconnect."""

    @classmethod
    def driver(cls) -> Driver:
        return Asyncio() if cls.tasks else Blocking()


class Fencepost(Client):
    """fencepost, in the one event loop of a process."""

    tasks = True
    events = True

    def __init__(self, backend: str | None, ttl: float, hooks: Iterable[Hook]) -> None:
        self.core: Core[Any] = aio.connect(backend, ttl=ttl, queue_limit=1_000_000, hooks=hooks)._core

    async def acquire(self, name: str, timeout: float) -> Held | None:
        patience = None if timeout == inf else timeout
        lease = await self.core.acquire(name, ttl=None, timeout=patience, renew=True, max_hold=None)
        return None if lease is None else Held(lease.holder, lease, lease.token, lease.ttl, lease.deadline)

    async def release(self, held: Held) -> bool:
        return await self.core.release(held.lease)

    async def close(self) -> None:
        await self.core.close()


class FencepostThreads(Fencepost):
    """fencepost, blocking, a thread for each contender."""

    tasks = False

    def __init__(self, backend: str | None, ttl: float, hooks: Iterable[Hook]) -> None:
        self.core = sync.connect(backend, ttl=ttl, queue_limit=1_000_000, hooks=hooks)._core


class Row(NamedTuple):
    """A client by its class, as module:name, the schemes it can reach (none: all of fencepost's), and its package."""

    target: str
    schemes: tuple[str, ...] = ()
    package: str = ""
    about: str = ""


_PIP = "pip install 'fencepost-lab[peers]'"
_PEERS = "fencepost_lab.contend.peers:"
CLIENTS: dict[str, Row] = {
    "fencepost": Row(f"{__name__}:Fencepost", about="asyncio"),
    "fencepost-threads": Row(f"{__name__}:FencepostThreads", about="blocking, one thread each"),
    "redis-spin": Row(_PEERS + "RedisSpin", ("redis",), "redis", "SET NX PX, sleep 10 ms, again; asyncio"),
    "redis-py": Row(_PEERS + "RedisPy", ("redis",), "redis", "redis.asyncio.lock.Lock"),
    "python-redis-lock": Row(_PEERS + "PythonRedisLock", ("redis",), "python-redis-lock", "threads"),
    "pottery": Row(_PEERS + "Pottery", ("redis",), "pottery", "AIORedlock on one master"),
    "kazoo": Row(_PEERS + "Kazoo", ("zookeeper", "zk"), "kazoo", "threads"),
    "aetcd": Row(_PEERS + "Aetcd", ("etcd",), "aetcd", "asyncio"),
    "etcd3gw": Row(_PEERS + "Etcd3gw", ("etcd",), "etcd3gw", "tries every 100 ms; threads"),
}


def known(name: str) -> Row:
    """The row of a client; ConfigError if there is none of that name."""
    row = CLIENTS.get(name)
    if row is None:
        raise ConfigError(f"there is no client {name!r}; there are {', '.join(CLIENTS)}")
    return row


def reaches(name: str, scheme: str) -> bool:
    """Whether a client can be put on the stores of a scheme; ConfigError if there is none of that name."""
    schemes = known(name).schemes
    return not schemes or scheme in schemes


def find(name: str, backend: str | None) -> type[Any]:
    """The class of a client; ConfigError if there is none, it cannot reach ``backend``, or it is not installed."""
    row = known(name)
    scheme = address.parse(backend).scheme if backend else ""
    if not reaches(name, scheme):
        raise ConfigError(f"client {name!r} needs --backend {row.schemes[0]}://..., not {scheme or 'none'}")
    return installed(name)


def installed(name: str) -> type[Any]:
    """The class of a client, whatever it is put on; ConfigError if there is none, or its package is missing."""
    row = known(name)
    module, _, kind = row.target.partition(":")
    try:
        found: type[Any] = getattr(importlib.import_module(module), kind)
        getattr(found, "load", bool)()
    except ModuleNotFoundError as error:
        if not row.package or ours(error):
            raise
        raise ConfigError(f"client {name!r} needs the package {error.name!r}: {_PIP}") from error
    return found


def open_client(name: str, backend: str | None, ttl: float, hooks: Iterable[Hook]) -> Client:
    """A client, ready to connect."""
    made: Client = find(name, backend)(backend, ttl, hooks)
    return made
