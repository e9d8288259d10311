"""Distributed locks that are actually safe: leases with fencing tokens, and guards that check them."""

from typing import TYPE_CHECKING, Any

from fencepost.errors import (
    BackendError,
    ConfigError,
    FencepostError,
    LateWrite,
    LeaseLost,
    MissingToken,
    NotAcquired,
    QueueFull,
    Refused,
    StaleToken,
    TokenClash,
)
from fencepost.events import Event
from fencepost.lease import Lease
from fencepost.sync import connect

__all__ = [
    "BackendError",
    "ConfigError",
    "Event",
    "FencepostError",
    "LateWrite",
    "Lease",
    "LeaseLost",
    "MissingToken",
    "NotAcquired",
    "QueueFull",
    "Refused",
    "StaleToken",
    "TokenClash",
    "aio",
    "connect",
]


if TYPE_CHECKING:
    from fencepost import aio


def __getattr__(name: str) -> Any:
    if name == "aio":  # asyncio takes as long to load as everything else here
        import fencepost.aio

        return fencepost.aio
    if name == "__version__":
        from importlib.metadata import version

        return version("fencepost")
    raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
