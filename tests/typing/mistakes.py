"""Type-checked by `make check`, never run: mistakes that a type checker must report.

Each has a `type: ignore` with the error that mypy reports for it. Strict mode reports an ignore that ignores
nothing, so a mistake that slips through fails the check.
"""

from typing import Any

import psycopg
import psycopg_pool
import redis
import redis.asyncio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

import fencepost
import fencepost.contrib.sqlalchemy.aio
import fencepost.saga.aio
from fencepost import saga
from fencepost.contrib import sqlalchemy, starlette
from fencepost.guards import RedisGuard, aio, postgres, sqlite


async def a_forgotten_await(aconn: psycopg.AsyncConnection[Any], untyped: Any, lease: fencepost.Lease) -> None:
    aio.postgres.admit(aconn, "account/42", lease)  # type: ignore[unused-coroutine]
    aio.postgres.admit(untyped, "account/42", lease)  # type: ignore[unused-coroutine]
    aio.sqlite.enter(untyped, "account/42", lease)  # type: ignore[unused-coroutine]
    aio.RedisGuard(untyped).execute("SET", "a", 1, lease=lease)  # type: ignore[unused-coroutine]


async def a_forgotten_await_in_a_session(
    session: AsyncSession, fence: starlette.Fencepost, alocks: fencepost.aio.Locks, untyped: Any
) -> None:
    sqlalchemy.aio.admit(session, "account/42")  # type: ignore[unused-coroutine]
    sqlalchemy.aio.enter(untyped, "account/42")  # type: ignore[unused-coroutine]
    fence.once_per_fleet("seed", untyped, memory=untyped)  # type: ignore[unused-coroutine]
    with sqlalchemy.fenced(session, "account/42"):  # type: ignore[type-var]
        pass
    with sqlalchemy.aio.fenced(session, "account/42"):  # type: ignore[attr-defined]
        pass
    with fence.lock("account/42"):  # type: ignore[attr-defined]
        pass


async def a_saga_that_nobody_awaits(
    order: saga.aio.Saga, alocks: fencepost.aio.Locks, aconn: psycopg.AsyncConnection[Any], untyped: Any
) -> None:
    order.run(alocks, aconn, "42")  # type: ignore[unused-coroutine]
    order.resume(alocks, untyped)  # type: ignore[unused-coroutine]


def a_saga_with_the_other_kind(
    order: saga.Saga, later: saga.aio.Saga, locks: fencepost.Locks, alocks: fencepost.aio.Locks, untyped: Any
) -> None:
    order.run(alocks, untyped, "42")  # type: ignore[arg-type]
    later.run(locks, untyped, "42")  # type: ignore[arg-type, unused-coroutine]


async def a_saga_on_the_other_kind_of_connection(
    order: saga.Saga, locks: fencepost.Locks, aconn: psycopg.AsyncConnection[Any], alchemy: AsyncConnection
) -> None:
    order.run(locks, aconn, "42")  # type: ignore[arg-type]
    order.find(alchemy, "42")  # type: ignore[arg-type]


async def a_forgotten_async(aconn: psycopg.AsyncConnection[Any], untyped: Any, lease: fencepost.Lease) -> None:
    with aio.postgres.fenced(aconn, "account/42", lease):  # type: ignore[attr-defined]
        pass
    async with sqlite.fenced(untyped, "account/42", lease):  # type: ignore[attr-defined]
        pass


def an_asyncio_connection_in_a_blocking_guard(
    aconn: psycopg.AsyncConnection[Any], alchemy: AsyncConnection, session: AsyncSession, lease: fencepost.Lease
) -> None:
    postgres.admit(aconn, "account/42", lease)  # type: ignore[arg-type]
    sqlite.admit(alchemy, "account/42", lease)  # type: ignore[arg-type]
    postgres.enter(session, "account/42", lease)  # type: ignore[arg-type]
    postgres.fenced(aconn, "account/42", lease)  # type: ignore[type-var]


async def a_blocking_connection_in_asyncio(conn: psycopg.Connection[Any], lease: fencepost.Lease) -> None:
    await aio.postgres.admit(conn, "account/42", lease)  # type: ignore[arg-type]


def no_lease(conn: psycopg.Connection[Any], locks: fencepost.Locks, guard: RedisGuard) -> None:
    postgres.admit(conn, "account/42", lease=None)  # type: ignore[arg-type]
    postgres.admit(conn, "account/42", locks.try_acquire("account/42"))  # type: ignore[arg-type]
    guard.execute("SET", "a", 1, lease=None)  # type: ignore[arg-type]


def the_old_word(conn: psycopg.Connection[Any], lease: fencepost.Lease, guard: RedisGuard) -> None:
    postgres.admit(conn, "account/42", offer=lease)  # type: ignore[call-arg]
    guard.execute("SET", "a", 1, offer=lease)  # type: ignore[call-arg]


async def an_acquire_that_nobody_awaits(locks: fencepost.aio.Locks) -> None:
    async with locks.acquire("account/42"):  # type: ignore[attr-defined]
        pass
    locks.acquire("account/42")  # type: ignore[unused-coroutine]


async def a_decorated_coroutine_that_nobody_awaits(locks: fencepost.aio.Locks) -> None:
    @locks.lock("report")
    async def report(number: int) -> str:
        return str(number)

    report(1)  # type: ignore[unused-coroutine]


async def a_holding_coroutine_that_nobody_awaits(locks: fencepost.aio.Locks) -> None:
    @locks.holding("report/{number}", busy="skip")
    async def report(number: int) -> str:
        return str(number)

    report(1)  # type: ignore[unused-coroutine]
    report("1")  # type: ignore[arg-type,unused-coroutine]


def what_a_decorator_alone_can_do(locks: fencepost.Locks) -> None:
    with locks.holding("report"):  # type: ignore[attr-defined]
        pass
    locks.holding("report", busy="never")  # type: ignore[call-overload]
    locks.lock("report", busy="skip")  # type: ignore[call-arg]


def what_a_lock_does_not_have(locks: fencepost.Locks) -> None:
    locks.lock("a").release()  # type: ignore[attr-defined]
    locks.lock("a").locked()  # type: ignore[attr-defined]
    locks.lock("a").acquire(timeout=5)  # type: ignore[call-arg]
    locks.lock("a").try_acquire(False)  # type: ignore[call-arg]
    fencepost.connect(url="redis://")  # type: ignore[call-overload]


async def what_an_asyncio_lock_does_not_take(locks: fencepost.aio.Locks) -> None:
    await locks.lock("a").acquire(timeout=5)  # type: ignore[call-arg]


def a_client_for_the_other_face(
    client: redis.Redis, aclient: redis.asyncio.Redis, engine: AsyncEngine, pool: psycopg_pool.AsyncConnectionPool
) -> None:
    fencepost.connect(aclient)  # type: ignore[call-overload]
    fencepost.connect(engine)  # type: ignore[call-overload]
    fencepost.connect(pool)  # type: ignore[call-overload]
    fencepost.aio.connect(client)  # type: ignore[call-overload]
    fencepost.connect(42)  # type: ignore[call-overload]
    fencepost.connect(client, credentials=lambda: "x")  # type: ignore[call-overload]
    fencepost.connect("redis://h", options={"prefix": "x"})  # type: ignore[call-overload]


async def told() -> str:
    return "password"


def credentials_of_the_wrong_kind() -> None:
    fencepost.connect("redis://h", credentials="password")  # type: ignore[call-overload]
    fencepost.connect("redis://h", credentials=told)  # type: ignore[arg-type]
    fencepost.connect("redis://h", credentials=lambda: None)  # type: ignore[arg-type, return-value]
