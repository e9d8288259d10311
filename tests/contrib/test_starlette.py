"""The adapter for Starlette and FastAPI in one process: what it refuses, and what it leaves to others."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from fencepost import aio
from fencepost.contrib.starlette import Fencepost, fenced, guard
from fencepost.errors import BackendError, ConfigError, LeaseLost, NotAcquired, StaleToken
from fencepost.guards.policy import Policy
from tests.harness.waiting import until_async


async def test_a_lease_that_is_lost_cancels_the_request_and_is_409() -> None:
    fence = Fencepost("memory://")
    cancelled = []

    async def serve(locks: aio.Locks) -> None:
        async with fence.lock("account/1", ttl=0.1):
            await locks.break_lock("account/1")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    async with fence as locks:
        with pytest.raises(HTTPException) as caught:
            await serve(locks)
        assert caught.value.status_code == 409
        assert isinstance(caught.value.__cause__, LeaseLost)
        assert cancelled == [True]
        assert await locks.status("account/1") is None


async def test_errors_that_are_not_about_this_lock_come_through() -> None:
    fence = Fencepost("memory://")
    errors: list[Exception] = [
        NotAcquired("other", 1),
        BackendError("gone", backend="redis", ambiguous=True),
        LeaseLost("other", 7, "it expired"),
        StaleToken("stale", "account/1", None, None),
        HTTPException(418),
    ]
    async with fence as locks:
        for error in errors:
            with pytest.raises(type(error)) as caught:
                async with fence.lock("account/1"):
                    raise error
            assert caught.value is error
        assert await locks.list("account/") == []


async def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    fence = Fencepost("memory://")

    async def serve() -> None:
        async with fence.lock("account/1", timeout=60):
            raise AssertionError

    async with fence as locks:
        lease = await locks.acquire("account/1")
        request = asyncio.create_task(serve())

        async def waits() -> bool:
            status = await locks.status("account/1")
            return bool(status and status.waiters)

        await until_async(waits, "the request waits", watching=[request])
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        status = await locks.status("account/1")
        assert status is not None
        assert status.waiters == ()
        await lease.release()


async def test_blocks_in_one_event_loop_share_the_locks_and_the_last_one_closes_them() -> None:
    fence = Fencepost("memory://")
    async with fence as locks:
        async with fence as same:
            assert same is locks
        assert fence.locks is locks
        assert await locks.list("account/") == []
    with pytest.raises(ConfigError, match="not open"):
        _ = fence.locks
    with pytest.raises(ConfigError):
        await locks.acquire("account/1")
    wrong = Fencepost("what://")
    for _ in range(2):
        with pytest.raises(ConfigError, match="no backend"):
            await wrong.__aenter__()


def test_locks_that_are_not_open_say_how_to_open_them() -> None:
    fence = Fencepost("memory://")
    app = FastAPI(lifespan=fence.lifespan)

    @app.get("/{number}")
    async def endpoint(lease: Annotated[aio.Lease, fence.depends("account/{number}", number=int)]) -> str:
        return lease.name

    with pytest.raises(ConfigError, match="with TestClient"):
        TestClient(app).get("/1")
    with TestClient(app) as client, TestClient(app) as other:  # each in an event loop of its own
        assert client.get("/007").json() == other.get("/7").json() == "account/7"
    with pytest.raises(ConfigError, match="no event loop"):
        _ = fence.locks


def test_a_lease_is_shared_by_the_dependencies_of_one_request_and_held_by_a_websocket() -> None:
    fence = Fencepost("memory://", timeout=0, busy=409)
    app = FastAPI(lifespan=fence.lifespan)
    Lease = Annotated[aio.Lease, fence.depends("doc/{name}", name=str)]
    Whole = Annotated[aio.Lease, fence.depends("doc/{name}", name=str, scope="request")]

    async def other(lease: Lease) -> int:
        return lease.token

    @app.get("/docs/{name}/lease")
    async def endpoint(name: str, lease: Lease, token: Annotated[int, Depends(other)]) -> bool:
        return lease.token == token

    @app.websocket("/docs/{name}/edit")
    async def edit(name: str, socket: WebSocket, lease: Whole) -> None:
        await socket.accept()
        await socket.send_text(lease.name)
        await socket.receive_text()
        await socket.close()

    with TestClient(app) as client:
        assert client.get("/docs/a/lease").json() is True
        with client.websocket_connect("/docs/a/edit") as socket:
            assert socket.receive_text() == "doc/a"
            busy = client.get("/docs/a/lease")
            assert (busy.status_code, busy.headers["retry-after"]) == (409, "1")
            socket.send_text("done")
        assert client.get("/docs/a/lease").status_code == 200
        assert client.get("/docs/" + "x" * 600 + "/lease").status_code == 404, "no lock can have that name"


def test_starlette_takes_a_name_and_a_mounted_guard_sees_its_own_paths() -> None:
    fence = Fencepost("memory://")

    async def pay(request: Request) -> Response:
        async with fence.lock(f"account/{request.path_params['id']}") as lease:
            return PlainTextResponse(lease.name)

    async def put(request: Request) -> Response:
        return PlainTextResponse(fenced(request).resource)

    inner = Starlette(routes=[Route("/{id:uuid}", put, methods=["PUT"])])
    guard(inner, {"/{id:uuid}": "thing/{id}"}, policy=Policy("strict"))
    app = Starlette(routes=[Route("/pay/{id:int}", pay), Mount("/things", inner)], lifespan=fence.lifespan)
    id = UUID(int=0xABC)
    with TestClient(app) as client:
        assert client.get("/pay/042").text == "account/42"
        assert client.get("/pay/" + "7" * 600).status_code == 404, "no lock can have that name"
        assert client.put(f"/things/{id}").status_code == 428
        for text in (str(id), str(id).upper(), id.hex):
            answer = client.put(f"/things/{text}", headers={"X-Fence-Token": "5"})
            assert (answer.status_code, answer.text) == (200, f"thing/{id}"), text
        assert client.put(f"/things/{id}", headers={"X-Fence-Token": "x"}).status_code == 400


def test_what_cannot_be_meant_is_said_before_a_request_comes() -> None:
    fence = Fencepost("memory://")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("account/{id}", {}, "say what 'id'"),
        ("account/{id}", {"id": int, "other": int}, "no field 'other'"),
        ("account/{scope}", {}, "an option of depends"),
        ("account/{id.x}", {"id": int}, "bare name"),
        ("account/{id!r}", {"id": int}, "bare name"),
        ("account/{", {}, "wrong field"),
        ("account", {"busy": 200}, "status"),
        ("account", {"retry_after": 0.5}, "whole number"),
        ("account", {"timeout": -1}, "timeout"),
    ]
    for key, options, why in wrong:
        with pytest.raises(ConfigError, match=why):
            fence.depends(key, **options)
    with pytest.raises(ConfigError, match="declares its own"):
        fence.depends(lambda: "account", id=int)
    with pytest.raises(ConfigError, match="status"):
        Fencepost("memory://", busy=302)
    app = Starlette()
    for path, name, why in [
        ("/{id}", "account/{id}", "in the route as well"),
        ("/{id:path}", "account/{id}", "in the route as well"),
        ("/{id:int}", "account/{number}", "no field 'number'"),
    ]:
        with pytest.raises(ConfigError, match=why):
            guard(app, {path: name})


async def test_a_start_up_job_that_failed_or_lost_its_lock_was_not_done(tmp_path: Path) -> None:
    fence = Fencepost("memory://")
    ran = []

    async def job(lease: aio.Lease) -> None:
        ran.append(lease.name)
        if len(ran) == 1:
            raise ZeroDivisionError
        if len(ran) == 2:
            await fence.locks.break_lock(lease.name)
            await asyncio.sleep(60)

    @asynccontextmanager
    async def memory() -> AsyncIterator[sqlite3.Connection]:
        with closing(sqlite3.connect(tmp_path / "memory.sqlite3")) as conn:
            yield conn

    async with fence:
        with pytest.raises(ZeroDivisionError):
            await fence.once_per_fleet("warm up", job, memory=memory)
        with pytest.raises(LeaseLost):
            await fence.once_per_fleet("warm up", job, memory=memory, ttl=0.1)
        both = [fence.once_per_fleet("warm up", job, memory=memory) for _ in range(2)]
        assert sorted(await asyncio.gather(*both)) == [False, True]
        assert ran == ["warm up"] * 3

        async def steps(lease: aio.Lease) -> AsyncIterator[None]:
            yield

        for unfit in (steps, lambda lease: None):
            with pytest.raises(ConfigError, match="let it be 'async def'"):
                await fence.once_per_fleet("other", unfit, memory=memory)  # type: ignore[arg-type]
        assert await fence.once_per_fleet("other", job, memory=memory), "it was not remembered as done"
