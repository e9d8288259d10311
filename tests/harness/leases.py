"""A lease that no store granted, for tests of code that takes leases."""

from typing import Any

from fencepost.driver import Driver
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
