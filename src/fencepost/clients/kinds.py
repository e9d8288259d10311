"""The types of the clients that ``connect`` takes, by their methods: a type checker does not need their libraries."""

from collections.abc import Awaitable
from typing import Any, Protocol, TypeAlias


class Redis(Protocol):
    """A blocking client of redis-py, of one server, Sentinel's master or a cluster."""

    def get_connection_kwargs(self) -> Any: ...
    def __enter__(self) -> Any: ...


class AsyncRedis(Protocol):
    """The same for asyncio."""

    def get_connection_kwargs(self) -> Any: ...
    def __aenter__(self) -> Any: ...


class Engine(Protocol):
    """SQLAlchemy's engine."""

    @property
    def pool(self) -> Any: ...
    @property
    def dialect(self) -> Any: ...
    def dispose(self, close: bool = ...) -> None: ...


class AsyncEngine(Protocol):
    """The same for asyncio."""

    @property
    def sync_engine(self) -> Any: ...
    def dispose(self, close: bool = ...) -> Awaitable[None]: ...


class Pool(Protocol):
    """A pool of psycopg."""

    @property
    def conninfo(self) -> Any: ...
    def putconn(self, conn: Any) -> None: ...


class AsyncPool(Protocol):
    """The same for asyncio."""

    @property
    def conninfo(self) -> Any: ...
    def putconn(self, conn: Any) -> Awaitable[None]: ...


class Database(Protocol):
    """An entry of Django's ``connections``."""

    @property
    def alias(self) -> Any: ...
    @property
    def settings_dict(self) -> Any: ...


class ZooKeeper(Protocol):
    """kazoo's client."""

    @property
    def hosts(self) -> Any: ...
    @property
    def chroot(self) -> Any: ...


Client: TypeAlias = Redis | Engine | Pool | Database | ZooKeeper
"""What ``fencepost.connect`` takes besides a URL."""
AsyncClient: TypeAlias = AsyncRedis | AsyncEngine | AsyncPool | Database | ZooKeeper
"""What ``fencepost.aio.connect`` takes besides a URL."""
