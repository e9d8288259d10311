"""Where locks cannot be shared, that is said, and where they can."""

from typing import Any

import pytest

import fencepost
from fencepost.driver import run
from fencepost.errors import ConfigError


@pytest.mark.parametrize(
    "url", ["consul://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"]
)
def test_a_backend_that_cannot_names_those_that_can(url: str) -> None:
    with fencepost.connect(url) as locks:
        with pytest.raises(ConfigError, match=r"cannot promise shared locks and semaphores; memory://.* can"):
            locks.shared("name")
        with pytest.raises(ConfigError, match="cannot promise"):
            locks.semaphore("name", 3)


class Watched(dict[str, Any]):
    """Counts how often somebody goes through all of them."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_renewing_all_sharers_of_a_lock_in_memory_goes_through_them_once() -> None:
    """For each of them, it would be the square."""
    with fencepost.connect("memory://sharers", ttl=600) as locks:
        leases = [locks.shared("a", renew=False).acquire() for _ in range(10)]
        before = leases[0].deadline
        lock = locks._core.backend._store.locks["a"]  # type: ignore[attr-defined]  # memory's own
        lock.sharers = watched = Watched(lock.sharers)
        run(locks._core._renewals.renew(leases))
        assert all(lease.deadline > before for lease in leases)
        assert watched.walks == 1
