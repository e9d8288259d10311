"""Type-checked by `make check`, never run: what a user's editor knows about the public face."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import assert_type

import psycopg_pool
import redis
import redis.asyncio
from django.db.backends.base.base import BaseDatabaseWrapper
from kazoo.client import KazooClient
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

import fencepost
from fencepost import aio, errors, sync
from fencepost.backend import Status
from fencepost.guards.redis import RedisGuard
from fencepost.once import Commands, Run, once
from fencepost.rule import Stamp, Verdict, judge


def the_rule(mark: Stamp | None) -> None:
    assert_type(judge(mark, Stamp(7)), Verdict)
    assert_type(Stamp(7).token, int)
    assert_type(Stamp(7, 2, "holder").seq, int)


def the_errors(error: errors.StaleToken) -> None:
    family: tuple[errors.Refused, errors.FencepostError, Exception] = (error, error, error)
    assert_type(family[0].verdict, Verdict)


def run_once(conn: object, guard: RedisGuard) -> None:
    with once(conn, "billing/2026-11") as run:
        assert_type(run, Run)
        assert_type(run.done, bool)
    with once(guard, "billing/2026-11", keep=timedelta(days=90)) as commands:
        assert_type(commands, Commands)


def blocking() -> None:
    locks = fencepost.connect("sqlite:///locks.db")
    assert_type(locks, sync.Locks)
    with locks.lock("account/42", ttl=15, timeout=timedelta(seconds=5)) as lease:
        assert_type(lease, sync.Lease)
        assert_type(lease.token, int)
        assert_type(lease.remaining, float)
        assert_type(lease.ended.wait(1), bool)
        assert_type(lease.at_risk.wait_clear(1), bool)
        for risk in lease.at_risk.changes():
            assert_type(risk, bool)
        assert_type(lease.access().headers, dict[str, str])
        given: fencepost.Lease = lease
        given.check()
    assert_type(locks.acquire("account/42", renew=False).release(), bool)
    assert_type(locks.try_acquire("account/42"), sync.Lease | None)
    assert_type(locks.status("account/42"), Status | None)

    @locks.lock("nightly", ttl=60)
    def nightly(day: str) -> int:
        return len(day)

    @locks.lock("nightly", reentrant=True)
    def again(depth: int) -> str:
        return again(depth - 1) if depth else "done"

    @locks.holding("report/{account_id}", ttl=60, at_least=30)
    def report(account_id: int) -> str:
        return str(account_id)

    @locks.holding(lambda account_id: f"report/{account_id}", busy="skip")
    def perhaps(account_id: int) -> str:
        return str(account_id)

    assert_type(report(1), str)
    assert_type(perhaps(1), str | None)
    assert_type(again(2), str)
    assert_type(nightly("monday"), int)
    as_function: Callable[[str], int] = nightly
    as_function("tuesday")
    locks.acquire("account/42", 15)  # type: ignore[call-arg]  # everything after the name is keyword-only


async def awaited() -> None:
    async with aio.connect() as locks:
        assert_type(locks, aio.Locks)
        async with locks.lock("account/42", ttl=15) as lease:
            assert_type(lease, aio.Lease)
            assert_type(await lease.ended.wait(), bool)
            assert_type(await lease.at_risk.wait(1), bool)
            async for risk in lease.at_risk.changes():
                assert_type(risk, bool)
        assert_type(await locks.try_acquire("account/42"), aio.Lease | None)

        @locks.lock("nightly")
        async def nightly(day: str) -> int:
            return len(day)

        @locks.holding("report/{account_id}", busy="skip")
        async def report(account_id: int) -> str:
            return str(account_id)

        assert_type(await report(1), str | None)
        assert_type(await nightly("monday"), int)
        as_function: Callable[[str], Awaitable[int]] = nightly
        await as_function("tuesday")


def clients(
    client: redis.Redis,
    cluster: redis.RedisCluster,
    engine: Engine,
    pool: psycopg_pool.ConnectionPool,
    database: BaseDatabaseWrapper,
    zookeeper: KazooClient,
) -> None:
    assert_type(fencepost.connect(client, options={"prefix": "jobs:", "timeout": 2.5}), sync.Locks)
    for each in (cluster, engine, pool, database, zookeeper):
        assert_type(fencepost.connect(each), sync.Locks)
    assert_type(fencepost.connect("redis://h", credentials=lambda: "password"), sync.Locks)
    assert_type(fencepost.connect("redis://h", credentials=lambda: ("app", "password")), sync.Locks)


async def token() -> tuple[str, str]:
    return "app", "token"


def asyncio_clients(
    client: redis.asyncio.Redis,
    cluster: redis.asyncio.RedisCluster,
    engine: AsyncEngine,
    pool: psycopg_pool.AsyncConnectionPool,
    database: BaseDatabaseWrapper,
    zookeeper: KazooClient,
) -> None:
    for each in (client, engine, pool, database, zookeeper):
        assert_type(aio.connect(each), aio.Locks)
    assert_type(aio.connect(cluster, options={"prefix": "jobs:"}), aio.Locks)
    assert_type(aio.connect("redis://h", credentials=token), aio.Locks)
    assert_type(aio.connect("redis://h", credentials=lambda: b"password"), aio.Locks)
