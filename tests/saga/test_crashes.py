"""kill -9 at every commit of a saga, and of a run once, enumerated: each effect once, or fully undone."""

import os
import secrets
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fencepost
from fencepost.errors import LeaseLost, StaleToken
from fencepost.once import once
from fencepost.saga import Compensated, Saga, Step, Stuck, Task
from tests.harness.isolated import isolated
from tests.harness.mortal import Connect, Fate, lives, postgres_schema, sqlite_file

pytestmark = pytest.mark.slow


class World:
    """A shop, its database, and a bank elsewhere that remembers the keys of what it was asked to do."""

    def __init__(self, connect: Connect, folder: Path, *, placeholder: str) -> None:
        self.connect = connect
        self._bank = str(folder / "bank.sqlite3")
        self.url = f"sqlite:{folder / 'locks.sqlite3'}"
        self._put = f"INSERT INTO effect VALUES ({placeholder}, {placeholder})"
        self._take = f"DELETE FROM effect WHERE id = {placeholder} AND name = {placeholder}"
        self._find = f"SELECT name FROM effect WHERE id = {placeholder} ORDER BY name"
        with closing(sqlite3.connect(self._bank)) as bank, bank:
            bank.execute("CREATE TABLE effect (key TEXT PRIMARY KEY, id TEXT, name TEXT)")
            bank.execute("CREATE TABLE switch (undo_fails INTEGER)")

    def locks(self) -> Any:
        return fencepost.connect(self.url)

    def free(self, id: str) -> None:
        """What the end of the ttl does, only sooner."""
        with self.locks() as locks:
            locks.break_lock(f"saga/order/{id}")

    def saga(self, fate: Fate, *, fails: bool) -> Saga:
        def local(name: str) -> Step:
            def do(task: Task) -> str:
                task.conn.execute(self._put, (task.id, name))
                return name

            def undo(task: Task) -> None:
                assert task.results[name] == name
                task.conn.execute(self._take, (task.id, name))

            return Step(name, do, undo)

        def ship(task: Task) -> str:
            if fails:
                raise LookupError("nothing to ship with")
            task.conn.execute(self._put, (task.id, "ship"))
            return "ship"

        bank = Step("charge", self._asked(fate, "charge"), self._asked(fate, "refund"), external=True)
        return Saga("order", [local("reserve"), bank, local("pack"), Step("ship", ship)])

    def _asked(self, fate: Fate, name: str) -> Callable[[Task], None]:
        """A request to the bank, which does a thing once for each key; it may be off for refunds."""

        def ask(task: Task) -> None:
            assert task.conn is None
            assert task.headers["Idempotency-Key"] == task.key
            with closing(sqlite3.connect(self._bank, timeout=30)) as conn, fate.around(), conn:
                if name == "refund" and conn.execute("SELECT count(*) FROM switch").fetchone() != (0,):
                    raise ConnectionError("the bank is closed")
                conn.execute("INSERT OR IGNORE INTO effect VALUES (?, ?, ?)", (task.key, task.id, name))

        return ask

    def closes_for_refunds(self, closed: bool) -> None:
        with closing(sqlite3.connect(self._bank)) as conn, conn:
            conn.execute("INSERT INTO switch VALUES (1)" if closed else "DELETE FROM switch")

    def effects(self, id: str) -> list[str]:
        with closing(sqlite3.connect(self._bank)) as bank, closing(self.connect(Fate())) as shop:
            here = [name for (name,) in shop.execute(self._find, (id,)).fetchall()]
            return sorted([*here, *(n for (n,) in bank.execute("SELECT name FROM effect WHERE id = ?", (id,)))])


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "sqlite":
        path = str(tmp_path / "shop.sqlite3")
        with closing(sqlite3.connect(path)) as conn:
            conn.execute("CREATE TABLE effect (id TEXT, name TEXT)")
        yield World(sqlite_file(path), tmp_path, placeholder="?")
    else:
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url) as conn:
            conn.execute("CREATE TABLE IF NOT EXISTS effect (id text, name text)")
        yield World(postgres_schema(url), tmp_path, placeholder="%s")


def every_moment(job: Callable[[str, Fate], None], after: Callable[[str], None]) -> int:
    """Kill ``job`` before and after each of its commits in turn, until it has no more; how often it was killed."""
    for killed in count():
        when = ("after" if killed % 2 else "before", killed // 2 + 1)
        id = f"{when[0]}-{when[1]}-{secrets.token_hex(4)}"
        if lives(lambda fate, id=id: job(id, fate), when):  # type: ignore[misc]  # the default is the closure
            return killed
        after(id)
    raise AssertionError


@isolated
def test_a_saga_that_goes_well_has_each_effect_once(world: World) -> None:
    def run(id: str, fate: Fate) -> None:
        with world.locks() as locks, closing(world.connect(fate)) as conn:
            world.saga(fate, fails=False).run(locks, conn, id, {"sku": "lamp"})

    def go_on(id: str) -> None:
        world.free(id)
        run(id, Fate())
        assert world.effects(id) == ["charge", "pack", "reserve", "ship"]

    # begin, reserve, charge noted, asked, noted again, pack, ship: seven commits
    assert every_moment(run, go_on) == 14


@isolated
def test_a_saga_that_fails_leaves_nothing_behind(world: World) -> None:
    def run(id: str, fate: Fate) -> None:
        with world.locks() as locks, closing(world.connect(fate)) as conn, pytest.raises(Compensated, match="ship: "):
            world.saga(fate, fails=True).run(locks, conn, id)

    def go_on(id: str) -> None:
        world.free(id)
        run(id, Fate())
        assert world.effects(id) == ["charge", "refund"]

    # six as above, the turn, pack undone, refund asked, noted, reserve undone
    assert every_moment(run, go_on) == 22


@isolated
def test_a_saga_whose_undo_fails_is_stuck_until_it_is_retried(world: World) -> None:
    def run(id: str, fate: Fate) -> None:
        with world.locks() as locks, closing(world.connect(fate)) as conn, pytest.raises(Stuck, match="bank is closed"):
            world.saga(fate, fails=True).run(locks, conn, id)

    def go_on(id: str) -> None:
        world.free(id)
        run(id, Fate())
        assert world.effects(id) == ["charge", "reserve"]
        world.closes_for_refunds(False)
        with world.locks() as locks, closing(world.connect(Fate())) as conn:
            saga = world.saga(Fate(), fails=True)
            assert id not in saga.resume(locks, conn), "nobody drives a stuck saga but by hand"
            with pytest.raises(Compensated):
                saga.retry(locks, conn, id)
        assert world.effects(id) == ["charge", "refund"]
        world.closes_for_refunds(True)

    world.closes_for_refunds(True)
    # six as above, the turn, pack undone, the refund refused, the word that it is stuck
    assert every_moment(run, go_on) == 20


@isolated
def test_a_retry_by_hand_can_be_killed_as_well(world: World) -> None:
    def retry(id: str, fate: Fate) -> None:
        with world.locks() as locks, closing(world.connect(fate)) as conn, pytest.raises(Compensated, match="ship: "):
            world.saga(fate, fails=True).retry(locks, conn, id)

    def run(id: str, fate: Fate) -> None:
        world.closes_for_refunds(True)
        with world.locks() as locks, closing(world.connect(Fate())) as conn, pytest.raises(Stuck):
            world.saga(Fate(), fails=True).run(locks, conn, id)
        world.closes_for_refunds(False)
        retry(id, fate)

    def go_on(id: str) -> None:
        world.free(id)
        retry(id, Fate())
        assert world.effects(id) == ["charge", "refund"]

    # unstuck, the refund asked, noted, reserve undone
    assert every_moment(run, go_on) == 8


@isolated
def test_a_coordinator_stopped_past_its_ttl_cannot_move_the_saga(world: World) -> None:
    id = secrets.token_hex(4)
    child = os.fork()
    if child == 0:
        saga = world.saga(Fate(), fails=False)
        charge = saga.steps["charge"].do

        def stop(task: Task) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)
            charge(task)

        saga.steps["charge"] = Step("charge", stop, external=True)
        try:
            with world.locks() as locks, closing(world.connect(Fate())) as conn:
                saga.run(locks, conn, id)
        except (StaleToken, LeaseLost):
            os._exit(77)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it was stopped in the middle of the saga"
    world.free(id)  # as at its ttl
    with world.locks() as locks, closing(world.connect(Fate())) as conn:
        world.saga(Fate(), fails=False).run(locks, conn, id)
        before = world.saga(Fate(), fails=False).find(conn, id)
        os.kill(child, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77
        assert world.saga(Fate(), fails=False).find(conn, id) == before
    assert world.effects(id) == ["charge", "pack", "reserve", "ship"]


@isolated
def test_a_run_once_is_neither_lost_nor_doubled(world: World) -> None:
    def run(id: str, fate: Fate) -> None:
        with closing(world.connect(fate)) as conn, once(conn, id) as attempt:
            if not attempt.done:
                conn.execute(world._put, (id, "effect"))
                attempt.result = "made"

    def go_on(id: str) -> None:
        run(id, Fate())
        assert world.effects(id) == ["effect"]

    assert every_moment(run, go_on) == 2
