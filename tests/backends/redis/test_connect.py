"""Getting through to Redis: TLS, credentials, Unix sockets, clusters, Sentinel, slow and dead servers, forks."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import fencepost
from fencepost import aio, sync
from fencepost.backends.redis import pool
from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import HOST, Redis
from fencepost_lab.servers.redis_groups import RedisCluster, Watched
from tests.backends.conftest import Own
from tests.harness.isolated import isolated
from tests.harness.threads import background, known_to_wait, on_thread
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until, until_async

SECRET = "open:sesame@1/2"


def waiting(locks: sync.Locks) -> tuple[threading.Thread, list[int]]:
    """One who waits for the lock on a thread of its own, already queued; and the token it gets."""
    got: list[int] = []

    def wait() -> None:
        with locks.lock("a") as lease:
            got.append(lease.token)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: known_to_wait(locks) == 1, "it waits")
    return thread, got


async def queued(locks: aio.Locks, name: str) -> "asyncio.Task[aio.Lease]":
    """The same as a task."""
    task = asyncio.create_task(locks.acquire(name))
    await until_async(lambda: known_to_wait(locks) == 1, "it waits", watching=[task])
    return task


def works(url: str) -> None:
    """Both faces acquire, wait, and are handed the lock there."""
    with fencepost.connect(url) as locks:
        with locks.lock("a") as lease:
            thread, got = waiting(locks)
        thread.join(PATIENCE)
        assert got[0] > lease.token

    async def concurrent() -> None:
        async with aio.connect(url) as locks:
            async with locks.lock("b"):
                task = await queued(locks, "b")
            await (await asyncio.wait_for(task, PATIENCE)).release()

    run(concurrent())


def fails(url: str, *, ambiguous: bool = False) -> str:
    """Both faces fail, and say why without saying the password."""
    said = []
    with pytest.raises(BackendError) as raised, fencepost.connect(url) as locks:
        locks.acquire("a", timeout=1)
    assert raised.value.ambiguous == ambiguous
    said.append(str(raised.value))

    async def concurrent() -> None:
        async with aio.connect(url) as locks:
            await locks.acquire("a", timeout=1)

    with pytest.raises(BackendError) as raised:
        run(concurrent())
    said.append(str(raised.value))
    assert SECRET not in "".join(said)
    return "\n".join(said)


def test_user_and_password(own_redis: Own) -> None:
    commands = (
        "-@all +hello +client +select +script +evalsha +eval +subscribe +ping +exists +get +set +del +time +publish"
    )
    commands += " +zadd +zrank +zrange +zcard +zrem +pttl +pexpire +sismember +sadd"
    commands += " +pubsub +zscore +zremrangebyscore"
    own_redis.client.execute_command(
        "ACL", "SETUSER", "app", "on", f">{SECRET}", "~fencepost:lock:*", "&fencepost.*", *commands.split()
    )
    own_redis.client.execute_command("ACL", "SETUSER", "default", "off")
    place = f"{HOST}:{own_redis.server.port}"
    url = f"redis://app:open%3Asesame%401%2F2@{place}/0"
    works(url)
    with fencepost.connect(url) as locks:
        with locks.shared("a") as reader, locks.shared("a"):
            thread, got = waiting(locks)
            reader.renew()
        thread.join(PATIENCE)
        assert got[0] > reader.token
    assert "WRONGPASS" in fails(f"redis://app:{SECRET[::-1].replace('/', '').replace('@', '')}@{place}")
    said = fails(f"redis://{place}")
    assert "NOAUTH: this server needs a password; write it into the URL" in said
    assert "Redis 6" not in said, "it is new enough"


def test_a_unix_socket_and_another_database(short_folder: Path) -> None:
    path = short_folder / "redis.sock"
    with Redis(args=["--unixsocket", str(path)]) as server:
        works(f"redis+unix://{path}?db=3")
        client = redis.Redis(port=server.port, db=3)
        assert client.keys("*") == [b"fencepost:lock:\x1ftoken"]
        client.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=DNS:localhost,IP:{HOST}"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.silence
def test_tls(certificate: Path) -> None:
    class Encrypted(Redis):
        port_count = 2

        def command(self) -> list[str]:
            tls = ["--tls-port", str(self.ports[1]), "--tls-cert-file", str(certificate / "cert.pem")]
            tls += ["--tls-key-file", str(certificate / "key.pem"), "--tls-auth-clients", "no"]
            return [*super().command(), *tls]

    with Encrypted() as server:
        place = f"{HOST}:{server.ports[1]}"
        works(f"rediss://{place}?ca={certificate / 'cert.pem'}")
        works(f"rediss://{place}?verify=0")
        slow = f"rediss://{place}?verify=0&timeout={PATIENCE * 10:g}s"
        with fencepost.connect(slow, ttl=PATIENCE) as locks:
            assert locks.acquire("a").release(), "its connection is open"
            with server.paused():
                asking = background(lambda: locks.acquire("a", timeout=0.5))
                with pytest.raises(BackendError):
                    asking.result()
        assert "certificate" in fails(f"rediss://{place}").lower()
        # 127.1 is this machine too, which only the resolver knows: no certificate was made for that name.
        elsewhere = f"rediss://127.1:{server.ports[1]}?ca={certificate / 'cert.pem'}"
        assert "certificate is not valid for '127.1'" in fails(elsewhere)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://localhost/zero", "number of a database"),
        ("redis://localhost?fence=time", "clock or counter"),
        ("redis://localhost?ca=/x", "rediss://"),
        ("rediss://localhost?ca=/does/not/exist", "TLS files"),
        ("redis://a,b", "redis\\+cluster://"),
        ("redis://localhost?timeout=0", "greater than 0"),
        ("redis://localhost?prefx=a", "did you mean 'prefix'"),
        ("redis+sentinel://localhost", "name the master"),
        ("redis+cluster://localhost/1", "no database but 0"),
        ("redis+cluster://localhost?prefix={a", "hash tag"),
        ("redis+unix://localhost/x", "Unix socket"),
    ],
)
def test_a_url_that_cannot_be_meant_says_what_to_write(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        fencepost.connect(url)


def test_a_server_that_is_not_there_or_does_not_answer_is_given_up_in_time(own_redis: Own) -> None:
    url = f"{own_redis.url}?timeout={GIVES_UP:g}s&connect_timeout={GIVES_UP:g}s"
    with fencepost.connect(url) as locks:
        locks.acquire("a").release()
        with own_redis.server.paused(), pytest.raises(BackendError, match="no answer in time") as raised:
            locks.acquire("a")
        assert raised.value.ambiguous
        locks.acquire("a", timeout=PATIENCE).release()

    async def concurrent() -> None:
        async with aio.connect(url) as locks:
            await (await locks.acquire("a")).release()
            with own_redis.server.paused(), pytest.raises(BackendError, match="no answer in time") as raised:
                await locks.acquire("a")
            assert raised.value.ambiguous

    run(concurrent())
    with own_redis.server.paused():
        assert "no answer" in fails(url)
    own_redis.server.kill()
    assert "cannot connect" in fails(url)
    own_redis.server.restart()
    works(own_redis.url)


def test_one_connection_that_falls_silent_makes_the_idle_ones_suspect(own_redis: Own) -> None:
    """Each of them would cost a time-out of its own: a half-open connection looks well."""
    with (
        Proxy(own_redis.server.port) as proxy,
        fencepost.connect(f"redis://{proxy.address}?timeout={GIVES_UP:g}s") as locks,
    ):
        everybody = threading.Barrier(6)

        def section(number: int) -> None:
            with locks.lock(f"n{number}", ttl=300):
                everybody.wait(PATIENCE)

        for each in [background(partial(section, number)) for number in range(6)]:
            each.result()
        proxy.cut(newcomers=False)
        with pytest.raises(BackendError, match="no answer in time"):
            locks.status("a")
        for _ in range(6):
            assert locks.status("a") is None


def test_the_deadline_is_counted_from_before_the_request(own_redis: Own) -> None:
    """The server begins to count when it carries the request out; its answer may come much later."""
    with (
        Proxy(own_redis.server.port) as proxy,
        fencepost.connect(f"redis://{proxy.address}?timeout={PATIENCE:g}s", ttl=300) as locks,
    ):
        proxy.lose_answer_to(b"fencepost:lock:a")
        asking = background(lambda: locks.acquire("a"))
        until(lambda: proxy.held > 0, "the answer is held back", watching=[asking])
        carried_out = boottime()
        proxy.heal()
        lease = asking.result()
        assert lease.deadline - lease.ttl < carried_out
        assert lease.release()


def test_a_release_that_got_no_answer_stays_ambiguous_when_the_second_try_cannot_connect(own_redis: Own) -> None:
    with (
        Proxy(own_redis.server.port) as proxy,
        fencepost.connect(f"redis://{proxy.address}?timeout={GIVES_UP:g}s&connect_timeout={GIVES_UP:g}s") as locks,
    ):
        lease = locks.acquire("a")
        proxy.cut()
        with pytest.raises(BackendError) as failed:
            lease.release()
        assert failed.value.ambiguous
        proxy.heal()


def test_a_release_that_got_no_answer_stays_ambiguous_when_the_second_try_finds_another_holder(own_redis: Own) -> None:
    faults = Faults()
    with (
        Proxy(own_redis.server.port, faults=faults) as proxy,
        fencepost.connect(f"redis://{proxy.address}?timeout={PATIENCE:g}s", ttl=300) as locks,
        fencepost.connect(own_redis.url, ttl=300) as others,
    ):
        lease = locks.acquire("a")
        assert own_redis.client.delete("fencepost:lock:a"), "forgotten, as by a failover"
        other = others.acquire("a")
        proxy.drop_after(lease.holder.encode())
        with pytest.raises(BackendError) as failed:
            lease.release()
        assert len(faults.of("lose")) == 1
        assert failed.value.ambiguous
        assert other.release(), "it kept its lock"


@pytest.mark.parametrize("scheme", ["redis", "redlock"])
def test_a_server_that_is_no_redis_is_named_and_nothing_is_printed(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what another test left behind is told now
    caplog.clear()

    def greet() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                with client:
                    client.recv(65536)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def ask() -> None:
        async with aio.connect(url) as locks:
            await locks.try_acquire("a")

    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=greet, daemon=True).start()
        url = f"{scheme}://{HOST}:{server.getsockname()[1]}"
        with fencepost.connect(url) as locks, pytest.raises(BackendError, match="this is no Redis"):
            locks.try_acquire("a")
        with pytest.raises(BackendError, match="this is no Redis"):
            run(ask())
        server.shutdown(socket.SHUT_RDWR)
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("end", ["client", "server"])
def test_an_idle_connection_that_was_closed_is_not_used_again(own_redis: Own, end: str) -> None:
    with fencepost.connect(own_redis.url) as locks:
        assert locks.acquire("a").release()
        backend: Any = locks._core.backend
        pool = backend._nodes.only.transport
        (idle,) = pool._idle
        if end == "client":
            idle.raw.close()
        else:
            assert own_redis.client.client_kill_filter(_type="normal", skipme=True)
        until(lambda: not idle.fresh(), "it is known to be closed")
        assert locks.acquire("a").release()
        assert idle not in pool._idle


@pytest.mark.silence
def test_who_finds_all_connections_in_use_waits_no_longer_than_it_said(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MOST", 1)
    with fencepost.connect(f"{own_redis.url}?timeout={10 * PATIENCE}s") as locks:
        assert locks.acquire("a").release()
        backend: Any = locks._core.backend
        connections = backend._nodes.only.transport
        with own_redis.server.paused():
            asked = background(lambda: locks.status("a"))
            until(lambda: not connections._idle, "the only connection is in use", watching=[asked])
            with pytest.raises(BackendError, match="connections were in use") as failed:
                locks.acquire("b", timeout=0.5)
            assert not failed.value.ambiguous
        assert asked.result() is None
        assert locks.acquire("b").release()


@isolated
def forked_inside(url: str, server: int) -> None:
    """A signal handler forks while its thread waits for an answer, and both go on."""
    parent = os.getpid()
    children: list[int] = []

    def fork(number: int, frame: object) -> None:
        if children:  # they have had the time to wait for the answer, too
            os.kill(server, signal.SIGCONT)
            return
        for _ in range(10):
            if os.getpid() == parent and (child := os.fork()):
                children.append(child)
        if os.getpid() == parent:
            signal.setitimer(signal.ITIMER_REAL, 0.8)

    with fencepost.connect(f"{url}?timeout={PATIENCE}s") as locks:
        lease = locks.acquire("a")
        signal.signal(signal.SIGALRM, fork)
        os.kill(server, signal.SIGSTOP)  # it answers after the fork, however late that is
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            status = locks.status("a")
        except BackendError:
            assert os.getpid() != parent, "a child took the answer"
        if os.getpid() != parent:
            os._exit(0)
        assert children, "it was to fork while it waits"
        assert status is not None
        assert status.token == lease.token
        for child in children:
            os.waitpid(child, 0)
        assert lease.release()


def test_a_fork_in_the_middle_of_a_request_leaves_the_answer_to_the_parent(own_redis: Own) -> None:
    forked_inside(own_redis.url, own_redis.client.info("server")["process_id"])


@isolated
def forked_child(url: str, port: int) -> None:
    client: Any = redis.Redis(port=port, decode_responses=True)
    with contextlib.closing(client):
        with fencepost.connect(url) as locks:
            held = locks.acquire("a")
            thread, _ = waiting(locks)
            inside, outside = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.read(inside, 1)
                    with locks.lock("b"):
                        os._exit(0 if not held.release() else 1)
                finally:
                    os._exit(2)
            os.close(inside)
            assert len(client.pubsub_channels("fencepost.*")) == 1
            assert held.release()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        # The parent's connections are closed. The child, which has copies of them, is still there.
        until(lambda: client.pubsub_channels("fencepost.*") == [], "the server notices that the parent left")
        os.write(outside, b"x")
        os.close(outside)
        assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_uses_connections_of_its_own_and_does_not_keep_its_parent_alive(own_redis: Own) -> None:
    forked_child(own_redis.url, own_redis.server.port)


def test_a_node_of_a_cluster_that_is_taken_for_a_server_says_what_to_write(redis_cluster: Any) -> None:
    url = redis_cluster.url.replace("redis+cluster", "redis").partition(",")[0]
    with fencepost.connect(url) as locks:
        for name in "abcdefgh":  # some on this node's slots, some elsewhere
            with pytest.raises(ConfigError, match=r"redis\+cluster://"):
                locks.try_acquire(name)


def test_names_with_braces_are_locks_of_their_own_in_a_cluster(redis_cluster: Any) -> None:
    names = ["a", "{a}", "{a}b", "b{a}", "a}", "{a", "}{", "{}a", "{{a}}", "a{b}{c}", "\N{SNOWMAN}{"]
    for fence in ("clock", "counter"):
        with fencepost.connect(f"{redis_cluster.url}?fence={fence}&prefix={fence}-names:") as locks:
            leases = [locks.try_acquire(name) for name in names]
            assert all(leases)
            assert {status.name for status in locks.list()} >= set(names), "and what others left here"
            assert all(locks.try_acquire(name) is None for name in names)
            assert all(lease.release() for lease in leases if lease)


def test_a_slot_that_moves_takes_its_waiters_along() -> None:
    with RedisCluster() as cluster, fencepost.connect(cluster.url) as locks:
        held = locks.acquire("a")
        thread, got = waiting(locks)
        slot = int(cluster.members[0].tell("CLUSTER", "KEYSLOT", "fencepost:lock:a"))
        ids = [member.tell("CLUSTER", "MYID") for member in cluster.members]
        (source,) = [m for m in cluster.members if m.tell("CLUSTER", "COUNTKEYSINSLOT", slot) != "0"]
        target = cluster.members[(cluster.members.index(source) + 1) % 3]
        there, here = ids[cluster.members.index(target)], ids[cluster.members.index(source)]
        target.tell("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
        source.tell("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
        client = redis.Redis(port=source.port)
        keys: Any = client.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)  # type: ignore[no-untyped-call]
        for key in keys:
            client.migrate(HOST, target.port, [key], 0, 5000)
        client.close()
        for member in (target, source):
            member.tell("CLUSTER", "SETSLOT", slot, "NODE", there)
        assert held.release()
        thread.join(PATIENCE)
        assert got
        assert got[0] > held.token


@contextlib.contextmanager
def watched(down_after: float = 3.0) -> Iterator[tuple[Redis, Redis, str]]:
    """A master, its replica, and the URL of the three sentinels that watch them."""
    with Watched(down_after=down_after) as group:
        master, replica = group.servers
        yield master, replica, group.url


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_sentinel_fails_over_and_locks_go_on_at_the_new_master(face: str) -> None:
    def fail_over() -> None:
        """Kill the master; the lock of its holder, who died with it, expires at the new one and not before."""
        with redis.Redis(port=master.port) as here, redis.Redis(port=replica.port, decode_responses=True) as there:
            until(lambda: here.wait(1, 1000) == 1, "the replica has it all")
            master.kill()
            until(lambda: there.info("replication")["role"] == "master", "it takes over")
            assert there.pexpire("fencepost:lock:a", 1)

    def blocking(url: str) -> None:
        with fencepost.connect(url, ttl=300) as locks:
            with locks.shared("b"), locks.shared("b"):
                assert locks.try_acquire("b") is None
            before = locks.acquire("a", renew=False)
            thread, got = waiting(locks)
            fail_over()
            thread.join(PATIENCE)
            assert got
            assert got[0] > before.token

    async def concurrent(url: str) -> None:
        async with aio.connect(url, ttl=300) as locks:
            before = await locks.acquire("a", renew=False)
            task = await queued(locks, "a")
            await on_thread(fail_over)
            lease = await asyncio.wait_for(task, PATIENCE)
            assert lease.token > before.token
            await lease.release()

    with watched() as (master, replica, url):
        works(url)
        blocking(url) if face == "blocking" else run(concurrent(url))
        replica.kill()


def test_a_master_that_does_not_tell_its_role_is_not_called_a_replica() -> None:
    with watched(down_after=PATIENCE) as (master, _, url):
        link: Any = redis.Redis(port=master.port)
        link.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-role")
        link.close()
        said = fails(url.replace("//", "//app:pw@"))
        assert "does not tell its role: NOPERM" in said
        master.kill()


def test_a_grant_waits_for_replicas_where_that_is_asked_for() -> None:
    with (
        Redis(args=["--repl-diskless-sync-delay", "0"]) as master,
        Redis(args=["--replicaof", HOST, str(master.port)]) as replica,
    ):
        there: Any = redis.Redis(port=replica.port, decode_responses=True)
        here: Any = redis.Redis(port=master.port, decode_responses=True)
        until(lambda: here.wait(1, 1000) == 1, "the replica is there")
        here.close()
        url = f"{master.url}?wait_replicas=1"
        works(f"{url}&timeout={PATIENCE:g}s")
        with (
            fencepost.connect(f"{url}&timeout={PATIENCE:g}s") as locks,
            fencepost.connect(f"{url}&timeout=6s") as hasty,
        ):
            with locks.lock("a") as lease:
                assert there.get("fencepost:lock:a") == f"{lease._stored}:{lease.token}"
            with replica.paused(), pytest.raises(BackendError, match="0 of 1 replicas") as raised:
                hasty.acquire("a")
            assert raised.value.ambiguous
            until(lambda: locks.status("a") is None, "what was not confirmed is given back")
            held = locks.acquire("a")
            waiter = background(lambda: hasty.acquire("a", timeout=PATIENCE))
            until(lambda: known_to_wait(hasty) == 1, "it waits", watching=[waiter])
            with replica.paused():
                assert held.release()
                with pytest.raises(BackendError, match="0 of 1 replicas") as raised:
                    waiter.result()
            assert raised.value.ambiguous, "one who waited is not served without them either"
            until(lambda: locks.status("a") is None, "it is given back")
            here = redis.Redis(port=master.port)
            here.script_flush()
            here.close()
            assert locks.acquire("a").release(), "the renewal is sent again"
        there.close()
        master.kill()


def findings(url: str) -> dict[str, tuple[str, str]]:
    async def examine() -> list[Any]:
        async with aio.connect(url) as locks:
            return await locks._core.backend.doctor()

    found = run(examine())
    return {finding.what.split(",")[0]: (finding.level, finding.means) for finding in found}


@pytest.mark.parametrize(("host", "exposed"), [(HOST, False), ("0.0.0.0", True)])
def test_the_doctor_tells_of_a_password_in_the_clear(own_redis: Own, host: str, exposed: bool) -> None:
    # A client that connects to 0.0.0.0 comes back to this machine; here it stands for any address.
    own_redis.client.execute_command("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all")
    found = findings(f"redis://app:open%3Asesame%401%2F2@{host}:{own_redis.server.port}")
    assert ("the password goes to 0.0.0.0 in the clear" in found) is exposed


def test_the_doctor_reads_the_settings_and_says_what_they_mean(own_redis: Own) -> None:
    found = findings(own_redis.url)
    assert found["appendonly no"][0] == "warn"
    assert found["maxmemory 0"][0] == "ok"
    assert found["fence=clock"][0] == "ok"
    own_redis.client.config_set("maxmemory", 10_000_000)
    own_redis.client.config_set("maxmemory-policy", "volatile-lru")
    own_redis.client.config_set("appendonly", "yes")
    own_redis.client.config_set("appendfsync", "always")
    found = findings(f"{own_redis.url}?fence=counter&wait_replicas=1")
    assert found["maxmemory 10000000"][0] == "risk"
    assert "evicts held locks" in found["maxmemory 10000000"][1]
    assert found["appendonly yes"][0] == "ok"
    assert found["fence=counter"][0] == "warn"
    assert found["0 replicas"][0] == "risk"


def test_the_doctor_holds_nothing_against_settings_that_it_may_not_read(own_redis: Own) -> None:
    own_redis.client.acl_setuser(
        "app", enabled=True, passwords=["+pw"], keys=["*"], channels=["*"], commands=["+@all", "-config"]
    )
    found = findings(own_redis.url.replace("//", "//app:pw@"))
    assert found["appendonly no"][0] == "warn", "what INFO says is known all the same"
    assert not [what for what in found if what.startswith("tcp-keepalive")]


@isolated
def test_signals_in_quick_succession_do_not_keep_a_call_from_timing_out() -> None:
    """The kernel restarts the time limit of a read after every signal."""
    came: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    with (
        socket.create_server((HOST, 0)) as silent,
        fencepost.connect(f"redis://{HOST}:{silent.getsockname()[1]}?timeout=3s") as locks,
    ):
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            with pytest.raises(BackendError, match="no answer"):
                locks.status("a")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(came) >= 3, "it was interrupted"
