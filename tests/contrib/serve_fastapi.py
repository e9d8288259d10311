"""Two workers of a FastAPI application under uvicorn, each at a port of its own: REDIS DATABASE NAME.

It tells of what happens in JSON lines. Both are forked from one process, which has imported everything.
"""

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool
from starlette.middleware.base import BaseHTTPMiddleware

from fencepost.aio import Lease
from fencepost.contrib.sqlalchemy import admit, aio
from fencepost.contrib.starlette import Fencepost, fenced, guard
from fencepost.errors import Refused
from fencepost.guards.asgi import Fenced

REDIS, DATABASE, NAME, FOLDER = sys.argv[1:]
BALANCE = text("UPDATE account SET balance = balance - :amount WHERE id = :id")

engine = create_engine(DATABASE, poolclass=NullPool)
aengine = create_async_engine(DATABASE, poolclass=NullPool)
fence = Fencepost(REDIS, timeout=20)
nowhere = Fencepost("redis://127.0.0.1:1")
go = asyncio.Event()


def tell(event: str, **facts: Any) -> None:
    os.write(1, json.dumps({"event": event, "pid": os.getpid(), **facts}).encode() + b"\n")


async def seed(lease: Lease) -> None:
    async with aengine.connect() as conn, aio.fenced(conn, lease.name, lease):
        await conn.execute(text("INSERT INTO account (id, balance) VALUES (:id, 1)"), {"id": f"{NAME}/seeds"})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with fence, nowhere:
        ran = await fence.once_per_fleet(f"seed/{NAME}", seed, memory=aengine.connect)
        tell("started", ran=ran)
        yield
        held = [each.name for each in await fence.locks.list(NAME)]
    tell("stopped", held=held)


app = FastAPI(lifespan=lifespan)
guard(app, {"/guarded/{number:int}": f"{NAME}/guarded/{{number}}"})


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


app.add_middleware(BaseHTTPMiddleware, dispatch=passing)


def account(number: int) -> str:
    return f"{NAME}/{number}"


Patient = Annotated[Lease, fence.depends(account)]
Brief = Annotated[Lease, fence.depends(account, ttl=3)]
Hurried = Annotated[Lease, fence.depends(f"{NAME}/{{number}}", number=int, timeout=0, retry_after=7)]
Nowhere = Annotated[Lease, nowhere.depends(account, timeout=0)]


@app.post("/hold/{number}")
async def hold(number: int, lease: Hurried) -> dict[str, Any]:
    tell("holding", name=lease.name)
    await go.wait()
    return {"name": lease.name, "number": number}


@app.post("/go")
async def release() -> None:
    go.set()


@app.post("/fail/{number}")
async def fail(number: int, lease: Hurried) -> None:
    raise ZeroDivisionError


@app.post("/nowhere/{number}")
async def nowhere_to_ask(number: int, lease: Nowhere) -> None:
    raise AssertionError("it has no lease")


@app.post("/sleep/{number}")
async def sleep(number: int, lease: Brief) -> None:
    tell("sleeping", token=lease.token)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        tell("cancelled", lost=lease.lost)
        raise


@app.post("/zombie/{number}")
def zombie(number: int, lease: Brief) -> None:
    """A thread, which nothing cancels: it writes long after its lease was lost."""
    tell("waiting", token=lease.token)
    while not Path(FOLDER, "go").exists():
        threading.Event().wait(0.01)
    try:
        with engine.connect() as conn, conn.begin():
            admit(conn, lease.name)  # it finds its lease by itself
            conn.execute(BALANCE, {"amount": 1000, "id": lease.name})
    except Refused as error:
        tell("refused", verdict=error.verdict, token=error.token, seen=error.seen)
        raise


@app.post("/pay/{number}")
async def pay(number: int, lease: Patient) -> int:
    async with aengine.connect() as conn, aio.fenced(conn, lease.name, lease):
        await conn.execute(BALANCE, {"amount": 10, "id": lease.name})
    return lease.token


@app.post("/stale/{number}")
async def stale(number: int, lease: Patient) -> None:
    """The mark is above its token, as if its lock had been taken over, and its lease does not know yet."""
    async with aengine.begin() as conn:
        await raised(conn, lease)
        await aio.admit(conn, lease.name, lease)


async def raised(conn: AsyncConnection, lease: Lease) -> None:
    from fencepost.guards.aio import postgres

    await postgres.raise_mark(conn, lease.name, to=lease.token + 1)


@app.put("/guarded/{number:int}")
async def guarded(number: int, stamp: Annotated[Fenced, Depends(fenced)]) -> str:
    async with aengine.begin() as conn:
        await aio.admit(conn, stamp.resource, stamp.access)
    return stamp.resource


@app.put("/unguarded/{number:int}")
async def unguarded(number: int, stamp: Annotated[Fenced, Depends(fenced)]) -> None:
    raise AssertionError("there is no guard here")


def main() -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    for each in sockets:
        if not (pid := os.fork()):
            config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=5)
            uvicorn.Server(config).run(sockets=[each])
            return
        tell("forked", worker=pid, port=each.getsockname()[1])
    for _ in sockets:
        os.wait()
    tell("ended")


if __name__ == "__main__":
    main()
