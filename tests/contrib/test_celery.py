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


def test_a_worker_that_was_frozen_past_its_ttl_is_refused_by_the_guard(shop: Shop) -> None:
    id, frozen, next = shop.account(), tag(), tag()
    zombie = shop.send("writing", id, frozen, 1, queue="one")
    shop.told(frozen)
    shop.worker("one").freeze()
    successor = shop.send("writing", id, next, 2, queue="two")
    shop.told(next)  # it holds the lock: the first lease has expired
    shop.go(next)
    assert successor.get(PATIENCE) == 2
    shop.go(frozen)
    shop.worker("one").thaw()
    with pytest.raises(Exception, match=r"StaleToken.*stale fencing token for 'account"):
        zombie.get(PATIENCE)
    assert shop.balance(id) == 2


def test_the_lock_of_a_worker_that_was_killed_is_free_after_its_ttl(shop: Shop) -> None:
    id, killed, name = shop.account(), tag(), ""
    task = shop.send("skipping", id, killed, queue="one")
    name = shop.told(killed)[1]
    shop.worker("one").kill()
    held = shop.locks.status(name)
    assert held is not None, "the fault: it was killed while it held the lock"
    with shop.locks.lock(name, timeout=PATIENCE) as lease:
        assert lease.token > held.token
        # The broker delivers its message again. It is not skipped, although the lock is busy: nobody else does it.
        shop.redeliver()
        shop.worker("one")
        until(lambda: task.state == "RETRY", "the message that was delivered again is tried again")
    shop.go(killed)
    assert task.get(PATIENCE) > lease.token


def test_a_task_is_done_once_however_often_it_is_delivered(shop: Shop) -> None:
    id, killed = shop.account(), tag("held")
    # Killed in the middle, while it held the lock and its transaction was open: the broker delivers it again.
    first = shop.send("paying", id, 10, killed, queue="one")
    _, pid = shop.told(killed)
    assert pid == shop.worker("one").pid
    assert shop.balance(id) == 100
    shop.worker("one").kill()
    shop.redeliver()
    shop.worker("one")
    assert shop.told(killed)[1] != pid, "the same message, in another worker"
    shop.go(killed)
    done = first.get(PATIENCE)
    assert (done["paid"], shop.balance(id)) == (10, 90)
    # Delivered again after it was done, as after a visibility timeout that was too short.
    twice = tag()
    again = shop.send("paying", id, 10, twice, queue="one", task_id=first.id)
    until(lambda: shop.worker("one").errors.count(f"[{first.id}] succeeded") == 2, "the second delivery is worked off")
    assert again.get(PATIENCE) == done
    assert shop.silent(twice), "its body did not run"
    assert shop.balance(id) == 90


class Beats:
    """Two beats of one election, which send into a queue that nobody reads."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.name = f"{shop.prefix}beat"
        self.election = shop.locks.election(self.name)
        self.children = [self._start(), self._start()]

    def _start(self) -> Child:
        return self.shop.celery("beat", "-S", "fencepost.contrib.celery:Scheduler", "-l", "WARNING")

    def leader(self) -> Child | None:
        """The beat that leads, as the store sees it."""
        led = self.election.leader()
        found = [each for each in self.children if led and led.metadata.endswith(f":{each.pid}")]
        return found[0] if found else None

    def messages(self) -> int:
        """How many were sent so far."""
        return int(self.shop.client.llen(f"{self.shop.prefix}nobody"))  # type: ignore[arg-type]

    def noted(self) -> int:
        """How many were noted, each before it was sent."""
        kept = self.shop.client.hget(f"fencepost:beat:{self.name}", "often")
        return int(json.loads(kept)[1]) if kept else 0  # type: ignore[arg-type]

    def sends(self, count: int = 3) -> None:
        until(lambda: self.messages() >= count, f"{count} messages are sent", watching=self.children)

    def close(self) -> None:
        for child in self.children:
            child.close()


def test_beat_fails_over_and_sends_nothing_twice(shop: Shop) -> None:
    with closing(Beats(shop)) as beats:
        beats.sends()
        frozen = until(beats.leader, "one of them leads")
        (other,) = [each for each in beats.children if each is not frozen]
        frozen.freeze()
        until(lambda: beats.leader() is other, "the other one takes over")
        beats.sends(beats.messages() + 3)
        frozen.thaw()
        waiters = until(lambda: shop.locks.status(beats.name), "still led").waiters
        until(lambda: shop.locks.status(beats.name).waiters, "it runs in the election again")  # type: ignore[union-attr]
        beats.sends(beats.messages() + 3)
        assert beats.leader() is other
        assert not waiters or waiters[0].endswith(f":{frozen.pid}")
        # A beat that is told to end resigns: nobody has to wait for its ttl.
        other.signal(signal.SIGTERM)
        assert other.wait() == 0
        until(lambda: beats.leader() is frozen, "the first one leads again")
        beats.sends(beats.messages() + 3)
        frozen.kill()
        assert beats.messages() in (beats.noted(), beats.noted() - 1), "killed between the note and the message at most"
