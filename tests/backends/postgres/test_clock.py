"""A Postgres whose wall clock is adjusted or set: no holder counts on its lease for longer than the server keeps it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost import aio, sync
from fencepost_lab.faults.clock import ClockedPostgres
from tests.backends.postgres.tools import LONG, aside, session
from tests.harness.servers import running
from tests.harness.threads import waiters_of
from tests.harness.waiting import PATIENCE, until, until_async


@pytest.fixture(scope="module")
def server() -> Iterator[ClockedPostgres]:
    with running(ClockedPostgres(who="p1")) as server:
        yield server


def left(server: ClockedPostgres, lease: Any) -> float:
    """For how many more seconds the server keeps a lease."""
    row = "SELECT expires, token FROM fencepost.lock UNION ALL SELECT expires, token FROM fencepost.share"
    with session(server) as look:
        ((seconds,),) = look.execute(
            f"SELECT extract(epoch FROM expires - clock_timestamp()) FROM ({row}) AS each WHERE token = %s LIMIT 1",
            [lease.token],
        )
    return float(seconds)


def test_a_lease_is_kept_longer_than_its_holder_counts_on_it(server: ClockedPostgres) -> None:
    """By a share of its ttl, as the server's clock runs a little fast while it is adjusted."""
    with fencepost.connect(server.url, ttl=LONG) as locks:

        def covered(lease: sync.Lease) -> bool:
            return left(server, lease) > lease.remaining * 1.005

        first = locks.acquire("each")
        assert covered(first)
        waiter = aside(locks.acquire, "each")
        waiters_of(locks, "each", 1)
        sharer = aside(locks.shared("each").acquire)
        waiters_of(locks, "each", 2)
        assert first.release()
        second = waiter.result(PATIENCE)
        assert covered(second)
        second.renew()
        assert covered(second)
        assert second.release()
        share = sharer.result(PATIENCE)
        assert covered(share)
        share.renew()
        assert covered(share)
        shown = locks.status("each")
        assert shown is not None
        assert shown.remaining <= LONG, "the margin is not the holder's"


async def test_a_clock_that_was_set_while_one_waited_does_not_lengthen_its_lease(server: ClockedPostgres) -> None:
    def granted() -> bool:
        """Whether the server has given the waiter the lock, and long enough ago."""
        ask = "SELECT expires < clock_timestamp() + interval '59.5 s' FROM fencepost.lock WHERE name = 'set'"
        return server.psql(f"{ask} AND holder <> '{holder._stored}'") == "t"

    with fencepost.connect(server.url, ttl=LONG) as others:
        async with aio.connect(server.url, ttl=60) as locks:
            holder = others.acquire("set")
            waiter = asyncio.create_task(locks.acquire("set"))

            async def waits() -> bool:
                status = await locks.status("set")
                return status is not None and len(status.waiters) == 1

            await until_async(waits, "it waits", watching=[waiter])
            server.clock.jump(8)
            assert holder.release()
            until(granted, "its grant is older than the margin")  # in this thread: the event loop is held up
            lease = await waiter
            keeps = left(server, lease)
            assert lease.remaining < keeps, "its lease began when the server says so"
            assert await lease.release()
    assert [fault["by"] for fault in server.faults.of("jump", "p1")] == [8]
