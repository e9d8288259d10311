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


def command(url: str, *arguments: str) -> list[str]:
    """A command of etcdctl's. By itself it waits 2 s for a login, and 5 s for an answer."""
    waits = [f"--dial-timeout={PATIENCE:g}s", f"--command-timeout={PATIENCE:g}s"]
    return [program("ETCDCTL"), "--endpoints", url.partition("://")[2], *waits, *arguments]


def etcdctl(url: str, *arguments: str) -> Any:
    """What etcdctl answers, decoded."""
    wanted = command(url, "--write-out", "json", *arguments)
    done = subprocess.run(wanted, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout


def queued(locks: sync.Locks, name: str, count: int) -> bool:
    """Whether so many wait for a lock."""
    status = locks.status(name)
    return status is not None and len(status.waiters) == count


class Native(Child):
    """``etcdctl lock``: it prints its key once it holds the lock, and holds it until it is ended."""

    def __init__(self, url: str, name: str, ttl: int = 60) -> None:
        super().__init__(command(url, "lock", "--ttl", str(ttl), name))

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
