"""A cluster whose masters fail, hang and move: what one of them suffers is over once another has its slots."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

import fencepost
from fencepost.backend import Hold, Renewal
from fencepost.driver import run as driver_run
from fencepost.errors import BackendError, FencepostError, NotAcquired
from fencepost_lab.servers import HOST
from fencepost_lab.servers.redis_groups import Member, RedisCluster
from tests import ROOT
from tests.conformance.faces import FACES, Client
from tests.harness.threads import background
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until, until_async

pytestmark = pytest.mark.redis


def owner(cluster: RedisCluster, name: str) -> Member:
    """The master that has a lock."""
    slot = int(cluster.members[0].tell("CLUSTER", "KEYSLOT", f"fencepost:lock:{name}"))
    return cluster.members[min(slot * len(cluster.members) // 16384, len(cluster.members) - 1)]


def names(cluster: RedisCluster) -> dict[Member, list[str]]:
    """Ten locks of each master."""
    found: dict[Member, list[str]] = {member: [] for member in cluster.members}
    number = 0
    while min(map(len, found.values())) < 10:
        found[owner(cluster, f"n{number}")].append(f"n{number}")
        number += 1
    return found


@contextlib.contextmanager
def replica_of(cluster: RedisCluster, master: Member) -> Iterator[Member]:
    with Member() as replica:
        replica.tell("CLUSTER", "MEET", HOST, master.port, master.ports[1])
        number = master.tell("CLUSTER", "MYID")
        until(lambda: number in replica.tell("CLUSTER", "NODES"), "it knows its master")

        master.tell("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        replica.tell("CLUSTER", "REPLICATE", number)
        until(lambda: "'master_link_status': 'up'" in replica.tell("INFO", "replication"), "it follows its master")
        until(
            lambda: all(f":{replica.port}@" in each.tell("CLUSTER", "NODES") for each in cluster.members),
            "all know of it",
        )
        yield replica
        replica.kill()


def leads(view: Member, member: Member) -> bool:
    """Whether a node takes another one for a master."""
    (line,) = [line for line in view.tell("CLUSTER", "NODES").splitlines() if f":{member.port}@" in line]
    return " master " in line


@pytest.mark.parametrize("face", FACES)
def test_the_new_master_is_found_after_a_failover_although_the_old_one_says_nothing(face: str) -> None:
    async def whole() -> None:
        client = Client(
            face, f"{cluster.url}?prefix=fencepost:lock:&connect_timeout={GIVES_UP:g}s&timeout={GIVES_UP:g}s", ttl=2
        )
        await (await client.acquire("a")).release()
        master = owner(cluster, "a")
        with replica_of(cluster, master) as replica:
            held = await client.acquire("a", renew=False)
            master.kill()
            replica.tell("CLUSTER", "FAILOVER", "TAKEOVER")
            others = [each for each in cluster.members if each is not master]
            until(lambda: all(leads(each, replica) for each in others), "all know the new master")

            async def acquired() -> bool:
                try:
                    lease = await client.acquire("a", timeout=5)
                except (BackendError, NotAcquired):
                    return False
                assert lease.token > held.token
                return await lease.release()

            await until_async(acquired, "it goes on at the new master")
            await client.close()

    with RedisCluster() as cluster:
        run(whole())


def move(cluster: RedisCluster, name: str) -> tuple[Member, Member, int]:
    """Begin to move a lock's slot, without any of its keys, and leave it so."""
    source = owner(cluster, name)
    target = next(each for each in cluster.members if each is not source)
    slot = int(source.tell("CLUSTER", "KEYSLOT", f"fencepost:lock:{name}"))
    with contextlib.closing(redis.Redis(port=source.port)) as client:
        keys: Any = client.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)  # type: ignore[no-untyped-call]
        if keys:
            client.delete(*keys)
    target.tell("CLUSTER", "SETSLOT", slot, "IMPORTING", source.tell("CLUSTER", "MYID"))
    source.tell("CLUSTER", "SETSLOT", slot, "MIGRATING", target.tell("CLUSTER", "MYID"))
    return source, target, slot


def documented() -> list[str]:
    page = (ROOT / "docs/redis.md").read_text()
    found = re.search(r"ACL SETUSER app on >secret (.*?)```", page, re.DOTALL)
    more = re.search(r"a cluster also `([^`]*)`", page)
    assert found
    assert more
    return [*found[1].split(), *more[1].split()]


def test_a_slot_on_the_move_is_used_with_the_documented_rights_and_named_without_them() -> None:
    with RedisCluster() as cluster:
        for member in cluster.members:
            member.tell("ACL", "SETUSER", "app", "on", ">pw", *documented())
            member.tell("ACL", "SETUSER", "less", "on", ">pw", *documented(), "-asking")
        url = f"{cluster.url}?prefix=fencepost:lock:"
        with (
            fencepost.connect(url.replace("//", "//app:pw@")) as locks,
            fencepost.connect(url.replace("//", "//less:pw@")) as less,
        ):
            assert less.acquire("a").release()
            source, target, slot = move(cluster, "a")
            with pytest.raises(BackendError, match="asking") as refused:
                less.acquire("a", timeout=5)
            assert not refused.value.ambiguous
            waiting = background(lambda: locks.acquire("a", timeout=PATIENCE))
            asked = "'cmdstat_asking': {'calls': "
            until(lambda: asked in target.tell("INFO", "commandstats"), "it asks there", watching=[waiting])
            for member in (target, source):
                member.tell("CLUSTER", "SETSLOT", slot, "NODE", target.tell("CLUSTER", "MYID"))
            lease = waiting.result()
            assert target.tell("GET", "fencepost:lock:a") == f"{lease._stored}:{lease.token}"
            assert lease.release()


def test_servers_that_send_a_request_back_and_forth_are_given_up_in_time() -> None:
    """As while they do not agree yet on who has a slot."""
    with (
        RedisCluster() as cluster,
        fencepost.connect(f"{cluster.url}?prefix=fencepost:lock:&timeout={GIVES_UP:g}s") as locks,
    ):
        assert locks.acquire("a").release()
        source = owner(cluster, "a")
        slot = source.tell("CLUSTER", "KEYSLOT", "fencepost:lock:a")
        target = next(each for each in cluster.members if each is not source)
        with contextlib.closing(redis.Redis(port=source.port)) as client:
            keys: Any = client.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)  # type: ignore[no-untyped-call]
            client.delete(*keys)
        # The old owner believes that it is the other's; that one, which never claims it, believes the opposite.
        source.tell("CLUSTER", "SETSLOT", slot, "NODE", target.tell("CLUSTER", "MYID"))
        with pytest.raises(FencepostError) as refused:
            locks.acquire("a", timeout=5)
        assert isinstance(refused.value, BackendError)
        assert "MOVED" in str(refused.value)
        assert not refused.value.ambiguous
        said = "".join(each.tell("INFO", "commandstats") for each in (source, target))
        sent = sum(map(int, re.findall(r"'cmdstat_eval': {[^}]*'rejected_calls': (\d+)", said)))
        assert 5 < sent < 500, "it was sent back and forth, and not at full speed"


def test_a_master_that_hangs_does_not_cost_the_leases_at_the_others() -> None:
    with (
        RedisCluster() as cluster,
        fencepost.connect(f"{cluster.url}?prefix=fencepost:lock:&timeout=5s", ttl=6) as locks,
    ):
        hung, *well = cluster.members
        there = names(cluster)
        leases = {member: locks.acquire(there[member][0]) for member in (hung, *well)}
        with hung.paused():
            until(lambda: leases[hung].lost, "the lease at the one that hangs is lost")
            for member in well:
                leases[member].check()


def test_a_slot_that_nobody_serves_costs_only_the_leases_in_it() -> None:
    with (
        RedisCluster() as cluster,
        fencepost.connect(f"{cluster.url}?prefix=fencepost:lock:&timeout={GIVES_UP:g}s", ttl=300) as locks,
    ):
        for member in cluster.members:
            member.tell("CONFIG", "SET", "cluster-require-full-coverage", "no")
        first, second, *_ = names(cluster)[cluster.members[0]]
        holds = [Hold(each.name, each._stored, each.token, 300) for each in map(locks.acquire, (first, second))]
        slot = cluster.members[0].tell("CLUSTER", "KEYSLOT", f"fencepost:lock:{first}")
        for member in cluster.members:
            member.tell("CLUSTER", "DELSLOTS", slot)
        backend: Any = locks._core.backend
        assert driver_run(backend.renew(holds)) == [Renewal.UNKNOWN, Renewal.RENEWED], "the server says so"
        backend._nodes.forget()
        assert driver_run(backend.renew(holds)) == [Renewal.UNKNOWN, Renewal.RENEWED], "nobody is found for it"
        looked, discover = 0, backend._nodes._discover

        async def counted() -> None:
            nonlocal looked
            looked += 1
            await discover()

        backend._nodes._discover = counted
        with pytest.raises(BackendError, match=f"no node serves slot {slot}"):
            driver_run(backend.renew(holds[:1] * 20))
        assert looked == 1, "and not once for each"


def test_a_redirection_without_a_host_leads_to_the_host_of_the_node_that_says_so() -> None:
    with RedisCluster() as cluster, fencepost.connect(f"{cluster.url}?prefix=fencepost:lock:") as locks:
        before = locks.acquire("a")
        assert before.release()
        source, target, slot = move(cluster, "a")
        for member in cluster.members:
            member.tell("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
        for member in (target, source):
            member.tell("CLUSTER", "SETSLOT", slot, "NODE", target.tell("CLUSTER", "MYID"))
        with socket.create_connection((HOST, source.port)) as raw:
            raw.sendall(b"GET fencepost:lock:a\r\n")
            assert raw.recv(100) == f"-MOVED {slot} :{target.port}\r\n".encode()
        lease = locks.acquire("a", timeout=PATIENCE)
        assert target.tell("GET", "fencepost:lock:a") == f"{lease._stored}:{lease.token}"
        topology: Any = locks._core.backend._nodes  # type: ignore[attr-defined]  # Redis' own
        assert {host for host, _ in topology._by_endpoint} == {HOST}
        assert lease.release()


def test_clean_ups_at_a_master_that_hangs_do_not_hold_up_those_at_the_others() -> None:
    with (
        RedisCluster() as cluster,
        fencepost.connect(f"{cluster.url}?prefix=fencepost:lock:&timeout={10 * PATIENCE}s") as locks,
    ):
        hung, well, _ = cluster.members
        there = names(cluster)
        for member in (hung, well):
            assert locks.acquire(there[member][0]).release()
        backend: Any = locks._core.backend
        with hung.paused():
            backend._later(there[hung][0], "ann", "")
            pool = backend.home(there[hung][0]).transport
            until(lambda: pool._opened == 1 and not pool._idle, "it hangs")
            backend._later(there[well][0], "bob", "")
            until(lambda: len(backend._cleanups) == 1, "what is owed to the other is cleaned up")
        until(lambda: not len(backend._cleanups), "this one as well, once it answers")


def test_waiting_at_a_master_that_hangs_does_not_hold_up_those_at_the_others() -> None:
    with RedisCluster() as cluster:
        url = f"{cluster.url}?prefix=fencepost:lock:"
        with fencepost.connect(url) as others, fencepost.connect(url) as locks:
            hung, well, _ = cluster.members
            there = names(cluster)
            stop = threading.Event()
            held = [others.acquire(name, ttl=300, renew=False) for name in there[hung]]

            def wait(name: str) -> None:
                with contextlib.suppress(FencepostError):
                    locks.acquire(name, timeout=PATIENCE)
                assert stop.wait(PATIENCE)

            crowd = [background(partial(wait, name)) for name in there[hung]]

            def queued() -> int:
                return sum(len(found.waiters) for each in held if (found := others.status(each.name)))

            until(lambda: queued() == len(held), "they wait", watching=crowd)
            # Its holder died: nobody tells that it is free.
            others.acquire(there[well][0], ttl=3, renew=False)
            waiting = background(lambda: locks.acquire(there[well][0], timeout=PATIENCE))
            until(
                lambda: waiting.done or bool((found := others.status(there[well][0])) and found.waiters),
                "and one elsewhere, unless it is late and finds the lock free",
            )
            with hung.paused():
                assert waiting.result(15).release()
            stop.set()
        cluster.close()
