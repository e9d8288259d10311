"""The resource's store where no client can look: what it asks of the disk, and what happens when that fails."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import BackendError, ConfigError, StaleToken
from fencepost.events import Event, Hook
from fencepost.resource import ledger
from fencepost.resource.ledger import Found, Ledger, SqliteLedger
from fencepost.resource.store import Store, opener
from fencepost.rule import Stamp
from tests.resource.test_postgres_faults import doing, together, writing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


def with_store(path: Path, use: Callable[[Store], Coroutine[Any, Any, None]], told: list[Event]) -> None:
    store = Store(opener(path), hooks=[told.append])
    try:
        asyncio.run(use(store))
    finally:
        store.close()


def conn(store: Store) -> sqlite3.Connection:
    ledger = store._writer._ledger
    assert isinstance(ledger, SqliteLedger)
    return ledger.conn


async def occupied(store: Store) -> tuple[asyncio.Future[bool], threading.Event]:
    """Give the writer something to do until the event is set, so that what comes meanwhile waits."""
    busy, gate = threading.Event(), threading.Event()

    def hold(ledger: Ledger, hook: Hook) -> bool:
        busy.set()
        return gate.wait(60)

    held = asyncio.ensure_future(store._writer.run("", hold))
    assert await asyncio.to_thread(busy.wait, 60)
    return held, gate


def test_every_commit_waits_for_the_disk(path: Path) -> None:
    store = Store(opener(path))
    try:
        assert conn(store).execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert conn(store).execute("PRAGMA synchronous").fetchone() == (2,), "FULL: survives a power loss"
    finally:
        store.close()


def test_accesses_that_wait_together_share_a_commit_and_each_gets_its_own_answer(path: Path) -> None:
    commits: list[str] = []
    told: list[Event] = []

    async def use(store: Store) -> None:
        conn(store).set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
        held, gate = await occupied(store)
        offers = [Stamp(token, 1, "ann") for token in (5, 9, 7)]
        waiting = [asyncio.ensure_future(store.write("thing", b"%d" % o.token, o)) for o in offers]
        await asyncio.sleep(0)  # each of them has now put its access into the queue
        gate.set()
        assert await held
        first, second, third = await asyncio.gather(*waiting, return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert not isinstance(second, BaseException)
        assert isinstance(third, StaleToken)
        assert await store.read("thing") == Found(b"9", Stamp(9, 1, "ann"))

    with_store(path, use, told)
    assert len(commits) == 2, "one for what held the writer up, one for all that waited"
    assert [str(event.verdict) for event in told] == ["admit", "admit", "stale"]


def test_few_of_the_accesses_that_share_a_commit_read_a_value(path: Path) -> None:
    """All values of a group are in memory until it is committed."""
    statements: list[str] = []

    async def use(store: Store) -> None:
        held, gate = await occupied(store)
        conn(store).set_trace_callback(statements.append)
        waiting: list[asyncio.Future[Any]] = []
        waiting += [asyncio.ensure_future(store.enter(f"thing/{number}", Stamp(5))) for number in range(40)]
        waiting += [asyncio.ensure_future(store.write("thing", b"x", Stamp(token))) for token in range(1, 41)]
        await asyncio.sleep(0)  # each of them has now put its access into the queue
        gate.set()
        await asyncio.gather(held, *waiting)

    with_store(path, use, [])
    groups = "\n".join(statements).split("COMMIT")[1:]
    assert [group.count("SELECT data FROM value") for group in groups if "SELECT data" in group] == [16, 16, 8]
    assert groups[2].count("INSERT OR REPLACE INTO value") == 40, "what keeps no value in memory fills the group up"


def test_what_does_not_fit_into_the_queue_is_refused_and_what_nobody_waits_for_is_not_made(path: Path) -> None:
    async def use(store: Store) -> None:
        held, gate = await occupied(store)
        kept = asyncio.ensure_future(store.write("kept", b"x", Stamp(1, 1, "ann")))
        left = asyncio.ensure_future(store.write("left", b"x", Stamp(1, 1, "ann"), gone=lambda: True))
        cancelled = asyncio.ensure_future(store.write("cancelled", b"x", Stamp(1, 1, "ann")))
        await asyncio.sleep(0)  # each of them has now put its access into the queue
        with pytest.raises(BackendError, match="3 requests wait") as full:
            await store.write("fourth", b"x", Stamp(1, 1, "ann"))
        assert not full.value.ambiguous
        cancelled.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await held
        assert not (await kept).replay
        with pytest.raises(BackendError):
            await left
        for key in ("left", "cancelled", "fourth"):
            assert await store.read(key) == Found(None, None)

    store = Store(opener(path), queue=3)
    try:
        asyncio.run(use(store))
    finally:
        store.close()


def test_when_the_disk_fails_everybody_is_told_and_nothing_has_changed(path: Path) -> None:
    told: list[Event] = []

    async def use(store: Store) -> None:
        await store.write("thing", b"before", Stamp(5, 1, "ann"))
        pages = conn(store).execute("PRAGMA page_count").fetchone()[0]
        conn(store).execute(f"PRAGMA max_page_count = {pages}")
        retry = Stamp(6, 1, "bob")
        failed = await asyncio.gather(
            store.write("thing", bytes(100_000), retry),
            store.enter("thing", Stamp(5, 1, "ann")),
            return_exceptions=True,
        )
        assert isinstance(failed[0], BackendError)
        assert failed[0].ambiguous
        assert await store.read("thing") == Found(b"before", Stamp(5, 1, "ann"))
        assert len([event for event in told if event.token == 6]) == 0, "what did not happen is not told"
        conn(store).execute(f"PRAGMA max_page_count = {pages + 1000}")
        assert (await store.write("thing", bytes(100_000), retry)).replay is False

    with_store(path, use, told)


def test_a_locked_file_is_tried_once_for_all_who_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_BUSY", 0.1)
    begin, tried = SqliteLedger.begin, []

    def counted(ledger: SqliteLedger) -> None:
        tried.append(ledger)
        begin(ledger)

    async def use(store: Store) -> None:
        monkeypatch.setattr(SqliteLedger, "begin", counted)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writes = [store.write(f"k{number}", b"x", Stamp(1, 1, "ann")) for number in range(20)]
            failed = await asyncio.gather(*writes, return_exceptions=True)
        assert all(isinstance(each, BackendError) for each in failed), failed
        assert len(tried) < 5, "in a few groups, as they came"
        assert not (await store.write("k0", b"x", Stamp(1, 1, "ann"))).replay

    with_store(path, use, [])


def test_what_it_holds_is_there_when_it_is_opened_again(path: Path) -> None:
    async def write(store: Store) -> None:
        await store.write("thing", b"kept", Stamp(5, 2, "ann"))

    async def read(store: Store) -> None:
        assert await store.read("thing") == Found(b"kept", Stamp(5, 2, "ann"))
        assert (await store.write("thing", b"kept", Stamp(5, 2, "ann"))).replay is True
        with pytest.raises(StaleToken):
            await store.write("thing", b"zombie", Stamp(4, 1, "old"))

    with_store(path, write, [])
    with_store(path, read, [])


def test_a_new_store_is_its_users_own_and_an_old_one_stays_as_it_is(tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        await store.write("thing", b"kept", Stamp(5, 2, "ann"))
        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
        assert modes == {path.name + suffix: mode for suffix in ("", "-wal", "-shm")}

    path, mode = tmp_path / "folder" / "store.sqlite3", 0o600
    with_store(path, write, [])
    assert path.parent.stat().st_mode & 0o777 == 0o700
    mode = 0o640
    path.unlink()
    path.touch(mode)
    with_store(path, write, [])


def test_a_file_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Store(opener(tmp_path))


def test_an_access_that_is_run_again_because_another_one_failed_is_told_once(path: Path) -> None:
    told: list[Event] = []

    def fail(ledger: Ledger) -> None:
        raise sqlite3.OperationalError("this one alone")

    async def use(store: Store) -> None:
        kept, failed = await together(store, writing(store, "a", 5), doing(store, "b", fail))
        assert not kept.replay
        assert isinstance(failed, BackendError)

    with_store(path, use, told)
    assert [(event.token, str(event.verdict)) for event in told] == [(5, "admit")]
