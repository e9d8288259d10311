"""`fencepost fleet`, and the example, as processes."""

import json
import secrets
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from examples import partitioned_consumer as example
from typer.testing import CliRunner

import fencepost
from fencepost.cli.app import app
from fencepost.fleet import Partitions
from tests import ROOT
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background, waiters_of
from tests.harness.waiting import PATIENCE, until

EXAMPLE = ROOT / "examples" / "partitioned_consumer.py"


def fence(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.mark.slow
def test_show_tells_who_owns_what(tmp_path: Path) -> None:
    where = f"sqlite://{tmp_path}/locks.db"
    with fencepost.connect(where, ttl=6) as locks, Partitions(locks, "orders", 3, member="first") as mine:
        until(lambda: len(list(mine)) == 3, "it owns all")
        told: dict[str, Any] = json.loads(fence("fleet", "show", "orders", "--backend", where, "--json"))
        assert [(each["name"], each["owns"]) for each in told["members"]] == [("first", [0, 1, 2])]
        assert [each["token"] for each in told["partitions"]] == [partition.token for partition in mine]
        assert told["unowned"] == []
        # It waits already when the lock is broken. Otherwise the member could acquire the lock again before it does.
        waiting = background(lambda: locks.acquire("orders/1", timeout=PATIENCE))
        waiters_of(locks, "orders/1", 1, waiting)
        locks.break_lock("orders/1")
        by_hand = waiting.result()
        said = fence("fleet", "show", "orders", "--backend", where).splitlines()
        assert said[0] == "orders: 1 members, 3 partitions, 0 unowned"
        assert said[1].startswith("  first  ")
        assert f"    1  no member, holder {by_hand.holder}  token {by_hand.token}, " in said[3]
        until(lambda: any(each.waiters for each in locks.list("orders/1")), "the member waits for what it lost")
        told = json.loads(fence("fleet", "show", "orders", "--backend", where, "--json"))
        assert [each["waiting"] for each in told["partitions"]] == [0, 1, 0]
        assert ", 1 waiting" in fence("fleet", "show", "orders", "--backend", where)
        by_hand.release()
    with Child.fencepost("fleet", "show", "orders", "--backend", where) as child:
        assert child.succeed() == ["orders: 0 members, 0 partitions, 0 unowned"]


def test_a_group_needs_a_name(tmp_path: Path) -> None:
    fence("fleet", "show", "", "--backend", f"sqlite://{tmp_path}/locks.db", code=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.experiment
def test_simulated_fleets_keep_their_promises() -> None:
    told = json.loads(fence("fleet", "sim", "--seeds", "3", "--members", "12", "--partitions", "15", "--json"))
    assert (told["seeds"], told["failed"]) == (3, [])


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / example.DATABASE, timeout=30)) as conn:
        conn.executescript(example.TABLES)
        yield conn


class Consumer(Child):
    """The example, as a process in the folder of its queue."""

    def __init__(self, folder: Path, locks: str) -> None:
        super().__init__([sys.executable, EXAMPLE, "2"], cwd=folder, env={"FENCEPOST_URL": locks})


def test_the_example_handles_each_message_once_and_in_order(
    queue: sqlite3.Connection, tmp_path: Path, redis_server: Endpoint
) -> None:
    def handled(of: Consumer | None = None) -> int:
        where = "" if of is None else f" WHERE worker = {of.pid}"
        number: int = queue.execute(f"SELECT count(*) FROM handled{where}").fetchone()[0]
        return number

    def produce() -> None:
        with queue:
            for number in range(16):
                example.send(queue, f"customer {number % 23}", f"order {number}")

    def sent() -> int:
        number: int = queue.execute("SELECT count(*) FROM message").fetchone()[0]
        return number

    def each_handles_some(*consumers: Consumer) -> None:
        before = [handled(each) for each in consumers]

        def more() -> bool:
            produce()
            return all(handled(each) > number for each, number in zip(consumers, before, strict=True))

        until(more, "each consumer handles some", poll=0.2, watching=consumers)

    with Child([sys.executable, EXAMPLE, "send", "anna", "a lamp"], cwd=tmp_path) as by_hand:
        by_hand.succeed()
    assert sent() == 1
    locks = f"{redis_server.url}?prefix={secrets.token_hex(4)}:"
    with ExitStack() as stack:
        killed, frozen, rest = (stack.enter_context(Consumer(tmp_path, locks)) for _ in range(3))
        each_handles_some(killed, frozen, rest)
        killed.kill()
        frozen.freeze(f"sqlite:{tmp_path / example.DATABASE}")
        produce()
        until(lambda: handled() == sent(), "one takes over from two", watching=[rest])
        frozen.thaw()
        each_handles_some(frozen, rest)
        for each in (frozen, rest):
            until(lambda: handled() == sent(), "all is handled", watching=[frozen, rest])
            each.signal(signal.SIGTERM)
            each.succeed()
    order = [row[0] for row in queue.execute("SELECT message FROM handled ORDER BY rowid")]
    assert sorted(order) == list(range(1, sent() + 1)), "each message, once"
    for number in range(example.PARTITIONS):
        mine = {row[0] for row in queue.execute("SELECT id FROM message WHERE partition = ?", (number,))}
        in_order = [message for message in order if message in mine]
        assert in_order == sorted(in_order)
