"""Celery: real workers and beats, a real broker."""

import json
import os
import secrets
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import fencepost
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.waiting import PATIENCE, until


class Shop:
    """The app of ``tests.contrib.shop``, with up to two workers, each on a queue of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.prefix = f"shop-{secrets.token_hex(4)}:"
        self.accounts = folder / "accounts.sqlite3"
        self.env = {"SHOP": json.dumps({"url": url, "prefix": self.prefix, "accounts": str(self.accounts)})}
        os.environ.update(self.env)
        from tests.contrib import shop

        self.app = shop.app
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.locks = fencepost.connect(f"{url}?prefix={self.prefix}")
        self.children: dict[str, Child] = {}
        with closing(sqlite3.connect(self.accounts)) as conn, conn:
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        self._accounts = 0

    def celery(self, *arguments: object) -> Child:
        return Child.python("-m", "celery", "-A", "tests.contrib.shop", *arguments, env=self.env)

    def worker(self, queue: str) -> Child:
        """The worker of a queue, started if it does not run."""
        child = self.children.get(queue)
        if child is None or not child.running:
            if child is not None:
                child.close()
            quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO")
            child = self.celery("worker", "-P", "threads", "-c", 4, "-n", f"{queue}@here", "-Q", queue, *quiet)
            self.children[queue] = child
        return child

    def account(self, balance: int = 100) -> int:
        """A new account."""
        self._accounts += 1
        with closing(sqlite3.connect(self.accounts)) as conn, conn:
            conn.execute("INSERT INTO account VALUES (?, ?)", (self._accounts, balance))
        return self._accounts

    def balance(self, id: int) -> int:
        with closing(sqlite3.connect(self.accounts)) as conn:
            (found,) = conn.execute("SELECT balance FROM account WHERE id = ?", (id,)).fetchone()
        return int(found)

    def send(self, task: str, *args: Any, queue: str, **options: Any) -> Any:
        self.worker(queue)
        return self.app.tasks[f"tests.contrib.shop.{task}"].apply_async(args, queue=queue, **options)

    def told(self, tag: str) -> list[Any]:
        """The next thing that a task tells of."""
        found = self.client.blpop([f"{self.prefix}told:{tag}"], timeout=PATIENCE)
        assert found is not None, f"nothing was told of {tag}"
        facts: list[Any] = json.loads(found[1])
        return facts

    def silent(self, tag: str) -> bool:
        return self.client.llen(f"{self.prefix}told:{tag}") == 0

    def go(self, tag: str) -> None:
        self.client.rpush(f"{self.prefix}go:{tag}", "go")

    def redeliver(self) -> None:
        """What any worker does after the visibility timeout: put back what nobody has acknowledged."""
        with self.app.connection_for_write(transport_options={"visibility_timeout": 0, **self.options}) as connection:
            connection.default_channel.qos.restore_visible(num=100)

    @property
    def options(self) -> dict[str, Any]:
        return {"global_keyprefix": self.prefix}

    def close(self) -> None:
        for child in self.children.values():
            child.close()
        self.locks.close()
        for key in self.client.scan_iter(f"*{self.prefix}*"):
            self.client.delete(key)
        self.client.close()


@pytest.fixture(scope="module")
def shop(redis_server: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(redis_server.url, tmp_path_factory.mktemp("shop"))
    try:
        yield shop
    finally:
        shop.close()


def tag(kind: str = "") -> str:
    return f"{kind}{secrets.token_hex(4)}"


def test_a_busy_lock_skips_comes_back_or_waits(shop: Shop) -> None:
    id = shop.account()
    first, skipped, again, late, queued = (tag() for _ in range(5))
    holder = shop.send("skipping", id, first, queue="one")
    assert shop.told(first)[:2] == ["began", f"account/{id}"]
    assert shop.send("skipping", id, skipped, queue="one").get(PATIENCE) is None
    impatient = shop.send("impatient", id, late, queue="one")
    retrying = shop.send("retrying", id, again, queue="one")
    until(lambda: retrying.state == "RETRY", "the busy task is sent again")
    with pytest.raises(Exception, match="was not acquired within 0.2 s"):
        impatient.get(PATIENCE)
    waiting = shop.send("waiting", id, queued, queue="one")
    until(lambda: shop.locks.status(f"account/{id}").waiters, "the waiting task is in the queue")  # type: ignore[union-attr]
    assert all(shop.silent(each) for each in (skipped, again, late, queued))
    for each in (first, again, queued):
        shop.go(each)
    assert waiting.get(PATIENCE) == [waiting.id, waiting.result[1]]
    assert holder.get(PATIENCE) < waiting.result[1], "tokens only grow"
    assert isinstance(retrying.get(PATIENCE), int)
    assert shop.locks.status(f"account/{id}") is None
