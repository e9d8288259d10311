"""Locks in Consul, against py-consul with a session that is used again and again."""

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

import fencepost
from bench.harness import Sides, bench
from tests.servers import Consul


def reused(server: Consul) -> tuple[str, Callable[[], object]]:
    """Acquire and release with one session: through py-consul, or as a plain HTTP client would where it is missing."""
    if importlib.util.find_spec("consul"):
        client: Any = importlib.import_module("consul").Consul(port=server.port)
        session = client.session.create(ttl=3600, lock_delay=0, behavior="release")

        def cycle() -> None:
            assert client.kv.put("peer", "x", acquire=session)
            assert client.kv.put("peer", "x", release=session)

        return "py-consul", cycle
    plain = httpx2.Client(base_url=f"http://{server.address}/v1")
    created = plain.put("/session/create", content=json.dumps({"TTL": "3600s", "LockDelay": "0s"}))
    held = created.json()["ID"]

    def ask() -> None:
        assert plain.put(f"/kv/peer?acquire={held}", content=b"x").text.strip() == "true"
        assert plain.put(f"/kv/peer?release={held}", content=b"x").text.strip() == "true"

    return "httpx2, session reused", ask


@bench("consul: acquire + release vs py-consul with a reused session", aim=0.5, iterations=40, rounds=25)
def uncontended() -> Iterator[Sides]:
    with Consul() as server, fencepost.connect(server.url) as locks:
        name, cycle = reused(server)
        yield {"fencepost": lambda: locks.acquire("bench").release(), name: cycle}
