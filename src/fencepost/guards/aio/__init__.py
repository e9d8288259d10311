"""The guards for asyncio: the same names, awaited.

Every function that you await is ``async def``, so that type checkers notice a missing await. Each refuses blocking
connections and clients, as those of `fencepost.guards` refuse asyncio ones.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.guards.aio import postgres, sqlite
    from fencepost.guards.aio.redis import RedisGuard

__all__ = ["RedisGuard", "postgres", "sqlite"]


def __getattr__(name: str) -> Any:
    if name == "RedisGuard":
        return importlib.import_module(f"{__name__}.redis").RedisGuard
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
