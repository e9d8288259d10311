"""Sagas: what runs, what is undone, who may move one, and how it is driven by hand."""

import asyncio
import importlib
import json
import math
import os
import re
import signal
import sqlite3
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from typer.testing import CliRunner
from werkzeug.test import Client

import fencepost
from fencepost.cli import app as root
from fencepost.errors import ConfigError, LeaseLost, NotAcquired, StaleToken
from fencepost.guards import default_policy, sqlite, wsgi
from fencepost.guards.marks import Marks
from fencepost.guards.policy import Policy
from fencepost.once import http
from fencepost.rule import Stamp
from fencepost.saga import Compensated, Record, Saga, Step, Stuck, Task, aio, ledger
from fencepost.signing import Keys
from tests.harness.child import Child
from tests.harness.isolated import isolated

said: list[str] = []


def say(task: Task) -> str:
    action, _, step, _ = task.key.split("/")
    said.append(f"{action} {step}")
    return step


def fail(task: Task) -> None:
    raise LookupError("no such thing")


def record_of(saga: Saga, conn: Any, id: str) -> Record:
    """Where a saga stands that was begun."""
    record = saga.find(conn, id)
    assert record is not None
    return record


@pytest.fixture(autouse=True)
def silence() -> None:
    said.clear()


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as conn:
        yield conn


@pytest.fixture
def locks() -> Iterator[Any]:
    with fencepost.connect("memory://") as locks:
        yield locks


def test_steps_run_in_order_and_a_finished_saga_recalls_its_results(conn: Any, locks: Any) -> None:
    saga = Saga("order", [Step("a", say), Step("b", say, external=True), Step("c", lambda task: dict(task.results))])
    assert saga.find(conn, "1") is None
    for _ in range(2):
        results = saga.run(locks, conn, "1", {"n": (1, 2)})
        assert results == {"a": "a", "b": "b", "c": {"a": "a", "b": "b"}}
    assert said == ["do a", "do b"]
    assert record_of(saga, conn, "1").args == {"n": [1, 2]}


def test_a_failure_undoes_in_reverse_and_is_told_again(conn: Any, locks: Any) -> None:
    saga = Saga("order", [Step("a", say, say), Step("b", say), Step("c", say, say), Step("d", fail, say)])
    for _ in range(2):
        with pytest.raises(Compensated, match=r"order 1 was compensated: d: LookupError: no such thing") as caught:
            saga.run(locks, conn, "1")
    assert said == ["do a", "do b", "do c", "undo c", "undo a"]
    assert caught.value.__cause__ is None, "the second time it is recalled"


def test_an_external_step_that_failed_may_have_happened_so_it_is_undone_too(conn: Any, locks: Any) -> None:
    def lost(task: Task) -> None:
        say(task)
        raise ConnectionError("no answer")

    saga = Saga("order", [Step("a", say, say), Step("b", lost, say, external=True)])
    with pytest.raises(Compensated):
        saga.run(locks, conn, "1")
    assert said == ["do a", "do b", "undo b", "undo a"]


def test_a_coordinator_that_lost_its_lease_moves_nothing_and_the_step_did_not_fail(
    conn: Any, locks: Any, tmp_path: Path
) -> None:
    def taken(task: Task) -> None:
        if not said:
            said.append("taken")
            locks.break_lock(f"saga/order/{task.id}")
            with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as other:
                saga.run(locks, other, task.id)
            say(task)

    saga = Saga("order", [Step("a", taken, external=True), Step("b", say)])
    with pytest.raises(StaleToken):
        saga.run(locks, conn, "1")
    assert said == ["taken", "do b", "do a"], "the zombie came as far as its call, and no further"
    assert saga.run(locks, conn, "1") == {"a": None, "b": "b"}
    assert record_of(saga, conn, "1").undone == []


@pytest.mark.parametrize("external", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("mode", ["off", "passive", "shadow", "canary:0%", "enforce", "overridden"])
def test_a_replaced_coordinator_repeats_and_undoes_nothing_in_any_mode_of_a_rollout(
    conn: Any, locks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, external: bool
) -> None:
    moving, calls = ledger.moving, iter(range(100))

    def replaced_at_its_second_move(at: Any, start: Record, lease: Any) -> Any:
        if next(calls) == 1:
            locks.break_lock("saga/order/1")
            with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as other:
                saga.run(locks, other, "1")
        return moving(at, start, lease)

    monkeypatch.setattr(ledger, "moving", replaced_at_its_second_move)
    policy = Policy("strict" if mode == "overridden" else mode)
    if mode == "overridden":
        policy.override("the issuer was restored from a backup")
    saga = Saga("order", [Step("reserve", say, say, external=external), Step("ship", say)])
    with default_policy(policy):
        with pytest.raises(StaleToken):
            saga.run(locks, conn, "1")
        assert said == ["do reserve", "do ship"], "those of the coordinator that replaced it"
        assert record_of(saga, conn, "1").state == "done"
        assert saga.run(locks, conn, "1") == {"reserve": "reserve", "ship": "ship"}


async def test_with_asyncio_a_replaced_coordinator_repeats_and_undoes_nothing_in_shadow(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, calls, id = ledger.moving, iter(range(100)), f"order-{os.getpid()}"
    saga = aio.Saga("shadowed", [Step("reserve", say, say), Step("ship", say)])

    @asynccontextmanager
    async def replaced_at_its_second_move(at: Any, start: Record, lease: Any) -> AsyncIterator[Record]:
        if next(calls) == 1:
            await alocks.break_lock(f"saga/shadowed/{id}")
            async with await psycopg.AsyncConnection.connect(postgres_url) as other:
                await saga.run(alocks, other, id)
        async with moving(at, start, lease) as record:
            yield record

    monkeypatch.setattr(ledger, "moving", replaced_at_its_second_move)
    async with (
        fencepost.aio.connect("memory://") as alocks,
        await psycopg.AsyncConnection.connect(postgres_url) as conn,
    ):
        with default_policy("shadow"), pytest.raises(StaleToken):
            await saga.run(alocks, conn, id)
    assert said == ["do reserve", "do ship"]


@pytest.mark.parametrize("external", [False, True], ids=["inside", "outside"])
def test_a_saga_that_was_moved_behind_its_coordinator_s_back_is_not_moved_further(
    conn: Any, locks: Any, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    moving, calls = ledger.moving, iter(range(100))

    def moved_by_hand(at: Any, start: Record, lease: Any) -> Any:
        if next(calls) == 1:
            with at:
                at.execute("UPDATE fencepost_saga SET state = 'done'")
        return moving(at, start, lease)

    monkeypatch.setattr(ledger, "moving", moved_by_hand)
    saga = Saga("order", [Step("reserve", say, say, external=external)])
    with pytest.raises(LeaseLost, match="saga order 1 was running at reserve, and is now done"):
        saga.run(locks, conn, "1")
    assert said == []
    assert record_of(saga, conn, "1").state == "done"


def test_keys_and_limits_that_a_process_tries_out_in_shadow_do_not_stop_a_saga(conn: Any, locks: Any) -> None:
    saga = Saga("order", [Step("a", say)])
    with default_policy(Policy("shadow", keys=Keys({"2026": b"x" * 32}), max_jump=1, max_first=1)):
        for _ in range(3):
            locks.acquire("saga/order/1").release()
        assert saga.run(locks, conn, "1") == {"a": "a"}


def test_a_number_that_equals_nothing_is_the_same_argument_again(conn: Any, locks: Any) -> None:
    saga = Saga("order", [Step("a", say)])
    for id, args in {"bare": math.nan, "inside": {"weight": [math.nan]}}.items():
        for _ in range(2):
            assert saga.run(locks, conn, id, args) == {"a": "a"}
        with pytest.raises(ConfigError, match="begun with other args"):
            saga.run(locks, conn, id, {"weight": [1.0]})


def test_what_cannot_be_meant_is_refused(conn: Any, locks: Any) -> None:
    saga = Saga("order", [Step("a", say)])
    saga.run(locks, conn, "1", {"n": 1})
    with pytest.raises(ConfigError, match="begun with other args"):
        saga.run(locks, conn, "1", {"n": 2})
    with pytest.raises(ConfigError, match="begun with the steps"):
        Saga("order", [Step("b", say)]).run(locks, conn, "1")
    with pytest.raises(ConfigError, match="stays so"):
        saga.compensate(locks, conn, "1")
    with pytest.raises(ConfigError, match="there is no saga order 2"):
        saga.retry(locks, conn, "2")
    with pytest.raises(ConfigError, match="cannot be kept as JSON"):
        saga.run(locks, conn, "2", object())
    with pytest.raises(ConfigError, match="no slash"):
        Saga("a/b", [Step("a", say)])
    with pytest.raises(ConfigError, match="a name of its own"):
        Saga("order", [Step("a", say), Step("a", say)])
    with pytest.raises(ConfigError, match=r"fencepost\.aio"):
        saga.run(cast(Any, fencepost.aio.connect("memory://")), conn, "2")
    with pytest.raises(ConfigError, match="'a' does, and undoes, is a function"):
        Step("a", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'a' does, and undoes, is a function"):
        Step("a", say, "undo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"is made of Step"):
        Saga("order", [("a", say)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="sqlite3, psycopg, SQLAlchemy or Django is needed"):
        saga.run(conn, locks, "2")
    conn.execute("CREATE TABLE t (x)")
    conn.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ConfigError, match="in a transaction already"):
        saga.run(locks, conn, "2")


def test_a_step_that_is_async_def_is_refused_in_blocking_code() -> None:
    async def later(task: Task) -> None:
        await asyncio.sleep(0)

    for step in (Step("b", later), Step("b", say, undo=later)):
        with pytest.raises(ConfigError, match=r"step 'b' of saga order is async def; use fencepost\.saga\.aio"):
            Saga("order", [Step("a", say, say), step])


def test_what_a_step_does_to_its_task_changes_nothing_but_its_copy(conn: Any, locks: Any) -> None:
    def spoils(task: Task) -> Any:
        task.args["price"] = 0
        task.results["b"] = "done already"  # type: ignore[index]
        return [1]

    def looks(task: Task) -> Any:
        task.results["a"].append(2)
        return [task.args, task.results]

    saga = Saga("order", [Step("a", spoils), Step("b", looks), Step("c", looks)])
    for _ in range(2):
        found = saga.run(locks, conn, "1", {"price": 30})
        assert found["b"][0] == {"price": 30}
        assert found["a"] == [1]
        assert list(found) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_step_that_ends_its_own_transaction_is_told_so(conn: Any, locks: Any, end: str) -> None:
    def cut_in_two(task: Task) -> None:
        task.conn.execute("CREATE TABLE IF NOT EXISTS t (x)")
        getattr(task.conn, end)()

    saga = Saga("order", [Step("a", cut_in_two)])
    with pytest.raises(ConfigError, match="ended inside it"):
        saga.run(locks, conn, "1")
    assert record_of(saga, conn, "1").state == "running", "nothing was recorded that may not have happened"


def test_a_saga_that_somebody_is_at_work_on_is_left_alone(conn: Any, locks: Any) -> None:
    def interrupted(task: Task) -> None:
        raise KeyboardInterrupt

    begun = Saga("order", [Step("a", say), Step("b", interrupted)])
    with pytest.raises(KeyboardInterrupt):
        begun.run(locks, conn, "1")
    saga = Saga("order", [Step("a", say), Step("b", say)])
    with locks.lock("saga/order/1"):
        assert saga.resume(locks, conn) == {}
        with pytest.raises(NotAcquired):
            saga.run(locks, conn, "1", timeout=0)
    assert saga.resume(locks, conn) == {"1": "done"}
    assert said == ["do a", "do b"]


def test_a_lock_store_that_has_lost_its_tokens_is_told_of(
    conn: Any, locks: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(task: Task) -> None:
        raise KeyboardInterrupt

    for _ in range(5):
        locks.acquire("saga/order/1").release()
    with pytest.raises(KeyboardInterrupt):
        Saga("order", [Step("a", say), Step("b", interrupted)]).run(locks, conn, "1")
    with fencepost.connect(f"sqlite:{tmp_path}/emptied.sqlite3") as emptied:
        assert Saga("order", [Step("a", say), Step("b", say)]).resume(emptied, conn) == {}
    assert "saga order 1 was left alone: stale fencing token" in caplog.text


def test_a_lock_store_that_has_repeated_a_token_does_not_keep_the_others_from_going_on(
    conn: Any, locks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(task: Task) -> None:
        raise KeyboardInterrupt

    for id in ("1", "2"):
        with pytest.raises(KeyboardInterrupt):
            Saga("order", [Step("a", say), Step("b", interrupted)]).run(locks, conn, id)
    with conn:
        # As if another holder had been given the token that the next acquire gets.
        with locks.lock("saga/order/1") as lease:
            last = lease.token
        sqlite.admit(conn, "saga/order/1", Stamp(last + 1, 1, "another"))
    saga = Saga("order", [Step("a", say), Step("b", say)])
    assert saga.resume(locks, conn) == {"2": "done"}
    assert "saga order 1 was left alone: token clash" in caplog.text


def test_one_that_cannot_go_on_does_not_keep_the_others_from_it(conn: Any, locks: Any) -> None:
    def interrupted(task: Task) -> None:
        raise KeyboardInterrupt

    for id, steps in (("1", ["a", "old"]), ("2", ["a", "b"])):
        with pytest.raises(KeyboardInterrupt):
            Saga("order", [Step(steps[0], say), Step(steps[1], interrupted)]).run(locks, conn, id)
    saga = Saga("order", [Step("a", say), Step("b", say)])
    with pytest.raises(ConfigError, match="saga order 1 was begun with the steps"):
        saga.resume(locks, conn)
    assert record_of(saga, conn, "2").state == "done"


@pytest.mark.parametrize("external", [False, True])
def test_a_step_that_learns_of_the_loss_of_its_lease_has_not_failed(conn: Any, locks: Any, external: bool) -> None:
    def learns(task: Task) -> str:
        if not said:
            said.append("lost")
            raise LeaseLost(task.lease.name, task.lease.token, "its deadline has passed")
        return say(task)

    saga = Saga("order", [Step("a", learns, say, external=external)])
    with pytest.raises(LeaseLost):
        saga.run(locks, conn, "1")
    assert record_of(saga, conn, "1").state == "running"
    assert saga.run(locks, conn, "1") == {"a": "a"}


def test_a_loss_that_is_not_its_own_is_a_failure_like_any_other(conn: Any, locks: Any) -> None:
    def loses(task: Task) -> None:
        raise LeaseLost("another lock", task.lease.token + 1, "released")

    with pytest.raises(Compensated, match="another lock"):
        Saga("order", [Step("a", loses)]).run(locks, conn, "1")


async def test_asyncio_on_postgres(postgres_url: str) -> None:
    async def say_later(task: Task) -> str:
        await asyncio.sleep(0)
        await task.conn.execute("SELECT 1")
        return say(task)

    saga = aio.Saga("trip", [Step("a", say_later, say_later), Step("b", fail)])
    id = f"trip-{os.getpid()}"
    async with (
        fencepost.aio.connect("memory://") as locks,
        await psycopg.AsyncConnection.connect(postgres_url) as conn,
    ):
        with pytest.raises(Compensated):
            await saga.run(locks, conn, id)
        record = await saga.find(conn, id)
        assert record is not None
        assert (record.state, record.undone) == ("compensated", ["a"])
        assert id not in await saga.resume(locks, conn)
        with pytest.raises(Compensated):
            await saga.retry(locks, conn, id)
        with pytest.raises(ConfigError, match="is compensated, and stays so"):
            await saga.compensate(locks, conn, id)
        with pytest.raises(ConfigError, match="is not stuck at 'a'"):
            await saga.skip(locks, conn, id, "a")
    assert said == ["do a", "undo a"]


async def test_the_saga_for_the_other_kind_of_connection_refuses_it(conn: Any, locks: Any, postgres_url: str) -> None:
    blocking, awaited = Saga("order", [Step("a", say)]), aio.Saga("order", [Step("a", say)])
    calls = {"run": ["1"], "resume": [], "retry": ["1"], "compensate": ["1"], "skip": ["1", "a"]}
    async with (
        fencepost.aio.connect("memory://") as alocks,
        await psycopg.AsyncConnection.connect(postgres_url) as aconn,
    ):
        for name, args in calls.items():
            with pytest.raises(ConfigError, match=r"use fencepost\.saga\.aio$"):
                getattr(blocking, name)(locks, aconn, *args)
            with pytest.raises(ConfigError, match=r"use fencepost\.saga$"):
                await getattr(awaited, name)(alocks, conn, *args)
        with pytest.raises(ConfigError, match=r"use fencepost\.saga\.aio$"):
            blocking.find(cast(Any, aconn), "1")
        with pytest.raises(ConfigError, match=r"use fencepost\.saga$"):
            await awaited.find(conn, "1")
        with pytest.raises(ConfigError, match=r"locks of fencepost\.aio"):
            await awaited.run(locks, aconn, "1")
    assert said == []


LATER = """
    from fencepost.saga.aio import Saga, Step

    async def do(task):
        await task.conn.execute("SELECT 1")
        return "done"

    async def undo(task):
        raise ConnectionError("the bank is closed")

    async def fail(task):
        raise LookupError("no van")

    order = Saga("later", [Step("a", do, undo), Step("b", fail)])
"""


@isolated
def test_a_saga_for_asyncio_is_driven_by_hand_too(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(textwrap.dedent(LATER))
    os.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))
    order = importlib.import_module("later").order
    id, url = f"later-{os.getpid()}", f"sqlite:{tmp_path}/locks.sqlite3"

    async def begin() -> None:
        async with (
            fencepost.aio.connect(url) as locks,
            await psycopg.AsyncConnection.connect(postgres_url) as conn,
        ):
            with pytest.raises(Stuck):
                await order.run(locks, conn, id)

    asyncio.run(begin())

    def cli(*args: str, database: str = postgres_url) -> Any:
        return CliRunner().invoke(root.app, ["saga", *args, "--database", database, "--backend", url])

    assert "stuck" in cli("retry", "later:order", id).output
    assert cli("skip", "later:order", id, "a").output == "compensated\n"
    (tmp_path / "app.sqlite3").touch()
    refused = cli("retry", "later:order", id, database=f"sqlite:///{tmp_path}/app.sqlite3")
    assert "in Postgres only" in refused.output
    assert refused.exit_code == 2


SHOP = """
    import os, signal, sys
    from pathlib import Path
    from fencepost.saga import Saga, Step

    def do(task):
        with open("log", "a") as log:
            print(task.key, file=log)

    def undo(task):
        if not Path("open").exists():
            raise ConnectionError("the bank is closed")
        do(task)

    def ship(task):
        if Path("die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        raise LookupError("no van")

    order = Saga("order", [Step("reserve", do, do), Step("charge", do, undo, external=True), Step("ship", ship)])
"""


@pytest.mark.slow
@isolated
def test_a_stuck_saga_is_visible_and_driven_by_hand(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    os.chdir(tmp_path)
    os.environ["FENCEPOST_DATABASE"] = f"sqlite:///{tmp_path}/app.sqlite3"
    os.environ["FENCEPOST_URL"] = f"sqlite:{tmp_path}/locks.sqlite3"

    def cli(*args: str, code: int = 0) -> str:
        done = CliRunner().invoke(root.app, [*(() if args[0] == "break" else ("saga",)), *args])
        assert done.exit_code == code, done.output
        return done.output

    program = (
        "import sqlite3, sys, fencepost, shop\n"
        f"shop.order.run(fencepost.connect(ttl=300), sqlite3.connect({str(tmp_path / 'app.sqlite3')!r}), sys.argv[1])"
    )

    def shop(id: str) -> int:
        with Child.python("-c", program, id, cwd=tmp_path) as child:
            return child.wait()

    assert "there is no SQLite file" in cli("ls", code=2)
    assert not (tmp_path / "app.sqlite3").exists(), "looking for it has not made it"
    (tmp_path / "app.sqlite3").touch()
    assert cli("ls") == ""
    assert "one of running, compensating, stuck, done, compensated" in cli("ls", "--state", "stcuk", code=2)
    (tmp_path / "die").touch()
    assert shop("41") == -signal.SIGKILL
    assert "order 41  running at ship" in cli("ls")
    (tmp_path / "die").unlink()
    assert shop("42") == 1
    assert re.search(r"order 42  stuck at charge, \d+ s: cannot undo charge: ConnectionError: the bank", cli("ls"))
    assert [each["id"] for each in json.loads(cli("ls", "--state", "stuck", "--json"))] == ["42"]
    shown = json.loads(cli("show", "order", "42", "--json"))
    assert [step["state"] for step in shown["steps"]] == ["done", "done", ""]
    assert "done      charge" in cli("show", "order", "42")
    cli("show", "order", "43", code=2)

    assert "is stuck: cannot undo charge" in cli("retry", "shop:order", "42", code=1)
    assert "not stuck at 'reserve'" in cli("skip", "shop:order", "42", "reserve", code=2)
    assert json.loads(cli("skip", "shop:order", "42", "charge", "--json")) == {"42": "compensated"}
    assert "compensated" in cli("compensate", "shop:order", "42", code=2), "it is so already"
    assert cli("resume", "shop:order") == "", "its lease has not run out"
    cli("break", "saga/order/41")
    assert cli("resume", "shop:order") == "41  stuck\n", "its coordinator was killed; its undo fails too"
    (tmp_path / "open").touch()
    assert "was compensated: ship: LookupError: no van" in cli("retry", "shop:order", "41", code=1)
    assert (tmp_path / "log").read_text().split() == [
        *("do/order/reserve/41", "do/order/charge/41", "do/order/reserve/42", "do/order/charge/42"),
        *("undo/order/reserve/42", "undo/order/charge/41", "undo/order/reserve/41"),
    ]
    assert "cannot be loaded" in cli("retry", "nowhere:order", "41", code=2)
    (tmp_path / "broken_shop.py").write_text("order = (")
    assert "cannot be loaded as module:attribute: SyntaxError" in cli("retry", "broken_shop:order", "41", code=2)
    assert "not a Saga" in cli("retry", "os:name", "41", code=2)


@pytest.mark.parametrize("command", [["ls"], ["show", "order", "1"]], ids="-".join)
def test_an_unprepared_postgres_names_the_command(command: list[str], postgres_server: Any) -> None:
    nowhere = f"{postgres_server.url}?options=-csearch_path%3Dnowhere"
    done = CliRunner().invoke(root.app, ["saga", *command, "--database", nowhere])
    assert (done.exit_code, "fencepost guard install" in done.output) == (2, True), done.output


def test_a_running_saga_can_be_turned_back_by_hand(conn: Any, locks: Any) -> None:
    def interrupted(task: Task) -> None:
        raise KeyboardInterrupt

    saga = Saga("order", [Step("a", say, say), Step("b", interrupted)])
    with pytest.raises(KeyboardInterrupt):
        saga.run(locks, conn, "1")
    with pytest.raises(Compensated, match="turned back by hand"):
        saga.compensate(locks, conn, "1")
    assert said == ["do a", "undo a"]


KEYS = Keys({"2026": b"secret " * 5})


def service(environ: Any, start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b"done"]


def ask_guarded(marks: Marks) -> Callable[[str, dict[str, str]], int]:
    """A service with a mark for each path, which lets signed tokens in only: how to send it a write."""
    name = lambda environ: environ["PATH_INFO"].strip("/")  # noqa: E731  # as its user would write it
    client = Client(wsgi.Fence(service, key=name, marks=marks, policy=Policy(keys=KEYS)))
    return lambda path, headers: client.put(path, headers=headers).status_code


def test_a_service_that_takes_signed_tokens_only_lets_a_step_in(conn: Any, tmp_path: Path) -> None:
    answers: list[Any] = []

    def charge(task: Task) -> None:
        access = task.access("account/42")
        answers.append([ask("/account/42", access.headers) for _ in range(2)])
        answers.append(access.headers["Idempotency-Key"] == task.headers["Idempotency-Key"] == task.key)
        answers.append(ask("/account/42", task.access("account/42").headers))
        answers.append(ask("/account/42", task.headers))

    with closing(Marks(tmp_path / "marks.sqlite3")) as marks, fencepost.connect("memory://", keys=KEYS) as locks:
        ask = ask_guarded(marks)
        Saga("order", [Step("charge", charge, external=True)]).run(locks, conn, "1")
    assert answers == [[200, 409], True, 200, 403]


def test_of_two_sagas_that_write_to_one_guarded_resource_the_older_lease_is_refused(conn: Any, tmp_path: Path) -> None:
    """What docs/saga.md says: each has a lock of its own, and so their tokens say nothing about each other."""
    answers: list[tuple[str, int]] = []

    def charge(task: Task) -> None:
        if task.id == "older":
            with closing(sqlite3.connect(tmp_path / "app.sqlite3")) as other:
                saga.run(locks, other, "newer")
        answers.append((task.id, ask("/account/42", task.access("account/42").headers)))

    def charge_under_its_lock(task: Task) -> None:
        with locks.lock("account/42") as lease:
            headers = replace(lease.access("account/42"), key=task.key).headers
            assert headers["Idempotency-Key"] == task.key
            answers.append((task.id, ask("/account/42", headers)))

    with closing(Marks(tmp_path / "marks.sqlite3")) as marks, fencepost.connect("memory://", keys=KEYS) as locks:
        ask = ask_guarded(marks)
        saga = Saga("order", [Step("charge", charge, external=True)])
        saga.run(locks, conn, "older")
        Saga("bill", [Step("charge", charge_under_its_lock, external=True)]).run(locks, conn, "locked")
    assert answers == [("newer", 200), ("older", 409), ("locked", 200)]


def test_the_key_of_a_step_can_be_sent_and_is_its_own_whatever_the_id_of_the_saga_is(conn: Any, locks: Any) -> None:
    sent: dict[str, str] = {}

    def charge(task: Task) -> None:
        sent[task.id] = task.headers["Idempotency-Key"]

    saga = Saga("order", [Step("charge", charge, external=True)])
    for id in ("42", "42 ", '42"', "100%", "100%25", "\u6ce8\u6587", "%E6%B3%A8%E6%96%87"):
        saga.run(locks, conn, id)
    assert sent["42"] == "do/order/charge/42"
    assert len({http.run_id([key]) for key in sent.values()}) == len(sent)
    assert all(key.isascii() for key in sent.values())


def test_its_errors_can_be_pickled() -> None:
    import pickle

    for error in (Compensated("order", "1", "why"), Stuck("order", "1", "why")):
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.saga, copy.id, copy.error) == (str(error), "order", "1", "why")


def test_a_coordinator_that_knows_of_its_loss_makes_no_call_elsewhere(conn: Any, locks: Any) -> None:
    def lose(task: Task) -> str:
        locks.break_lock(task.lease.name)
        with pytest.raises(LeaseLost):
            task.lease.renew()  # type: ignore[attr-defined]  # it is one of blocking code
        return say(task)

    saga = Saga("order", [Step("a", lose), Step("b", say, external=True)])
    with pytest.raises(LeaseLost):
        saga.run(locks, conn, "1")
    assert said == ["do a"]
    assert saga.run(locks, conn, "1") == {"a": "a", "b": "b"}
    assert said == ["do a", "do b"]
