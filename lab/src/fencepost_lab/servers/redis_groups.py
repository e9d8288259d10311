"""Several Redis servers that belong together: a cluster, and a master with a replica under Sentinel."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import redis

from fencepost_lab.servers import HOST, Cluster, Redis, wait_until
from fencepost_lab.servers.processes import program
from fencepost_lab.servers.programs import found_version, numbers

SLOTS = 16384


@functools.cache
def _chooses_bus(server: str) -> bool:
    """Whether the port of the cluster bus can be chosen; before Redis 7.0, it is 10,000 above the clients' port."""
    return numbers(found_version("redis", {"REDIS_SERVER": server})) >= (7,)


@dataclass(kw_only=True, eq=False)
class Member(Redis):
    """One master of a cluster, which the others take for failed after ``node_timeout`` seconds of silence.

    That is long unless a shorter one is asked for: on a busy machine a server is silent by itself, and the cluster
    would refuse requests, or promote a replica, though nothing has failed.
    """

    port_count = 2
    node_timeout: float = 60.0

    def claim(self) -> None:
        super().claim()
        if not _chooses_bus(program("REDIS_SERVER")):
            self.ports[1] = self.port + 10_000

    def command(self) -> list[str]:
        return [
            *super().command(),
            *("--cluster-enabled", "yes"),
            *(("--cluster-port", str(self.ports[1])) if _chooses_bus(program("REDIS_SERVER")) else ()),
            *("--cluster-node-timeout", f"{self.node_timeout * 1000:.0f}", "--cluster-require-full-coverage", "no"),
        ]

    def tell(self, *command: str | int) -> str:
        """What the server answers to one command."""
        with contextlib.closing(redis.Redis(HOST, self.port, decode_responses=True)) as client:
            return str(client.execute_command(*command))  # type: ignore[no-untyped-call]


class RedisCluster(Cluster[Member]):
    """A cluster of masters, three unless `size` says otherwise, with all slots served."""

    def __init__(self, *, size: int = 3, make: Callable[[], Member] = Member) -> None:
        super().__init__(lambda number, peers: make(), size=size)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(member.address for member in self.members)}"

    def start(self) -> Self:
        fresh = not self.members
        super().start()
        if fresh:
            each = SLOTS // len(self.members)
            for number, member in enumerate(self.members):
                last = SLOTS - 1 if number == len(self.members) - 1 else (number + 1) * each - 1
                member.tell("CLUSTER", "ADDSLOTS", *range(number * each, last + 1))
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
    down_after: float = 0.6

    def prepare(self) -> None:
        (self.folder / "sentinel.conf").write_text(
            f"sentinel monitor mymaster {HOST} {self.master} {self.quorum}\n"
            f"sentinel down-after-milliseconds mymaster {self.down_after * 1000:.0f}\n"
            "sentinel failover-timeout mymaster 3000\n"
        )

    def command(self) -> list[str]:
        program, *options = super().command()
        return [program, str(self.folder / "sentinel.conf"), "--sentinel", *options]


class Watched:
    """A master, its replica, and three sentinels who agree that the master is well.

    ``port`` says where a server is to be reached, by its replica, the sentinels and everybody whom they tell: its own
    port, unless a proxy stands before it.
    """

    def __init__(
        self,
        *,
        down_after: float = 0.6,
        args: tuple[str, ...] = (),
        make: Callable[[list[str]], Redis] = lambda args: Redis(args=args),
        port: Callable[[Redis], int] = lambda server: server.port,
    ) -> None:
        self._down_after = down_after
        self._args = args
        self._make = make
        self.port = port
        self._stack = contextlib.ExitStack()
        self.servers: list[Redis] = []
        self.watchers: list[Watcher] = []

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(each.address for each in self.watchers)}/mymaster"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            master = stack.enter_context(self._make(self.options()))
            replica = stack.enter_context(self._make(self.options(master)))
            self.servers = [master, replica]
            assert wait_until(lambda: in_sync(replica), timeout=60), "the replica did not get in sync"
            self.watchers = [
                stack.enter_context(Watcher(master=self.port(master), quorum=2, down_after=self._down_after))
                for _ in range(3)
            ]
            assert wait_until(self.agreed, timeout=60), "the sentinels did not find each other"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def options(self, master: Redis | None = None) -> list[str]:
        """How a server is started that follows ``master``, or nobody."""
        follows = [] if master is None else ["--replicaof", HOST, str(self.port(master))]
        return ["--repl-diskless-sync-delay", "0", *follows, *self._args]

    def agreed(self) -> bool:
        """Whether every sentinel knows the replica and both others."""
        for watcher in self.watchers:
            client: Any = redis.Redis(port=watcher.port, decode_responses=True)
            with contextlib.closing(client):
                state = client.sentinel_master("mymaster")
            if (state["num-slaves"], state["num-other-sentinels"]) != (1, 2):
                return False
        return True

    @property
    def master(self) -> Redis:
        """The server that leads, as the first sentinel has it."""
        client: Any = redis.Redis(port=self.watchers[0].port, decode_responses=True)
        with contextlib.closing(client):
            _, port = client.sentinel_get_master_addr_by_name("mymaster")
        return next(each for each in self.servers if self.port(each) == int(port))


def in_sync(replica: Redis) -> bool:
    """Whether a replica is connected to its master."""
    with contextlib.closing(redis.Redis(port=replica.port, decode_responses=True)) as client:
        return bool(client.info("replication").get("master_link_status") == "up")
