"""A worker that is stopped past its ttl wakes up and writes with the ORM: the transaction is refused, as a whole."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.contrib.django import site
from tests.harness.child import Child
from tests.harness.isolated import isolated
from tests.harness.servers import Endpoint


def replaced(database: str, store: str) -> None:
    site.begin(database, {"URL": store})
    site.migrate()

    from django.db import connection

    from fencepost.contrib.django import fenced, locks
    from tests.contrib.django.shop.models import Account

    Account.objects.create(pk=1, balance=100)
    ttl = 3.0
    with Child.python("-m", "tests.contrib.django.holder", database, store, ttl) as worker:
        old = worker.json()["token"]
        worker.freeze(store)
        with locks.lock("account/1", timeout=30) as lease, fenced("account/1"):
            assert lease.token > old
            Account.objects.filter(pk=1).update(balance=50)
        worker.thaw()
        worker.tell("go on")
        assert worker.json() == {"said": "StaleToken", "lost": True}
        assert worker.json() == {"said": "LeaseLost"}
    assert Account.objects.get(pk=1).balance == 50
    with connection.cursor() as cursor:
        cursor.execute("SELECT token FROM fencepost_mark WHERE resource = 'account/1'")
        assert cursor.fetchone() == (lease.token,)


@pytest.mark.slow
@isolated
def test_on_sqlite(tmp_path: Path) -> None:
    replaced(str(tmp_path / "site.sqlite3"), f"sqlite:{tmp_path / 'locks.sqlite3'}")


@isolated
def test_on_postgres_with_locks_in_redis(schema: str, redis_server: Endpoint) -> None:
    replaced(schema, f"{redis_server.url}?prefix={secrets.token_hex(4)}:")
