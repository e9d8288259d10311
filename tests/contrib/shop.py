"""A Celery app as a user would write it. Its tasks tell the test what they do, and wait for it, through Redis.

$SHOP is a JSON object: the Redis URL, a prefix for everything, the ttl, and the SQLite file with the accounts.
"""

import json
import os
import sqlite3
from contextlib import AbstractContextManager, closing
from typing import Any

import redis
from celery import Celery

from fencepost import Lease
from fencepost.contrib.celery import fenced_task
from fencepost.guards import sqlite
from tests.harness.waiting import PATIENCE

SHOP = json.loads(os.environ["SHOP"])
client = redis.Redis.from_url(SHOP["url"], decode_responses=True, socket_timeout=None)

app = Celery("shop", broker=SHOP["url"], backend=SHOP["url"])
app.conf.update(
    broker_transport_options={"global_keyprefix": SHOP["prefix"]},
    result_backend_transport_options={"global_keyprefix": SHOP["prefix"]},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    fencepost_url=f"{SHOP['url']}?prefix={SHOP['prefix']}",
    fencepost_ttl=SHOP["ttl"],
    fencepost_beat_name=f"{SHOP['prefix']}beat",
    fencepost_beat_state=SHOP["url"],
    beat_schedule={"often": {"task": "sent", "schedule": 0.1, "options": {"queue": "nobody"}}},
    beat_max_loop_interval=0.1,
)


def tell(tag: str, *facts: Any) -> None:
    """Tell the test."""
    client.rpush(f"{SHOP['prefix']}told:{tag}", json.dumps(facts))


def go(tag: str) -> None:
    """Wait for the test."""
    if client.blpop([f"{SHOP['prefix']}go:{tag}"], timeout=PATIENCE) is None:
        raise AssertionError(f"the test never said go:{tag}")


def accounts() -> AbstractContextManager[sqlite3.Connection]:
    return closing(sqlite3.connect(SHOP["accounts"], timeout=PATIENCE))


def _hold(id: int, tag: str, lease: Lease) -> int:
    tell(tag, lease.name, lease.token)
    go(tag)
    return lease.token


@fenced_task(app, key="account/{id}", busy="skip", acks_late=True)
def skipping(id: int, tag: str, *, lease: Lease) -> int:
    return _hold(id, tag, lease)


@fenced_task(app, key="account/{id}", busy="retry", pause=0.1)
def retrying(id: int, tag: str, *, lease: Lease) -> int:
    return _hold(id, tag, lease)


@fenced_task(app, key="account/{id}", busy="retry", pause=0.05, timeout=0.2)
def impatient(id: int, tag: str, *, lease: Lease) -> int:
    return _hold(id, tag, lease)


@fenced_task(app, key="account/{id}", busy="wait", bind=True)
def waiting(self: Any, id: int, tag: str, *, lease: Lease) -> list[Any]:
    _hold(id, tag, lease)
    return [self.request.id, lease.token]


@fenced_task(app, key="account/{id}", busy="wait")
def writing(id: int, tag: str, amount: int) -> int:
    """A guarded write whose lease the guard finds by itself."""
    tell(tag, os.getpid())
    go(tag)
    with accounts() as conn, sqlite.fenced(conn, f"account/{id}"):
        conn.execute("UPDATE account SET balance = ? WHERE id = ?", (amount, id))
    return amount


@fenced_task(app, key="account/{id}", busy="retry", pause=0.1, once=accounts)
def paying(id: int, amount: int, tag: str, *, conn: sqlite3.Connection, lease: Lease) -> dict[str, Any]:
    tell(tag, os.getpid())
    conn.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (amount, id))
    if tag.startswith("held"):
        go(tag)
    return {"paid": amount, "token": lease.token}
