"""What ZooKeeper's sessions mean for leases: their timeouts, their end, whose nodes they may touch."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Sync
from kazoo.security import make_acl, make_digest_acl

import fencepost
from fencepost import aio, sync
from fencepost.backends.zookeeper import session as session_module
from fencepost.backends.zookeeper.backend import ZooKeeper as Backend
from fencepost.backends.zookeeper.contender import Contender
from fencepost.backends.zookeeper.session import Reply
from fencepost.driver import boottime
from fencepost.driver import run as drive
from fencepost.errors import BackendError, ConfigError, NotAcquired
from fencepost.lease import Reason
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import ZooKeeper, ZooKeeperEnsemble, ask
from fencepost_lab.servers.processes import HOST, Port, program
from tests.backends.zookeeper.tools import LONG, end_session, kazoo
from tests.harness.certificate import self_signed
from tests.harness.descriptors import few_descriptors, no_descriptors
from tests.harness.isolated import isolated
from tests.harness.scripted import CLOSE, TWICE, Fault, Scripted
from tests.harness.scripted import ZooKeeper as Dialect
from tests.harness.servers import Endpoint
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import PATIENCE, run, until


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeper]:
    with ZooKeeper(args=["-Dznode.container.checkIntervalMs=200"]) as started:
        yield started


def backend(locks: sync.Locks) -> Backend:
    inside = locks._core.backend
    assert isinstance(inside, Backend)
    return inside


def test_a_lease_says_what_the_server_granted() -> None:
    """No session is shorter than two ticks; two thirds of it are the lease's."""
    with ZooKeeper(tick=1000) as slow, fencepost.connect(slow.url) as locks:
        short = locks.acquire("short", ttl=1)
        assert short.ttl == pytest.approx(4 / 3)
        assert short.remaining <= short.ttl
        assert locks.acquire("long", ttl=10_000).ttl == pytest.approx(400), "nor longer than maxSessionTimeout"
        assert locks.acquire("between", ttl=4.2).ttl == 4.2


def test_leases_of_one_ttl_share_a_session(server: ZooKeeper) -> None:
    with fencepost.connect(f"{server.url}/share") as locks:
        leases = [locks.acquire(f"{number}", ttl=ttl) for number, ttl in enumerate([15, 15, 15.0, 30])]
        assert len(backend(locks)._sessions) == 2
        assert all(lease.release() for lease in leases)


def test_a_server_that_was_put_back_to_a_backup_is_used_again(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It turns away each client that has seen later changes than it has, and says nothing."""
    monkeypatch.setattr(session_module, "_HOPELESS", 0.2)
    with Proxy(server.port) as proxy, fencepost.connect(f"zookeeper://{proxy.address}/back", ttl=LONG) as locks:
        assert locks.acquire("x").release()
        [session] = backend(locks)._sessions.values()
        session._connection.granted = 0.0  # as if the time after which all leases of the session are over were short
        proxy.cut()  # so that no answer says how far the server is
        session._client.last_zxid = 2**62
        proxy.drop()
        until(lambda: not session.connected, "the client has noticed")
        proxy.heal()
        assert locks.acquire("x", timeout=PATIENCE).release()
        assert session.era == 1, "under another session"


@pytest.mark.parametrize("fault", [TWICE, CLOSE], ids=str)
def test_what_is_asked_because_a_connection_was_lost_is_answered_by_the_next(server: ZooKeeper, fault: Fault) -> None:
    with (
        Scripted(server.port, Dialect) as proxy,
        fencepost.connect(f"zookeeper://{proxy.address}/next-{fault}", ttl=LONG) as locks,
    ):
        locks.acquire("x")
        [session] = backend(locks)._sessions.values()
        again: list[Reply] = []
        proxy.plan(fault, "sync", 1)
        with session._connection._write_sock.gate:  # both are queued before the first is answered
            session.send(Sync("/"))
            lost = session.send(Sync("/"), lambda _: again.append(session.send(Sync("/"))))
        until(lambda: again and again[0].done, "it is answered")
        assert lost.error is not None, "the connection was lost"
        assert again[0].error is None


def test_any_number_of_requests_can_be_made_while_there_is_no_connection(server: ZooKeeper) -> None:
    with Proxy(server.port) as proxy, fencepost.connect(f"zookeeper://{proxy.address}/any", ttl=LONG) as locks:
        locks.acquire("x")
        [session] = backend(locks)._sessions.values()
        proxy.cut()
        proxy.drop()
        until(lambda: not session.connected, "the client has noticed")
        asked = background(lambda: [session.send(Sync("/")) for _ in range(1000)])
        replies = asked.result(PATIENCE)
        proxy.heal()
        until(lambda: replies[-1].done, "it is connected again")
        assert all(reply.done and reply.error is None for reply in replies)


def test_a_lost_session_is_told_at_once(server: ZooKeeper) -> None:
    with fencepost.connect(f"{server.url}/lost", ttl=LONG) as locks:
        lease = locks.acquire("x")
        [session] = backend(locks)._sessions.values()
        end_session(server.port, session._client.client_id)
        assert lease.ended.wait(PATIENCE)
        assert boottime() < lease.deadline - LONG / 2, "long before its deadline"
        assert lease.reason is Reason.GONE
        with locks.lock("x", timeout=PATIENCE) as again:
            assert again.token > lease.token


def test_an_evicted_holder_that_was_renewed_once_is_told_at_once(server: ZooKeeper) -> None:
    with fencepost.connect(f"{server.url}/told", ttl=LONG) as here, fencepost.connect(f"{server.url}/told") as there:
        lease = here.acquire("x")
        lease.renew()
        assert there.break_lock("x")
        assert lease.ended.wait(PATIENCE)
        assert boottime() < lease.deadline - LONG * 3 / 4, "long before its next renewal"


def test_a_lease_whose_event_loop_ended_is_over_at_its_ttl(server: ZooKeeper) -> None:
    """Nobody renews or releases it any more, while the session that carries it lives on."""

    async def take() -> tuple[aio.Locks, aio.Lease]:
        locks = aio.connect(f"{server.url}/ended", ttl=2)
        return locks, await locks.acquire("x")

    locks, lease = run(take())
    with fencepost.connect(f"{server.url}/ended") as there:
        assert there.acquire("x", timeout=PATIENCE).token > lease.token
    run(locks.close())


def test_a_lock_out_of_use_vanishes_and_its_tokens_go_on(server: ZooKeeper) -> None:
    with fencepost.connect(f"{server.url}/idle") as locks, kazoo(server.url) as other:
        lease = locks.acquire("x")
        assert lease.release()
        until(lambda: other.exists("/idle/x") is None, "the server removes it")
        again = locks.acquire("x")
        assert again.token > lease.token
        node = other.get_children("/idle/x")[0]
        assert node.endswith("0000000000"), "its numbers started anew, its tokens did not"


def test_a_lock_can_be_kept_for_clients_that_expect_it(server: ZooKeeper) -> None:
    with fencepost.connect(f"{server.url}/keep?parents=keep") as locks, kazoo(server.url) as other:
        locks.acquire("x").release()
        gone = fencepost.connect(f"{server.url}/keep")
        with gone:
            gone.acquire("y").release()
        until(lambda: other.exists("/keep/y") is None, "its node is removed")
        assert other.exists("/keep/x")


def test_with_a_password_the_nodes_are_that_users_alone(server: ZooKeeper) -> None:
    mine = server.url.replace("://", "://ann:s3cret@") + "/private"
    with fencepost.connect(mine) as locks, locks.lock("x") as lease:
        with fencepost.connect(f"{server.url}/private") as stranger, pytest.raises(BackendError) as refused:
            stranger.acquire("x", timeout=1)
        assert "not allowed" in str(refused.value)
        assert "s3cret" not in str(refused.value)
        lease.renew()
    shared = mine.replace("/private", "/shared?acl=open")
    with fencepost.connect(shared) as locks, fencepost.connect(f"{server.url}/shared") as anybody:
        lease = locks.acquire("x")
        assert anybody.try_acquire("x") is None
        assert lease.release()
        assert anybody.acquire("x", timeout=PATIENCE).release()


def test_a_node_that_was_made_where_nothing_may_be_read_is_removed(server: ZooKeeper) -> None:
    with kazoo(server.url) as other:
        other.add_auth("digest", "ann:s3cret")
        other.create("/blind", makepath=True)
        mine = [make_digest_acl("ann", "s3cret", all=True)]
        other.create("/blind/x", acl=[*mine, make_acl("world", "anyone", create=True, delete=True)])
        with fencepost.connect(f"{server.url}/blind", ttl=LONG) as locks:
            with pytest.raises(BackendError, match="not allowed"):
                locks.acquire("x")
            assert other.get("/blind/x")[1].cversion == 2, "a node was made, and removed"
            assert other.get_children("/blind/x") == []


def test_a_release_whose_answer_was_lost_is_confirmed_when_it_is_tried_again(server: ZooKeeper) -> None:
    faults = Faults()
    with Proxy(server.port, faults=faults) as proxy:
        url = f"zk://{proxy.address}/again"
        with fencepost.connect(url, ttl=LONG) as locks, fencepost.connect(f"{server.url}/again") as others:
            lease = locks.acquire("x")
            proxy.drop_after(b"__lock__")
            with pytest.raises(BackendError) as raised:
                lease.release()
            assert raised.value.ambiguous
            assert len(faults.of("lose")) == 1
            assert others.acquire("x", timeout=PATIENCE).release(), "it was carried out"
            assert lease.release()
            assert lease.reason is Reason.RELEASED
            assert not backend(locks)._unconfirmed


@pytest.mark.parametrize("query", ["layout=java", "parents=no", "acl=creator", "tls=yes", "colour=red"])
def test_a_senseless_option_is_refused(query: str) -> None:
    with pytest.raises(ConfigError):
        fencepost.connect(f"zk://localhost:2181?{query}")


def test_a_follower_without_its_leader_confirms_nothing() -> None:
    """It goes on answering reads for a while, when the leader may have given the lock away."""
    with ZooKeeperEnsemble() as ensemble:
        modes = {member: ask(member.port, b"srvr") for member in ensemble.members}
        leader = next(member for member, mode in modes.items() if b"leader" in mode)
        follower = next(member for member, mode in modes.items() if b"follower" in mode)
        with fencepost.connect(f"{follower.url}/cut", ttl=3) as locks, kazoo(follower.url) as other:
            lease = locks.acquire("x")
            lease.renew()
            leader.pause()
            try:
                assert other.exists("/cut/x"), "the follower still answers"
                assert lease.ended.wait(PATIENCE)
                assert lease.reason is Reason.EXPIRED
            finally:
                leader.resume()


@isolated
def test_a_process_without_descriptors_says_so_keeps_what_it_has_and_recovers(zookeeper_server: Endpoint) -> None:
    """kazoo cannot even look for its server's address then, nor wait for an answer in its own way."""
    url = f"{zookeeper_server.url.replace(HOST, 'localhost')}/full?connect_timeout=3s"
    with fencepost.connect(url, ttl=PATIENCE) as locks:
        lease = locks.acquire("x")
        with no_descriptors():
            with pytest.raises(BackendError, match="Too many open files"):
                locks.acquire("y", ttl=PATIENCE / 2)
            lease.renew()
            assert locks.acquire("y").release(), "in the session that is open"
        with few_descriptors(2), pytest.raises(BackendError, match=r"within 3 s: .*Too many open files"):
            locks.acquire("y", ttl=PATIENCE / 2)
        assert lease.release()
        assert locks.acquire("y", ttl=PATIENCE / 2).release()


@pytest.mark.parametrize("waits", [False, True])
def test_a_session_whose_thread_has_ended_is_replaced(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """kazoo's connection thread ends on errors that it does not expect."""
    with fencepost.connect(f"{server.url}/ended", ttl=2) as locks, fencepost.connect(f"{server.url}/ended") as others:
        held = others.acquire("x") if waits else None
        lease = locks.acquire("y")
        [session] = backend(locks)._sessions.values()
        if waits:
            waiter = background(lambda: locks.acquire("x"))
            until(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiter])
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise LookupError("nobody expects this")

            patch.setattr(session._connection, "_send_request", fail)
            session.send(Sync("/"))
            until(lambda: session.over, "its thread has ended")
        assert lease.ended.wait(PATIENCE)
        assert locks.acquire("y", timeout=PATIENCE).token > lease.token
        if held is not None:
            assert held.release()
            assert waiter.result().release()


def test_a_renewal_whose_sync_was_lost_confirms_nothing(server: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke between the two requests: the second went to another server, which may be cut off."""
    with fencepost.connect(f"{server.url}/lossy", ttl=LONG) as locks:
        lease = locks.acquire("x", renew=False)
        [session] = backend(locks)._sessions.values()
        send, lost = session.send, list[object]()

        def lossy(request: object, then: Callable[[Reply], None] | None = None) -> Reply:
            if not isinstance(request, Sync):
                return send(request, then)
            lost.append(request)
            reply = Reply(session, then)
            reply.set_exception(ConnectionLoss())
            return reply

        before = lease.deadline
        with monkeypatch.context() as patch:
            patch.setattr(session, "send", lossy)
            with pytest.raises(BackendError, match="did not say"):
                lease.renew()
        assert lost
        assert lease.deadline == before
        lease.renew()
        assert lease.deadline > before


def test_a_follower_without_its_leader_grants_nothing_to_a_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline would be counted from a read that the leader, which ends sessions, never saw."""
    with ZooKeeperEnsemble() as ensemble:
        modes = {member: ask(member.port, b"srvr") for member in ensemble.members}
        leader = next(member for member, mode in modes.items() if b"leader" in mode)
        follower = next(member for member, mode in modes.items() if b"follower" in mode)
        with fencepost.connect(f"{leader.url}/turn", ttl=LONG) as others, kazoo(follower.url) as other:
            holder = others.acquire("x")
            with fencepost.connect(f"{follower.url}/turn", ttl=LONG) as locks:
                waiter = background(lambda: locks.acquire("x"))
                until(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiter])
                looks, paused = threading.Event(), threading.Event()
                look = Contender.look

                async def late(contender: Contender) -> bool:
                    looks.set()
                    assert paused.wait(PATIENCE)
                    return await look(contender)

                monkeypatch.setattr(Contender, "look", late)
                assert holder.release()
                until(looks.is_set, "the follower told it of the release", watching=[waiter])
                leader.pause()
                try:
                    paused.set()
                    assert len(other.get_children("/turn/x")) == 1, "the follower still answers"
                    with pytest.raises(AssertionError, match="still running"):
                        waiter.result(1.0)
                finally:
                    leader.resume()
                lease = waiter.result()
                assert lease.token > holder.token
                assert lease.release()


@pytest.mark.parametrize(("host", "exposed"), [("127.0.0.1", False), ("127.1", True)])
def test_the_doctor_tells_of_a_password_in_the_clear(server: ZooKeeper, host: str, exposed: bool) -> None:
    # 127.1 is this machine too, which only the resolver knows: it stands for any name.
    with fencepost.connect(f"zk://ann:s3cret@{host}:{server.port}/clear") as locks:
        findings = drive(backend(locks).doctor())
    told = [each.what for each in findings if each.level == "risk" and "clear" in each.what]
    assert told == (["the password goes to 127.1 in the clear"] if exposed else [])


@dataclass(kw_only=True, eq=False)
class SecureZooKeeper(ZooKeeper):
    """A server with a second port that speaks TLS, under a certificate of its own."""

    secure_port: int

    def prepare(self) -> None:
        super().prepare()
        certificate, key = self_signed(self.folder)
        both = self.folder / "both.pem"
        both.write_text(key.read_text() + certificate.read_text())
        settings = {
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": HOST,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": both,
            "ssl.trustStore.location": certificate,
            "ssl.clientAuth": "none",
        }
        with (self.folder / "zoo.cfg").open("a") as config:
            config.writelines(f"{key}={value}\n" for key, value in settings.items())

    def command(self) -> list[str]:
        # Debian's jar names only some of the Netty jars that its TLS needs.
        plain = program("ZOOKEEPER_CLASSPATH")
        netty = Path(plain.split(":")[0]).parent.glob("netty-*.jar")
        whole = ":".join([plain, *map(str, netty)])
        return [whole if part == plain else part for part in super().command()]


# kazoo leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning")
def test_tls_with_a_ca_of_ones_own() -> None:
    port = Port()
    try:
        with SecureZooKeeper(secure_port=port.number) as server:
            url = f"zk://{HOST}:{port.number}/tls"
            with fencepost.connect(f"{url}?ca={server.folder}/cert.pem") as locks, locks.lock("x") as lease:
                lease.renew()
            # 127.1 is this machine too, which only the resolver knows: no certificate was made for that name.
            elsewhere = f"{url.replace(HOST, '127.1')}?ca={server.folder}/cert.pem"
            for refused in (f"{url}?tls=1", elsewhere):
                stranger = fencepost.connect(f"{refused}&connect_timeout=1s")
                with stranger, pytest.raises(BackendError):
                    stranger.acquire("x", timeout=1)
    finally:
        port.close()


def test_waiters_that_give_up_leave_no_watch_behind(server: ZooKeeper) -> None:
    with fencepost.connect(f"{server.url}/given-up", ttl=LONG) as locks:
        locks.acquire("x")
        for _ in range(20):
            with pytest.raises(NotAcquired):
                locks.acquire("x", timeout=0.05)
        [session] = backend(locks)._sessions.values()
        assert sum(map(len, session._client._data_watchers.values())) <= 2
        assert session._watching == {}
        waiter = background(lambda: locks.acquire("x", timeout=PATIENCE))
        until(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiter])
        assert locks.break_lock("x")
        assert waiter.result().release(), "the watch that all of them share wakes it"


@pytest.mark.parametrize("told", ["10.0.0.1 8080", "worker 7", "rack nan"])
def test_metadata_of_two_words_is_no_holder_with_a_ttl(server: ZooKeeper, told: str) -> None:
    with fencepost.connect(f"{server.url}/told", ttl=LONG) as locks:
        election = locks.election("x", metadata=told)
        for _ in election:
            leader = election.leader()
            assert leader is not None
            assert leader.metadata == told
            break


@isolated
def test_a_signal_handler_while_a_session_is_looked_for_uses_locks_too(zookeeper_server: Endpoint) -> None:
    """Handlers of most signals are held back meanwhile; this one's is not."""
    root = f"{zookeeper_server.url}/{secrets.token_hex(4)}"
    with fencepost.connect(root, ttl=LONG) as locks:
        assert locks.acquire("first").release(), "there is a session"
        released: list[bool] = []

        class Interrupted(dict[Any, Any]):
            def get(self, *key: Any) -> Any:
                if not released:
                    signal.raise_signal(signal.SIGCHLD)
                return super().get(*key)

        def handle(*_: object) -> None:
            released.append(False)
            released[0] = locks.acquire("second").release()

        signal.signal(signal.SIGCHLD, handle)
        backend: Any = locks._core.backend
        backend._sessions = Interrupted(backend._sessions)
        assert locks.acquire("third").release()
        assert released == [True]
