"""Who is next: first come, first served, among those who are still alive."""

import asyncio

import pytest

from fencepost.errors import NotAcquired
from tests.conformance.faces import Client, Hold
from tests.conformance.store import Store

pytestmark = pytest.mark.fair


class Queue:
    """Waiters of one lock, each known to be queued, or served, before the next one comes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watcher = store.connect()
        self.tasks: list[asyncio.Task[Hold]] = []

    async def add(self, client: Client, **options: float) -> asyncio.Task[Hold]:
        task = asyncio.create_task(client.acquire(self.store.name, **({"timeout": self.store.long} | options)))
        self.tasks.append(task)
        await self.store.settled(self.watcher, self.tasks)
        return task


async def test_waiters_are_served_in_the_order_they_came(store: Store) -> None:
    clients = [store.connect() for _ in range(3)]
    holder = await clients[0].acquire(store.name)
    queue = Queue(store)
    for each in range(9):
        await queue.add(clients[each % 3])
    for task in queue.tasks:
        assert await holder.release()
        holder = await task
        assert not any(later.done() for later in queue.tasks[queue.tasks.index(task) + 1 :])


async def test_status_names_the_waiters_in_their_order(store: Store) -> None:
    client = store.connect()
    holder = await client.acquire(store.name)
    queue = Queue(store)
    for _ in range(4):
        await queue.add(client)
    named = await store.queue(client, 4)
    served = []
    for task in queue.tasks:
        assert await holder.release()
        holder = await task
        served.append(holder.holder)
    assert tuple(served) == named


async def test_one_who_comes_later_does_not_overtake(store: Store) -> None:
    here, there = store.connect(), store.connect()
    holder = await here.acquire(store.name)
    queue = Queue(store)
    first = await queue.add(there)
    # The releasing client asks again at once, which is what barges in where locks are not handed over.
    assert await holder.release()
    again = asyncio.create_task(here.acquire(store.name, timeout=store.long))
    lease = await first
    assert not again.done()
    assert await lease.release()
    assert (await again).token > lease.token


async def test_one_who_gave_up_is_skipped(store: Store) -> None:
    client = store.connect()
    holder = await client.acquire(store.name)
    queue = Queue(store)
    first = await queue.add(client)
    hasty = await queue.add(client, timeout=0.2)
    last = await queue.add(client)
    with pytest.raises(NotAcquired):
        await hasty
    await store.queue(client, 2)
    assert await holder.release()
    assert await (await first).release()
    assert await (await last).release()


async def test_the_lock_goes_on_at_the_holders_ttl(store: Store) -> None:
    here, there = store.connect(), store.connect()
    holder = await here.acquire(store.name, ttl=store.short, renew=False)
    queue = Queue(store)
    first, second = await queue.add(there), await queue.add(here)
    lease = await first
    assert holder.lost, "its own clock told it first"
    assert not second.done()
    assert await lease.release()
    assert await (await second).release()
    assert await here.status(store.name) is None, "the hand-over left no queue entry behind"


async def test_each_expiry_hands_over_to_one_waiter_and_each_new_deadline_counts(store: Store) -> None:
    """The waiters know the deadline of a holder that is gone; each next holder's comes much earlier.

    Nothing is said of their order: a client that is too slow for its own short ttl joins the line again.
    """
    clients = [store.connect(), store.connect()]
    holder = await clients[0].acquire(store.name, ttl=store.long)
    queue = Queue(store)
    for each in range(3):
        await queue.add(clients[each % 2], ttl=store.short, renew=False)
    assert await holder.release()
    leases = await asyncio.gather(*queue.tasks)
    assert len({lease.token for lease in leases}) == 3, "one at a time"
    assert min(lease.token for lease in leases) > holder.token
    newest = max(leases, key=lambda lease: lease.token)
    assert all(lease.lost for lease in leases if lease is not newest), "its own clock told each one first"


async def test_eviction_hands_the_lock_to_the_next_waiter(store: Store) -> None:
    here, there = store.connect(), store.connect()
    holder = await here.acquire(store.name)
    queue = Queue(store)
    first = await queue.add(there)
    ended = await here.break_lock(store.name)
    assert ended is not None
    assert (ended.holder, ended.token) == (holder.holder, holder.token)
    lease = await first
    assert lease.token > holder.token
    assert await holder.release() is False
    status = await here.status(store.name)
    assert status is not None
    assert status.holder == lease.holder


async def test_a_waiter_counts_its_deadline_from_the_grant(store: Store) -> None:
    here, there = store.connect(), store.connect()
    holder = await here.acquire(store.name)
    queue = Queue(store)
    waiter = await queue.add(there, ttl=store.long)
    assert await holder.release()
    lease = await waiter
    status = await here.status(store.name)
    assert status is not None
    assert lease.remaining <= status.remaining + 0.001, "never later than the store's own"
    assert lease.remaining > lease.ttl / 2


async def test_a_long_line_is_served_to_its_end(store: Store) -> None:
    clients = [store.connect() for _ in range(2)]
    holder = await clients[0].acquire(store.name)
    served: list[int] = []

    async def turn(client: Client) -> None:
        lease = await client.acquire(store.name, timeout=store.long)
        served.append(lease.token)
        assert await lease.release()

    turns = [asyncio.create_task(turn(clients[each % 2])) for each in range(40)]
    await store.queue(clients[0], 40)
    assert await holder.release()
    await asyncio.gather(*turns)
    assert served == sorted(served)
    assert await clients[0].status(store.name) is None
