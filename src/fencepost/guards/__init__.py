"""Guards: they refuse a write from a holder that has been replaced.

Each module guards one kind of resource and executes the rule in the same atomic step as the access. `postgres` and
`sqlite` are functions for the caller's own transaction; the others are classes. `aio` has the asyncio versions for
Postgres, SQLite and Redis. Each guard is imported on first use, so it needs only its own client library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.guards import aio, postgres, sqlite
    from fencepost.guards.etcd import EtcdGuard
    from fencepost.guards.file import FileGuard
    from fencepost.guards.memory import MemoryGuard
    from fencepost.guards.policy import Policy, default_policy
    from fencepost.guards.redis import RedisGuard
    from fencepost.guards.s3 import S3Guard

__all__ = [
    "EtcdGuard",
    "FileGuard",
    "MemoryGuard",
    "Policy",
    "RedisGuard",
    "S3Guard",
    "aio",
    "default_policy",
    "postgres",
    "sqlite",
]

_NAMES = {
    "EtcdGuard": "etcd",
    "FileGuard": "file",
    "MemoryGuard": "memory",
    "Policy": "policy",
    "RedisGuard": "redis",
    "S3Guard": "s3",
    "default_policy": "policy",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
