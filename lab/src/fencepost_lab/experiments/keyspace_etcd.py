"""A cluster of etcd for experiments: its members' own figures, compaction and defragmentation."""

import subprocess
from collections.abc import Sequence
from typing import Any

from fencepost_lab.experiments import Settings
from fencepost_lab.servers import Etcd, EtcdCluster, http_text
from fencepost_lab.servers.processes import program
from fencepost_lab.stage.processes import Unexpected

MB = 1e6
_METRICS = {
    "granted": "etcd_debugging_lease_granted_total",
    "revoked": "etcd_debugging_lease_revoked_total",
    "db_size": "etcd_mvcc_db_total_size_in_bytes",
    "in_use": "etcd_mvcc_db_total_size_in_use_in_bytes",
    "memory": "process_resident_memory_bytes",
    "cpu": "process_cpu_seconds_total",
    "leads": "etcd_server_is_leader",
    "revision": "etcd_debugging_mvcc_current_revision",
}


def started(settings: Settings, *args: str) -> EtcdCluster:
    """A cluster that syncs to disk and compacts nothing by itself, with etcd's own timing."""
    return EtcdCluster(size=settings["etcd_members"], args=("--auto-compaction-retention", "0", *args), fsync=True)


def look(member: Etcd) -> dict[str, Any]:
    """What a member says of itself."""
    lines = (line.split(" ") for line in http_text(member.port, "/metrics", timeout=30).splitlines() if line[:1] != "#")
    said = {words[0]: float(words[-1]) for words in lines}
    return {name: said[metric] if name == "cpu" else int(said[metric]) for name, metric in _METRICS.items()}


def compact(members: Sequence[Etcd]) -> None:
    """Drop every revision but the last; its room in the file can be used again."""
    etcdctl(members[0], "compact", "--physical", str(max(look(member)["revision"] for member in members)))


def defragment(members: Sequence[Etcd]) -> None:
    """Give the room that is not used back to the disk, one member after the other."""
    for member in members:
        etcdctl(member, "defrag")


def etcdctl(member: Etcd, *words: str) -> str:
    """What etcdctl answers; Unexpected if it fails."""
    said = subprocess.run(
        [program("ETCDCTL"), "--endpoints", member.address, *words], capture_output=True, text=True, timeout=120
    )
    if said.returncode:
        raise Unexpected(f"etcdctl {' '.join(words)}: {said.stderr.strip()}")
    return said.stdout
