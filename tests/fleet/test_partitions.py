"""What a worker of a fleet is promised, through both faces."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import ambient, fleet, sync
from fencepost.backend import Status
from fencepost.errors import ConfigError, LeaseLost, NotAcquired
from fencepost.fleet import Partition, Partitions
from fencepost.fleet.plan import member as member_lock
from tests.harness.interrupts import Interrupter
from tests.harness.isolated import in_fork, isolated
from tests.harness.logs import logged
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until, until_async

TTL = 3.0


@pytest.fixture
def where(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def connect(where: str) -> Iterator[Callable[[], sync.Locks]]:
    """As another program would."""
    opened: list[sync.Locks] = []

    def one() -> sync.Locks:
        opened.append(fencepost.connect(where, ttl=TTL))
        return opened[-1]

    yield one
    for each in opened:
        each.close()


def numbers(mine: Partitions | fleet.aio.Partitions) -> list[int]:
    return [partition.number for partition in mine]


class Diary:
    """Callbacks that remember."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, int]] = []

    def assign(self, partition: Partition) -> None:
        self.lines.append(("assign", partition.number, partition.token))

    def revoke(self, partition: Partition) -> None:
        self.lines.append(("lost" if partition.ended else "revoke", partition.number, partition.token))

    def of(self, number: int) -> list[str]:
        return [what for what, each, _ in self.lines if each == number]


def test_one_worker_owns_all_and_two_share_evenly(connect: Callable[[], sync.Locks]) -> None:
    with Partitions(connect(), "orders", 5) as one:
        until(lambda: numbers(one) == [0, 1, 2, 3, 4], "all for one")
        with Partitions(connect(), "orders", 5) as two:
            until(lambda: sorted([len(numbers(one)), len(numbers(two))]) == [2, 3], "a fair share for each")
            assert sorted(numbers(one) + numbers(two)) == [0, 1, 2, 3, 4]
        until(lambda: numbers(one) == [0, 1, 2, 3, 4], "all for one again")


def test_more_workers_than_partitions_leaves_some_idle(connect: Callable[[], sync.Locks]) -> None:
    with Partitions(connect(), "orders", 1) as one, Partitions(connect(), "orders", 1) as two:
        until(lambda: numbers(one) + numbers(two) == [0], "an owner for the only one")


@pytest.mark.slow
def test_a_partition_is_revoked_before_it_is_assigned_elsewhere(connect: Callable[[], sync.Locks]) -> None:
    old, new = Diary(), Diary()
    finish, revoking = threading.Event(), threading.Event()

    def slowly(partition: Partition) -> None:
        revoking.set()
        assert finish.wait(PATIENCE)
        assert not partition.ended, "it is kept for as long as it takes"
        old.revoke(partition)

    with Partitions(connect(), "orders", 2, assign=old.assign, revoke=slowly) as one:
        until(lambda: len(numbers(one)) == 2, "both")
        with Partitions(connect(), "orders", 2, assign=new.assign, revoke=new.revoke) as two:
            assert revoking.wait(PATIENCE)
            time.sleep(1.5 * TTL)  # longer than a lease lasts unrenewed
            assert numbers(two) == []
            finish.set()
            until(lambda: len(numbers(two)) == 1, "the hand-over")
            (moved,) = numbers(two)
            assert old.of(moved) == ["assign", "revoke"]
            (taken,) = (token for what, number, token in new.lines if what == "assign" and number == moved)
            assert taken > max(token for _, number, token in old.lines if number == moved)


def test_a_partition_that_moves_is_never_without_an_owner(connect: Callable[[], sync.Locks]) -> None:
    admin = connect()
    with Partitions(connect(), "orders", 4) as one:
        until(lambda: len(numbers(one)) == 4, "all")
        with Partitions(connect(), "orders", 4) as two:
            looks: list[list[int]] = []

            def shared() -> bool:
                looks.append(fleet.view("orders", admin.list("orders/")).unowned)
                return len(numbers(two)) == 2

            until(shared, "a fair share for each")
            assert not any(looks), "the next owner stood in line before it was released"


def test_what_nobody_stands_in_line_for_is_kept(connect: Callable[[], sync.Locks]) -> None:
    admin = connect()
    with (
        Partitions(connect(), "orders", 4) as one,
        admin.lock(member_lock("orders", 4, "a member that never takes anything")),
    ):
        until(lambda: len(numbers(one)) == 4, "nobody else takes them")
        with Partitions(connect(), "orders", 4) as two:
            until(lambda: len(numbers(two)) == 1, "its share of four among three")
            for _ in range(50):
                assert fleet.view("orders", admin.list("orders/")).unowned == []
            assert len(numbers(one)) == 3


def test_a_loss_ends_the_wait_for_it_long_before_the_deadline(where: str) -> None:
    ended = threading.Event()
    with (
        fencepost.connect(where, ttl=10 * PATIENCE) as locks,
        Partitions(locks, "orders", 1, revoke=lambda partition: ended.set()) as mine,
    ):
        until(lambda: numbers(mine) == [0], "it is owned")
        (owned,) = mine
        locks.break_lock("orders/0")
        with pytest.raises(LeaseLost):
            owned.lease.renew()
        assert owned.stop
        assert ended.wait(PATIENCE)


def test_each_assign_has_its_revoke_also_when_the_worker_leaves(connect: Callable[[], sync.Locks]) -> None:
    diary = Diary()
    with Partitions(connect(), "orders", 3, assign=diary.assign, revoke=diary.revoke) as mine:
        until(lambda: len(numbers(mine)) == 3, "all")
    assert all(diary.of(number) == ["assign", "revoke"] for number in range(3))
    assert connect().list("orders/") == [], "nothing is left behind"


def test_a_lost_partition_is_told_and_taken_again(connect: Callable[[], sync.Locks]) -> None:
    diary, admin = Diary(), connect()
    with Partitions(connect(), "orders", 2, assign=diary.assign, revoke=diary.revoke) as mine:
        until(lambda: len(numbers(mine)) == 2, "both")
        assert admin.break_lock("orders/1")
        until(lambda: diary.of(1) == ["assign", "lost", "assign"], "it comes back under another token")
        assert diary.of(0) == ["assign"]


def test_a_worker_that_lost_its_membership_joins_again(connect: Callable[[], sync.Locks]) -> None:
    admin = connect()
    with Partitions(connect(), "orders", 2, member="w") as mine:
        until(lambda: len(numbers(mine)) == 2, "both")
        gone = admin.break_lock(member_lock("orders", 2, "w"))
        assert gone
        until(lambda: admin.status(member_lock("orders", 2, "w")), "it is a member again")
        until(lambda: len(numbers(mine)) == 2, "it owns both still, or again")


def test_work_runs_while_a_partition_is_owned_and_guards_find_its_lease(connect: Callable[[], sync.Locks]) -> None:
    seen: dict[int, fencepost.BaseLease | None] = {}
    mine = Partitions(connect(), "orders", 2)

    def work(partition: Partition) -> None:
        seen[partition.number] = ambient.find(partition.name)
        if len(seen) == 2:
            mine.stop()  # from within: it must not wait for itself
        partition.stop.wait()

    mine.run(work)
    assert [lease.name for _, lease in sorted(seen.items()) if lease] == ["orders/0", "orders/1"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_failing_work_and_callbacks_are_logged_and_tried_again(
    connect: Callable[[], sync.Locks], caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    tries: dict[str, int] = {}

    def fail(what: str, partition: Partition) -> None:
        tries[what] = tries.get(what, 0) + 1
        if partition.number == 0:
            raise error(what)

    def work(partition: Partition) -> None:
        if tries.get("work", 0) > 2:
            mine.stop()
        fail("work", partition)

    mine = Partitions(connect(), "orders", 2, revoke=lambda partition: fail("revoke", partition))
    with caplog.at_level(logging.ERROR, "fencepost"):
        mine.run(work)
    said = [record.message for record in logged(caplog)]
    assert any("the work on orders/0 failed" in line for line in said)
    assert any("orders/0 was not revoked cleanly" in line for line in said)
    assert not any("orders/1" in line for line in said)


@pytest.mark.parametrize("what", ["assign", "work"])
def test_a_partition_whose_work_failed_is_not_asked_for_again_at_once(where: str, what: str) -> None:
    tries: list[float] = []

    def fail(partition: Partition) -> None:
        tries.append(time.monotonic())
        raise ValueError(what)

    with fencepost.connect(where, ttl=2.4) as locks:
        mine = Partitions(locks, "orders", 1, assign=fail if what == "assign" else None)
        running = background(lambda: mine.run(fail))
        until(lambda: tries and locks.status("orders/0") is None, "it is given up", watching=[running])
        until(lambda: len(tries) > 1, "it is asked for again", watching=[running])
        mine.stop()
        running.result()
    assert tries[1] - tries[0] > 0.7, "one who did not wait for a third of the ttl would ask after a twentieth of that"


def test_a_failing_assign_gives_the_partition_up_without_revoke(
    connect: Callable[[], sync.Locks], caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def assign(partition: Partition) -> None:
        calls.append("assign")
        if len(calls) == 1:
            raise ValueError("not yet")

    with Partitions(connect(), "orders", 1, assign=assign, revoke=lambda partition: calls.append("revoke")) as mine:
        until(lambda: calls == ["assign", "assign"] and numbers(mine) == [0], "the second try")
    assert calls == ["assign", "assign", "revoke"]


def test_the_next_owner_keeps_its_place_in_line_while_the_last_one_finishes(connect: Callable[[], sync.Locks]) -> None:
    finished = threading.Event()
    seen: set[str] = set()
    locks = connect()
    with Partitions(locks, "orders", 2, revoke=lambda partition: finished.wait(PATIENCE)) as first:
        until(lambda: len(numbers(first)) == 2, "all for one")
        with Partitions(connect(), "orders", 2) as second:
            until(lambda: any(each.waiters for each in locks.list("orders/")), "it is queued")
            end = time.monotonic() + TTL  # it looks whether it is still wanted three times in this
            while time.monotonic() < end:
                seen.update(*(each.waiters for each in locks.list("orders/")))
            finished.set()
            until(lambda: len(numbers(second)) == 1, "it is handed over")
    assert len(seen) == 1


def test_workers_must_agree_on_how_many_partitions_there_are(connect: Callable[[], sync.Locks]) -> None:
    with (
        Partitions(connect(), "orders", 4, member="four"),
        pytest.raises(ConfigError, match=r"four works on 'orders' with 4 partitions, not 8"),
    ):
        Partitions(connect(), "orders", 8).__enter__()


def test_of_two_that_come_at_once_and_count_differently_one_is_refused(connect: Callable[[], sync.Locks]) -> None:
    locks, other = connect(), connect()
    late, early = Partitions(locks, "orders", 8, member="late"), Partitions(other, "orders", 4, member="early")
    looked = locks._core.list

    async def look(prefix: str) -> list[Status]:
        found = await looked(prefix)
        locks._core.list = looked  # type: ignore[method-assign]
        early.__enter__()  # just after the first look of the other
        return found

    locks._core.list = look  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"early works on 'orders' with 4 partitions, not 8"):
        late.__enter__()
    assert [each.name for each in locks.list("orders/members/")] == ["orders/members/4/early"]
    early.close()


def test_a_worker_that_joins_again_and_counts_differently_leaves_with_the_error(
    connect: Callable[[], sync.Locks],
) -> None:
    admin, diary = connect(), Diary()
    old = Partitions(connect(), "orders", 8, member="old", assign=diary.assign, revoke=diary.revoke)
    running = background(lambda: old.run(lambda partition: partition.stop.wait()))
    until(lambda: len(numbers(old)) == 8, "all for one", watching=[running])
    with admin.lock(member_lock("orders", 4, "new")):  # as one that joined while the old one was frozen
        admin.break_lock(member_lock("orders", 8, "old"))
        with pytest.raises(ConfigError, match=r"new works on 'orders' with 4 partitions, not 8"):
            running.result()
        assert [each.name for each in admin.list("orders/")] == ["orders/members/4/new"], "it has left"
    assert not any(diary.of(number)[-1] == "assign" for number in range(8)), "what it owned is finished"


@pytest.mark.parametrize("failing", [False, True])
def test_the_end_of_the_block_raises_that_a_worker_counted_differently_unless_the_block_has_failed(
    connect: Callable[[], sync.Locks], caplog: pytest.LogCaptureFixture, failing: bool
) -> None:
    admin = connect()
    expected = pytest.raises(ValueError, match="by itself") if failing else pytest.raises(ConfigError, match="not 2")
    with expected, Partitions(connect(), "orders", 2, member="old") as mine:
        until(lambda: len(numbers(mine)) == 2, "both")
        with admin.lock(member_lock("orders", 1, "new")):
            admin.break_lock(member_lock("orders", 2, "old"))
            until(mine._group.leaving.is_set, "it leaves")
        if failing:
            raise ValueError("by itself")
    assert any("worker 'old' of 'orders' leaves: new works on" in record.message for record in logged(caplog))


def test_two_workers_cannot_share_a_name(connect: Callable[[], sync.Locks]) -> None:
    with (
        Partitions(connect(), "orders", 1, member="w"),
        pytest.raises(NotAcquired, match=r"a worker 'w' in 'orders' already.* member= of its own"),
    ):
        Partitions(connect(), "orders", 1, member="w", ttl=0.3).__enter__()


def test_what_cannot_be_meant_is_refused(connect: Callable[[], sync.Locks]) -> None:
    async def later(partition: Partition) -> None: ...

    with pytest.raises(ConfigError, match="no part of a group's name may be 'members'"):
        Partitions(connect(), "orders/members/4", 1)
    with pytest.raises(ConfigError, match="at least one partition"):
        Partitions(connect(), "orders", 0)
    with pytest.raises(ConfigError, match=r"fencepost\.fleet\.aio"):
        Partitions(connect(), "orders", 1, assign=later)
    with pytest.raises(ConfigError, match="a function that takes a partition"):
        Partitions(connect(), "orders", 1, assign=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a function that takes a partition"):
        fleet.aio.Partitions(fencepost.aio.connect("memory://"), "orders", 1, revoke=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"with asyncio use fencepost\.fleet\.aio"):
        Partitions(fencepost.aio.connect("memory://"), "orders", 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"in blocking code use fencepost\.fleet\.Partitions"):
        fleet.aio.Partitions(connect(), "orders", 1)  # type: ignore[arg-type]
    with Partitions(connect(), "orders", 1) as mine, pytest.raises(ConfigError, match="started before"):
        mine.__enter__()


def test_work_that_wants_to_be_awaited_is_told_so_in_blocking_code(
    connect: Callable[[], sync.Locks], caplog: pytest.LogCaptureFixture
) -> None:
    async def later(partition: Partition) -> None: ...

    def told() -> bool:
        return any("wants to be awaited" in (record.exc_text or "") for record in caplog.records)

    mine = Partitions(connect(), "orders", 1)

    def stop_once_told() -> None:
        try:
            until(told, "that it wants to be awaited")
        finally:
            mine.stop()

    stopping = background(stop_once_told)
    mine.run(lambda partition: later(partition))
    stopping.result()


def test_locks_that_are_closed_first_end_the_worker(connect: Callable[[], sync.Locks]) -> None:
    locks, diary = connect(), Diary()
    with Partitions(locks, "orders", 2, assign=diary.assign, revoke=diary.revoke) as mine:
        until(lambda: len(numbers(mine)) == 2, "both")
        locks.close()
    assert sorted(diary.of(0) + diary.of(1)) == ["assign", "assign", "lost", "lost"]


# The asyncio face.


@pytest.mark.parametrize("failing", [False, True])
async def test_an_asyncio_worker_that_joins_again_and_counts_differently_leaves_with_the_error(
    where: str, connect: Callable[[], sync.Locks], failing: bool
) -> None:
    admin = connect()

    async def block(mine: fleet.aio.Partitions) -> None:
        async with mine:
            await until_async(lambda: len(numbers(mine)) == 2, "both")
            with admin.lock(member_lock("orders", 1, "new")):
                admin.break_lock(member_lock("orders", 2, "old"))
                await until_async(mine._group.leaving.is_set, "it leaves")
            if failing:
                raise ValueError("by itself")

    async with fencepost.aio.connect(where, ttl=TTL) as locks:
        mine = fleet.aio.Partitions(locks, "orders", 2, member="old")
        with pytest.raises(ValueError if failing else ConfigError, match="by itself" if failing else "not 2"):
            await block(mine)


async def test_both_faces_share_a_group(where: str, connect: Callable[[], sync.Locks]) -> None:
    told: list[str] = []

    async def assign(partition: fleet.aio.Partition) -> None:
        await asyncio.sleep(0)
        told.append(f"+{partition.number}")

    async def revoke(partition: fleet.aio.Partition) -> None:
        await asyncio.sleep(0)
        told.append(f"-{partition.number}")

    async with fencepost.aio.connect(where, ttl=TTL) as locks:
        with Partitions(connect(), "orders", 4) as other:
            await until_async(lambda: len(numbers(other)) == 4, "all for one")
            async with fleet.aio.Partitions(locks, "orders", 4, assign=assign, revoke=revoke) as mine:
                await until_async(lambda: len(numbers(mine)) == 2 == len(numbers(other)), "a fair share for each")
                owned = numbers(mine)
        assert sorted(told[:2]) == [f"+{number}" for number in owned]
        assert sorted(told[2:]) == [f"-{number}" for number in owned]


async def test_losing_a_partition_cancels_its_work(where: str) -> None:
    ends: list[str] = []

    async def work(partition: fleet.aio.Partition) -> None:
        try:
            await (partition.stop.wait() if ends else asyncio.sleep(3600))
        except asyncio.CancelledError:
            ends.append("cancelled" if partition.lost else "stopped")
            raise

    async with fencepost.aio.connect(where, ttl=TTL) as locks:
        mine = fleet.aio.Partitions(locks, "orders", 1)
        running = asyncio.create_task(mine.run(work))
        await until_async(lambda: numbers(mine) == [0], "it is owned")
        (first,) = [partition.token for partition in mine]
        await locks.break_lock("orders/0")
        await until_async(lambda: [p for p in mine if p.token > first], "it is owned again")
        assert ends == ["cancelled"]
        mine.stop()
        await running


async def test_a_worker_goes_on_after_somebody_cancelled_all_tasks(where: str) -> None:
    async with (
        fencepost.aio.connect(where, ttl=TTL) as locks,
        fleet.aio.Partitions(locks, "orders", 1) as mine,
    ):
        await until_async(lambda: numbers(mine) == [0], "it is owned")
        (first,) = [partition.token for partition in mine]
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert "fencepost-fleet-orders" in {task.get_name() for task in others}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await until_async(lambda: [p for p in mine if p.token > first], "it is owned again")
    async with fencepost.aio.connect(where) as locks:
        assert await locks.status("orders/0") is None, "and given up at the end"


@pytest.mark.parametrize("what", ["assign", "work", "revoke"])
async def test_awaiting_what_somebody_else_has_cancelled_gives_the_partition_up(where: str, what: str) -> None:
    told: list[str] = []

    async def call(name: str) -> None:
        told.append(name)
        if name == what:
            other = asyncio.create_task(asyncio.sleep(3600))
            other.cancel()
            await other

    async with fencepost.aio.connect(where, ttl=30) as locks:
        mine = fleet.aio.Partitions(
            locks, "orders", 1, assign=lambda partition: call("assign"), revoke=lambda partition: call("revoke")
        )
        running = asyncio.create_task(mine.run(lambda partition: call("work")))
        await until_async(lambda: what in told or "work" in told, "it was called")

        async def given_up() -> bool:
            return not numbers(mine) and await locks.status("orders/0") is None

        if what == "revoke":
            mine.stop()
            await running
            assert await given_up()
        else:
            await until_async(given_up, "it is given up", watching=[running])
        mine.stop()
        await running
    assert (
        told
        == {"assign": ["assign"], "work": ["assign", "work", "revoke"], "revoke": ["assign", "work", "revoke"]}[what]
    )


async def test_work_that_blocks_is_told_so_in_asyncio(where: str, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> bool:
        return any("make it async def" in (record.exc_text or "") for record in caplog.records)

    async with fencepost.aio.connect(where, ttl=TTL) as locks:
        mine = fleet.aio.Partitions(locks, "orders", 1)
        running = asyncio.create_task(mine.run(lambda partition: None))  # type: ignore[arg-type,return-value]
        await until_async(told, "that it is to be async def")
        mine.stop()
        await running


@isolated
def test_a_worker_that_is_interrupted_while_it_joins_leaves_again() -> None:
    """Wherever Ctrl-C comes in: out of ``with`` comes KeyboardInterrupt, and the group is empty afterwards."""
    with fencepost.connect("memory://interrupted-join", ttl=300) as locks:
        for at in range(0, 100_000, 23):
            partitions = Partitions(locks, f"group-{at}", 2)
            interrupter = Interrupter(at)
            try:
                interrupter.run(partitions.__enter__)
            except KeyboardInterrupt:
                until(lambda: not locks.list(), "nothing is held any more")
            else:
                partitions.close()
            if not interrupter.sent:
                break
        assert at > 100, "there was something to interrupt"


def test_a_worker_that_gets_no_thread_does_not_stay_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    with fencepost.connect("memory://no-thread-to-join") as locks:
        driver = locks._core.driver
        start = driver.spawn

        def spawn(job: Coroutine[Any, Any, None], name: str) -> None:
            if not name.startswith("fencepost-fleet"):
                return start(job, name)
            job.close()
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(driver, "spawn", spawn)
        with pytest.raises(RuntimeError, match="new thread"):
            Partitions(locks, "group", 2).__enter__()
        assert locks.list() == []


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
@pytest.mark.parametrize("often", [1, 10**9])
def test_a_partition_that_gets_no_thread_is_served_later_and_does_not_stop_the_worker_from_leaving(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], often: int
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith("-group-1") and len(refused) < often:
            refused.append(thread.name)
            raise error("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with fencepost.connect("memory://no-thread-to-serve", ttl=TTL) as locks:
        partitions = Partitions(locks, "group", 3)
        with partitions:
            until(lambda: refused, "a thread is refused")
            until(lambda: numbers(partitions) == ([0, 1, 2] if often == 1 else [0, 2]), "the others are served")
            closing = background(partitions.close)
            closing.result()
        assert locks.list() == []


async def test_guards_find_the_lease_of_a_partition_in_asyncio_too(where: str) -> None:
    seen: dict[str, fencepost.BaseLease | None] = {}

    async def assign(partition: fleet.aio.Partition) -> None:
        seen[f"assign {partition.name}"] = ambient.find(partition.name)

    async def work(partition: fleet.aio.Partition) -> None:
        seen[f"work {partition.name}"] = ambient.find(partition.name)
        if len(seen) == 4:
            mine.stop()
        await partition.stop.wait()

    async with fencepost.aio.connect(where, ttl=30) as locks:
        mine = fleet.aio.Partitions(locks, "orders", 2, assign=assign)
        await mine.run(work)
    assert {call: lease and lease.name for call, lease in seen.items()} == {
        f"{call} orders/{number}": f"orders/{number}" for call in ("assign", "work") for number in (0, 1)
    }


@isolated
async def test_a_forked_child_leaves_the_worker_to_its_parent() -> None:
    with fencepost.connect("memory://forked-fleet", ttl=300) as locks, Partitions(locks, "orders", 2) as mine:
        await until_async(lambda: numbers(mine) == [0, 1], "both")

        async def leave() -> str:
            mine.close()
            return "left"

        assert await in_fork(leave, PATIENCE) == "left"
        assert numbers(mine) == [0, 1], "the parent's goes on"
    assert numbers(mine) == []


def test_a_worker_can_leave_in_another_event_loop_than_it_has_joined_in(where: str) -> None:
    locks = fencepost.aio.connect(where, ttl=TTL)
    mine = fleet.aio.Partitions(locks, "orders", 2)

    async def join() -> None:
        await mine.__aenter__()
        await until_async(lambda: numbers(mine) == [0, 1], "they are owned")

    async def leave() -> None:
        async with asyncio.timeout(PATIENCE):
            await mine.close()
            await locks.close()

    asyncio.run(join())
    asyncio.run(leave())
    with fencepost.connect(where) as others:
        until(lambda: not others.list("orders"), "nothing is held any more")
