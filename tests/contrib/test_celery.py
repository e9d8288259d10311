"""Celery: real workers and beats, a real broker."""

import json
import secrets
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

import fencepost
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.waiting import PATIENCE, until

LONG = 60
SHORT = 3
"""The ttl of processes that are frozen or killed; all others must not lose a lease while the machine stalls."""


class Shop:
    """The app of ``tests.contrib.shop``, with two workers, each on a queue of its own; "mortal" has the short ttl."""

    def __init__(self, url: str, folder: Path) -> None:
        self.prefix = f"shop-{secrets.token_hex(4)}:"
        self.accounts = folder / "accounts.sqlite3"
        self.facts = {"url": url, "prefix": self.prefix, "accounts": str(self.accounts), "ttl": LONG}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHOP", json.dumps(self.facts))
            from tests.contrib import shop
        self.app = shop.app
        self.client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=None)
        self.locks = fencepost.connect(f"{url}?prefix={self.prefix}")
        self.children: dict[str, Child] = {}
        with closing(sqlite3.connect(self.accounts)) as conn, conn:
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        self._accounts = 0

    def celery(self, *arguments: object, ttl: float, app: str = "tests.contrib.shop") -> Child:
        env = {"SHOP": json.dumps({**self.facts, "ttl": ttl})}
        return Child.python("-m", "celery", "-A", app, *arguments, env=env)

    def worker(self, queue: str) -> Child:
        """The worker of a queue, started if it does not run."""
        child = self.children.get(queue)
        if child is None or not child.running:
            if child is not None:
                child.close()
            quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO")
            ttl = SHORT if queue == "mortal" else LONG
            child = self.celery("worker", "-P", "threads", "-c", 4, "-n", f"{queue}@here", "-Q", queue, *quiet, ttl=ttl)
            self.children[queue] = child
        return child

    @contextmanager
    def heir(self) -> Iterator[Child]:
        """The other worker, which takes over the queue of the mortal one."""
        worker = self.worker("steady")
        until(lambda: " ready." in worker.errors, "it listens", watching=[worker])  # a broadcast waits for nobody
        there = {"destination": ["steady@here"], "reply": True, "limit": 1, "timeout": PATIENCE}
        assert self.app.control.add_consumer("mortal", **there)
        try:
            yield worker
        finally:
            self.app.control.cancel_consumer("mortal", **there)

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
    holder = shop.send("skipping", id, first, queue="steady")
    name, token = shop.told(first)
    assert name == f"account/{id}"
    assert shop.send("skipping", id, skipped, queue="steady").get(PATIENCE) is None
    impatient = shop.send("impatient", id, late, queue="steady")
    retrying = shop.send("retrying", id, again, queue="steady")
    until(lambda: retrying.state == "RETRY", "the busy task is sent again")
    with pytest.raises(Exception, match=r"was not acquired within 0\.2 s"):
        impatient.get(PATIENCE)
    waiting = shop.send("waiting", id, queued, queue="steady")
    until(lambda: (held := shop.locks.status(name)) and held.waiters, "the waiting task is in the queue")
    assert all(shop.silent(each) for each in (skipped, again, late, queued))
    for each in (first, again, queued):
        shop.go(each)
    assert holder.get(PATIENCE) == token
    own, later = waiting.get(PATIENCE)
    assert (own, later > token) == (waiting.id, True), "tokens only grow"
    assert retrying.get(PATIENCE) > token
    assert shop.locks.status(name) is None


def test_a_worker_that_was_frozen_past_its_ttl_is_refused_by_the_guard(shop: Shop) -> None:
    id, frozen, next = shop.account(), tag(), tag()
    zombie = shop.send("writing", id, frozen, 1, queue="mortal")
    shop.told(frozen)
    shop.worker("mortal").freeze()
    successor = shop.send("writing", id, next, 2, queue="steady")
    shop.told(next)  # it holds the lock: the first lease has expired
    shop.go(next)
    assert successor.get(PATIENCE) == 2
    shop.go(frozen)
    shop.worker("mortal").thaw()
    with pytest.raises(Exception, match=r"StaleToken.*stale fencing token for 'account"):
        zombie.get(PATIENCE)
    assert shop.balance(id) == 2


def test_what_a_worker_was_doing_when_it_was_killed_is_done_once(shop: Shop) -> None:
    id, other, killed, paid = shop.account(), shop.account(), tag(), tag("held")
    task = shop.send("skipping", id, killed, queue="mortal")
    payment = shop.send("paying", other, 10, paid, queue="mortal")
    name, token = shop.told(killed)
    assert shop.told(paid) == [shop.worker("mortal").pid]
    assert shop.balance(other) == 100
    # It holds both locks, and a transaction is open: only this test lets it go on.
    shop.worker("mortal").kill()
    with shop.locks.lock(name, timeout=PATIENCE, ttl=LONG) as lease, shop.heir() as heir:
        assert lease.token > token, "the lock is free after its ttl"
        shop.redeliver()
        # A message that is delivered again is not skipped, although the lock is busy: nobody else does it.
        until(lambda: task.state == "RETRY", "it is tried again")
        lease.release()
        shop.go(killed)
        assert task.get(PATIENCE) > lease.token
        assert shop.told(paid) == [heir.pid], "the same message, in another worker"
        shop.go(paid)
        done = payment.get(PATIENCE)
        assert (done["paid"], shop.balance(other)) == (10, 90)
        # Delivered again after it was done, as after a visibility timeout that was too short.
        twice = tag()
        again = shop.send("paying", other, 10, twice, queue="steady", task_id=payment.id)
        until(lambda: heir.errors.count(f"[{payment.id}] succeeded") == 2, "the second delivery is worked off")
    assert again.get(PATIENCE) == done
    assert shop.silent(twice), "its body did not run"
    assert shop.balance(other) == 90


def test_a_redelivered_task_is_not_skipped_however_often_it_finds_the_lock_busy(shop: Shop) -> None:
    id, killed = shop.account(), tag()
    task = shop.send("skipping", id, killed, queue="mortal")
    name, _ = shop.told(killed)
    shop.worker("mortal").kill()
    with shop.locks.lock(name, timeout=PATIENCE, ttl=LONG) as lease, shop.heir() as heir:
        shop.redeliver()

        def tries() -> int:
            return heir.errors.count(f"[{task.id}] retry")

        until(lambda: tries() > 2 or task.ready(), "the message that was sent again is tried again", watching=[heir])
        assert task.state == "RETRY"
        lease.release()
        shop.go(killed)
        assert task.get(PATIENCE) > lease.token


class Beats:
    """Beats of one election, which send into a queue that nobody reads."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.name = f"{shop.prefix}beat"
        self.election = shop.locks.election(self.name)
        self.children: list[Child] = []

    def start(self, ttl: float) -> Child:
        child = self.shop.celery("beat", "-S", "fencepost.contrib.celery:Scheduler", "-l", "WARNING", ttl=ttl)
        self.children.append(child)
        return child

    def leads(self, child: Child) -> None:
        """Return once this one leads, as the store sees it, and sends."""
        until(lambda: (led := self.election.leader()) and led.metadata.endswith(f":{child.pid}"), "it is elected")
        wanted = self.messages() + 3
        until(lambda: self.messages() >= wanted, "it sends", watching=self.children)

    def messages(self) -> int:
        """How many were sent so far."""
        return int(self.shop.client.llen(f"{self.shop.prefix}nobody"))

    def noted(self) -> int:
        """How many were noted, each before it was sent."""
        kept = self.shop.client.hget(f"fencepost:beat:{self.name}", "often")
        assert kept is not None
        return int(json.loads(kept)[1])

    def close(self) -> None:
        for child in self.children:
            child.close()


def test_beat_ends_also_if_it_is_told_so_while_celery_lets_go_of_a_result(shop: Shop) -> None:
    """Celery does that in a finalizer, where Python drops what a signal handler raises."""
    beat = ("beat", "-S", "fencepost.contrib.celery:Scheduler", "-l", "WARNING")
    with shop.celery(*beat, ttl=LONG, app="tests.contrib.ended_shop") as child:
        assert child.wait() == 0
        assert "SystemExit" not in child.errors


def test_beat_fails_over_and_sends_nothing_twice(shop: Shop) -> None:
    with closing(Beats(shop)) as beats:
        first = beats.start(SHORT)
        beats.leads(first)
        first.freeze()
        second = beats.start(LONG)
        beats.leads(second)
        first.thaw()
        until(lambda: (led := shop.locks.status(beats.name)) and led.waiters, "the first one waits to be elected again")
        until(lambda: f"no longer leads {beats.name!r}" in first.errors, "it says so, and what to do", watching=[first])
        assert "give it a longer ttl" in first.errors
        assert "no longer leads" not in second.errors
        beats.leads(second)
        # A beat that is told to end resigns: nobody has to wait for its ttl.
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
        assert "no longer leads" not in second.errors, "it resigned"
        beats.leads(first)
        first.kill()
        missing = beats.noted() - beats.messages()
        assert 0 <= missing <= 2, "each of the two may have ended between the note and the message"
