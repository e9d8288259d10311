"""Tokens of ZooKeeper and Consul grow over many acquisitions, killed holders, restarts and a killed leader.

FENCEPOST_SWARM=10000 makes it as long as the design asks for; without it, it takes seconds.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost.lab.servers import Consul, ZooKeeper, ZooKeeperEnsemble, ask
from fencepost.lab.servers.processes import wait_until
from tests.backends.swarm import Swarm

GRANTS = int(os.environ.get("FENCEPOST_SWARM", "300"))
KILLS = max(2, GRANTS // 400)
PATIENCE = 60 + GRANTS / 10

pytestmark = pytest.mark.timeout(4 * PATIENCE)


def leader(ensemble: ZooKeeperEnsemble) -> ZooKeeper:
    """Whoever leads at the moment."""
    found: list[ZooKeeper] = []

    def look() -> bool:
        found[:] = [each for each in ensemble.members if each.running and b"Mode: leader" in ask(each.port, b"srvr")]
        return bool(found)

    assert wait_until(look, timeout=PATIENCE)
    return found[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def whirl(swarm: Swarm, upset: Callable[[], None]) -> None:
    """Grants, kills of holders, the upset in the middle of it all, and more of both."""
    half = GRANTS // 2
    with swarm:
        swarm.reach(half // 2, PATIENCE)
        for _ in range(KILLS // 2):
            swarm.kill_holder(PATIENCE)
        swarm.reach(half, PATIENCE)
        upset()
        after = len(swarm.grants())
        for _ in range(KILLS - KILLS // 2):
            swarm.kill_holder(PATIENCE)
        swarm.reach(max(GRANTS, after + 50), PATIENCE)
    assert len(swarm.killed) == KILLS
    swarm.check()


def test_zookeeper_over_a_restart(file: Path) -> None:
    with ZooKeeper() as server:
        swarm = Swarm(f"{server.url}/swarm?connect_timeout=30s", secrets.token_hex(4), file, 1.0)

        def restart() -> None:
            server.kill()
            server.restart()

        whirl(swarm, restart)


def test_zookeeper_over_a_killed_leader(file: Path) -> None:
    with ZooKeeperEnsemble() as ensemble:
        swarm = Swarm(f"{ensemble.url}/swarm?connect_timeout=30s", secrets.token_hex(4), file, 2.0)

        def behead() -> None:
            old = leader(ensemble)
            old.kill()
            assert leader(ensemble) is not old
            old.restart()

        whirl(swarm, behead)


@pytest.fixture
def consul() -> Iterator[Consul]:
    with Consul(args=["-hcl", 'session_ttl_min = "500ms"']) as server:
        yield server


def test_consul_over_a_restart(consul: Consul, file: Path) -> None:
    swarm = Swarm(f"{consul.url}/swarm?session_ttl_min=500ms", secrets.token_hex(4), file, 1.0)

    def restart() -> None:
        consul.kill()
        consul.restart()

    whirl(swarm, restart)
