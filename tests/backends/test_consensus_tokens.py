"""Tokens of etcd, ZooKeeper and Consul grow over killed holders, restarts and a killed leader.

`make storm` runs the same at the size that the design asks for.
"""

import pytest

from tests.backends.storm import STORMS, storm


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STORMS)
def test_tokens_grow_over(name: str) -> None:
    passed = storm(name, grants=200, kills=2, patience=90, processes=4)
    assert passed.grants >= 200
