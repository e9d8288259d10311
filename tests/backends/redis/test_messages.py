"""What is published to a process is a hint: garbage does no harm, forgeries are not believed, the lost are found."""

import asyncio
from typing import Any

import pytest
import redis

import fencepost
from fencepost import aio
from fencepost.backends.redis import nodes
from fencepost.driver import run as finish
from fencepost_lab.faults.proxy import Proxy
from tests.backends.conftest import Own
from tests.backends.redis.waiters import Waiters
from tests.conformance.faces import FACES, Client
from tests.harness.logs import logged
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import PATIENCE, run, until, until_async

QUEUE = "fencepost:lock:a\x1fqueue"
GARBAGE = [b"", b"hello world", b"\xff\xfe\x00", b"1 2 3", b"1 2 x somebody", b"9" * 5000]


def channels(own: Own) -> list[str]:
    found: list[str] = own.client.pubsub_channels("fencepost.*")
    return found


@pytest.mark.parametrize("face", FACES)
def test_a_message_that_means_nothing_does_no_harm(own_redis: Own, face: str, caplog: pytest.LogCaptureFixture) -> None:
    async def whole() -> None:
        client = Client(face, own_redis.url)
        held = others.acquire("a")
        waiting = asyncio.create_task(client.acquire("a", timeout=PATIENCE))
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 1, "it waits", watching=[waiting])
        (channel,) = channels(own_redis)
        before = {each["id"] for each in own_redis.client.client_list()}
        assert all(own_redis.client.publish(channel, each) == 1 for each in GARBAGE)
        await until_async(lambda: others.acquire("b").release(), "something passes")
        assert held.release()
        lease = await waiting
        assert before <= {each["id"] for each in own_redis.client.client_list()}, "no connection was given up"
        assert channels(own_redis) == [channel]
        assert await lease.release()
        await client.close()

    with fencepost.connect(own_redis.url) as others:
        run(whole())
    assert not [record for record in logged(caplog) if record.levelname == "ERROR"]


@pytest.mark.parametrize("face", FACES)
def test_a_forged_grant_is_not_believed(own_redis: Own, face: str) -> None:
    """Anybody who may publish can say that a waiter was handed the lock; its holder is in the queue for all to read."""

    async def whole() -> None:
        client = Client(face, own_redis.url)
        held = others.acquire("a", ttl=300)
        waiting = asyncio.create_task(client.acquire("a", timeout=PATIENCE))
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 1, "it waits", watching=[waiting])
        _, channel, holder = own_redis.client.zrange(QUEUE, 0, -1)[0].split(":", 2)
        before = own_redis.requests()
        for forged in (f"9223372036854775807 300000 1 {holder}", holder):
            assert own_redis.client.publish(channel, forged) == 1
        await until_async(lambda: own_redis.requests() > before, "it asks the server", watching=[waiting])
        assert not waiting.done()
        assert own_redis.client.zrange(QUEUE, 0, -1)[0].endswith(holder), "it waits on in its place"
        assert held.release()
        lease = await waiting
        assert held.token < lease.token < 2**62
        # To its holder as well: a grant that it has already is not given up for one that never was.
        before = own_redis.requests()
        assert own_redis.client.publish(channel, holder) == 1
        await until_async(lambda: own_redis.requests() > before, "it asks the server")
        assert own_redis.client.get("fencepost:lock:a") == f"{holder}:{lease.token}"
        assert await lease.release()
        await client.close()

    with fencepost.connect(own_redis.url) as others:
        run(whole())


async def test_dead_waiters_are_skipped_although_somebody_listens_to_everything(own_redis: Own) -> None:
    with redis.Redis(port=own_redis.server.port) as debugging:
        everything = debugging.pubsub()
        everything.psubscribe("*")
        until(lambda: own_redis.client.pubsub_numpat() == 1, "it listens")
        async with aio.connect(own_redis.url) as locks:
            held = await locks.acquire("a")
            doomed = Waiters(own_redis.url, "a", 20)
            await until_async(lambda: own_redis.client.zcard(QUEUE) == 20, "20 waiters", watching=[doomed])
            waiting = asyncio.create_task(locks.acquire("a", timeout=PATIENCE))
            await until_async(lambda: own_redis.client.zcard(QUEUE) == 21, "a live one", watching=[waiting])
            assert doomed.kill() == []
            await until_async(lambda: len(channels(own_redis)) == 1, "Redis notices")
            assert await held.release()
            assert await (await waiting).release()
        everything.close()


@pytest.mark.parametrize("face", FACES)
def test_a_queue_that_came_back_with_those_who_are_done_is_worked_off_at_once(own_redis: Own, face: str) -> None:
    """As a failover to a lagging replica brings it: each of them would hold the lock for its ttl."""

    async def whole() -> None:
        client = Client(face, own_redis.url)

        async def section() -> None:
            assert await (await client.acquire("a", ttl=300, timeout=PATIENCE)).release()

        held = others.acquire("a")
        crowd = [asyncio.create_task(section()) for _ in range(10)]
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 10, "ten wait", watching=crowd)
        with redis.Redis(port=own_redis.server.port) as raw:
            copy: Any = raw.dump(QUEUE)
            assert held.release()
            await asyncio.wait_for(asyncio.gather(*crowd), PATIENCE)
            held = others.acquire("a")
            raw.restore(QUEUE, 60_000, copy)
        waiting = asyncio.create_task(client.acquire("a", ttl=300, timeout=PATIENCE))
        await until_async(lambda: own_redis.client.zcard(QUEUE) == 11, "and one behind them", watching=[waiting])
        assert held.release()
        assert await (await waiting).release()
        await client.close()

    with fencepost.connect(own_redis.url) as others:
        run(whole())
    assert own_redis.keys() <= {"fencepost:lock:a\x1fgone"}


@pytest.mark.parametrize("rights", ["-publish", "-pubsub", "-publish -pubsub"])
def test_one_who_may_not_publish_releases_and_takes_nobody_out_of_the_queue(own_redis: Own, rights: str) -> None:
    own_redis.client.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "&*", "+@all", *rights.split())
    with (
        fencepost.connect(own_redis.url.replace("//", "//mute:pw@")) as mute,
        fencepost.connect(own_redis.url) as locks,
    ):

        def section() -> int:
            with locks.lock("a", ttl=300, timeout=PATIENCE) as lease:
                return lease.token

        held = mute.acquire("a", ttl=300)
        waiting = [background(section), background(section)]
        until(lambda: own_redis.client.zcard(QUEUE) == 2, "two wait", watching=waiting)
        assert held.release()
        assert held.token < min(each.result() for each in waiting)
    assert own_redis.keys() == set()


def test_who_leaves_a_redis_that_is_full_frees_what_it_had(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as locks:
        backend: Any = locks._core.backend
        held = locks.acquire("a", ttl=300)
        own_redis.client.config_set("maxmemory", 1)
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            own_redis.client.set("x", "y")
        finish(backend._leave("a", held._stored, "", late=True))
        assert own_redis.client.get("fencepost:lock:a") is None
        own_redis.client.config_set("maxmemory", 0)


def test_refused_acquires_leave_nothing_in_memory(own_redis: Own) -> None:
    own_redis.client.lpush("fencepost:lock:a", "x")

    async def concurrent() -> None:
        async with aio.connect(own_redis.url) as locks:
            for _ in range(20):
                with pytest.raises(fencepost.BackendError, match="WRONGTYPE"):
                    await locks.acquire("a", timeout=1)
            assert not locks._core.backend._waiters.asking  # type: ignore[attr-defined]

    run(concurrent())
    with fencepost.connect(own_redis.url) as locks:
        own_redis.server.kill()
        for _ in range(20):
            with pytest.raises(fencepost.BackendError, match="cannot connect"):
                locks.acquire("a", timeout=1)
        assert not locks._core.backend._waiters.asking  # type: ignore[attr-defined]


@pytest.mark.parametrize("failing", ["the look", "its clean-up"])
def test_what_a_look_took_for_nobody_is_given_back_although_the_server_did_not_answer(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The waiter left while the look was under way; then its answer, or that of the clean-up, is lost."""
    with fencepost.connect(own_redis.url) as others, fencepost.connect(own_redis.url) as locks:
        backend: Any = locks._core.backend
        held = others.acquire("a")
        assert finish(backend.take("a", "ghost", 300, 10)) is None
        waiter = backend._waiters.part("ghost")
        own_redis.client.delete(QUEUE)
        assert held.release()
        run_script = backend._calls.run
        lost: list[Any] = []

        async def once(script: Any, *args: Any, **options: Any) -> Any:
            reply = await run_script(script, *args, **options)
            if not lost and script is (backend.scripts.take if failing == "the look" else backend.scripts.leave):
                lost.append(own_redis.client.get("fencepost:lock:a"))
                if failing != "the look":
                    own_redis.client.set("fencepost:lock:a", "ghost:7")  # as if it had never arrived
                raise fencepost.BackendError("its answer is lost", backend="redis", ambiguous=True)
            return reply

        monkeypatch.setattr(backend._calls, "run", once)
        with pytest.raises(fencepost.BackendError, match="lost"):
            finish(backend._look(waiter.queue, waiter))
        until(lambda: own_redis.client.get("fencepost:lock:a") is None, "it is given back")
        assert lost
        if failing == "the look":
            assert lost[0].startswith("ghost:"), "it took the lock"
        assert not backend._waiters.asking


def test_one_who_waits_for_a_listener_that_is_closed_goes_on_with_the_next(own_redis: Own) -> None:
    with Proxy(own_redis.server.port) as proxy, fencepost.connect(f"redis://{proxy.address}?timeout=30s") as locks:
        nodes: Any = locks._core.backend._nodes  # type: ignore[attr-defined]
        assert locks.acquire("a").release()
        proxy.lose_answer_to(b"SUBSCRIBE")
        waiting = background(lambda: finish(nodes.only.listen()))
        until(lambda: proxy.held > 0, "its answer is held back", watching=[waiting])
        nodes.forget()
        proxy.heal()
        waiting.result(20)
        assert nodes.only.listening
        nodes._forgotten = nodes._driver.now()
        nodes.forget()  # a refusal from before: it says nothing about the connection that was made since
        assert nodes.only.listening


def test_a_message_between_a_ping_and_its_answer_does_no_harm(own_redis: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_LISTEN", 0.02)
    with fencepost.connect(own_redis.url, ttl=300) as locks, fencepost.connect(own_redis.url, ttl=300) as others:
        held = others.acquire("a")
        waiter = background(lambda: locks.acquire("a"))
        until(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiter])
        node = locks._core.backend._nodes.only  # type: ignore[attr-defined]  # Redis' own
        listens = node._listener.socket
        pings = int(own_redis.client.info("commandstats")["cmdstat_ping"]["calls"])
        until(lambda: own_redis.client.info("commandstats")["cmdstat_ping"]["calls"] > pings + 3, "it asks")
        for number in range(300):
            own_redis.client.publish(node.channel, f"nobody {number}")
        until(lambda: own_redis.client.info("commandstats")["cmdstat_ping"]["calls"] > pings + 10, "it asks on")
        assert node._listener.socket is listens, "it is the same connection"
        assert held.release()
        assert waiter.result().release()
