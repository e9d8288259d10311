"""Locks in etcd while servers, connections and history go away: no holder is late to know, no waiter is forgotten."""

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

import fencepost
from fencepost import aio, driver, sync
from fencepost.driver.threads import ThreadSignal
from fencepost.errors import BackendError
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import QUICK_ETCD, Etcd, EtcdCluster
from fencepost_lab.servers.processes import HOST, state_of
from tests.backends.etcd.tools import LONG, etcdctl, leader
from tests.conformance.faces import FACES, Client
from tests.harness.scripted import Fault, GrpcScripted
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until, until_async

TTL = 5.0  # what expires here: this process may stand still for 3 s before it is meant to


@pytest.fixture(scope="module")
def started_server() -> Iterator[Etcd]:
    with Etcd(args=QUICK_ETCD) as started:
        yield started


@pytest.fixture(scope="module")
def started_cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster(args=QUICK_ETCD) as started:
        yield started


@pytest.fixture
def server(started_server: Etcd) -> Iterator[Etcd]:
    yield started_server
    heal(started_server)


@pytest.fixture
def cluster(started_cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    yield started_cluster
    heal(*started_cluster.members)


def heal(*members: Etcd) -> None:
    """Undo what a test has done to them."""
    for member in members:
        if member.running:
            member.resume()
        else:
            member.restart()


class Waiting:
    """Somebody who waits for a lock, and gives it back at once."""

    def __init__(self, url: str, name: str, ttl: float = LONG) -> None:
        self.tokens: list[int] = []
        self._locks = fencepost.connect(url, ttl=ttl)
        self._name = name
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        lease = self._locks.acquire(self._name, timeout=LONG)
        self.tokens.append(lease.token)
        lease.release()

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE)
        self._locks.close()

    def queued(self) -> bool:
        return until(lambda: known_to_wait(self._locks) == 1, "it waits")

    def served(self) -> bool:
        return until(lambda: bool(self.tokens), "it is served")


def queued(locks: sync.Locks, name: str, count: int = 1) -> bool:
    def look() -> bool:
        status = locks.status(name)
        return status is not None and len(status.waiters) == count

    return until(look, f"{count} wait")


@contextlib.contextmanager
def outage(kind: str, server: Etcd, proxy: Proxy) -> Iterator[Callable[[], bool]]:
    """The store is out of reach inside the block; what is yielded says whether it really was."""
    if kind == "killed":
        server.kill()
        yield lambda: not server.running
        server.restart()
    elif kind == "stopped":
        with server.paused():
            yield lambda: frozen(server)
    else:
        proxy.cut()
        yield lambda: proxy.held > 0
        proxy.heal()


def frozen(server: Etcd) -> bool:
    return state_of(server.pid) == "T"


@pytest.mark.parametrize("kind", ["killed", "stopped", "cut off"])
def test_an_outage_is_loss_by_the_deadline_and_only_a_delay_to_waiters(server: Etcd, kind: str) -> None:
    name = secrets.token_hex(4)
    with Proxy(server.port) as proxy:
        url = f"etcd://{HOST}:{proxy.port if kind == 'cut off' else server.port}?timeout=3s"
        with fencepost.connect(url, ttl=TTL) as locks:
            lease = locks.acquire(name)
            with Waiting(url, name, ttl=TTL) as waiter:
                assert waiter.queued()
                with outage(kind, server, proxy) as happened:
                    until(happened, "it happens")
                    assert lease.ended.wait(PATIENCE), "it knows by its deadline, and not from the store"
                    assert not waiter.tokens
                assert waiter.served()
                assert waiter.tokens[0] > lease.token
            assert lease.release() is False
            assert locks.acquire(name, timeout=PATIENCE).release(), "the connection serves again"


def test_an_outage_shorter_than_the_ttl_is_survived(server: Etcd) -> None:
    name = secrets.token_hex(4)
    url = f"{server.url}?timeout={PATIENCE:g}s"
    with fencepost.connect(url, ttl=LONG) as locks, Waiting(server.url, name) as other:
        assert other.served()
        lease = locks.acquire(name)
        server.kill()
        server.restart()
        lease.renew()
        lease.check()
        status = locks.status(name)
        assert status is not None
        assert status.token == lease.token
        assert lease.release()


def test_asyncio_survives_a_restart_too(server: Etcd) -> None:
    name = secrets.token_hex(4)

    async def whole(watcher: sync.Locks) -> None:
        async with aio.connect(server.url, ttl=TTL) as locks, aio.connect(server.url, ttl=TTL) as others:
            lease = await locks.acquire(name)
            waiter = asyncio.create_task(others.acquire(name, timeout=LONG))
            await asyncio.to_thread(queued, watcher, name)
            server.kill()
            assert await lease.ended.wait(PATIENCE)
            await asyncio.to_thread(server.restart)
            async with asyncio.timeout(PATIENCE):
                got = await waiter
            assert got.token > lease.token
            assert await got.release()

    with fencepost.connect(server.url) as watcher:
        run(whole(watcher))


def test_a_silent_connection_is_given_up_for_a_new_one(server: Etcd) -> None:
    """Nothing is closed, nothing answers: as after a firewall has dropped its state."""
    name = secrets.token_hex(4)
    with (
        Proxy(server.port) as proxy,
        fencepost.connect(server.url, ttl=LONG) as others,
        fencepost.connect(f"etcd://{HOST}:{proxy.port}?timeout=3s", ttl=15) as locks,
    ):
        kept = locks.acquire("kept")
        holder = others.acquire(name)
        waiter = background(lambda: locks.acquire(name, timeout=LONG))
        watches = locks._core.backend._watches  # type: ignore[attr-defined]
        until(lambda: watches._watches, "it watches", watching=[waiter])
        proxy.cut(newcomers=False)
        until(lambda: proxy.held > 0, "something was sent and held back")
        assert holder.release()
        assert waiter.result().token > holder.token
        kept.check()
        assert kept.release()


def test_asyncio_gives_up_a_silent_connection_too(server: Etcd) -> None:
    name = secrets.token_hex(4)

    async def whole(proxy: Proxy, others: sync.Locks) -> None:
        async with aio.connect(f"etcd://{HOST}:{proxy.port}?timeout=4s", ttl=15) as locks:
            kept = await locks.acquire("kept")
            holder = others.acquire(name)
            waiter = asyncio.create_task(locks.acquire(name, timeout=LONG))
            await until_async(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiter])
            proxy.cut(newcomers=False)
            await until_async(lambda: proxy.held > 0, "the request is on its way")
            assert holder.release()
            async with asyncio.timeout(PATIENCE):
                got = await waiter
            assert got.token > holder.token
            assert await got.release()
            kept.check()
            assert await kept.release()

    with Proxy(server.port) as proxy, fencepost.connect(server.url, ttl=LONG) as others:
        run(whole(proxy, others))


def test_a_put_that_arrives_after_all_holds_nobody_up(server: Etcd) -> None:
    """Its acquire has failed long ago, and its process keeps the session alive for another lock."""
    name = secrets.token_hex(4)
    with (
        Proxy(server.port) as proxy,
        fencepost.connect(server.url, ttl=LONG) as others,
        fencepost.connect(f"etcd://{HOST}:{proxy.port}?timeout=3s", ttl=15) as locks,
    ):
        kept = locks.acquire("kept")
        session = f"{etcdctl(server.url, 'get', '--prefix', 'kept/')['kvs'][0]['lease']:x}"
        proxy.cut(newcomers=False)
        with pytest.raises(BackendError) as raised:
            locks.acquire(name)
        assert raised.value.ambiguous
        assert proxy.held > 0
        etcdctl(server.url, "put", f"{name}/{session}", "late", f"--lease={session}")
        assert others.acquire(name, timeout=PATIENCE).release()
        kept.renew()
        lease = locks.acquire(name, timeout=PATIENCE)
        (found,) = etcdctl(server.url, "get", "--prefix", f"{name}/")["kvs"]
        assert f"{found['lease']:x}" != session, "no other lock may keep it from being revoked"
        assert lease.release()
        assert etcdctl(server.url, "lease", "timetolive", session)["ttl"] > 0
        assert kept.release()
        gone = lambda: etcdctl(server.url, "lease", "timetolive", session)["ttl"] < 0  # noqa: E731
        until(gone, "from now on no such put can arrive", poll=0.1)


def test_a_release_whose_connection_broke_before_the_answer_is_confirmed(server: Etcd) -> None:
    """It is sent again and finds nothing, because it was carried out the first time."""
    name = secrets.token_hex(4)
    with (
        Proxy(server.port) as proxy,
        fencepost.connect(server.url, ttl=LONG) as others,
        fencepost.connect(f"etcd://{proxy.address}?timeout={PATIENCE:g}s", ttl=LONG) as locks,
    ):
        lease = locks.acquire(name)
        proxy.lose_answer_to(name.encode())
        releasing = background(lease.release)
        until(lambda: others.status(name) is None, "it is carried out", watching=[releasing])
        until(lambda: proxy.held > 0, "its answer is held back", watching=[releasing])
        proxy.drop()
        proxy.heal()
        assert releasing.result() is True


def test_the_loss_of_the_leader_costs_no_lease(cluster: EtcdCluster) -> None:
    name = secrets.token_hex(4)
    url = f"{cluster.url}?timeout={PATIENCE:g}s"
    with fencepost.connect(url, ttl=PATIENCE) as locks, Waiting(url, name) as waiter:
        assert waiter.served()
        lease = locks.acquire(name)
        with Waiting(url, name) as other:
            assert other.queued()
            old = leader(cluster)
            old.kill()
            assert leader(cluster) is not old
            lease.renew()
            lease.check()
            assert lease.release()
            assert other.served()
            assert other.tokens[0] > lease.token


def test_every_member_can_fail_in_turn(cluster: EtcdCluster) -> None:
    name = secrets.token_hex(4)
    tokens = []
    with fencepost.connect(f"{cluster.url}?timeout={PATIENCE:g}s", ttl=LONG) as locks:
        for member in cluster.members:
            tokens.append(lease_token(locks, name))
            member.kill()
            assert not member.running
            tokens.append(lease_token(locks, name))
            member.restart()
    assert tokens == sorted(set(tokens))


def test_a_frozen_member_is_passed_over(cluster: EtcdCluster) -> None:
    name = secrets.token_hex(4)
    first = cluster.members[0]
    # Each of the three members has a third of the timeout.
    with fencepost.connect(f"{cluster.url}?timeout={3 * GIVES_UP:g}s", ttl=LONG) as locks:
        token = lease_token(locks, name)
        with first.paused():
            assert frozen(first)
            assert lease_token(locks, name) > token
            assert frozen(first)


def lease_token(locks: sync.Locks, name: str) -> int:
    lease = locks.acquire(name, timeout=PATIENCE)
    assert lease.release()
    return lease.token


def test_a_dead_host_in_the_url_is_skipped(server: Etcd) -> None:
    with socket.create_server((HOST, 0)) as unused:
        dead = unused.getsockname()[1]
    with fencepost.connect(f"etcd://{HOST}:{dead},{server.address}") as locks:
        assert locks.acquire("lock").release()


def test_no_server_at_all_is_an_error_that_names_it() -> None:
    with socket.create_server((HOST, 0)) as unused:
        dead = unused.getsockname()[1]
    with fencepost.connect(f"etcd://me:secret@{HOST}:{dead}?timeout=500ms") as locks:
        with pytest.raises(BackendError, match=f"{HOST}:{dead}") as raised:
            locks.acquire("lock")
        assert not raised.value.ambiguous, "nothing was ever sent"
        assert "secret" not in str(raised.value)


def test_history_that_was_compacted_away_wakes_whoever_watches_it(server: Etcd) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        for _ in range(5):
            assert locks.acquire("lock").release()
        etcdctl(server.url, "compact", str(locks.acquire("last").token))
        woken = ThreadSignal()
        watch = locks._core.backend._watches.add(b"lock/1", 2, woken)  # type: ignore[attr-defined]
        assert driver.run(woken.wait(PATIENCE))
        assert watch.refused == "", "it may look again"


def test_a_waiter_outlives_a_compaction(server: Etcd) -> None:
    name = secrets.token_hex(4)
    with fencepost.connect(server.url, ttl=LONG) as locks:
        holder = locks.acquire(name)
        with Waiting(server.url, name) as waiter:
            assert waiter.queued()
            for _ in range(5):
                assert locks.acquire("other").release()
            etcdctl(server.url, "compact", str(locks.acquire("last").token))
            assert holder.release()
            assert waiter.served()


def fill(server: Etcd) -> None:
    while True:
        etcdctl(server.url, "put", "filler", "x" * 100_000)


@pytest.mark.parametrize("face", FACES)
async def test_what_was_refused_for_want_of_room_and_done_all_the_same_is_undone(server: Etcd, face: str) -> None:
    """etcd carries the request out that exceeds its quota, and then says that it has no room."""
    name = secrets.token_hex(4)
    full = Fault("full", refusal=("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded"))
    with GrpcScripted(server.port) as proxy:
        client = Client(face, f"etcd://{proxy.address}", ttl=LONG)
        kept = await client.acquire(f"{name}-kept")
        proxy.plan(full, "Txn put range range", 1)
        with pytest.raises(BackendError, match="database space exceeded") as refused:
            await client.acquire(name)
        assert refused.value.ambiguous
        assert proxy.happened
        async with aio.connect(server.url, ttl=LONG) as others:
            assert await (await others.acquire(name, timeout=PATIENCE)).release(), "long before its ttl"
        kept.check()
        assert await kept.release()
        await client.close()


LOST = Fault("lost", refusal=("UNAVAILABLE", "transport is closing"))


@pytest.mark.parametrize("face", FACES)
async def test_an_acquire_whose_answer_was_lost_finds_the_key_that_it_put(server: Etcd, face: str) -> None:
    name = secrets.token_hex(4)
    with GrpcScripted(server.port) as proxy:
        client = Client(face, f"etcd://{proxy.address}", ttl=LONG)
        proxy.plan(LOST, "Txn put range range", 1)
        lease = await client.acquire(name, timeout=PATIENCE)
        assert proxy.happened
        (key,) = etcdctl(server.url, "get", "--prefix", f"{name}/")["kvs"]
        assert key["create_revision"] == lease.token
        assert await lease.release()
        await client.close()


def test_a_full_queue_refuses_one_whose_first_answer_was_lost_too(server: Etcd) -> None:
    name = secrets.token_hex(4)
    with (
        GrpcScripted(server.port) as proxy,
        fencepost.connect(server.url, ttl=LONG) as others,
        fencepost.connect(f"etcd://{proxy.address}", ttl=LONG, queue_limit=1) as locks,
    ):
        holder = others.acquire(name)
        with Waiting(server.url, name) as waiter:
            assert waiter.queued()
            proxy.plan(LOST, "Txn put range range", 1)
            with pytest.raises(fencepost.QueueFull):
                locks.acquire(name, timeout=PATIENCE)
            assert proxy.happened
            status = others.status(name)
            assert status is not None
            assert len(status.waiters) == 1, "its key is gone"
            assert holder.release()
            assert waiter.served()


def test_an_etcd_that_is_full_refuses_who_comes_and_serves_who_is_there() -> None:
    with (
        Etcd(args=[*QUICK_ETCD, "--quota-backend-bytes", "1000000"]) as server,
        fencepost.connect(server.url, ttl=LONG) as locks,
        fencepost.connect(server.url, ttl=LONG) as others,
    ):
        lease = locks.acquire("a")
        with Waiting(server.url, "a") as waiter:
            assert waiter.queued()
            with pytest.raises(AssertionError, match="database space exceeded"):
                fill(server)
            for _ in range(2):
                with pytest.raises(BackendError, match="database space exceeded") as refused:
                    others.acquire("b", timeout=PATIENCE)
                assert refused.value.ambiguous, "etcd refuses what exceeds its quota, and does it"
                until(lambda: etcdctl(server.url, "get", "--prefix", "b/").get("kvs") is None, "nothing is left of it")
            lease.renew()
            assert lease.release()
            assert waiter.served()
        etcdctl(server.url, "compact", str(etcdctl(server.url, "get", "filler")["header"]["revision"]))
        etcdctl(server.url, "defrag")
        etcdctl(server.url, "alarm", "disarm")
        after = others.acquire("b")
        assert after.token > lease.token
        assert after.release()
