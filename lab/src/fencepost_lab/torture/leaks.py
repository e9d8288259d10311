"""What a slice left behind: in the store, and in the workers that ended in order."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from typing import Any
from urllib.parse import unquote, urlsplit

import fencepost
from fencepost.errors import FencepostError
from fencepost_lab.servers import HOST, Postgres, Server, ask, http_json, wait_until
from fencepost_lab.torture.plan import Plan
from fencepost_lab.torture.site import Site


def after(plan: Plan, site: Site, url: str, workers: list[dict[str, Any]]) -> dict[str, Any]:
    """What is left, and what of it is wrong. What only expires is given the time for it."""
    wrong = []
    for each in workers:
        if each["threads"] or each["sockets"]:
            wrong.append(f"leak: {each['who']} ended with threads {each['threads']} and {each['sockets']} sockets")
    patience = 4 * plan.ttl + 20
    with fencepost.connect(url, ttl=max(5.0, plan.ttl)) as locks:
        held: list[str] = []

        def free() -> bool:
            try:
                held[:] = [each.name for each in locks.list(f"torture/{plan.seed}/")]
            except FencepostError:
                return False
            return not held

        if not wait_until(free, timeout=patience, poll=0.1):
            wrong.append(f"leak: still held {patience:g} s after the end: {', '.join(held[:5])}")
    left = {
        "threads": sum(len(each["threads"]) for each in workers),
        "sockets": sum(each["sockets"] for each in workers),
    }
    left |= {"workers": len(workers), "locks": len(held)}
    if site.ours:
        found: dict[str, int] = {}
        names: list[str] = []

        def clean() -> bool:
            found.clear()
            names.clear()
            found.update(_inside(site, names))
            return not any(found.values())

        if not wait_until(clean, timeout=patience, poll=0.1):
            wrong += [
                f"leak: {count} {what} left in {site.store} {names[:3]}" for what, count in found.items() if count
            ]
        left |= found
    return {"wrong": wrong, "left": left}


def _inside(site: Site, names: list[str]) -> dict[str, int]:
    """What the store itself has of locks, waiters and sessions, without fencepost's help."""
    match site.store:
        case "sqlite":
            return _sqlite(unquote(urlsplit(site.direct).path))
        case "postgres":
            return _postgres(next(iter(site.servers.values())))
        case "etcd":
            return _etcd(next(iter(site.servers.values())))
        case "zookeeper":
            return _zookeeper(next(iter(site.servers.values())))
        case "consul":
            return _consul(next(iter(site.servers.values())))
    found = {"keys": 0, "channels": 0}
    for server in site.servers.values():
        keys, channels = _redis(server)
        found["keys"] += len(keys)
        found["channels"] += channels
        names += keys
    return found


def _sqlite(path: str) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as conn:
        # A lock's row may stay where nobody holds it; what waits or shares must be gone.
        return {each: conn.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in ("waiter", "share")}


def _postgres(server: Server) -> dict[str, int]:
    assert isinstance(server, Postgres)
    found = {each: int(server.psql(f"SELECT count(*) FROM fencepost.{each}")) for each in ("waiter", "share")}
    connections = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    # One is the run's own, to the values.
    return found | {"connections": max(0, int(server.psql(connections)) - 1)}


def _etcd(server: Server) -> dict[str, int]:
    leases = http_json(server.port, "POST", "/v3/lease/leases", "{}").get("leases", [])
    return {"leases": len(leases)}


def _zookeeper(server: Server) -> dict[str, int]:
    watches = ask(server.port, b"wchs").decode()
    holders = re.search(r"Sessions with Ephemerals \((\d+)\)", ask(server.port, b"dump").decode())
    total = next((line for line in watches.splitlines() if line.startswith("Total watches:")), "Total watches:0")
    return {
        "watches": int(total.rpartition(":")[2]),
        "sessions with ephemeral nodes": int(holders[1]) if holders else 0,
    }


def _consul(server: Server) -> dict[str, int]:
    return {"sessions": len(http_json(server.port, "GET", "/v1/session/list"))}


def _redis(server: Server) -> tuple[list[str], int]:
    import redis

    client: Any = redis.Redis(HOST, server.port, decode_responses=True)
    with contextlib.closing(client):
        # The namespace's own counter, and base, stay: they are what tokens grow from.
        # Who left a queue while its request was under way is remembered for a minute: that ends by itself.
        ours = [key for key in client.scan_iter(count=1000) if "torture/" in key]
        keys = [key for key in ours if not ("\x1fgone" in key and client.pttl(key) > 0)]
        channels = [each for each in client.pubsub_channels() if not each.startswith("__")]  # those of Sentinel's own
    return keys, len(channels)
