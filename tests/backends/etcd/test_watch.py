"""etcd catches up watches that begin in the past every 100 ms: a waiter's begins now, and the waiter looks once."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import fencepost
from fencepost import driver, sync
from fencepost.backends.etcd.backend import Etcd
from fencepost.backends.etcd.watch import Watch, Watches
from fencepost.driver.threads import ThreadSignal
from tests.backends.etcd.tools import LONG, queued
from tests.conformance.faces import FACES, Client
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until, until_async


@pytest.fixture
def locks(etcd_server: Endpoint) -> Iterator[sync.Locks]:
    with fencepost.connect(etcd_server.url, ttl=LONG) as connected:
        yield connected


@asynccontextmanager
async def waiting(face: str, server: Endpoint) -> AsyncIterator[tuple[Client, Watches]]:
    """A client to wait with, and its watches: none is left in the end."""
    client = Client(face, server.url, ttl=LONG)
    watches: Watches = client.raw._core.backend._watches
    yield client, watches
    assert not watches._watches
    await client.close()


def test_only_a_prompt_watch_tells_that_the_store_has_changed_before_it_began(locks: sync.Locks) -> None:
    name, other = secrets.token_hex(4), secrets.token_hex(4)
    held = locks.acquire(name)
    assert locks.acquire(other).release()  # the store's revision moves on
    backend = locks._core.backend
    assert isinstance(backend, Etcd)
    [key] = [each.key for each in backend._sessions._contenders.values()]
    quiet, future, prompt = ThreadSignal(), ThreadSignal(), ThreadSignal()
    added = [
        backend._watches.add(key, held.token + 1, quiet),
        backend._watches.add(key, held.token + 1_000_000, future, prompt=True),
        backend._watches.add(key, held.token + 1, prompt, prompt=True),
    ]
    assert driver.run(prompt.wait(PATIENCE))
    # etcd answers in order: it has begun the two others before.
    assert not quiet.is_set()
    assert not future.is_set()
    assert not any(each.over for each in added)
    prompt.clear()
    assert held.release()
    for signal in (quiet, future, prompt):
        assert driver.run(signal.wait(PATIENCE))
    assert all(each.over for each in added)
    for each in added:
        backend._watches.remove(each)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("others", [0, 1], ids=["joining told whom it follows", "looking told it"])
async def test_a_waiter_needs_no_event_of_what_went_before_its_watch_began(
    locks: sync.Locks, etcd_server: Endpoint, monkeypatch: pytest.MonkeyPatch, others: int, face: str
) -> None:
    name = secrets.token_hex(4)
    before = [locks.acquire(name)]
    waiters = [background(lambda: before.append(locks.acquire(name, timeout=LONG))) for _ in range(others)]
    until(lambda: queued(locks, name, others), "they wait", watching=waiters)
    heard, add = Watches._heard, Watches.add
    late: list[str] = []

    async with waiting(face, etcd_server) as (client, mine):

        def without_events(watches: Watches, stream: Any, answer: Any) -> None:
            if watches is not mine or not answer.events:
                heard(watches, stream, answer)

        def after_the_end(watches: Watches, *args: Any, **options: Any) -> Watch:
            if watches is mine and not late:
                late.append(name)
                for _ in range(1 + others):
                    until(lambda: before, "the next one holds it", watching=waiters)
                    assert before.pop().release()
            return add(watches, *args, **options)

        monkeypatch.setattr(Watches, "_heard", without_events)
        monkeypatch.setattr(Watches, "add", after_the_end)
        async with asyncio.timeout(PATIENCE):  # at the end of its own time it would look in any case
            lease = await client.acquire(name, timeout=LONG)
        assert late, "the one before went between the look and the watch"
        assert await lease.release()


@pytest.mark.parametrize("face", FACES)
async def test_a_waiter_that_has_looked_for_itself_keeps_its_watch(
    locks: sync.Locks, etcd_server: Endpoint, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    """It looks once more, however often the store changes, and then waits for its event."""
    name, other = secrets.token_hex(4), secrets.token_hex(4)
    held = locks.acquire(name)
    add, look = Watches.add, Etcd._look
    added: list[Watch] = []
    looks: list[object] = []

    def behind(watches: Watches, *args: Any, **options: Any) -> Watch:
        for _ in range(3):
            assert locks.acquire(other).release()
        added.append(add(watches, *args, **options))
        return added[-1]

    async def counted(backend: Etcd, contender: Any) -> Any:
        found = await look(backend, contender)
        looks.append(found)
        return found

    monkeypatch.setattr(Watches, "add", behind)
    monkeypatch.setattr(Etcd, "_look", counted)
    async with waiting(face, etcd_server) as (client, _):
        waiter = asyncio.create_task(client.acquire(name, timeout=LONG))
        await until_async(lambda: len(looks) == 1, "it looks for itself", watching=[waiter])
        assert locks.acquire(other).release()
        assert held.release()
        async with asyncio.timeout(PATIENCE):
            lease = await waiter
        assert len(added) == 1
        assert len(looks) == 2, "because the store had changed before its watch began, and when its turn came"
        assert await lease.release()


@pytest.mark.parametrize("face", FACES)
async def test_a_waiter_whose_watch_has_ended_watches_again(
    locks: sync.Locks, etcd_server: Endpoint, face: str
) -> None:
    name = secrets.token_hex(4)
    held = locks.acquire(name)
    async with waiting(face, etcd_server) as (client, mine):
        waiter = asyncio.create_task(client.acquire(name, timeout=LONG))
        await until_async(lambda: bool(mine._watches), "it watches", watching=[waiter])
        [ended] = mine._watches.values()
        mine.restart()
        await until_async(
            lambda: bool(mine._watches) and ended not in mine._watches.values(), "again", watching=[waiter]
        )
        assert held.release()
        async with asyncio.timeout(PATIENCE):
            assert await (await waiter).release()


def test_a_watch_removes_no_other_of_the_same_number(locks: sync.Locks) -> None:
    """A child counts from one again, and its garbage collector may end a waiter of its parent."""
    backend = locks._core.backend
    assert isinstance(backend, Etcd)
    mine = backend._watches.add(b"a", 1, ThreadSignal())
    others = Watch(mine.number, b"b", b"", 1, ThreadSignal(), prompt=False)
    backend._watches.remove(others)
    assert backend._watches._watches == {mine.number: mine}
    backend._watches.remove(mine)
    assert not backend._watches._watches
