"""Fenced tasks and the elected scheduler in this process: called directly, eagerly, and what is refused."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject, Retry

import fencepost
from fencepost import BackendError, ConfigError, LeaseLost, NotAcquired, StaleToken
from fencepost.contrib.celery import Scheduler, fenced_task, settings
from fencepost.guards import MemoryGuard, sqlite
from fencepost.once import purge
from tests.harness.isolated import in_fork, isolated
from tests.harness.threads import held
from tests.harness.waiting import PATIENCE, until


@pytest.fixture
def locks() -> Iterator[fencepost.Locks]:
    with fencepost.connect("memory://") as locks:
        yield locks


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("here", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = secrets.token_hex(8)  # all apps of a process share their memory
    yield app
    app.close()


@pytest.fixture
def bank(tmp_path: Path) -> Any:
    """Opens a database with an account."""

    def open() -> AbstractContextManager[sqlite3.Connection]:
        return closing(sqlite3.connect(tmp_path / "bank.sqlite3"))

    with open() as conn, conn:
        conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        conn.execute("INSERT INTO account VALUES (42, 100)")
    return open


def balance(bank: Any) -> int:
    with bank() as conn:
        return int(conn.execute("SELECT balance FROM account").fetchone()[0])


def done() -> str:
    return "done"


def test_a_task_is_called_directly_and_eagerly_as_any_other(app: Celery, locks: fencepost.Locks) -> None:
    @fenced_task(app, shared=False, key="account/{id}", busy="retry", locks=locks, timeout=0, name="bill")
    def bill(id: int, amount: int = 5, *, lease: fencepost.Lease) -> list[Any]:
        """Bills."""
        return [lease.name, amount, lease.token]

    assert app.tasks["bill"].__doc__ == "Bills."
    assert bill(42)[:2] == ["account/42", 5]
    first = bill.apply(args=(42,), kwargs={"amount": 7}).get()
    assert first[:2] == ["account/42", 7]
    assert bill(42)[2] > first[2]
    with pytest.raises(TypeError):
        bill.delay()
    with pytest.raises(TypeError, match="lease"):
        bill.delay(42, lease=1)
    with locks.lock("account/42"), pytest.raises(NotAcquired):
        bill(42)
    for odd in ("", "a/b", None, True):
        with pytest.raises(ConfigError):
            bill(odd)


def test_the_body_raises_what_it_raises_and_the_lock_is_released(app: Celery, locks: fencepost.Locks) -> None:
    thieves: list[fencepost.Lease] = []

    @fenced_task(app, shared=False, key="x", busy="skip", locks=locks, bind=True)
    def fail(self: Any, kind: str) -> None:
        if kind == "lost":
            locks.break_lock("x")
            thieves.append(locks.acquire("x"))
            return
        raise KeyError(kind)

    with pytest.raises(KeyError):
        fail("odd")
    assert locks.status("x") is None
    assert fail.apply(args=("odd",)).state == "FAILURE"
    with pytest.raises(LeaseLost):
        fail("lost")


def test_a_stale_task_changes_nothing_and_is_not_remembered(app: Celery, locks: fencepost.Locks, bank: Any) -> None:
    @fenced_task(app, shared=False, key="account/{id}", busy="wait", locks=locks, once=bank, run="pay/{id}/{month}")
    def pay(id: int, month: str, newer: int = 0, *, conn: Any, lease: fencepost.Lease, run: Any) -> dict[str, int]:
        conn.execute("UPDATE account SET balance = balance - 10")
        return {"token": lease.token}

    with bank() as conn, conn:
        conn.execute("BEGIN IMMEDIATE")
        sqlite.admit(conn, "account/42", 1000)
    with pytest.raises(StaleToken):
        pay(42, "2026-11")
    assert balance(bank) == 100
    locks.bump("account/42", above=1000)
    done = pay(42, "2026-11")
    assert done["token"] > 1000
    assert pay(42, "2026-11") == done, "also without a broker: the run has a name"
    assert (pay(42, "2026-12") == done, balance(bank)) == (False, 80)
    with bank() as conn:
        assert purge(conn, datetime.now(UTC) + timedelta(days=1)) == 2
    assert pay.acks_late


def test_a_run_that_was_committed_is_done_although_its_lease_was_lost_then(
    app: Celery, locks: fencepost.Locks, bank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    thieves: list[fencepost.Lease] = []

    @fenced_task(app, shared=False, key="account/{id}", busy="wait", locks=locks, once=bank)
    def pay(id: int, *, conn: Any) -> str:
        conn.execute("UPDATE account SET balance = balance - 10")
        locks.break_lock(f"account/{id}")
        thieves.append(locks.acquire(f"account/{id}"))
        return "paid"

    assert pay.apply(args=(42,), task_id="t1").get() == "paid"
    assert balance(bank) == 90
    assert "lease was lost" in caplog.text


def test_a_body_that_raises_is_rolled_back_and_tried_again(app: Celery, locks: fencepost.Locks, bank: Any) -> None:
    tries: list[int] = []

    @fenced_task(
        app,
        shared=False,
        key="account/{id}",
        busy="wait",
        locks=locks,
        once=bank,
        autoretry_for=(OSError,),
        retry_jitter=0,
    )
    def pay(id: int, *, conn: Any) -> str:
        tries.append(id)
        conn.execute("UPDATE account SET balance = balance - 10")
        if len(tries) == 1:
            raise OSError
        return "paid"

    assert pay.apply(args=(42,), task_id="t1").get() == "paid"
    assert (len(tries), balance(bank)) == (2, 90)
    assert pay.apply(args=(42,), task_id="t1").get() == "paid"
    assert (len(tries), balance(bank)) == (2, 90)
    with pytest.raises(ConfigError, match="called directly"):
        pay(42)


def test_what_cannot_be_meant_is_refused_where_the_task_is_defined(app: Celery, locks: fencepost.Locks) -> None:
    def plain(id: int) -> None: ...
    def none() -> None: ...
    def asks(id: int, lease: Any) -> None: ...
    async def later(id: int) -> None: ...
    def several(id: int) -> Iterator[int]:
        yield id

    def define(work: Any, complaint: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=complaint):
            fenced_task(app, shared=False, **{"key": "account/{id}", "busy": "wait", "locks": locks, **options})(work)

    define(plain, "is no parameter of", key="{ids}")
    define(plain, "busy= is 'skip', 'retry' or 'wait'", busy="raise")
    define(plain, "takes no timeout=", busy="skip", timeout=1)
    define(plain, "takes no pause=", busy="wait", pause=1)
    define(plain, "ttl must be greater than 0", ttl=0)
    define(plain, "timeout must lie between", timeout=-1)
    define(plain, "give once= too", run="{id}")
    define(plain, "once= is a function that opens", once=sqlite3)
    define(plain, "locks= is what fencepost.connect", locks="redis://")
    define(asks, "keyword-only parameter")
    define(later, "returns before its work is done")
    define(several, "returns before its work is done")
    define(none, "its first parameter is the task", bind=True, key="x")
    assert not [name for name in app.tasks if name.startswith(__name__)], "none of them became a task"


def test_a_plain_function_that_returns_a_coroutine_is_refused(app: Celery, locks: fencepost.Locks) -> None:
    async def later() -> None: ...

    @fenced_task(app, shared=False, key="x", busy="skip", locks=locks)
    def job() -> Any:
        return later()

    with pytest.raises(ConfigError, match="does not await"):
        job()


def test_the_settings_name_the_store(app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app.conf.fencepost_url = f"sqlite:{tmp_path}/locks.db"
    app.conf.fencepost_ttl = 7

    @fenced_task(app, shared=False, key="x", busy="skip")
    def job(*, lease: fencepost.Lease) -> float:
        return lease.ttl

    assert job() == 7
    other = Celery("django", broker="memory://", set_as_current=False)
    other.config_from_object({"CELERY_FENCEPOST_URL": f"sqlite:{tmp_path}/other.db"}, namespace="CELERY")

    @fenced_task(other, shared=False, key="x", busy="skip")
    def elsewhere(*, lease: fencepost.Lease) -> float:
        return lease.ttl

    assert (elsewhere(), Path(tmp_path, "other.db").exists()) == (15, True)
    wrong = Celery("wrong", broker="memory://", set_as_current=False)
    wrong.conf.fencepost_url = 42
    with pytest.raises(ConfigError, match="fencepost_url is a URL"):
        fenced_task(wrong, shared=False, key="x", busy="skip")(done)()


def test_a_shared_task_takes_the_locks_of_its_app(app: Celery, tmp_path: Path) -> None:
    shared = fenced_task(None, key="shared", busy="skip", name="shared-in-test")(done)
    app.conf.fencepost_url = f"sqlite:{tmp_path}/locks.db"
    assert app.tasks["shared-in-test"].apply().get() == "done"
    assert Path(tmp_path, "locks.db").exists()
    assert shared.name == "shared-in-test"


class Message:
    """What a worker gives to a task, as far as a busy lock needs it."""

    def __init__(self, task: Any, **request: Any) -> None:
        self.task = task
        self.request = {"id": "t1", "called_directly": False, "args": [], "kwargs": {}, "headers": {}, **request}

    def __call__(self) -> Any:
        self.task.push_request(**self.request)
        try:
            return self.task.run()
        finally:
            self.task.pop_request()


def test_tries_at_a_busy_lock_do_not_count_as_retries(
    app: Celery, locks: fencepost.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = fenced_task(app, shared=False, key="x", busy="retry", locks=locks, timeout=60, max_retries=0, name="busy")(
        done
    )
    with locks.lock("x"):
        with pytest.raises(Retry) as first:
            Message(task, retries=2)()
        options = first.value.sig.options
        assert (options["retries"], options["task_id"], options["headers"]["fencepost_busy"][0]) == (2, "t1", 2)
        since = options["headers"]["fencepost_busy"][1]
        assert 0.7 < options["countdown"] < 1.3
        with pytest.raises(Retry) as second:
            Message(task, retries=2, headers=options["headers"])()
        assert second.value.sig.options["headers"]["fencepost_busy"] == [2, since]
        with pytest.raises(NotAcquired):
            Message(task, retries=2, headers={"fencepost_busy": [2, since - 60]})()
        for other in ([1, since - 60], "odd", [2], [2, "x"], None):  # of an earlier retry, or forged: counts from now
            with pytest.raises(Retry):
                Message(task, retries=2, headers={"fencepost_busy": other})()
        monkeypatch.setattr(app, "send_task", None)
        monkeypatch.setattr(app.amqp, "send_task_message", None)
        with pytest.raises(Reject):  # the broker is gone: nothing is acknowledged
            Message(task)()
    assert Message(task, headers=options["headers"])() == "done"


@pytest.fixture
def sent(app: Celery) -> Any:
    """How many messages are in the queue."""

    def count() -> int:
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            return int(channel._size(app.conf.task_default_queue))

    return count


@pytest.fixture
def scheduled(app: Celery, tmp_path: Path) -> Celery:
    app.conf.update(
        fencepost_url=f"sqlite:{tmp_path}/locks.db",
        fencepost_beat_state=MemoryGuard[bytes](),
        beat_schedule={"hourly": {"task": "x", "schedule": 3600.0}},
    )
    return app


def lead(scheduler: Scheduler) -> None:
    """Tick until it leads."""
    until(lambda: scheduler.tick() > 0, "it is elected, and has sent what is due")


def test_the_next_leader_goes_on_where_the_last_one_stopped(scheduled: Celery, sent: Any) -> None:
    with closing(Scheduler(scheduled)) as first:
        lead(first)
        assert sent() == 0, "an entry that nobody knows counts from now on"
        first.schedule["hourly"].last_run_at -= timedelta(hours=1)
        first._heap = None
        lead(first)
        assert sent() == 1
    with closing(Scheduler(scheduled)) as second:
        second.schedule["hourly"].last_run_at -= timedelta(days=1)  # as of a beat that has waited for a day
        lead(second)
        assert sent() == 1, "the first one has sent it"
        assert second.schedule["hourly"].total_run_count == 1
        assert abs(second.schedule["hourly"].last_run_at - datetime.now(UTC)) < timedelta(minutes=5)
    third = Scheduler(scheduled)
    lead(third)  # resigning frees the election at once
    third.close()
    third.close()


def test_a_beat_that_was_replaced_is_refused_before_it_sends(
    scheduled: Celery, sent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Scheduler(scheduled)) as zombie:
        lead(zombie)
        zombie.schedule["hourly"].last_run_at -= timedelta(hours=1)
        zombie._heap = None
        scheduled.conf.fencepost_beat_state.enter("fencepost:beat:celery/beat", 10**15)  # a newer leader was here
        assert zombie.tick() == 0
        assert sent() == 0
        assert "beat was replaced" in caplog.text
        assert zombie._led is None


def test_beat_sends_nothing_while_its_state_cannot_be_written(
    scheduled: Celery, sent: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bool:
        raise BackendError("no answer either", backend="sqlite", ambiguous=True)

    class Down(MemoryGuard[bytes]):
        broken = True

        def read(self, *args: Any) -> Any:
            if self.broken:
                raise BackendError("no answer", backend="memory", ambiguous=False)
            return super().read(*args)

    guard = scheduled.conf.fencepost_beat_state = Down()
    with closing(Scheduler(scheduled)) as beat:
        monkeypatch.setattr(fencepost.Term, "resign", fail)
        until(lambda: "beat sends nothing for now" in caplog.text or beat.tick() < 0, "it fails")
        guard.broken = False
        lead(beat)
    assert sent() == 0


def test_beat_wants_to_know_where_to_keep_its_state(app: Celery) -> None:
    app.conf.fencepost_url = "postgresql://user:secret@host/db"
    with pytest.raises(ConfigError, match="set fencepost_beat_state") as refused:
        Scheduler(app, lazy=True)
    assert "secret" not in str(refused.value)
    for odd in ("mysql://x", 42, "redis://h/0?prefix=x"):
        app.conf.fencepost_beat_state = odd
        with pytest.raises(ConfigError):
            Scheduler(app, lazy=True)
    app.conf.fencepost_beat_state = "redis://localhost:1/0"
    assert "election -> celery/beat" in Scheduler(app, lazy=True).info


def test_an_error_that_ends_the_campaign_ends_beat(scheduled: Celery) -> None:
    scheduled.conf.fencepost_beat_ttl = -1
    with closing(Scheduler(scheduled)) as beat, pytest.raises(ConfigError, match="ttl"):
        until(lambda: beat.tick() > 0, "never", deadline=PATIENCE)


@isolated
async def test_a_worker_that_is_forked_while_another_thread_connects_connects_too() -> None:
    app = Celery("shop")
    app.conf.fencepost_url = "memory://"

    async def connects() -> bool:
        return settings.locks_of(app).status("a") is None

    with held(settings._gate):
        assert await in_fork(connects, PATIENCE)
