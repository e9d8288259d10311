"""Many leases of one process: renewed with few requests, released together, and none at another's cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fencepost.backend import Hold, Renewal
from fencepost.backends.redis.backend import Redis
from fencepost.events import Event
from fencepost.lease import Reason
from tests.backends.conftest import Own
from tests.conformance.faces import FACES, Client
from tests.conformance.faces import Hold as Held
from tests.harness.scripted import CLOSE, Resp, Scripted
from tests.harness.waiting import GIVES_UP, until_async

MANY = 250
TTL = 300.0

pytestmark = [pytest.mark.redis, pytest.mark.parametrize("face", FACES)]


async def acquired(client: Client, count: int = MANY) -> list[Held]:
    return [await client.acquire(f"many/{each}", ttl=TTL) for each in range(count)]


async def renewed(client: Client, leases: Sequence[Held]) -> list[Renewal]:
    """What the store says to a renewal of them all."""
    holds = [Hold(lease.name, lease.stored, lease.token, lease.ttl) for lease in leases]
    return list(await client.raw._core.backend.renew(holds))


def age(own: Own) -> None:
    """Have the locks expire much sooner."""
    pipeline = own.client.pipeline()
    for key in sorted(own.keys()):
        pipeline.pexpire(key, 100_000)
    pipeline.execute()


async def test_many_leases_are_renewed_by_few_requests(own_redis: Own, face: str) -> None:
    client = Client(face, own_redis.url)
    leases = await acquired(client)
    age(own_redis)
    before = own_redis.requests()
    assert await renewed(client, leases) == [Renewal.RENEWED] * MANY
    assert own_redis.requests() - before == 3, "a hundred with each"
    assert all(own_redis.client.pttl(key) > 200_000 for key in sorted(own_redis.keys()))
    await client.close()


async def test_a_lease_that_is_gone_is_lost_and_no_other(own_redis: Own, face: str) -> None:
    client = Client(face, own_redis.url)
    leases = await acquired(client)
    own_redis.client.delete("fencepost:lock:many/7")
    own_redis.client.set("fencepost:lock:many/107", "somebody else")
    answers = await renewed(client, leases)
    assert [at for at, answer in enumerate(answers) if answer is Renewal.LOST] == [7, 107]
    assert answers.count(Renewal.RENEWED) == MANY - 2
    assert own_redis.client.get("fencepost:lock:many/107") == "somebody else"
    await client.close()


async def test_a_lock_that_is_refused_alone_is_renewed_by_no_request_of_the_others(own_redis: Own, face: str) -> None:
    client = Client(face, own_redis.url)
    leases = await acquired(client)
    own_redis.client.delete("fencepost:lock:many/7")
    own_redis.client.hset("fencepost:lock:many/7", "another", "type")
    age(own_redis)
    before = own_redis.requests()
    answers = await renewed(client, leases)
    assert [at for at, answer in enumerate(answers) if answer is not Renewal.RENEWED] == [7]
    assert answers[7] is Renewal.UNKNOWN
    assert own_redis.requests() - before < 10, "it alone was asked for again"
    assert own_redis.client.pttl("fencepost:lock:many/8") > 200_000
    await client.close()


async def test_a_server_that_forgot_the_script_is_sent_it(own_redis: Own, face: str) -> None:
    client = Client(face, own_redis.url)
    leases = await acquired(client)
    own_redis.client.script_flush()
    assert await renewed(client, leases) == [Renewal.RENEWED] * MANY
    await client.close()


async def test_a_user_who_may_no_longer_touch_one_of_the_locks_keeps_the_others(own_redis: Own, face: str) -> None:
    own_redis.client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
    client = Client(face, own_redis.url.replace("//", "//app:pw@"))
    leases = await acquired(client)
    rights = [f"~fencepost:lock:many/{each}" for each in range(MANY) if each != 7]
    own_redis.client.execute_command("ACL", "SETUSER", "app", "resetkeys", *rights)
    answers = await renewed(client, leases)
    assert [at for at, answer in enumerate(answers) if answer is not Renewal.RENEWED] == [7]
    assert answers[7] is Renewal.UNKNOWN
    own_redis.client.execute_command("ACL", "SETUSER", "app", "~*")
    own_redis.client.execute_command("ACL", "SETUSER", "app", "resetkeys", *rights[1:])
    own_redis.client.script_flush()
    answers = await renewed(client, leases)
    assert [at for at, answer in enumerate(answers) if answer is not Renewal.RENEWED] == [0, 7], "also without scripts"
    own_redis.client.execute_command("ACL", "SETUSER", "app", "~*")
    await client.close()


async def test_a_proxy_that_goes_by_the_first_key_costs_no_lease(
    own_redis: Own, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(face, own_redis.url)
    leases = await acquired(client)
    backend = client.raw._core.backend
    assert isinstance(backend, Redis)
    whole = backend._requests.renew_all

    def misled(locks: Sequence[str], holds: Sequence[Hold]) -> bytes:
        """As the server of the first lock sees it, which has no other."""
        return whole([locks[0], *(f"elsewhere:{lock}" for lock in locks[1:])], holds)

    monkeypatch.setattr(backend._requests, "renew_all", misled)
    assert await renewed(client, leases) == [Renewal.RENEWED] * MANY
    before = own_redis.requests()
    assert await renewed(client, leases) == [Renewal.RENEWED] * MANY
    assert own_redis.requests() - before == MANY, "from now on each has a request of its own"
    await client.close()


async def test_closing_releases_many_in_few_round_trips_and_tells_of_each(own_redis: Own, face: str) -> None:
    events: list[Event] = []
    client = Client(face, own_redis.url, hooks=[events.append])
    leases = await acquired(client)
    own_redis.client.set("fencepost:lock:many/7", "somebody else")
    reads = own_redis.client.info("stats")["total_reads_processed"]
    await client.close()
    assert own_redis.client.info("stats")["total_reads_processed"] - reads < MANY / 4
    assert own_redis.keys() == {"fencepost:lock:many/7"}
    assert [event.name for event in events if event.kind == "not_owner"] == ["many/7"]
    assert [event.name for event in events if event.kind == "lost"] == ["many/7"]
    assert {event.name for event in events if event.kind == "released"} == {lease.name for lease in leases} - {"many/7"}
    assert leases[7].raw.reason is Reason.REPLACED
    assert {lease.raw.reason for lease in leases} == {Reason.REPLACED, Reason.CLOSED}


async def test_a_connection_that_breaks_while_many_are_released_leaves_none(own_redis: Own, face: str) -> None:
    with Scripted(own_redis.server.port, Resp) as proxy:
        client = Client(face, f"redis://{proxy.address}")
        leases = await acquired(client, 50)
        proxy.plan(CLOSE, "release", 20)
        await client.close()
        assert proxy.happened, "it broke in the middle"
        await until_async(lambda: own_redis.keys() == set(), "all are released")
    assert {lease.raw.reason for lease in leases} == {Reason.CLOSED}


async def test_a_server_that_is_gone_ends_closing_soon(own_redis: Own, face: str) -> None:
    client = Client(face, f"{own_redis.url}?timeout={GIVES_UP:g}s&connect_timeout={GIVES_UP:g}s")
    leases = await acquired(client)
    own_redis.server.kill()
    await client.close()
    assert {lease.raw.reason for lease in leases} == {Reason.CLOSED}


async def test_a_lock_that_cannot_be_released_keeps_no_other_from_being_released(own_redis: Own, face: str) -> None:
    client = Client(face, own_redis.url)
    leases = await acquired(client)
    own_redis.client.delete("fencepost:lock:many/7")
    own_redis.client.hset("fencepost:lock:many/7", "another", "type")
    reads = own_redis.client.info("stats")["total_reads_processed"]
    await client.close()
    assert own_redis.client.info("stats")["total_reads_processed"] - reads < MANY / 10, "still many at a time"
    assert own_redis.keys() == {"fencepost:lock:many/7"}
    assert {lease.raw.reason for lease in leases} == {Reason.CLOSED}


async def test_a_server_that_releases_nothing_for_now_is_not_waited_for_with_each(own_redis: Own, face: str) -> None:
    client = Client(face, f"{own_redis.url}?timeout={GIVES_UP:g}s")
    leases = await acquired(client)
    own_redis.client.replicaof("127.0.0.1", 1)
    before = own_redis.requests()
    await client.close()
    assert own_redis.requests() - before < 2 * MANY
    assert {lease.raw.reason for lease in leases} == {Reason.CLOSED}
