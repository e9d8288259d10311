"""Each real server starts, speaks its protocol, keeps what it should, and never outlives the run."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from kazoo.client import KazooClient

from fencepost_lab.servers import (
    QUICK_ETCD,
    Consul,
    Etcd,
    EtcdCluster,
    Missing,
    Postgres,
    Redis,
    Server,
    StartFailed,
    ZooKeeper,
    ZooKeeperEnsemble,
    ask,
    http_json,
    processes,
)
from fencepost_lab.servers.processes import HOST, family_of, state_of
from tests import ROOT
from tests.harness.child import Child
from tests.harness.servers import Endpoint, provided, running, unavailable
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until

pytestmark = pytest.mark.server

SCRIPT = ROOT / "scripts" / "servers"
Started = TypeVar("Started", bound=AbstractContextManager[object])
Test = Callable[..., None]

# Where the environment gives an address, nobody promised that the program is here to be started.
KINDS: list[type[Server]] = [
    kind
    for kind in (Redis, Etcd, ZooKeeper, Consul, Postgres)
    if not os.environ.get(f"FENCEPOST_TEST_{kind.__name__.upper()}_URL")
]


def for_each(*kinds: type[Server]) -> Callable[[Test], Test | None]:
    """Run the test for each of these kinds that this run starts; collect nothing if it starts none."""
    ours = [kind for kind in kinds if kind in KINDS]
    mark = pytest.mark.parametrize("kind", ours, ids=[kind.__name__ for kind in ours])
    return lambda test: mark(test) if ours else None


def only_with(kind: type[Server]) -> Callable[[Test], Test | None]:
    """Collect the test only if this run starts servers of the kind."""
    return lambda test: test if kind in KINDS else None


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextlib.contextmanager
def zookeeper_client(server: Server) -> Iterator[Any]:
    client = KazooClient(server.address)
    client.start(PATIENCE)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def etcd(server: Server, method: str, body: dict[str, str]) -> Any:
    """What etcd answers once it has a leader: when it stands still for half a second, it elects another one."""

    def answer() -> Any:
        with contextlib.suppress(OSError):
            return http_json(server.port, "POST", f"/v3/kv/{method}", json.dumps(body))
        return None

    return until(answer, f"etcd's answer to {method}")


def put(server: Server, value: str) -> None:
    """Keep one value, over the server's own protocol."""
    match server:
        case Redis():
            assert ask(server.port, f"SET key {value}\r\n".encode(), timeout=PATIENCE) == b"+OK\r\n"
        case Etcd():
            body = {"key": coded("key"), "value": coded(value)}
            etcd(server, "put", body)
        case ZooKeeper():
            with zookeeper_client(server) as client:
                client.create("/key", value.encode())
        case Consul():
            assert http_json(server.port, "PUT", "/v1/kv/key", value, timeout=PATIENCE) is True
        case Postgres():
            server.psql(f"create table kept as select '{value}' as value")


def get(server: Server) -> str:
    """The value that was put."""
    match server:
        case Redis():
            return ask(server.port, b"GET key\r\n", timeout=PATIENCE).decode().split("\r\n")[1]
        case Etcd():
            found = etcd(server, "range", {"key": coded("key")})
            return base64.b64decode(found["kvs"][0]["value"]).decode()
        case ZooKeeper():
            with zookeeper_client(server) as client:
                return str(client.get("/key")[0].decode())
        case Consul():
            found = http_json(server.port, "GET", "/v1/kv/key", timeout=PATIENCE)
            return base64.b64decode(found[0]["Value"]).decode()
        case Postgres():
            return server.psql("select value from kept")
    raise AssertionError(server)


def healthy(server: Server) -> bool:
    with contextlib.suppress(OSError):
        return server.ping()
    return False


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((processes.HOST, port)) != 0


@for_each(Redis, Etcd, ZooKeeper, Consul, Postgres)
def test_a_server_is_paused_killed_restarted_and_closed(kind: type[Server]) -> None:
    """One server's life: starting a new one for each of these would take most of the time."""
    durable = kind is not Redis  # whose own test is below
    with running(kind(timeout=PATIENCE)) as server:
        assert server.folder.is_dir()
        assert server.log.exists()
        if durable:
            put(server, "kept")
            assert get(server) == "kept"

        with server.paused():
            # A child that has just ended stays a zombie while its parent is stopped.
            assert {state_of(pid) for pid in family_of(server.pid)} - {"Z"} == {"T"}
            assert not refuses(server.port), "the kernel still takes connections"
        until(lambda: healthy(server), "the resumed server")

        address, pid = server.url, server.pid
        server.kill()
        assert not server.running
        assert not Path(f"/proc/{pid}").exists()
        assert refuses(server.port)
        server.start()
        assert (server.url, server.pid != pid) == (address, True)
        if durable:
            assert get(server) == "kept", "through a kill"
            server.restart()
            assert get(server) == "kept", "through a stop"
        family = family_of(server.pid)
    assert not server.folder.exists()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), "the end of all its processes")


@only_with(Redis)
def test_redis_keeps_its_data_through_stop_but_through_kill_only_with_a_log() -> None:
    with running(Redis()) as server:
        put(server, "kept")
        server.restart()
        assert get(server) == "kept"
        put(server, "newer")
        server.kill()
        server.start()
        assert get(server) == "kept"
    with running(Redis(args=["--appendonly", "yes", "--appendfsync", "always"])) as server:
        put(server, "kept")
        server.kill()
        server.start()
        assert get(server) == "kept"


@only_with(Etcd)
def test_an_etcd_cluster_serves_without_one_member_and_not_without_two() -> None:
    with running(EtcdCluster(args=QUICK_ETCD)) as cluster:
        first, second, third = cluster.members
        assert cluster.url == f"etcd://{first.address},{second.address},{third.address}"
        put(first, "shared")
        assert get(third) == "shared"
        first.kill()
        until(lambda: healthy(second), "a leader among two")
        put(second, "of two")
        second.kill()
        until(lambda: not healthy(third), "one of three does not serve")
        cluster.start()
        assert [get(member) for member in cluster.members] == ["of two"] * 3


@only_with(ZooKeeper)
def test_a_zookeeper_ensemble_elects_one_leader() -> None:
    with running(ZooKeeperEnsemble()) as ensemble:
        said = [ask(member.port, b"srvr", timeout=PATIENCE).decode() for member in ensemble.members]
        modes = [each.partition("Mode: ")[2].split()[0] for each in said]
        assert sorted(modes) == ["follower", "follower", "leader"]
        assert ask(ensemble.members[0].port, b"ruok", timeout=PATIENCE) == b"imok"


def test_every_fixture_has_an_address(
    redis_server: Endpoint,
    etcd_server: Endpoint,
    etcd_cluster: Endpoint,
    zookeeper_server: Endpoint,
    consul_server: Endpoint,
    postgres_server: Endpoint,
) -> None:
    fixtures = [redis_server, etcd_server, etcd_cluster, zookeeper_server, consul_server, postgres_server]
    schemes = [endpoint.url.partition("://")[0] for endpoint in fixtures]
    assert schemes == ["redis", "etcd", "etcd", "zookeeper", "consul", "postgresql"]


def test_an_address_from_the_environment_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_TEST_REDIS_URL", "redis://elsewhere:6379/0")
    server = Redis()
    with provided("REDIS", server) as endpoint:
        assert endpoint.url == "redis://elsewhere:6379/0"
        assert not server.running


@pytest.mark.parametrize("promise", [{"CI": "true"}, {"FENCEPOST_REQUIRE_SERVERS": "1"}], ids=str)
def test_a_missing_server_fails_a_run_that_promised_to_be_complete(
    monkeypatch: pytest.MonkeyPatch, promise: dict[str, str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("FENCEPOST_REQUIRE_SERVERS", raising=False)
    monkeypatch.delenv("FENCEPOST_TEST_REDIS_URL", raising=False)
    monkeypatch.setattr(processes, "programs", dict)
    with pytest.raises(pytest.skip.Exception, match="make servers"), provided("REDIS", Redis()):
        pass
    for key, value in promise.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(pytest.fail.Exception, match="make servers"), provided("REDIS", Redis()):
        pass


@only_with(Redis)
def test_a_port_lost_to_somebody_else_is_replaced_by_another() -> None:
    thieves: list[socket.socket] = []

    class Robbed(Redis):
        def prepare(self) -> None:
            if not thieves:
                thieves.append(socket.create_server((processes.HOST, self.port)))

    with running(Robbed()) as server:
        assert server.port != thieves[0].getsockname()[1]
        until(lambda: healthy(server), "it answers")
    thieves[0].close()


@only_with(Redis)
def test_a_server_that_does_not_start_says_why() -> None:
    why = r"(?s)Redis on 127\.0\.0\.1.*ended with status 1.*no-such-option"
    with pytest.raises(StartFailed, match=why), running(Redis(args=["--no-such-option", "1"])):
        pass


@only_with(Redis)
def test_a_server_restarted_by_a_thread_outlives_that_thread() -> None:
    with running(Redis()) as server:
        background(server.restart).result()
        until(lambda: healthy(server), "it answers")
        assert server.running


START_ALL = """
import json, sys
from fencepost_lab import servers
from fencepost_lab.servers.processes import family_of
try:
    started = [getattr(servers, kind)().start() for kind in sys.argv[1:]]
except servers.Missing as missing:
    print(json.dumps(str(missing)), flush=True)
else:
    print(json.dumps([[str(each.folder), family_of(each.pid)] for each in started]), flush=True)
    input()
"""


def test_no_server_outlives_a_killed_run() -> None:
    with Child.python("-c", START_ALL, *(kind.__name__ for kind in KINDS)) as run:
        told = run.json(4 * PATIENCE)  # five servers, one after the other
        if isinstance(told, str):
            unavailable(told)
        run.kill()
        try:
            pids = [pid for _, family in told for pid in family]
            until(lambda: not any(alive(pid) for pid in pids), "the end of all servers")
        finally:
            for folder, _ in told:
                shutil.rmtree(folder)


def alive(pid: int) -> bool:
    return state_of(pid) not in processes.ENDED


def script(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *args], capture_output=True, text=True, env={**os.environ, **env}, timeout=60)


def test_the_script_says_where_everything_is() -> None:
    said = script("--env")
    if said.returncode:
        unavailable(said.stderr.strip())
    places = dict(line.split("=", 1) for line in said.stdout.splitlines())
    assert set(places) == {
        *("REDIS_SERVER", "REDIS_CLI", "ETCD", "ETCDCTL", "JAVA", "ZOOKEEPER_CLASSPATH"),
        *(
            "CONSUL",
            "POSTGRES_BIN",
            "PGBOUNCER",
            "PROMETHEUS",
            "PROMTOOL",
            "CHROMIUM",
            "CHROMEDRIVER",
            "AXE",
            "PYODIDE",
        ),
        *("CC", "IP", "UNSHARE", "NSENTER"),
    }
    assert all(Path(part).exists() for place in places.values() for part in place.split(os.pathsep))


def test_the_script_reports_each_asked_server_with_its_version() -> None:
    said = script("--check", "redis", "etcd")
    if said.returncode:
        unavailable(said.stderr.strip())
    redis, etcd = (line.split() for line in said.stdout.splitlines())
    assert (redis[0], redis[1][0]) == ("redis", "7")
    assert (etcd[0], etcd[1][:3]) == ("etcd", "3.5")


def test_the_script_names_what_is_missing_and_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    said = script("--check", "consul", PATH=str(tmp_path), FENCEPOST_SERVERS=str(tmp_path / "empty"))
    assert said.returncode == 1
    assert said.stdout.split() == ["consul", "missing"]
    assert "scripts/servers consul" in said.stderr


def test_the_script_takes_no_other_package_from_npm_than_the_one_that_was_looked_at(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "axe.min.js").write_text("steal()")
    npm = tmp_path / "npm"
    npm.write_text(f"#!/bin/sh\nexec tar -czf axe-core.tgz -C {tmp_path} package\n")
    npm.chmod(0o755)
    cache = tmp_path / "cache"
    said = script("axe", PATH=f"{tmp_path}:{os.environ['PATH']}", FENCEPOST_SERVERS=str(cache))
    assert said.returncode == 1
    assert "do not use it" in said.stderr
    assert list(cache.rglob("axe*")) == []


def test_the_script_knows_its_names() -> None:
    said = script("reddis")
    assert said.returncode == 2
    assert "redis etcd java zookeeper consul postgres pgbouncer" in said.stderr


@pytest.mark.postgres
def test_postgres_lets_nobody_in_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of this machine reaches its port, and its superuser may run programs as us."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(Postgres())
        except Missing as missing:
            unavailable(str(missing))
        for password in (None, "postgres", ""):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(host=HOST, port=server.port, user="postgres", dbname="postgres", password=password)
        with psycopg.connect(server.url) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
        assert server.password not in repr(server)
        assert server.password not in server.log.read_text()
        assert not (server.folder / "password").exists()
