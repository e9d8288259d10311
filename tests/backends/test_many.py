"""Many leases of one process are released together when it closes, and none at another's cost."""

from __future__ import annotations

import secrets

import pytest

import fencepost
from fencepost.backend import Hold
from fencepost.backends.consul.backend import Consul
from fencepost.backends.consul.http import Forbidden
from fencepost.driver import run
from fencepost.errors import BackendError
from fencepost.events import Event
from fencepost.lease import Reason
from tests.conformance.faces import FACES, Client
from tests.conformance.faces import Hold as Held
from tests.harness.scripted import CLOSE, Dialect, Fault, GrpcScripted, Http, Scripted, ZooKeeper
from tests.harness.servers import Endpoint, Given
from tests.harness.waiting import until_async

MANY = 230  # more than closing releases in one go, and than a store takes at once
TTL = 300.0
SERVERS = {
    "etcd": "etcd_server",
    "consul": "consul_server",
    "zookeeper": "zookeeper_server",
    "redlock": "redlock_servers",
}
REFUSED = Fault("refused", asked=False, refusal=("PERMISSION_DENIED", "etcdserver: permission denied"))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Endpoint:
    found: Endpoint = request.getfixturevalue(SERVERS[request.param])
    # A busy machine is no node that hangs.
    return Given(f"{found.url}?node_timeout=30s") if request.param == "redlock" else found


async def acquired(client: Client, prefix: str, count: int = MANY) -> list[Held]:
    return [await client.acquire(f"{prefix}/{each}", ttl=TTL) for each in range(count)]


@pytest.mark.parametrize("face", FACES)
async def test_closing_releases_many_and_tells_of_each(server: Endpoint, face: str) -> None:
    prefix = f"many-{secrets.token_hex(6)}"
    events: list[Event] = []
    client, other = Client(face, server.url, hooks=[events.append]), Client(face, server.url)
    leases = await acquired(client, prefix)
    assert await other.break_lock(f"{prefix}/7")
    taken = await other.acquire(f"{prefix}/7", ttl=TTL)
    await client.close()
    assert {event.name for event in events if event.kind == "released"} == {
        lease.name for lease in leases if lease is not leases[7]
    }
    assert {lease.raw.reason for lease in leases if lease is not leases[7]} == {Reason.CLOSED}
    assert leases[7].raw.reason in (Reason.REPLACED, Reason.GONE)
    assert [(each.name, each.holder) for each in await other.list(prefix)] == [(f"{prefix}/7", taken.holder)]
    assert await taken.release()
    await other.close()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scheme", ["etcd", "consul"])
async def test_closing_takes_few_requests(request: pytest.FixtureRequest, scheme: str, face: str) -> None:
    server: Endpoint = request.getfixturevalue(SERVERS[scheme])
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with GrpcScripted(port) if scheme == "etcd" else Scripted(port, Http) as proxy:
        client = Client(face, f"{scheme}://{proxy.address}")
        held = await acquired(client, f"few-{secrets.token_hex(6)}")
        label = "Txns" if scheme == "etcd" else "PUT txn check-index"
        assert not proxy.seen[label]
        alone = proxy.seen["Txn delete_range"]
        await client.close()
        assert proxy.seen["Txn delete_range"] == alone
        assert 0 < proxy.seen[label] < 12
        assert all(lease.ended for lease in held)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("scheme", "fault", "label", "nth"),
    [
        ("etcd", Fault("lost", refusal=("UNAVAILABLE", "transport is closing")), "Txns", 1),
        ("etcd", REFUSED, "Txns", 1),
        ("consul", CLOSE, "PUT txn check-index", 2),
        ("zookeeper", CLOSE, "delete", 20),
    ],
)
async def test_a_request_that_fails_while_many_are_released_leaves_none(
    request: pytest.FixtureRequest, scheme: str, fault: Fault, label: str, nth: int, face: str
) -> None:
    server: Endpoint = request.getfixturevalue(SERVERS[scheme])
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    prefix = f"none-{secrets.token_hex(6)}"
    dialect: type[Dialect] = Http if scheme == "consul" else ZooKeeper
    direct = Client("asyncio", server.url)
    with GrpcScripted(port) if scheme == "etcd" else Scripted(port, dialect) as proxy:
        client = Client(face, f"{scheme}://{proxy.address}")
        leases = await acquired(client, prefix, 200)
        proxy.plan(fault, label, nth)
        await client.close()
        assert proxy.happened, "it failed in the middle"

        async def free() -> bool:
            return not await direct.list(prefix)

        await until_async(free, "none is held any more")
    assert {lease.raw.reason for lease in leases} == {Reason.CLOSED}
    await direct.close()


def test_what_was_released_stays_so_if_consul_fails_for_another_of_the_same_batch(consul_server: Endpoint) -> None:
    port = int(consul_server.url.rpartition(":")[2].partition("/")[0])
    prefix = f"some-{secrets.token_hex(6)}"
    with (
        Scripted(port, Http) as proxy,
        fencepost.connect(f"consul://{proxy.address}", ttl=TTL) as locks,
        fencepost.connect(consul_server.url) as other,
    ):
        leases = [locks.acquire(f"{prefix}/{each}") for each in range(3)]
        assert other.break_lock(f"{prefix}/0")
        # All three, those that are left, and then the first by itself.
        proxy.plan(CLOSE, "PUT txn check-index", 3)
        holds = [Hold(lease.name, lease._stored, lease.token, lease.ttl) for lease in leases]
        answers = run(locks._core.backend.release_all(holds))
        assert proxy.happened
        assert isinstance(answers[0], BackendError)
        assert answers[1:] == [True, True]
        assert other.list(prefix) == []


def test_what_consuls_acl_does_not_let_release_ends_with_its_session(
    consul_server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"refused-{secrets.token_hex(6)}"
    with fencepost.connect(consul_server.url, ttl=TTL) as locks, fencepost.connect(consul_server.url) as other:
        leases = [locks.acquire(f"{prefix}/{each}") for each in range(3)]
        backend = locks._core.backend
        assert isinstance(backend, Consul)
        refused: list[object] = []

        async def refuse(*operations: object, **query: object) -> None:
            refused.append(operations)
            raise Forbidden("its ACL refuses this", backend="consul", ambiguous=False)

        monkeypatch.setattr(backend._http, "transact", refuse)
        locks.close()
        assert refused
        assert {lease.reason for lease in leases} == {Reason.CLOSED}
        assert other.list(prefix) == []
