"""Tokens over many grants, killed holders, a killed leader and a restarted server: each larger than all before it.

    python -m tests.programs.storm [etcd zookeeper consul ...] [--grants 10000] [--kills 25] [--json]

Eight processes take one lock in turn. Some are killed while they hold it; halfway through, the server is killed and
started again, and where there are three, it is the one that leads. The tests run the same at a small size.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from fencepost_lab.servers import QUICK_ETCD, Consul, Etcd, EtcdCluster, ZooKeeper, ZooKeeperEnsemble, ask
from fencepost_lab.servers.server import Server
from tests.backends.etcd import tools as etcd
from tests.harness.waiting import until
from tests.programs.swarm import Swarm


@dataclass(frozen=True)
class Weather:
    """A store to take a lock in, and what befalls it halfway through."""

    url: str
    ttl: float
    upset: Callable[[], None]


def restarting(server: Server) -> Callable[[], None]:
    def restart() -> None:
        server.kill()
        server.restart()

    return restart


@contextmanager
def etcd_alone() -> Iterator[Weather]:
    with Etcd(args=QUICK_ETCD) as server:
        yield Weather(server.url, 1.0, restarting(server))


@contextmanager
def etcd_cluster() -> Iterator[Weather]:
    with EtcdCluster(args=QUICK_ETCD) as cluster:

        def behead() -> None:
            old = etcd.leader(cluster)
            old.kill()
            assert etcd.leader(cluster) is not old
            old.restart()

        yield Weather(cluster.url, 1.0, behead)


@contextmanager
def zookeeper_alone() -> Iterator[Weather]:
    with ZooKeeper() as server:
        yield Weather(f"{server.url}/storm?connect_timeout=30s", 1.0, restarting(server))


@contextmanager
def zookeeper_ensemble() -> Iterator[Weather]:
    with ZooKeeperEnsemble() as ensemble:

        def behead() -> None:
            old = leader(ensemble)
            old.kill()
            assert leader(ensemble) is not old
            old.restart()

        yield Weather(f"{ensemble.url}/storm?connect_timeout=30s", 2.0, behead)


@contextmanager
def consul() -> Iterator[Weather]:
    with Consul(args=["-hcl", 'session_ttl_min = "500ms"']) as server:
        yield Weather(f"{server.url}/storm?session_ttl_min=500ms", 1.0, restarting(server))


def leader(ensemble: ZooKeeperEnsemble) -> ZooKeeper:
    """Whoever leads at the moment."""
    found: list[ZooKeeper] = []

    def look() -> bool:
        found[:] = [each for each in ensemble.members if each.running and b"Mode: leader" in ask(each.port, b"srvr")]
        return bool(found)

    until(look, "somebody leads")
    return found[0]


STORMS = {
    "etcd": etcd_cluster,
    "zookeeper": zookeeper_ensemble,
    "consul": consul,
    "etcd-alone": etcd_alone,
    "zookeeper-alone": zookeeper_alone,
}


@dataclass(frozen=True)
class Passed:
    """What a storm left behind; ``still`` is the longest time in which nobody was granted the lock."""

    grants: int
    killed_holders: int
    seconds: float
    still: float


def storm(name: str, *, grants: int, kills: int, patience: float, processes: int = 8) -> Passed:
    """Run one; AssertionError if a token did not grow, or if the lock stood still for good."""
    with STORMS[name]() as weather, tempfile.TemporaryDirectory(prefix="fencepost-storm-") as folder:
        begun = time.monotonic()
        with Swarm(weather.url, secrets.token_hex(4), Path(folder) / "notes", weather.ttl, processes) as swarm:
            swarm.reach(grants // 4, patience)
            for _ in range(kills // 2):
                swarm.kill_holder(patience)
            swarm.reach(grants // 2, patience)
            weather.upset()
            after = len(swarm.grants())
            for _ in range(kills - kills // 2):
                swarm.kill_holder(patience)
            swarm.reach(max(grants, after + 50), patience)
            seconds = time.monotonic() - begun
        assert len(swarm.killed) == kills
        swarm.check()
        times = [note.at for note in swarm.grants()]
        still = max(later - earlier for earlier, later in pairwise(times))
        return Passed(len(times), len(swarm.killed), round(seconds, 1), round(still, 1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.storm", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STORMS)}; all")
    parser.add_argument("--grants", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--json", action="store_true", help="one JSON object per storm")
    options = parser.parse_args()
    names = options.names or list(STORMS)
    if strangers := set(names) - set(STORMS):
        parser.error(f"no such storm: {', '.join(strangers)}; there are {', '.join(STORMS)}")
    for name in names:
        passed = storm(name, grants=options.grants, kills=options.kills, patience=60 + options.grants / 10)
        if options.json:
            line = json.dumps({"storm": name, **asdict(passed)})
        else:
            line = (
                f"{name}: {passed.grants} grants by 8 processes in {passed.seconds} s, {passed.killed_holders} holders "
                f"killed, the longest standstill {passed.still} s; every token was larger than all before it"
            )
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
