"""A process with a scheduler of APScheduler, one of a fleet: every one has the same jobs. It runs until its input ends.

python -m tests.contrib.jobs REDIS-URL PREFIX TTL
"""

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any

import redis
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler

import fencepost
from fencepost.contrib.apscheduler import FleetExecutor, current_term
from fencepost.guards import RedisGuard
from tests.harness.waiting import PATIENCE

url, prefix, ttl = sys.argv[1:]
client: Any = redis.Redis.from_url(url, decode_responses=True, socket_timeout=None)
guard = RedisGuard(client)


def count() -> None:
    """Write through a guard; first wait for the test, if it says so."""
    if tag := client.getdel(f"{prefix}hold"):
        client.rpush(f"{prefix}told", os.getpid())
        client.blpop([f"{prefix}go:{tag}"], timeout=PATIENCE)
    guard.execute("SET", f"{prefix}value", os.getpid(), lease=current_term())


def note(event: Any) -> None:
    fact = [os.getpid(), event.scheduled_run_time.isoformat(), type(event.exception).__name__]
    client.rpush(f"{prefix}runs", json.dumps(fact))


locks = fencepost.connect(f"{url}?prefix={prefix}", ttl=float(ttl))
scheduler = BackgroundScheduler(timezone=UTC, executors={"default": FleetExecutor(locks, f"{prefix}jobs", state=url)})
scheduler.add_listener(note, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
# From an instant that all processes know, so that they all mean the same run times.
scheduler.add_job(
    count, "interval", seconds=0.2, start_date=datetime(2026, 1, 1, tzinfo=UTC), id="count", misfire_grace_time=60
)
scheduler.start()
sys.stdin.read()
scheduler.shutdown()
locks.close()
