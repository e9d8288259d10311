"""A Flask application, and gunicorn's configuration for it: two workers of one fleet. They tell of it in JSON lines.

    gunicorn -c python:tests.contrib.serve_flask tests.contrib.serve_flask:app

SERVE_REDIS, SERVE_DATABASE, SERVE_NAME and SERVE_FOLDER say where.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

from flask import Flask
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from fencepost import Lease
from fencepost.contrib.flask import Fencepost, fenced
from fencepost.contrib.sqlalchemy import admit
from fencepost.contrib.sqlalchemy import fenced as fenced_session
from fencepost.errors import Refused

NAME, FOLDER = os.environ["SERVE_NAME"], os.environ["SERVE_FOLDER"]
BALANCE = text("UPDATE account SET balance = balance - :amount WHERE id = :id")

bind = "127.0.0.1:0"
workers = 2
preload_app = True
errorlog = os.devnull
control_socket_disable = True


def tell(event: str, **facts: Any) -> None:
    os.write(1, json.dumps({"event": event, "pid": os.getpid(), **facts}).encode() + b"\n")


engine = create_engine(os.environ["SERVE_DATABASE"], poolclass=NullPool)
fence = Fencepost()


def create_app() -> Flask:
    made = Flask(__name__)
    made.config.update(FENCEPOST_URL=os.environ["SERVE_REDIS"], FENCEPOST_TIMEOUT=20, FENCEPOST_RETRY_AFTER=3)
    fence.init_app(made)
    fence.guard(made, {"guarded": f"{NAME}/guarded/{{number}}"})
    return made


app = create_app()


def when_ready(server: Any) -> None:
    tell("ready", port=server.LISTENERS[0].sock.getsockname()[1])


def seed(lease: Lease) -> None:
    with engine.connect() as conn, fenced_session(conn, lease.name, lease):
        conn.execute(text("INSERT INTO account (id, balance) VALUES (:id, 1)"), {"id": f"{NAME}/seeds"})


def post_worker_init(worker: object) -> None:
    with app.app_context():
        tell("started", ran=fence.once_per_fleet(f"seed/{NAME}", seed, memory=engine.connect))


def worker_exit(server: object, worker: object) -> None:
    with app.app_context():
        held = [each.name for each in fence.locks.list(NAME)]
    fence.close(app)
    tell("stopped", held=held)


@app.post("/zombie/<int:number>")
@fence.holding(f"{NAME}/{{number}}", ttl=3)
def zombie(number: int, lease: Lease) -> str:
    """It writes long after its lease was lost."""
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
    return "done"


@app.post("/lost/<int:number>")
@fence.holding(f"{NAME}/{{number}}")
def lost(number: int, lease: Lease) -> str:
    fence.locks.break_lock(lease.name)
    lease.ended.wait(0.0)
    with app.app_context():
        fence.locks.lock(lease.name, timeout=0).acquire().release()
    return "done"


@app.post("/pay/<int:number>")
@fence.holding(f"{NAME}/{{number}}")
async def pay(number: int, lease: Lease) -> dict[str, int]:
    with engine.connect() as conn, fenced_session(conn, lease.name, lease):
        conn.execute(BALANCE, {"amount": 10, "id": lease.name})
    return {"token": lease.token}


@app.post("/hurried/<int:number>")
def hurried(number: int) -> str:
    with fence.lock(f"{NAME}/{number}", timeout=0, busy=409):
        return "done"


@app.post("/fail/<int:number>")
@fence.holding(f"{NAME}/{{number}}", timeout=0)
def fail(number: int, lease: Lease) -> str:
    raise ZeroDivisionError


@app.put("/guarded/<int:number>")
def guarded(number: int) -> str:
    stamp = fenced()
    with engine.begin() as conn:
        admit(conn, stamp.resource, stamp.access)
    return stamp.resource


@app.put("/unguarded/<int:number>")
def unguarded(number: int) -> str:
    return fenced().resource
