"""The client that a program has already: where it leads, and who logs in there, as an address of ours.

::

    address()     which library a client is of, told by its class; nothing of any library is imported for that
      +-- redis        redis-py: one server, Sentinel's master, a cluster
      +-- sqlalchemy   engines, for Postgres and SQLite
      +-- psycopg      pools of psycopg
      +-- django       an entry of settings.DATABASES
      |     (these three)  postgres: libpq's keywords from what such a client connects with; sqlite: a file
      +-- kazoo        ZooKeeper
    kinds         what a type checker knows of them

Settings are copied, and functions that tell credentials are called; connections are never shared. A lock needs
time-outs of its own, and a connection on which nobody else waits. What a client has that cannot be copied, and without
which we would reach another server or trust another one, is refused.
"""

from importlib import import_module
from typing import Any, NamedTuple

from fencepost.address import Address
from fencepost.driver import Driver
from fencepost.errors import ConfigError


class _Kind(NamedTuple):
    """A class of clients."""

    reader: str
    """``module:function`` in here, which makes an address of one."""
    other: str = ""
    """What the same is called on the other face; "" if one kind is for both."""
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
"""What people may give instead of a client, and what to give."""


def address(client: Any, driver: Driver) -> Address:
    """Where a client leads; ConfigError if it is none that we know, is for the other face, or cannot be copied."""
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
