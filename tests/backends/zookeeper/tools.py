"""A ZooKeeper of a test's own, and ways to look into it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Close, Connect

from fencepost_lab.servers import ZooKeeper
from fencepost_lab.servers.processes import HOST, program
from tests.harness.servers import unavailable
from tests.harness.waiting import PATIENCE

LONG = 300.0  # a ttl that outlives the test: whatever frees the lock, it was not expiry


def java(into: Path, name: str, *jars: str) -> str:
    """Compile one of the drivers beside this file; the class path to run it with."""
    compiler = shutil.which("javac")
    core = program("ZOOKEEPER_CLASSPATH")
    found = [str(Path(core.split(":")[0]).with_name(jar)) for jar in jars]
    if compiler is None or not all(Path(jar).exists() for jar in found):
        unavailable(f"{name}.java needs javac and {', '.join(found) or core}")
    path = ":".join([*found, core])
    source = Path(__file__).parent / "java" / f"{name}.java"
    subprocess.run([compiler, "-cp", path, "-d", str(into), str(source)], check=True)
    return f"{into}:{path}"


@dataclass(kw_only=True, eq=False)
class WornZooKeeper(ZooKeeper):
    """A server below whose node `worn` as many sequential nodes were made as `count` says."""

    worn: str
    count: int

    def prepare(self) -> None:
        super().prepare()
        classes = java(self.folder, "Worn")
        arguments = [str(self.folder / "data"), self.worn, str(self.count)]
        subprocess.run([program("JAVA"), "-cp", classes, "Worn", *arguments], check=True, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def kazoo(url: str) -> Iterator[Any]:
    """A client of somebody else's."""
    client = KazooClient(url.partition("://")[2])
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def end_session(port: int, identity: tuple[int, bytes]) -> None:
    """End somebody's session, as the server does when it expires: its number and password are enough.

    In one go: its owner comes back as soon as it has lost its connection, and would take it over again.
    """
    number, password = identity
    connect = Connect(0, 0, 10_000, number, password, False).serialize()
    close = struct.pack("!ii", 1, Close.type)
    with socket.create_connection((HOST, port), PATIENCE) as sock:
        sock.sendall(b"".join(struct.pack("!i", len(each)) + each for each in (connect, close)))
        while sock.recv(4096):
            pass  # until the server hangs up, as it does once the session is closed
