"""Several Redis servers that belong together: a cluster, and a master with a replica under Sentinel."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import Self

import redis

from fencepost.lab.servers import HOST, Cluster, Redis, wait_until

SLOTS = 16384


@dataclass(kw_only=True, eq=False)
class Member(Redis):
    """One master of a cluster."""

    port_count = 2

    def command(self) -> list[str]:
        return [
            *super().command(),
            *("--cluster-enabled", "yes", "--cluster-port", str(self.ports[1])),
            *("--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"),
        ]

    def tell(self, *command: str | int) -> str:
        """What the server answers to one command."""
        with contextlib.closing(redis.Redis(HOST, self.port, decode_responses=True)) as client:
            return str(client.execute_command(*command))  # type: ignore[no-untyped-call]


class RedisCluster(Cluster[Member]):
    """A cluster of masters, three unless `size` says otherwise, with all slots served."""

    def __init__(self, *, size: int = 3) -> None:
        super().__init__(lambda number, peers: Member(), size=size)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(member.address for member in self.members)}"

    def start(self) -> Self:
        fresh = not self.members
        super().start()
        if fresh:
            share = SLOTS // len(self.members)
            for number, member in enumerate(self.members):
                last = SLOTS - 1 if number == len(self.members) - 1 else (number + 1) * share - 1
                member.tell("CLUSTER", "ADDSLOTSRANGE", number * share, last)
                for other in self.members[:number]:
                    member.tell("CLUSTER", "MEET", HOST, other.port, other.ports[1])
        assert wait_until(self.settled, timeout=30), "the cluster did not come together"
        return self

    def settled(self) -> bool:
        wanted = {"cluster_state:ok", f"cluster_known_nodes:{len(self.members)}", f"cluster_slots_assigned:{SLOTS}"}
        return all(wanted <= set(member.tell("CLUSTER", "INFO").split()) for member in self.members)


class Independent(Cluster[Redis]):
    """Servers that know nothing of each other, five unless `size` says otherwise, for a Redlock."""

    def __init__(self, *, size: int = 5) -> None:
        super().__init__(lambda number, peers: Redis(args=["--save", ""]), size=size)

    @property
    def url(self) -> str:
        return f"redlock://{','.join(member.address for member in self.members)}/0"


@dataclass(kw_only=True, eq=False)
class Watcher(Redis):
    """One sentinel, watching the server that listens on `master`."""

    master: int
    quorum: int = 1

    def prepare(self) -> None:
        (self.folder / "sentinel.conf").write_text(
            f"sentinel monitor mymaster {HOST} {self.master} {self.quorum}\n"
            "sentinel down-after-milliseconds mymaster 600\n"
            "sentinel failover-timeout mymaster 3000\n"
        )

    def command(self) -> list[str]:
        program, *options = super().command()
        return [program, str(self.folder / "sentinel.conf"), "--sentinel", *options]


class Proxy:
    """A TCP proxy in front of a loopback port, whose bytes can be held back."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._gate = self._open_gate()
        self._shut: list[threading.Event] = []
        self._listener = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.held = 0
        """Bytes that were held back."""
        threading.Thread(target=self._accept, daemon=True).start()

    @staticmethod
    def _open_gate() -> threading.Event:
        gate = threading.Event()
        gate.set()
        return gate

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((HOST, self._target))
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink, self._gate), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not gate.is_set():
                    self.held += len(data)
                    gate.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self, *, newcomers: bool = True) -> None:
        """Hold back everything from now on; with ``newcomers`` False, new connections are let through."""
        self._gate.clear()
        self._shut.append(self._gate)
        if not newcomers:
            self._gate = self._open_gate()

    def mend(self) -> None:
        """Let go of what was held back, in order."""
        for gate in self._shut:
            gate.set()

    def close(self) -> None:
        self.mend()
        for each in (self._listener, *self._sockets):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
