"""Makes an address out of a client that the program already has: its servers, and its credentials.

::

    address()     recognizes the library of a client by its class, without importing any library
      +-- redis        redis-py: one server, Sentinel's master, a cluster
      +-- sqlalchemy   engines, for Postgres and SQLite
      +-- psycopg      pools of psycopg
      +-- django       an entry of settings.DATABASES
      |     (these three)  postgres: libpq's keywords from such a client's arguments; sqlite: a file
      +-- kazoo        ZooKeeper
    kinds         the types of clients, for type checkers

Settings are copied, and functions that return credentials are called; connections are never shared. A lock needs its
own timeouts, and a connection that is not busy with other work. If a client has a setting that cannot be copied, and
without which we would reach or trust another server, it is refused.
"""

from importlib import import_module
from typing import Any, NamedTuple

from fencepost.address import Address
from fencepost.driver import Driver
from fencepost.errors import ConfigError


class _Kind(NamedTuple):
    """A class of clients."""

    reader: str
    """``module:function`` in this package, which makes an address of such a client."""
    other: str = ""
    """The same client for the other one of blocking and asyncio code; "" if one class is for both."""
    asyncio: bool = False


_KINDS = {
    "redis.client.Redis": _Kind("redis:single", "redis.asyncio.Redis"),
    "redis.asyncio.client.Redis": _Kind("redis:single", "redis.Redis", asyncio=True),
    "redis.cluster.RedisCluster": _Kind("redis:cluster", "redis.asyncio.RedisCluster"),
    "redis.asyncio.cluster.RedisCluster": _Kind("redis:cluster", "redis.RedisCluster", asyncio=True),
    "sqlalchemy.engine.base.Engine": _Kind("sqlalchemy:engine", "create_async_engine()"),
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _Kind("sqlalchemy:engine", "create_engine()", asyncio=True),
    "psycopg_pool.pool.ConnectionPool": _Kind("psycopg:pool", "psycopg_pool.AsyncConnectionPool"),
    "psycopg_pool.pool_async.AsyncConnectionPool": _Kind("psycopg:pool", "psycopg_pool.ConnectionPool", asyncio=True),
    "django.db.backends.base.base.BaseDatabaseWrapper": _Kind("django:database"),
    "django.utils.connection.ConnectionProxy": _Kind("django:database"),
    "kazoo.client.KazooClient": _Kind("kazoo:client"),
}
_NEAR = {
    "redis.sentinel.Sentinel": "give the client of its master: sentinel.master_for('mymaster')",
    "redis.asyncio.sentinel.Sentinel": "give the client of its master: sentinel.master_for('mymaster')",
    "redis.connection.ConnectionPool": "give redis.Redis(connection_pool=pool)",
    "redis.asyncio.connection.ConnectionPool": "give redis.asyncio.Redis(connection_pool=pool)",
    "valkey.client.Valkey": "give a valkey:// URL, and credentials= if its password changes",
    "sqlalchemy.engine.base.Connection": "give its engine: connection.engine",
    "sqlalchemy.orm.session.Session": "give its engine: session.get_bind()",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "give its engine: connection.engine",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "give its engine: session.bind",
    "psycopg.Connection": "give a psycopg_pool.ConnectionPool, or a postgresql:// URL",
    "psycopg.AsyncConnection": "give a psycopg_pool.AsyncConnectionPool, or a postgresql:// URL",
    "asyncpg.pool.Pool": "give SQLAlchemy's engine, psycopg's pool, or a postgresql:// URL",
    "asyncpg.connection.Connection": "give SQLAlchemy's engine, psycopg's pool, or a postgresql:// URL",
    "django.db.utils.ConnectionHandler": "give one of them: connections['default']",
}
"""Objects that callers may pass by mistake, and what to pass instead."""


def address(client: Any, driver: Driver) -> Address:
    """The address of a client's servers; ConfigError if the client is unknown, or cannot be copied.

    ConfigError also if the client is asyncio's and the driver blocking, or the other way round.
    """
    names = [f"{each.__module__}.{each.__qualname__}" for each in type(client).__mro__]
    found = next((_KINDS[name] for name in names if name in _KINDS), None)
    if found is None:
        near = next((_NEAR[name] for name in names if name in _NEAR), None)
        raise ConfigError(
            f"connect() takes a URL, or a client: of redis-py, SQLAlchemy's engine, psycopg's pool, Django's "
            f"connections['default'], kazoo's client; not a {names[0]}{f'; {near}' if near else ''}"
        )
    if found.other and found.asyncio == driver.blocking:
        face, here = ("fencepost.aio.connect", "asyncio's") if found.asyncio else ("fencepost.connect", "blocking")
        raise ConfigError(f"this {type(client).__name__} is {here}: give it to {face}(), or give a {found.other} here")
    module, _, function = found.reader.partition(":")
    read = getattr(import_module(f"fencepost.clients.{module}"), function)
    made: Address = read(client, driver)
    return made
