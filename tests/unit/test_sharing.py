"""Where locks cannot be shared, that is said, and where they can."""

import pytest

import fencepost
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
