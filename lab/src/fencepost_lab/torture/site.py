"""The servers of one slice: the store, each server behind a proxy, and the guarded values; or a store of the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fencepost.errors import ConfigError
from fencepost_lab.faults.clock import Clock, ClockedPostgres, ClockedRedis
from fencepost_lab.faults.disk import SmallDisk
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import HOST, QUICK_ETCD, Cluster, Consul, Etcd, EtcdCluster, Redis, Resource, ZooKeeper
from fencepost_lab.servers.objects import ObjectStore, s3_client
from fencepost_lab.servers.processes import Missing
from fencepost_lab.servers.redis_groups import Member, RedisCluster, Watched
from fencepost_lab.servers.server import Server, StartFailed
from fencepost_lab.torture.plan import Plan
from fencepost_lab.torture.registers import KINDS

_DISK = 32 << 20
_AOF = ("--appendonly", "yes", "--save", "")


@dataclass
class Site:
    """What a slice runs on, and everything of it that can be harmed."""

    store: str
    url: str
    """As the workers have it: through the proxies."""
    guard: str
    """KIND:ADDRESS, as the workers have it."""
    direct: str = ""
    """The store without a proxy, for the run's own questions."""
    direct_guard: str = ""
    other: str = ""
    """Another store, to which the locks can be moved."""
    direct_other: str = ""
    servers: dict[str, Server] = field(default_factory=dict)
    proxies: dict[str, Proxy] = field(default_factory=dict)
    guard_proxies: dict[str, Proxy] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    client_clock: Clock | None = None
    disk: SmallDisk | None = None
    group: Any = None
    """The cluster, or the watched pair, that the servers are."""
    ours: bool = True
    without: dict[str, str] = field(default_factory=dict)
    """What this site cannot have, and why."""

    def command(self, command: list[str]) -> list[str]:
        """The command line of the workers' nursery."""
        return command if self.client_clock is None else self.client_clock.wrap(command)


class _Announcing(Redis):
    """A Redis that tells everybody the address of a proxy."""

    proxy: Proxy | None = None
    faults: Faults | None = None

    def front(self) -> Proxy:
        """The proxy; made when the port is known."""
        if self.proxy is None:
            self.proxy = Proxy(self.port, who=f"port {self.port}", faults=self.faults)
        return self.proxy

    def close(self) -> None:
        super().close()
        if self.proxy is not None:
            self.proxy.__exit__()
            self.proxy = None


class _Fronted(_Announcing, Member):
    """A member of a Redis Cluster behind a proxy."""

    def command(self) -> list[str]:
        port = str(self.front().port)
        announced = ("--cluster-announce-port", port, "--cluster-announce-bus-port", str(self.ports[1]))
        return [*super().command(), *announced, *_AOF]


class _Replicated(_Announcing):
    """A server under Sentinel behind a proxy, also for its replica and the sentinels."""

    def command(self) -> list[str]:
        return [*super().command(), "--replica-announce-ip", HOST, "--replica-announce-port", str(self.front().port)]


@contextlib.contextmanager
def site(plan: Plan, folder: Path, faults: Faults) -> Iterator[Site]:
    """Start what a plan needs; everything is gone afterwards. ConfigError if it cannot be started."""
    with ExitStack() as stack:
        try:
            made = _foreign(plan) if "://" in plan.store else _BUILD[plan.store](plan, folder, faults, stack)
            _finish(made, plan, folder, faults, stack)
        except (Missing, StartFailed) as error:
            raise ConfigError(f"{plan.store} cannot be started: {error}") from error
        yield made


def _foreign(plan: Plan) -> Site:
    return Site(plan.store.partition("://")[0], plan.store, "", direct=plan.store, ours=False)


def _finish(made: Site, plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> None:
    if plan.guard:
        made.guard_proxies.clear()
        made.guard = made.direct_guard = plan.guard
        if plan.guard in STARTED:
            STARTED[plan.guard](made, folder, faults, stack)
    elif not made.guard:
        made.guard = f"sqlite:{folder / 'values.db'}"
    made.direct = made.direct or made.url
    made.direct_guard = made.direct_guard or made.guard
    if not made.ours:
        return
    other = folder / "other" / "locks.db"
    if not made.other:
        other.parent.mkdir(exist_ok=True)
        made.other = made.direct_other = "sqlite://" + quote(str(other))
    if plan.control or (plan.faults is not None and "client-clock" not in plan.faults):
        return
    try:
        clock = folder / "clock"
        clock.mkdir()
        made.client_clock = Clock(clock, who="clients", faults=faults)
    except Missing as missing:
        made.without["client clock"] = str(missing)


def _proxied(server: Server, name: str, made: Site, faults: Faults, stack: ExitStack) -> str:
    """The address of a new proxy before a server."""
    proxy = stack.enter_context(Proxy(server.port, who=name, faults=faults))
    made.proxies[name] = proxy
    made.servers[name] = server
    if clock := getattr(server, "clock", None):
        made.clocks[name] = clock
    return proxy.address


def _values_in_redis(made: Site, faults: Faults, stack: ExitStack) -> None:
    """The guarded values live in a Redis of their own, which loses nothing: a guard whose marks are lost is none."""
    server = stack.enter_context(Redis(args=_AOF))
    proxy = stack.enter_context(Proxy(server.port, who="values", faults=faults))
    made.guard_proxies["values"] = proxy
    made.guard, made.direct_guard = f"redis:redis://{proxy.address}/0", f"redis:{server.url}"


def _values_over_http(made: Site, folder: Path, faults: Faults, stack: ExitStack) -> None:
    server = stack.enter_context(Resource(args=["--timeout", "10m"]))
    proxy = made.guard_proxies["values"] = stack.enter_context(Proxy(server.port, who="values", faults=faults))
    made.guard, made.direct_guard = f"http:http://{proxy.address}", f"http:{server.url}"


def _values_in_files(made: Site, folder: Path, faults: Faults, stack: ExitStack) -> None:
    made.guard = made.direct_guard = f"file:{folder / 'values'}"


def _values_in_objects(made: Site, folder: Path, faults: Faults, stack: ExitStack) -> None:
    store = stack.enter_context(ObjectStore())
    s3_client(store.url).create_bucket(Bucket="torture")
    proxy = made.guard_proxies["values"] = stack.enter_context(Proxy(store.port, who="values", faults=faults))
    made.guard, made.direct_guard = f"s3:http://{proxy.address}/torture", f"s3:{store.url}/torture"


STARTED = {"http": _values_over_http, "file": _values_in_files, "s3": _values_in_objects}
"""The kinds of guards that are started where no address is given."""


def _sqlite(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    home = folder / "store"
    home.mkdir()
    url = "sqlite://" + quote(str(home / "locks.db"))
    made = Site("sqlite", url, f"sqlite:{folder / 'values.db'}")
    try:
        made.disk = stack.enter_context(SmallDisk(home, _DISK, who="disk", faults=faults))
    except (ConfigError, Missing) as error:
        made.without["disk-full"] = str(error)
    return made


def _redis(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("redis", "", "")
    server = stack.enter_context(ClockedRedis(args=_AOF, who="redis", faults=faults))
    made.url, made.direct = f"redis://{_proxied(server, 'redis', made, faults, stack)}/0", server.url
    if plan.control == "noholder":
        # Its control needs an issuer that repeats tokens: a plain counter does, once the store has lost it.
        made.url, made.direct = f"{made.url}?fence=counter", f"{made.direct}?fence=counter"
    _values_in_redis(made, faults, stack)
    return made


def _redlock(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("redlock", "", "")
    group = stack.enter_context(
        Cluster[ClockedRedis](lambda number, _: ClockedRedis(args=_AOF, who=f"r{number}", faults=faults), size=5)
    )
    made.group = group
    names = [(f"r{number}", server) for number, server in enumerate(group.members, 1)]
    made.url = f"redlock://{','.join(_proxied(server, name, made, faults, stack) for name, server in names)}/0"
    made.direct = f"redlock://{','.join(server.address for _, server in names)}/0"
    _values_in_redis(made, faults, stack)
    return made


def _redis_cluster(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("redis+cluster", "", "")

    def member() -> Member:
        each = _Fronted(node_timeout=2.0)  # so that the cluster notices the faults
        each.faults = faults
        return each

    made.group = stack.enter_context(RedisCluster(make=member))
    for number, each in enumerate(made.group.members, 1):
        made.servers[f"m{number}"] = each
        made.proxies[f"m{number}"] = each.proxy
    made.url = f"redis+cluster://{','.join(proxy.address for proxy in made.proxies.values())}"
    _values_in_redis(made, faults, stack)
    return made


def _redis_sentinel(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("redis+sentinel", "", "")

    def make(args: list[str]) -> Redis:
        each = _Replicated(args=args)
        each.faults = faults
        return each

    def port(server: Redis) -> int:
        assert isinstance(server, _Replicated)
        return server.front().port

    made.group = stack.enter_context(Watched(args=("--save", ""), make=make, port=port))
    made.servers = dict(zip("ab", made.group.servers, strict=True))
    made.proxies = {name: each.front() for name, each in made.servers.items() if isinstance(each, _Replicated)}
    made.url = made.direct = made.group.url
    made.without["lost-tail"] = made.without["restore"] = (
        "it is started without a file here; a lagging failover loses more"
    )
    made.without["duplicate"] = "what a master sends its replica goes through the same proxies, and is said once"
    _values_in_redis(made, faults, stack)
    return made


def _etcd(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("etcd", "", "")
    made.group = stack.enter_context(EtcdCluster(args=QUICK_ETCD))
    names = [(each.name, each) for each in made.group.members]
    made.url = f"etcd://{','.join(_proxied(server, name, made, faults, stack) for name, server in names)}"
    made.direct = made.group.url
    if plan.seed % 4 == 0 and not plan.control:
        # Every fourth slice has its values behind etcd's own guard, in an etcd of its own.
        server = stack.enter_context(Etcd(args=QUICK_ETCD))
        proxy = stack.enter_context(Proxy(server.port, who="values", faults=faults))
        made.guard_proxies["values"] = proxy
        made.guard, made.direct_guard = f"etcd:http://{proxy.address}", f"etcd:http://{server.address}"
    return made


def _zookeeper(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("zookeeper", "", "")
    server = stack.enter_context(ZooKeeper())
    address = _proxied(server, "zookeeper", made, faults, stack)
    made.url, made.direct = (f"zookeeper://{each}/torture?connect_timeout=30s" for each in (address, server.address))
    return made


def _consul(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("consul", "", "")
    # Without this, no session is shorter than 10 s. A waiter is one connection, and one address may have 200.
    shorter = 'session_ttl_min = "500ms" limits { http_max_conns_per_client = 4096 }'
    server = stack.enter_context(Consul(args=["-hcl", shorter]))
    address = _proxied(server, "consul", made, faults, stack)
    made.url, made.direct = (f"consul://{each}/torture?session_ttl_min=500ms" for each in (address, server.address))
    return made


def _postgres(plan: Plan, folder: Path, faults: Faults, stack: ExitStack) -> Site:
    made = Site("postgres", "", "")
    server = stack.enter_context(ClockedPostgres(who="postgres", faults=faults))
    address = _proxied(server, "postgres", made, faults, stack)
    made.direct, made.url = server.url, server.url.replace(server.address, address)
    made.guard, made.direct_guard = f"postgres:{made.url}", f"postgres:{made.direct}"
    return made


_BUILD = {
    "sqlite": _sqlite,
    "redis": _redis,
    "redlock": _redlock,
    "redis+cluster": _redis_cluster,
    "redis+sentinel": _redis_sentinel,
    "etcd": _etcd,
    "zookeeper": _zookeeper,
    "consul": _consul,
    "postgres": _postgres,
}


def checked(store: str, guard: str) -> None:
    """ConfigError if there is no such store or kind of guard."""
    if "://" not in store and store not in _BUILD:
        raise ConfigError(f"there is no store {store!r}; name one of {', '.join(_BUILD)}, all, or give a URL")
    if guard and guard not in STARTED and (guard.partition(":")[0] not in KINDS or ":" not in guard):
        raise ConfigError(
            f"--guard is KIND:ADDRESS, with a kind of {', '.join(KINDS)}; or {', '.join(STARTED)} alone, to start one"
        )
    if guard in STARTED and "://" in store:
        raise ConfigError(f"--guard {guard} is started for a store of ours; name the address of yours: {guard}:...")
