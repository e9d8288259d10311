"""Tokens in etcd grow over many acquisitions, killed holders, a killed server and a killed leader.

FENCEPOST_SWARM=10000 makes it as long as the design asks for; without it, it takes seconds.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ConfigError
from fencepost.lab.servers import QUICK_ETCD, Etcd, EtcdCluster
from tests.backends.etcd import leader
from tests.backends.swarm import Swarm
from tests.conftest import Endpoint

GRANTS = int(os.environ.get("FENCEPOST_SWARM", "600"))
KILLS = max(2, GRANTS // 400)
PATIENCE = 60 + GRANTS / 10

pytestmark = pytest.mark.timeout(4 * PATIENCE)


def whirl(swarm: Swarm, upset: Callable[[], None]) -> None:
    """Grants, kills of holders, the upset in the middle of it all, and more of both."""
    with swarm:
        swarm.reach(GRANTS // 4, PATIENCE)
        for _ in range(KILLS // 2):
            swarm.kill_holder(PATIENCE)
        swarm.reach(GRANTS // 2, PATIENCE)
        upset()
        after = len(swarm.grants())
        for _ in range(KILLS - KILLS // 2):
            swarm.kill_holder(PATIENCE)
        swarm.reach(max(GRANTS, after + 50), PATIENCE)
    assert len(swarm.killed) == KILLS
    swarm.check()


def test_over_a_killed_server(tmp_path: Path) -> None:
    with Etcd(args=QUICK_ETCD) as server:

        def restart() -> None:
            server.kill()
            server.restart()

        whirl(Swarm(server.url, secrets.token_hex(4), tmp_path / "notes", 1.0), restart)


def test_over_a_killed_leader(tmp_path: Path) -> None:
    with EtcdCluster(args=QUICK_ETCD) as cluster:

        def behead() -> None:
            old = leader(cluster)
            old.kill()
            assert leader(cluster) is not old
            old.restart()

        whirl(Swarm(cluster.url, secrets.token_hex(4), tmp_path / "notes", 1.0), behead)


def test_a_bump_is_done_if_the_store_is_past_it_and_else_names_the_way(etcd_server: Endpoint) -> None:
    with fencepost.connect(etcd_server.url) as locks:
        lease = locks.acquire(secrets.token_hex(4))
        locks.bump(lease.name, above=lease.token)
        with pytest.raises(ConfigError, match="--bump-revision"):
            locks.bump(lease.name, above=2**60)
        assert lease.release()
