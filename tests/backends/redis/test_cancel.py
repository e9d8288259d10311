"""Whoever stops acquiring, at whatever moment, leaves nothing in Redis, not even by a request that arrives late."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

import fencepost
from fencepost import aio, sync
from fencepost.backends.redis import waiters
from fencepost.backends.redis.backend import Redis
from fencepost.errors import BackendError, NotAcquired
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import HOST
from tests.backends.conftest import Own
from tests.conformance.faces import FACES, Client
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until, until_async


def backend(locks: sync.Locks) -> Redis:
    found = locks._core.backend
    assert isinstance(found, Redis)
    return found


class Cancelled:
    """Awaits a coroutine and cancels it at its n-th suspension, before or after what it waits for has come."""

    def __init__(self, job: Coroutine[Any, Any, Any], at: int, after: bool) -> None:
        self.job = job
        self.at = at
        self.after = after
        self.struck = False

    def __await__(self) -> Generator[Any, Any, Any]:
        suspended = 0
        step = self.job.send
        argument: Any = None
        while True:
            try:
                future = step(argument)
            except StopIteration as stop:
                return stop.value
            suspended += 1
            strike = suspended == self.at
            if not strike or self.after:
                yield future
            step, argument = (self.job.throw, asyncio.CancelledError()) if strike else (self.job.send, None)
            self.struck = self.struck or strike


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_cancelling_at_every_await_leaves_neither_key_nor_entry(own_redis: Own, held: bool, after: bool) -> None:
    struck: dict[int, int] = {}

    async def scenario() -> None:
        async with aio.connect(own_redis.url) as locks, aio.connect(own_redis.url) as others:
            for round_ in range(250):
                at = 1 + round_ % 4
                holder = await others.acquire("a") if held else None
                acquire = Cancelled(
                    locks._core.acquire("a", ttl=300, timeout=None, renew=True, max_hold=None), at, after
                )
                waiting = asyncio.ensure_future(outcome(acquire))
                if holder is not None:
                    await asyncio.sleep(0.001 * (round_ % 3))
                    await holder.release()
                lease = await waiting
                if lease is not None:
                    await lease.release()
                if acquire.struck:
                    struck[at] = struck.get(at, 0) + 1
                assert own_redis.keys() == set(), f"round {round_}, cancelled at await {at}"
            assert not locks._core.backend._waiters.waiters  # type: ignore[attr-defined]
            assert not locks._core.backend._waiters.asking  # type: ignore[attr-defined]

    async def outcome(acquire: Cancelled) -> Any:
        try:
            return await acquire
        except asyncio.CancelledError:
            return None

    run(scenario())
    assert struck.get(1, 0) >= 60, struck
    assert not held or struck.get(2, 0) >= 20, struck


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_request_that_arrives_after_its_holder_left_is_refused(own_redis: Own, face: str) -> None:
    """The proxy holds it back until the client has given up and left, over another connection."""

    def blocking(url: str) -> None:
        with fencepost.connect(url) as locks:
            assert locks.acquire("a").release()
            proxy.cut(newcomers=False)
            with pytest.raises(BackendError) as failed:
                locks.acquire("a", ttl=300)
            assert failed.value.ambiguous

    async def concurrent(url: str) -> None:
        async with aio.connect(url) as locks:
            assert await (await locks.acquire("a")).release()
            proxy.cut(newcomers=False)
            with pytest.raises(BackendError) as failed:
                await locks.acquire("a", ttl=300)
            assert failed.value.ambiguous

    with Proxy(own_redis.server.port) as proxy:
        url = f"redis://{HOST}:{proxy.port}?timeout={GIVES_UP:g}s"
        if face == "blocking":
            blocking(url)
        else:
            run(concurrent(url))
        assert proxy.held > 0, "the request was to be held back"
        before = own_redis.requests()
        proxy.heal()
        until(lambda: own_redis.requests() == before + 1, "it was to arrive after all")
        assert own_redis.keys() == {"fencepost:lock:a\x1fgone"}
        assert 0 < own_redis.client.pttl("fencepost:lock:a\x1fgone") <= 60_000


def test_a_look_that_arrives_after_its_waiter_has_left_takes_nothing(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got no answer; the next one did, so that the waiter was sure of its place when its time was up."""
    monkeypatch.setattr(waiters, "POLL", 0.2)
    with Proxy(own_redis.server.port) as proxy, fencepost.connect(own_redis.url, ttl=300) as others:
        held = others.acquire("a")
        with fencepost.connect(f"redis://{proxy.address}?timeout={GIVES_UP:g}s", ttl=300) as locks:
            waiting = background(lambda: locks.acquire("a", timeout=4 * GIVES_UP))
            until(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiting])
            proxy.cut(newcomers=False)
            (waiter,) = backend(locks)._waiters.waiters.values()
            until(lambda: waiter.doubtful, "a look got no answer", watching=[waiting])
            until(lambda: waiter.queue.failing is None, "the next one did", watching=[waiting])
            with pytest.raises(NotAcquired):
                waiting.result()
            assert held.release()
            before = own_redis.requests()
            proxy.heal()
            until(lambda: own_redis.requests() > before, "the first one arrives")
            assert own_redis.keys() <= {"fencepost:lock:a\x1fgone"}


@pytest.mark.parametrize("face", FACES)
def test_a_grant_that_arrives_after_its_ttl_is_none_and_asking_for_it_ends(own_redis: Own, face: str) -> None:
    async def whole(url: str) -> None:
        client = Client(face, url)
        assert await (await client.acquire("a")).release()
        proxy.slow(0.3)
        assert await client.try_acquire("a", ttl=0.2) is None
        with pytest.raises(NotAcquired):
            await client.acquire("a", ttl=0.2, timeout=0.1)
        assert proxy.slowed > 0
        proxy.slow(0)
        assert await (await client.acquire("a", timeout=PATIENCE)).release()
        await client.close()

    with Proxy(own_redis.server.port) as proxy:
        run(whole(f"redis://{proxy.address}"))


def test_one_who_could_not_leave_does_so_as_soon_as_the_server_answers(
    own_redis: Own, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with aio.connect(own_redis.url) as locks, aio.connect(f"{own_redis.url}?timeout={GIVES_UP:g}s") as leaver:
            held = await locks.acquire("a")
            waiting = asyncio.create_task(leaver.acquire("a", ttl=300))
            await until_async(lambda: known_to_wait(leaver) == 1, "it waits", watching=[waiting])
            own_redis.server.pause()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until_async(lambda: "could not clean up" in caplog.text, "its clean-up to fail")
            own_redis.server.resume()
            assert await held.release()
            lease = await locks.acquire("a", timeout=20)
            assert await lease.release()

    run(scenario())
    until(lambda: own_redis.keys() <= {"fencepost:lock:a\x1fgone"}, "its keys are gone")
