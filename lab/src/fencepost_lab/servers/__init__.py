"""Real servers on free loopback ports, each in its own temporary folder, gone when this process is.

    with Redis(args=["--appendonly", "yes"]) as server:
        client = redis.from_url(server.url)
        server.kill()       # SIGKILL: a crash
        server.restart()    # same address, same data folder
        server.pause()      # SIGSTOP, then server.resume()

Plain Python, so that benchmarks and experiments use the same starters as the tests. The programs are found
by scripts/servers; `Missing` says how to get one that is not there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from fencepost_lab.servers.processes import HOST, Missing, as_user, program, wait_until
from fencepost_lab.servers.server import Cluster, Server, StartFailed

__all__ = [
    "HOST",
    "QUICK_ETCD",
    "Cluster",
    "Consul",
    "Etcd",
    "EtcdCluster",
    "Missing",
    "Postgres",
    "Redis",
    "Resource",
    "Server",
    "StartFailed",
    "ZooKeeper",
    "ZooKeeperEnsemble",
    "ask",
    "http_json",
    "http_text",
    "wait_until",
]


def ask(port: int, request: bytes, *, timeout: float = 2) -> bytes:
    """Send raw bytes to a loopback port and return the first answer."""
    with socket.create_connection((HOST, port), timeout) as connection:
        connection.sendall(request)
        return connection.recv(65536)


def http_json(port: int, method: str, path: str, body: str | None = None, *, timeout: float = 5) -> Any:
    """One HTTP request to a loopback port, past any proxy; the decoded answer. Raises OSError unless 200."""
    return json.loads(_http(port, method, path, body, timeout))


def http_text(port: int, path: str, *, timeout: float = 5) -> str:
    """What a loopback port answers to a GET, past any proxy. Raises OSError unless 200."""
    return _http(port, "GET", path, None, timeout).decode()


def _http(port: int, method: str, path: str, body: str | None, timeout: float) -> bytes:
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise OSError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return text


def _synced(fsync: bool) -> str:
    return f"fsync {'on' if fsync else 'off'}"


class Redis(Server):
    """A Redis with its default settings: a snapshot on stop, nothing kept on kill. `args` override."""

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    @property
    def durability(self) -> str:
        options = dict(pairwise(self.args))
        if options.get("--appendonly") != "yes":
            return "no append-only file, so no fsync"
        return f"append-only file, fsync {options.get('--appendfsync', 'everysec')}"

    def command(self) -> list[str]:
        return [
            program("REDIS_SERVER"),
            "--bind",
            HOST,
            "--port",
            str(self.port),
            "--dir",
            str(self.folder),
            *self.args,
        ]

    def ping(self) -> bool:
        return ask(self.port, b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))


QUICK_ETCD = ("--heartbeat-interval", "50", "--election-timeout", "500")
"""With these, a new leader is found within a second, and a second is the shortest ttl."""


@dataclass(kw_only=True, eq=False)
class Etcd(Server):
    """One etcd member; alone it is its own cluster. Without `fsync` a power loss would lose data; a kill does not."""

    name: str = "alone"
    peers: Sequence[Etcd] = ()
    fsync: bool = False

    port_count = 2

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    @property
    def durability(self) -> str:
        return _synced(self.fsync)

    @property
    def peer_url(self) -> str:
        return f"http://{HOST}:{self.ports[1]}"

    def command(self) -> list[str]:
        client = f"http://{self.address}"
        cluster = ",".join(f"{peer.name}={peer.peer_url}" for peer in self.peers or [self])
        return [
            program("ETCD"),
            *("--name", self.name, "--data-dir", str(self.folder / "data"), "--logger", "zap"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *(
                "--initial-cluster",
                cluster,
                "--initial-cluster-token",
                f"fencepost-{(self.peers or [self])[0].port}",
            ),
            *(() if self.fsync else ("--unsafe-no-fsync",)),
            *self.args,
        ]

    def ping(self) -> bool:
        return bool(http_json(self.port, "GET", "/health")["health"] == "true")


@dataclass(kw_only=True, eq=False)
class ZooKeeper(Server):
    """One ZooKeeper server; alone it is standalone. No session may be shorter than two `tick` (ms).

    Without `fsync` a power loss would lose data; a kill does not.
    """

    tick: int = 200
    fsync: bool = False
    number: int = 1
    peers: Sequence[ZooKeeper] = ()

    port_count = 3

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}"

    @property
    def durability(self) -> str:
        return _synced(self.fsync)

    def prepare(self) -> None:
        settings = {
            "tickTime": self.tick,
            "maxSessionTimeout": 600_000,
            "initLimit": 100,
            "syncLimit": 50,
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        if len(self.peers) > 1:
            settings |= {f"server.{peer.number}": f"{HOST}:{peer.ports[1]}:{peer.ports[2]}" for peer in self.peers}
        (self.folder / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (self.folder / "data").mkdir()
        (self.folder / "data" / "myid").write_text(str(self.number))

    def command(self) -> list[str]:
        return [
            program("JAVA"),
            *(
                "-Xms32m",
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Djava.net.preferIPv4Stack=true",
            ),
            f"-Dzookeeper.forceSync={'yes' if self.fsync else 'no'}",
            *("-Dzookeeper.jmx.log4j.disable=true", "-cp", program("ZOOKEEPER_CLASSPATH"), *self.args),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")),
        ]

    def ping(self) -> bool:
        return b"Mode: " in ask(self.port, b"srvr")


class Consul(Server):
    """One Consul server agent that keeps its data; ready when it leads and its node can hold sessions."""

    port_count = 4

    @property
    def url(self) -> str:
        return f"consul://{self.address}"

    @property
    def durability(self) -> str:
        return _synced(True)

    def prepare(self) -> None:
        http_port, server, serf_lan, serf_wan = self.ports
        ports = {"http": http_port, "server": server, "serf_lan": serf_lan, "serf_wan": serf_wan}
        settings = {
            "node_name": "fencepost",
            "server": True,
            "bootstrap_expect": 1,
            "data_dir": str(self.folder / "data"),
            "bind_addr": HOST,
            "client_addr": HOST,
            "disable_update_check": True,
            "performance": {"raft_multiplier": 1},
            "ports": {**ports, "dns": -1, "https": -1, "grpc": -1},
        }
        (self.folder / "consul.json").write_text(json.dumps(settings))

    def command(self) -> list[str]:
        return [program("CONSUL"), "agent", "-config-file", str(self.folder / "consul.json"), *self.args]

    def ping(self) -> bool:
        # A leader refuses sessions until it has registered its own node and that node's health check.
        leader = http_json(self.port, "GET", "/v1/status/leader")
        return bool(leader and http_json(self.port, "GET", "/v1/health/node/fencepost"))


@dataclass(kw_only=True, eq=False)
class Postgres(Server):
    """A Postgres with a password, $PGPASSWORD if that is set: its superuser could run programs as our user.

    Without `fsync` a power loss would lose data; a kill does not.
    """

    fsync: bool = False
    password: str = field(default_factory=lambda: os.environ.get("PGPASSWORD") or secrets.token_urlsafe(), repr=False)

    stop_signal = signal.SIGINT  # "fast": SIGTERM would wait for every client to leave
    user = "postgres"

    @property
    def url(self) -> str:
        """With its password, unless clients find that in $PGPASSWORD."""
        known = self.password == os.environ.get("PGPASSWORD")
        return f"postgresql://postgres{'' if known else ':' + self.password}@{self.address}/postgres"

    @property
    def durability(self) -> str:
        return _synced(self.fsync)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def prepare(self) -> None:
        secret = self.folder / "password"
        secret.touch(0o600)
        secret.write_text(self.password)
        if os.geteuid() == 0:
            shutil.chown(secret, self.user)
        command = [
            *(f"{program('POSTGRES_BIN')}/initdb", "--pgdata", str(self.data), "--username", "postgres"),
            *("--auth", "scram-sha-256", "--pwfile", str(secret)),
            *("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"),
        ]
        made = subprocess.run(
            as_user(command, self.user if os.geteuid() == 0 else None),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        secret.unlink()
        if made.returncode:
            raise StartFailed(f"initdb failed:\n{made.stdout[-2000:]}")

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",  # files of the data folder: a kill leaves none in /dev/shm
            "fsync": "on" if self.fsync else "off",
            "max_connections": 200,
        }
        return [
            *(f"{program('POSTGRES_BIN')}/postgres", "-D", str(self.data)),
            *(part for key, value in settings.items() for part in ("-c", f"{key}={value}")),
            *self.args,
        ]

    def psql(self, sql: str, *, timeout: float = 20) -> str:
        """What psql prints for one statement, unaligned; raises OSError if it fails."""
        command = [
            f"{program('POSTGRES_BIN')}/psql",
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            f"postgresql://postgres@{self.address}/postgres",
            "-c",
            sql,
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PGCONNECT_TIMEOUT": "5", "PGPASSWORD": self.password},
        )
        if done.returncode:
            raise OSError(done.stderr.strip())
        return done.stdout.strip()

    def ping(self) -> bool:
        return self.psql("select 1") == "1"


class Resource(Server):
    """``fencepost resource`` on a store of its own; `args` are more options of it."""

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def command(self) -> list[str]:
        store = str(self.folder / "store.sqlite3")
        return [sys.executable, "-m", "fencepost", "resource", "--port", str(self.port), "--store", store, *self.args]

    def ping(self) -> bool:
        return bool(http_json(self.port, "GET", "/healthz")["status"] == "ok")


class EtcdCluster(Cluster[Etcd]):
    """A cluster of etcd members, three unless `size` says otherwise."""

    def __init__(self, *, size: int = 3, args: Sequence[str] = (), fsync: bool = False) -> None:
        def member(number: int, peers: Sequence[Etcd]) -> Etcd:
            return Etcd(name=f"member-{number}", peers=peers, args=args, fsync=fsync)

        super().__init__(member, size=size)


class ZooKeeperEnsemble(Cluster[ZooKeeper]):
    """An ensemble of ZooKeeper servers, three unless `size` says otherwise."""

    def __init__(self, *, size: int = 3, args: Sequence[str] = ()) -> None:
        super().__init__(lambda number, peers: ZooKeeper(number=number, peers=peers, args=args), size=size)


if __name__ == "__main__":
    for kind in (Redis, Etcd, ZooKeeper, Consul, Postgres, EtcdCluster, ZooKeeperEnsemble):
        begun = time.monotonic()
        with kind() as server:
            sys.stdout.write(f"{kind.__name__:18} ready in {time.monotonic() - begun:5.2f} s at {server.url}\n")
