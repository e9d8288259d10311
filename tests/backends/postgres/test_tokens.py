"""Tokens of Postgres locks: larger than every one before, whatever happened in between."""

import secrets

import pytest

import fencepost
from fencepost_lab.servers import Postgres
from tests.backends.postgres.tools import LONG, aside, session
from tests.harness.waiting import PATIENCE, until
from tests.programs import token_run

TAKE = "SELECT fencepost.take(%s, 'somebody', 60, NULL, NULL)"
RELEASE = "SELECT fencepost.release(%s, 'somebody', %s)"


def somebody_waits_for_a_row(server: Postgres) -> bool:
    return server.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != "0"


def test_a_request_blocked_across_anothers_whole_life_gets_a_larger_token(server: Postgres, name: str) -> None:
    """The trap: a number drawn when the request began is smaller than those given out since."""
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        first = locks.acquire(name)
        assert first.release()
        with other.transaction():
            other.execute("SELECT 1 FROM fencepost.lock WHERE name = %s FOR UPDATE", [name])
            late = aside(locks.acquire, name)
            until(lambda: somebody_waits_for_a_row(server), "somebody waits for a row")
            (((token,),),) = other.execute(TAKE, [name]).fetchall()
            assert other.execute(RELEASE, [name, token]).fetchall() == [(True,)]
            assert not late.done(), "it was blocked all the while"
        assert late.result(PATIENCE).token > token > first.token


def test_so_does_one_blocked_on_a_lock_that_did_not_exist(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        assert locks.status(name) is None
        with other.transaction():
            (((token,),),) = other.execute(TAKE, [name]).fetchall()
            late = aside(locks.acquire, name)
            until(lambda: somebody_waits_for_a_row(server), "somebody waits for a row")
            other.execute(RELEASE, [name, token])
        assert late.result(PATIENCE).token > token


def test_a_request_that_waited_for_the_row_still_gets_its_whole_ttl(server: Postgres, name: str) -> None:
    """What counts is the clock when the row was locked, not when the request began."""
    with fencepost.connect(server.url) as locks, session(server) as other:
        assert locks.acquire(name).release()
        with other.transaction():
            other.execute("UPDATE fencepost.lock SET floor = floor + 1 WHERE name = %s", [name])
            late = aside(locks.try_acquire, name, ttl=LONG, renew=False)
            until(lambda: somebody_waits_for_a_row(server), "somebody waits for a row")
            ((before,),) = other.execute("SELECT clock_timestamp()").fetchall()
        assert late.result(PATIENCE)
        ((expires,),) = other.execute("SELECT expires FROM fencepost.lock WHERE name = %s", [name]).fetchall()
        assert (expires - before).total_seconds() >= LONG


def test_they_do_not_run_backwards_when_the_server_forgets(server: Postgres, name: str) -> None:
    """As a restored backup, or a standby that lagged, would."""
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        before = locks.acquire(name)
        other.execute("DELETE FROM fencepost.lock WHERE name = %s", [name])
        assert locks.acquire(name).token > before.token
        assert not before.release()


def test_a_bump_raises_later_tokens_and_leaves_the_present_hold_alone(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        lease = locks.acquire(name)
        locks.bump(name, above=2**60, force=True)
        lease.renew()
        assert lease.release()
        assert locks.acquire(name).token == 2**60 + 1


def test_locks_out_of_use_can_be_forgotten_without_losing_the_order(server: Postgres, name: str) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        held, bumped = f"{name}/held", f"{name}/bumped"
        kept, used = locks.acquire(held), locks.acquire(name)
        assert used.release()
        locks.bump(bumped, above=2**60, force=True)
        other.execute("UPDATE fencepost.lock SET expires = expires - interval '2 days' WHERE holder IS NULL")
        other.execute("SELECT fencepost.prune('1 day')")
        left = other.execute("SELECT name FROM fencepost.lock WHERE starts_with(name, %s)", [name]).fetchall()
        assert sorted(left) == [(bumped,), (held,)], "neither what is held nor what only its row remembers"
        kept.check()
        assert locks.acquire(name).token > used.token


def test_what_dead_programs_left_is_forgotten_with_it(server: Postgres, name: str) -> None:
    held, shared, live = (f"{name}/{each}" for each in ("held", "shared", "live"))
    process = secrets.randbits(60)
    with fencepost.connect(server.url, ttl=LONG) as locks, session(server) as other:
        share = locks.shared(live).acquire()
        other.execute("SELECT fencepost.beat(%s, false, 60)", [process])
        assert len(other.execute(TAKE, [held]).fetchall()) == 1
        other.execute("SELECT fencepost.take(%s, %s, 60, 100, %s)", [held, f"{name} waits", process])
        other.execute("SELECT fencepost.take_share(%s, %s, 60, 5, NULL, NULL)", [shared, f"{name} shares"])
        ((waiters,),) = other.execute("SELECT waiters FROM fencepost.lock WHERE name = %s", [held])
        assert waiters == 1
        ago = "SET expires = expires - interval '2 days' WHERE name = ANY(%s)"
        other.execute(f"UPDATE fencepost.lock {ago}", [[held, shared, live]])  # live: sharers renew their own rows
        other.execute(f"UPDATE fencepost.share {ago}", [[shared]])
        other.execute("UPDATE fencepost.process SET until = until - interval '2 days' WHERE id = %s", [process])
        other.execute("SELECT fencepost.prune('1 day')")
        for table in ("lock", "waiter", "share"):
            left = other.execute(f"SELECT name FROM fencepost.{table} WHERE starts_with(name, %s)", [name]).fetchall()
            assert left == ([] if table == "waiter" else [(live,)])
        share.renew()
        assert share.release()


@pytest.mark.experiment
def test_they_grow_over_many_processes_killed_holders_and_a_crashed_server() -> None:
    """`python -m tests.programs.token_run` does the same with 10,000 acquisitions."""
    with Postgres() as server:

        def crash() -> None:
            server.kill()
            server.start()

        found = token_run.run(server.url, processes=4, acquisitions=300, kills=3, ttl=0.4, restart=crash, restarts=1)
    assert found.violations == ()
    assert found.acquired >= 300
    assert (found.killed_holders, found.restarts) == (3, 1)
