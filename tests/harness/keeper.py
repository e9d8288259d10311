"""The process that keeps the servers of one test run: each is started at most once, for all pytest workers.

pytest starts it (see ``servers``); a worker asks for a server by name and gets its address and the places of its logs.
It ends with its standard input, and every server ends with it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fencepost_lab.servers import QUICK_ETCD, Consul, Etcd, EtcdCluster, Missing, Postgres, Redis, ZooKeeper
from fencepost_lab.servers.objects import ObjectStore
from fencepost_lab.servers.redis_groups import Independent, RedisCluster
from fencepost_lab.servers.server import Server
from tests.harness.pgbouncer import PgBouncer

Ask = Callable[[str], Any]

SERVERS: dict[str, Callable[[Ask], AbstractContextManager[Any]]] = {
    "redis": lambda _: Redis(),
    "redis_cluster": lambda _: RedisCluster(),
    "redlock": lambda _: Independent(),
    "etcd": lambda _: Etcd(args=QUICK_ETCD),
    "etcd_cluster": lambda _: EtcdCluster(args=QUICK_ETCD),
    "zookeeper": lambda _: ZooKeeper(),
    # Less than the usual 10 s, so that tests of expiry do not wait long.
    "consul": lambda _: Consul(args=["-hcl", 'session_ttl_min = "500ms"']),
    # Several workers share it.
    "postgres": lambda _: Postgres(args=["-c", "max_connections=800"]),
    "pgbouncer": lambda ask: PgBouncer(target=ask("postgres").url, size=80),
    "object_store": lambda _: ObjectStore(),
}


class Keeper:
    """Starts servers on demand and answers with what the askers need to know."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, Any] = {}
        self._failed: dict[str, dict[str, str]] = {}
        self._gates = {name: threading.Lock() for name in SERVERS}

    def server(self, name: str) -> Any:
        with self._gates[name]:
            if name not in self._started:
                self._started[name] = self._stack.enter_context(SERVERS[name](self.server))
            return self._started[name]

    def answer(self, name: str) -> dict[str, Any]:
        if name in self._failed:  # one try: a server that does not start costs every test the same short failure
            return self._failed[name]
        try:
            server = self.server(name)
        except Missing as missing:
            self._failed[name] = {"missing": str(missing)}
        except Exception:
            self._failed[name] = {"failed": traceback.format_exc()}
        else:
            members = getattr(server, "members", [server])
            return {"url": server.url, "logs": [str(each.log) for each in members if isinstance(each, Server)]}
        return self._failed[name]


def ask(address: str, name: str) -> Any:
    """Ask the keeper at ``address`` for a server."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(280)  # below pytest's timeout; a first start on a busy machine takes its time
        connection.connect(f"\0{address}")
        connection.sendall(name.encode() + b"\n")
        with connection.makefile("rb") as answer:
            return json.loads(answer.readline())


def main(address: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's; it ends us by closing our input
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{address}")
    listener.listen(64)
    with contextlib.ExitStack() as stack:
        keeper = Keeper(stack)

        def serve(connection: socket.socket) -> None:
            with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError):
                name = stream.readline().decode().strip()
                stream.write(json.dumps(keeper.answer(name)).encode() + b"\n")
                stream.flush()

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
