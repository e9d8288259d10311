"""Distributed locks that are actually safe: leases with fencing tokens, and guards that check them."""

from fencepost import aio
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


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("fencepost")
    raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
