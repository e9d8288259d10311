"""etcd as the tests of its backend need it: quick to elect, countable, and seen through its own tools."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from fencepost import sync
from fencepost_lab.servers import Etcd, EtcdCluster, http_text
from fencepost_lab.servers.processes import HOST, program
from tests.harness.child import Child
from tests.harness.waiting import PATIENCE, until

LONG = 300.0
"""A ttl or timeout that outlives the test."""


def etcdctl(url: str, *arguments: str) -> Any:
    """What etcdctl answers, decoded."""
    address = url.partition("://")[2]
    command = [program("ETCDCTL"), "--endpoints", address, "--write-out", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout


def queued(locks: sync.Locks, name: str, count: int) -> bool:
    """Whether so many wait for a lock."""
    status = locks.status(name)
    return status is not None and len(status.waiters) == count


class Native(Child):
    """``etcdctl lock``: it prints its key once it holds the lock, and holds it until it is ended."""

    def __init__(self, url: str, name: str, ttl: int = 60) -> None:
        address = url.partition("://")[2]
        super().__init__([program("ETCDCTL"), "--endpoints", address, "lock", "--ttl", str(ttl), name])

    def has_it(self) -> bool:
        return bool(self.output)

    def release(self) -> None:
        self.signal(signal.SIGTERM)
        self.wait()


def counts(server: Etcd, *methods: str) -> list[int]:
    """How often the server has answered each gRPC method so far."""
    found = dict.fromkeys(methods, 0)
    for line in http_text(server.port, "/metrics").splitlines():
        for method in methods:
            if line.startswith("grpc_server_handled_total") and f'grpc_method="{method}"' in line:
                found[method] += int(float(line.rpartition(" ")[2]))
    return list(found.values())


def leader(cluster: EtcdCluster) -> Etcd:
    """Whoever leads at the moment, as the living members see it."""
    chosen: list[Etcd] = []

    def look() -> bool:
        living = [member for member in cluster.members if member.running]
        for member in living:
            said = etcdctl(f"etcd://{HOST}:{member.port}", "endpoint", "status")[0]["Status"]
            if said.get("leader") == said["header"]["member_id"]:
                chosen[:] = [member]
                return True
        return False

    until(look, "somebody leads", poll=0.1)
    return chosen[0]
