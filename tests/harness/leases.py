"""A lease that no store granted, for tests of code that takes leases; and one that is renewed when a test likes."""

from typing import Any

from fencepost import sync
from fencepost.driver import Driver, boottime
from fencepost.driver.threads import Blocking
from fencepost.errors import LeaseLost
from fencepost.lease import BaseLease, Grant


class Nobody:
    """Renews and releases nothing; its clock stands still."""

    driver: Driver = Blocking(clock=lambda: 0.0)

    async def renew(self, lease: Any) -> None:
        raise NotImplementedError

    async def release(self, lease: Any) -> bool:
        raise NotImplementedError

    async def finish(self, lease: Any) -> LeaseLost | None:
        raise NotImplementedError


def lease(name: str, holder: str, token: int, ttl: float = 60) -> BaseLease:
    """A lease that never ends by itself."""
    return BaseLease(Nobody(), name, holder, Grant(token, ttl, 0), False, None)


def renew_soon(locks: sync.Locks, lease: sync.Lease) -> None:
    """Have a lease renewed in the background now.

    One with so short a ttl that this happens soon by itself would be lost on a busy machine.
    """
    lease._due = boottime()
    locks._core._renewals._timer.post(lease._stored)
