"""What the store itself counts, before and after a run, where it can be asked."""

import urllib.request
from typing import Any

from fencepost.address import parse

_ETCD = {
    "etcd_server_proposals_applied_total": "proposals",
    "process_cpu_seconds_total": "cpu_seconds",
}


def figures(backend: str | None) -> dict[str, float]:
    """The store's own totals; nothing where it has none that we can read."""
    address = parse(backend) if backend else None
    try:
        if address and address.scheme == "redis":
            return _redis(backend or "")
        if address and address.scheme == "etcd":
            return _etcd(address.hosts[0])
    except Exception:
        pass  # a figure less: the run itself says whether the store works
    return {}


def spent(before: dict[str, float], after: dict[str, float], sections: int) -> dict[str, Any]:
    """What a run cost the store, in all and for each section."""
    found: dict[str, Any] = {name: round(value - before.get(name, 0.0), 6) for name, value in after.items()}
    if sections:
        found["per_section"] = {name: value / sections for name, value in found.items()}
    return found


def _redis(url: str) -> dict[str, float]:
    import redis

    with redis.Redis.from_url(url.partition("?")[0]) as client:
        info: Any = client.info()
    return {
        "reads": info["total_reads_processed"],
        "cpu_seconds": info["used_cpu_sys"] + info["used_cpu_user"],
        "bytes_in": info["total_net_input_bytes"],
        "bytes_out": info["total_net_output_bytes"],
    }


def _etcd(host: tuple[str, int | None]) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{host[0]}:{host[1] or 2379}/metrics", timeout=2) as reply:
        lines = reply.read().decode().splitlines()
    found = {}
    for line in lines:
        name, _, value = line.partition(" ")
        if name in _ETCD:
            found[_ETCD[name]] = float(value)
    return found
