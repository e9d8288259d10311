"""Locks in Consul, against other clients that use one session again and again."""

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

import fencepost
from bench.harness import Sides, bench
from fencepost_lab.servers import Consul

MEMORY = Path("/dev/shm")


@contextmanager
def consul(folder: Path | None = None) -> Iterator[Consul]:
    """A server that keeps its data in this folder, or where the system keeps temporary files."""
    usual, tempfile.tempdir = tempfile.tempdir, str(folder) if folder and folder.is_dir() else tempfile.tempdir
    try:
        with Consul() as server:
            yield server
    finally:
        tempfile.tempdir = usual


def plain(client: httpx2.Client, server: Consul) -> Callable[[], None]:
    root = f"http://{server.address}/v1"
    session = client.put(f"{root}/session/create", json={"TTL": "3600s", "LockDelay": "0s"}).json()["ID"]

    def cycle() -> None:
        for verb in ("acquire", "release"):
            assert client.put(f"{root}/kv/peer?{verb}={session}", content=b"x").text.strip() == "true"

    return cycle


def py_consul(server: Consul) -> Callable[[], None]:
    client: Any = importlib.import_module("consul").Consul(port=server.port)
    session = client.session.create(ttl=3600, lock_delay=0, behavior="release")

    def cycle() -> None:
        assert client.kv.put("peer", "x", acquire=session)
        assert client.kv.put("peer", "x", release=session)

    return cycle


@bench("consul: acquire + release vs httpx2 with a reused session", iterations=40, rounds=25)
def against_httpx() -> Iterator[Sides]:
    with consul(MEMORY) as server, fencepost.connect(server.url) as locks, httpx2.Client() as client:
        yield {"fencepost": lambda: locks.acquire("bench").release(), "httpx2": plain(client, server)}


if importlib.util.find_spec("consul"):

    @bench(
        "consul: acquire + release vs py-consul with a reused session",
        bound="Consul's own time for two writes through its log, which both sides wait for.",
        aim=0.5,
        iterations=40,
        rounds=25,
    )
    def in_memory() -> Iterator[Sides]:
        """Without the disk, which both sides would wait for twice."""
        with consul(MEMORY) as server, fencepost.connect(server.url) as locks:
            yield {"fencepost": lambda: locks.acquire("bench").release(), "py-consul": py_consul(server)}

    @bench("consul on disk: acquire + release vs py-consul with a reused session", iterations=40, rounds=25)
    def on_disk() -> Iterator[Sides]:
        with consul() as server, fencepost.connect(server.url) as locks:
            yield {"fencepost": lambda: locks.acquire("bench").release(), "py-consul": py_consul(server)}
