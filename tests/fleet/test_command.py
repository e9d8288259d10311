"""`fencepost fleet`, and the example, as processes."""

import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from examples import partitioned_consumer as example

import fencepost
from fencepost.fleet import Partitions
from fencepost.lab.servers.processes import STILL, dying_with_us, state_of, wait_until
from tests import ROOT
from tests.harness.servers import Endpoint

PATIENCE = 60.0


def fence(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "fencepost", *arguments], stdout=subprocess.PIPE, text=True)
    assert done.returncode == code, done.stdout
    return done.stdout


def test_show_tells_who_owns_what(tmp_path: Path) -> None:
    where = f"sqlite://{tmp_path}/locks.db"
    with fencepost.connect(where, ttl=30) as locks, Partitions(locks, "orders", 3, member="first") as mine:
        assert wait_until(lambda: len(list(mine)) == 3, timeout=PATIENCE)
        told: dict[str, Any] = json.loads(fence("fleet", "show", "orders", "--backend", where, "--json"))
        assert [(each["name"], each["owns"]) for each in told["members"]] == [("first", [0, 1, 2])]
        assert [each["token"] for each in told["partitions"]] == [partition.token for partition in mine]
        assert told["unowned"] == []
        locks.evict("orders/1")
        by_hand = locks.acquire("orders/1")
        said = fence("fleet", "show", "orders", "--backend", where).splitlines()
        assert said[0] == "orders: 1 members, 3 partitions, 0 unowned"
        assert said[1].startswith("  first  ")
        assert f"    1  no member, holder {by_hand.holder}  token {by_hand.token}, " in said[3]
        assert wait_until(lambda: any(each.waiters for each in locks.list("orders/1")), timeout=PATIENCE)
        told = json.loads(fence("fleet", "show", "orders", "--backend", where, "--json"))
        assert [each["waiting"] for each in told["partitions"]] == [0, 1, 0]
        assert ", 1 waiting" in fence("fleet", "show", "orders", "--backend", where)
        by_hand.release()
    assert fence("fleet", "show", "orders", "--backend", where) == "orders: 0 members, 0 partitions, 0 unowned\n"


def test_a_group_needs_a_name(tmp_path: Path) -> None:
    fence("fleet", "show", "", "--backend", f"sqlite://{tmp_path}/locks.db", code=2)
    assert not list(tmp_path.iterdir())


def test_simulated_fleets_keep_their_promises() -> None:
    told = json.loads(fence("fleet", "sim", "--seeds", "6", "--members", "24", "--partitions", "30", "--json"))
    assert (told["seeds"], told["failed"]) == (6, [])


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / example.DATABASE, timeout=30)) as conn:
        conn.executescript(example.TABLES)
        yield conn


class Consumer:
    """The example, as a process in the folder of its queue."""

    def __init__(self, folder: Path, locks: str) -> None:
        self._folder = folder
        self.process = subprocess.Popen(
            dying_with_us([sys.executable, str(ROOT / "examples" / "partitioned_consumer.py"), "2"]),
            cwd=folder,
            env=os.environ | {"FENCEPOST_URL": locks},
            stdout=subprocess.DEVNULL,
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP it, but not inside a transaction: SQLite would let nobody else write."""
        while True:
            self.signal(signal.SIGSTOP)
            assert wait_until(lambda: state_of(self.process.pid) in STILL, timeout=PATIENCE)
            with closing(sqlite3.connect(self._folder / example.DATABASE, timeout=1)) as conn:
                try:
                    conn.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError:
                    self.signal(signal.SIGCONT)


def test_the_example_handles_each_message_once_and_in_order(
    queue: sqlite3.Connection, tmp_path: Path, redis_server: Endpoint
) -> None:
    def handled(of: Consumer | None = None) -> int:
        where = "" if of is None else f" WHERE worker = {of.process.pid}"
        number: int = queue.execute(f"SELECT count(*) FROM handled{where}").fetchone()[0]
        return number

    def produce() -> None:
        with queue:
            for number in range(16):
                example.send(queue, f"customer {number % 23}", f"order {number}")

    def sent() -> int:
        number: int = queue.execute("SELECT count(*) FROM message").fetchone()[0]
        return number

    def each_handles_some(*consumers: Consumer) -> bool:
        before = [handled(each) for each in consumers]

        def more() -> bool:
            produce()
            return all(handled(each) > number for each, number in zip(consumers, before, strict=True))

        return wait_until(more, timeout=PATIENCE, poll=0.2)

    by_hand = [sys.executable, str(ROOT / "examples" / "partitioned_consumer.py"), "send", "anna", "a lamp"]
    subprocess.run(by_hand, cwd=tmp_path, check=True)
    assert sent() == 1
    locks = f"{redis_server.url}?prefix={secrets.token_hex(4)}:"
    consumers = [Consumer(tmp_path, locks) for _ in range(3)]
    killed, frozen, rest = consumers
    try:
        assert each_handles_some(*consumers)
        killed.signal(signal.SIGKILL)
        frozen.freeze()
        produce()
        assert wait_until(lambda: handled() == sent(), timeout=PATIENCE), "one takes over from two"
        frozen.signal(signal.SIGCONT)
        assert each_handles_some(frozen, rest), "it came back"
        for each in (frozen, rest):
            assert wait_until(lambda: handled() == sent(), timeout=PATIENCE)
            each.signal(signal.SIGTERM)
            assert each.process.wait(PATIENCE) == 0
    finally:
        for each in consumers:
            each.process.kill()
            each.process.wait()
    order = [row[0] for row in queue.execute("SELECT message FROM handled ORDER BY rowid")]
    assert sorted(order) == list(range(1, sent() + 1)), "each message, once"
    for number in range(example.PARTITIONS):
        mine = {row[0] for row in queue.execute("SELECT id FROM message WHERE partition = ?", (number,))}
        in_order = [message for message in order if message in mine]
        assert in_order == sorted(in_order)
