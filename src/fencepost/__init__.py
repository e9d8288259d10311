"""Distributed locks that are actually safe: leases with fencing tokens, and guards that check them."""

from typing import TYPE_CHECKING, Any

from fencepost.errors import (
    BackendError,
    ConfigError,
    FencepostError,
    ForgedToken,
    LateWrite,
    LeaseLost,
    MissingToken,
    NotAcquired,
    QueueFull,
    Refused,
    ReplayMismatch,
    StaleToken,
    TokenClash,
    TokenLeap,
)
from fencepost.events import Event
from fencepost.lease import Access, BaseLease, Reason
from fencepost.sync import Election, Lease, Lock, Locks, Term, connect

__all__ = [
    "Access",
    "BackendError",
    "BaseLease",
    "ConfigError",
    "Election",
    "Event",
    "FencepostError",
    "ForgedToken",
    "LateWrite",
    "Lease",
    "LeaseLost",
    "Lock",
    "Locks",
    "MissingToken",
    "NotAcquired",
    "QueueFull",
    "Reason",
    "Refused",
    "ReplayMismatch",
    "StaleToken",
    "Term",
    "TokenClash",
    "TokenLeap",
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
