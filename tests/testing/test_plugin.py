"""The fixtures in real pytest sessions: tests of users that pass, and tests that must fail, each for its reason."""

import sys
from pathlib import Path

import pytest

from tests.harness.child import Child
from tests.testing.sessions import run_pytest

pytestmark = pytest.mark.slow

BANK = """
import sqlite3

from fencepost.guards import sqlite


class Bank:
    def __init__(self, locks=None):
        self.locks = locks
        self.conn = sqlite3.connect(":memory:", isolation_level=None)
        self.conn.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        self.conn.execute("INSERT INTO account VALUES (42, 100)")

    def write(self, lease, amount):
        with sqlite.fenced(self.conn, "account/42", lease):
            self.write_unguarded(amount)

    def write_unguarded(self, amount):
        self.conn.execute("UPDATE account SET balance = balance + ? WHERE id = 42", (amount,))

    def pay_in(self, amount, guarded=True):
        with self.locks.lock("account/42") as lease:
            self.write(lease, amount) if guarded else self.write_unguarded(amount)

    @property
    def balance(self):
        return self.conn.execute("SELECT balance FROM account").fetchone()[0]
"""

GOOD = """
import asyncio
import threading
import time

import pytest

import fencepost
from bank import Bank
from fencepost import testing
from fencepost.guards import MemoryGuard
from fencepost.testing import aio, assert_refused, expire, lose, paused, zombie


def test_a_zombie_is_refused(locks):
    bank = Bank()
    old = locks.acquire("account/42")
    new = zombie(old)
    assert new.token > old.token and old.lost and not new.lost
    bank.write(new, 10)
    with assert_refused() as refusal:
        bank.write(old, 1)
    assert (refusal.token, refusal.seen, bank.balance) == (old.token, new.token, 110)


def test_code_that_locks_by_itself(locks):
    bank = Bank(locks)
    with paused(locks, lambda: bank.pay_in(10)), assert_refused():
        bank.pay_in(1)
    assert bank.balance == 110
    bank.pay_in(5)
    assert bank.balance == 115


def test_time_passes_by_hand(locks):
    kept, lost = locks.acquire("kept", ttl=60), locks.acquire("lost", ttl=15)
    locks.clock.advance(20)
    assert (kept.lost, lost.lost) == (False, True)
    assert lost.ended.wait(10)
    assert locks.status("lost") is None
    kept.release()


def test_a_waiter_has_the_lock_when_the_time_has_passed(locks):
    first, served = locks.acquire("a", ttl=300, renew=False), threading.Event()

    def wait():
        with locks.lock("a", timeout=600):
            served.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not locks.status("a").waiters:
        time.sleep(0.001)
    assert not served.is_set()
    locks.clock.advance(301)
    waiter.join(20)
    assert served.is_set() and first.lost


def test_the_holder_is_told_of_a_loss(locks):
    with pytest.raises(fencepost.LeaseLost):
        with locks.lock("a") as lease:
            lose(lease)
            assert lease.reason == "gone"
            assert locks.status("a") is None


def test_an_expired_lease_goes_to_who_waits(locks):
    lease, got = locks.acquire("a"), []
    waiter = threading.Thread(target=lambda: got.append(locks.acquire("a")))
    waiter.start()
    while not locks.status("a").waiters:
        time.sleep(0.001)
    with pytest.raises(ValueError, match="expire"):
        zombie(lease)
    waiter.join(20)
    assert got[0].token > lease.token
    got[0].release()


@pytest.mark.parametrize("failure", ["refused", "unknown", "hung"])
def test_the_store_fails(locks, failure):
    with pytest.raises(fencepost.BackendError) as raised, locks.failing(failure, "acquire") as fault:
        locks.acquire("a", timeout=0.05)
    assert (fault.count, raised.value.ambiguous) == (1, failure != "refused")
    while locks.status("a") is not None:
        time.sleep(0.001)
    with locks.lock("a"):
        pass


def test_a_release_whose_answer_is_lost(locks):
    lease = locks.acquire("a")
    with pytest.raises(fencepost.BackendError), locks.failing("unknown", "release"):
        lease.release()
    assert lease.reason == "unconfirmed" and locks.status("a") is None


async def stale_write(locks):
    guard = MemoryGuard()
    async with locks.lock("a"):
        pass

    async def pay_in(amount):
        async with locks.lock("a") as lease:
            guard.update("a", lambda balance: (balance or 0) + amount, lease)

    with paused(locks, lambda: pay_in(10)), assert_refused():
        await pay_in(1)
    old = await locks.acquire("b")
    new = await aio.zombie(old)
    guard.write("b", "new", new)
    with assert_refused():
        guard.write("b", "old", old)
    with pytest.raises(fencepost.LeaseLost):
        async with locks.lock("c") as lease:
            await aio.lose(lease)
            await asyncio.sleep(3600)
    lease = await locks.acquire("d")
    locks.clock.advance(20)
    assert await lease.ended.wait(10) and lease.lost


def test_asyncio(aio_locks):
    asyncio.run(stale_write(aio_locks))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_by_a_plugin(aio_locks, anyio_backend):
    await stale_write(aio_locks)


@pytest.fixture
def several():
    with testing.connect() as first, testing.connect(first.url, clock=first.clock) as second:
        yield first, second
        first.assert_released()


def test_several_clients(several):
    first, second = several
    lease = first.acquire("a", renew=False)
    assert second.try_acquire("a") is None
    first.clock.advance(20)
    with second.lock("a"):
        assert lease.lost
"""

BAD = """
import asyncio

import pytest

from bank import Bank
from fencepost.errors import LateWrite
from fencepost.guards import MemoryGuard
from fencepost.testing import aio, assert_refused, paused, zombie


def take(locks):
    return locks.acquire("left behind")  # LEFT


def test_a_lease_is_left_behind(locks):
    take(locks)


def test_a_block_is_never_left(locks):
    locks.lock("entered").__enter__()


def test_a_task_leaves_a_lease_behind(aio_locks):
    async def work():
        await aio_locks.acquire("left by a task")  # TASK

    asyncio.run(work())


def test_what_a_failed_test_leaves_behind_is_no_news(locks):
    lease = locks.acquire("a")
    raise RuntimeError("the reason")


def test_no_guard_in_the_path(locks):
    bank = Bank(locks)
    with paused(locks, lambda: bank.pay_in(10, guarded=False)), assert_refused():
        bank.pay_in(1, guarded=False)


def test_the_new_holder_has_not_been_seen_yet(locks):
    bank = Bank()
    old = locks.acquire("account/42")
    zombie(old)
    with assert_refused():
        bank.write(old, 1)


def test_the_holder_notices_by_itself(locks):
    old = locks.acquire("account/42")
    zombie(old)
    with assert_refused():
        old.check()


def test_refused_for_another_reason(locks):
    guard = MemoryGuard()
    with locks.lock("a") as lease:
        first = lease.access("a")
        guard.write("a", 2, lease)
        with assert_refused():
            guard.write("a", 1, first)


def test_another_error_goes_through(locks):
    with assert_refused():
        {}["missing"]


def test_nobody_was_paused(locks):
    with paused(locks, lambda: None):
        pass
"""

REASONS = {
    "test_a_lease_is_left_behind": "'left behind' (token 1), acquired at test_bad.py:{LEFT} in take",
    "test_a_block_is_never_left": "acquired at test_bad.py:",
    "test_a_task_leaves_a_lease_behind": "'left by a task' (token 1), acquired at test_bad.py:{TASK} in work",
    "test_what_a_failed_test_leaves_behind_is_no_news": "the reason",
    "test_no_guard_in_the_path": "put a guard in front of what it writes",
    "test_the_new_holder_has_not_been_seen_yet": "Did the holder that took over write",
    "test_the_holder_notices_by_itself": "by a check",
    "test_refused_for_another_reason": "refused as late",
    "test_another_error_goes_through": "KeyError",
    "test_nobody_was_paused": "no holder was paused",
}


def test_tests_of_users_pass_and_fail_as_they_should(tmp_path: Path) -> None:
    session = run_pytest(tmp_path, bank=BANK, test_good=GOOD, test_bad=BAD)
    wrong = {name: said for name, said in session.tests.items() if said != "passed" and name not in REASONS}
    assert not wrong, "\n".join(wrong.values())
    assert len(session.tests) == len(REASONS) + 13, session.output
    lines = {
        mark: number
        for mark in ("LEFT", "TASK")
        for number, line in enumerate(BAD.splitlines(), 1)
        if f"# {mark}" in line
    }
    for name, reason in REASONS.items():
        assert reason.format(**lines) in session.tests[name], f"{name}: {session.tests[name]}"
    assert "not released" not in session.tests["test_what_a_failed_test_leaves_behind_is_no_news"]


def test_who_does_not_use_it_loads_nothing_and_may_have_fixtures_of_these_names(tmp_path: Path) -> None:
    test = (
        "import sys, pytest\n"
        "@pytest.fixture\n"
        "def locks():\n    return 'mine'\n"
        "def test_mine(locks):\n    assert locks == 'mine'\n"
        "def test_unused(request):\n"
        "    assert request.config.pluginmanager.has_plugin('fencepost')\n"
        "    assert not [name for name in sys.modules if name.partition('.')[0] == 'fencepost']\n"
    )
    assert run_pytest(tmp_path, test_unused=test).tests == {"test_mine": "passed", "test_unused": "passed"}
    program = "import fencepost.testing.aio, sys; print('pytest' in sys.modules)"
    with Child([sys.executable, "-c", program]) as child:
        assert child.succeed() == ["False"]
