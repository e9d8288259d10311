"""Tokens of etcd, ZooKeeper and Consul grow over killed holders, restarts and a killed leader.

`make storm` runs the same at the size that the design asks for, and with single servers that are restarted.
"""

import pytest

from tests.programs.storm import storm


@pytest.mark.timeout(300)
@pytest.mark.experiment
@pytest.mark.parametrize("name", ["etcd", "zookeeper", "consul"])
def test_tokens_grow_over(name: str) -> None:
    passed = storm(name, grants=120, kills=2, patience=90, processes=3)
    assert passed.grants >= 120
