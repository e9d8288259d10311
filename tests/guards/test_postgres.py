"""The Postgres guard: locks, triggers and SQL, which the matrices cannot ask."""

import secrets
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.check import AHEAD
from fencepost.errors import ConfigError, StaleToken, TokenClash, TokenLeap
from fencepost.events import Event
from fencepost.guards import aio, column, postgres
from fencepost.guards.policy import Policy
from fencepost.lease import BaseLease
from fencepost.rule import MAX_TOKEN, Stamp, Verdict, judge, raised
from fencepost_lab.servers.processes import program
from tests.conformance.test_guards import accesses
from tests.harness.leases import lease as lease_of
from tests.harness.waiting import until

Conn = psycopg.Connection[tuple[Any, ...]]


def connect(url: str) -> Conn:
    return psycopg.connect(url, autocommit=True)


def account(conn: Conn, id: str) -> tuple[int, int]:
    found = conn.execute("SELECT balance, lock_epoch FROM account WHERE id = %s", (id,)).fetchone()
    assert found is not None
    return found[0], found[1]


@pytest.fixture
def row(pg: Conn, thing: str) -> str:
    pg.execute("INSERT INTO account (id, balance) VALUES (%s, 100)", (thing,))
    return thing


def test_the_mark_s_row_is_locked_until_the_transaction_ends(pg: Conn, postgres_url: str, thing: str) -> None:
    with connect(postgres_url) as other:
        other.execute("SET lock_timeout = '50ms'")
        for hold in (postgres.admit, postgres.enter):
            with pg.transaction():
                hold(pg, thing, 5 if hold is postgres.admit else 6)
                with pytest.raises(psycopg.errors.LockNotAvailable), other.transaction():
                    postgres.admit(other, thing, 9)
        with other.transaction():
            postgres.admit(other, thing, 9)


def test_two_resources_admitted_in_opposite_order_do_not_deadlock(postgres_url: str, thing: str) -> None:
    barrier = threading.Barrier(4)

    def run(number: int) -> int:
        with connect(postgres_url) as conn:
            barrier.wait()
            for round in range(20):
                names = [f"{thing}/{letter}" for letter in ("ab" if number % 2 else "ba")]
                offers = {name: Stamp(7 + 4 * round + number, 1, "h") for name in names}
                try:
                    with conn.transaction():
                        postgres.admit_all(conn, offers)
                except StaleToken:
                    pass
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [0, 1, 2, 3]


def test_a_connection_that_dies_between_judging_and_committing_leaves_neither(
    pg: Conn, postgres_url: str, row: str
) -> None:
    dying = connect(postgres_url)
    dying.execute("BEGIN")
    postgres.admit(dying, row, Stamp(9, 1, "bob"))
    dying.execute("UPDATE account SET balance = 0 WHERE id = %s", (row,))
    pid = dying.info.backend_pid
    pg.execute("SELECT pg_terminate_backend(%s)", (pid,))
    with pytest.raises(psycopg.OperationalError):
        dying.execute("COMMIT")
    dying.close()
    until(lambda: postgres.mark(pg, row) is None and account(pg, row) == (100, 0), "neither is left")


def test_a_snapshot_that_is_too_old_is_told_by_the_database_itself(pg: Conn, postgres_url: str, thing: str) -> None:
    with pg.transaction():
        postgres.admit(pg, thing, 5)
    with connect(postgres_url) as old:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        with pg.transaction():
            postgres.admit(pg, thing, 6)
        with pytest.raises(psycopg.errors.SerializationFailure):
            postgres.admit(old, thing, 7)
        old.execute("ROLLBACK")


def test_a_database_that_was_not_prepared_names_the_next_step(postgres_server: Any) -> None:
    nowhere = psycopg.connect(postgres_server.url, options="-csearch_path=nowhere")
    with nowhere as conn, pytest.raises(ConfigError, match="fencepost guard install"):
        postgres.admit(conn, "thing", 5)


def test_installing_at_once_from_many_places_works(postgres_server: Any) -> None:
    name = f"fresh_{secrets.token_hex(4)}"
    with connect(postgres_server.url) as conn:
        conn.execute(f"CREATE SCHEMA {name}")

    def install(_: int) -> None:
        with psycopg.connect(postgres_server.url, options=f"-csearch_path={name}") as conn:
            postgres.install(conn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(install, range(4)))
    with psycopg.connect(postgres_server.url, options=f"-csearch_path={name}") as conn:
        assert postgres.admit(conn, "thing", 5)


async def test_whatever_cursors_a_connection_makes_it_is_fenced(postgres_url: str, thing: str) -> None:
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as conn:
        postgres.admit(conn, thing, 5)
        assert postgres.mark(conn, thing) == Stamp(5)
    async with await psycopg.AsyncConnection.connect(postgres_url, cursor_factory=psycopg.AsyncRawCursor) as later:
        await aio.postgres.admit(later, thing, 6)


def test_every_decision_is_told_with_the_mark_before_it(pg: Conn, thing: str) -> None:
    told: list[Event] = []
    with pg.transaction():
        postgres.admit(pg, thing, 5, hooks=[told.append])
        postgres.admit(pg, thing, 8, hooks=[told.append])
        postgres.admit(pg, thing, 7, hooks=[told.append], policy=Policy("shadow"))
    seen = [(event.verdict, event.seen, event.enforced, event.detail) for event in told]
    assert seen == [
        (Verdict.ADMIT, None, None, "strict"),
        (Verdict.ADMIT, 5, None, "strict"),
        (Verdict.STALE, 8, False, "shadow"),
    ]
    assert postgres.mark(pg, thing) == Stamp(8), "what only passed by grace does not move the mark"


def test_a_leap_is_refused(pg: Conn, thing: str) -> None:
    policy = Policy(max_jump=1000, max_first=1000)
    with pg.transaction():
        with pytest.raises(TokenLeap):
            postgres.admit(pg, thing, MAX_TOKEN, policy=policy)
        postgres.admit(pg, thing, 1000, policy=policy)
        with pytest.raises(TokenLeap):
            postgres.admit(pg, thing, MAX_TOKEN, policy=policy)
        postgres.admit(pg, thing, 2000, policy=policy)


def test_a_reset_raises_and_never_lowers(pg: Conn, thing: str) -> None:
    told: list[Event] = []
    with pg.transaction():
        assert postgres.raise_mark(pg, thing, to=50, hooks=[told.append]) == Stamp(50)
        assert postgres.raise_mark(pg, thing, to=20, hooks=[told.append]) == Stamp(50)
        with pytest.raises(StaleToken):
            postgres.admit(pg, thing, 50)
        postgres.admit(pg, thing, Stamp(51, 1, "ann"))
        assert postgres.raise_mark(pg, thing, to=51) == Stamp(51), "its own holder is refused too"
        with pytest.raises(TokenClash):
            postgres.admit(pg, thing, Stamp(51, 2, "ann"))
    assert [(event.kind, event.token, event.seen) for event in told] == [
        ("raise_mark", 50, None),
        ("raise_mark", 20, 50),
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(accesses, min_size=1, max_size=10))
def test_the_sql_function_says_what_the_rule_says(pg: Conn, history: list[tuple[str, Stamp, bytes]]) -> None:
    thing, mark = f"sql/{secrets.token_hex(6)}", None
    for action, stamp, _ in history:
        offer = stamp if action == "write" else stamp._replace(seq=0)
        expected = Verdict.LEAP if Policy().leaps(mark, offer.token) else judge(mark, offer)
        try:
            pg.execute("SELECT fencepost_admit(%s, %s, %s, %s)", (thing, *offer))
            said = Verdict.ADMIT
        except psycopg.Error as error:
            said = Verdict(str(error).partition(" ")[0] if error.sqlstate == "FP409" else "another error")
        assert said is expected
        if said is Verdict.ADMIT:
            mark = raised(mark, offer)
        assert postgres.mark(pg, thing) == mark


class TestTrigger:
    """With triggers on the tables, even psql is held to the rule."""

    @pytest.fixture(autouse=True)
    def tables(self, pg: Conn, postgres_url: str) -> None:
        self.url = postgres_url
        pg.execute("CREATE TABLE IF NOT EXISTS wallet (id int PRIMARY KEY, cents int, lock_epoch bigint DEFAULT 0)")
        pg.execute("CREATE TABLE IF NOT EXISTS ledger (id int PRIMARY KEY, cents int, lock_epoch bigint DEFAULT 0)")
        pg.execute("DELETE FROM fencepost_mark WHERE resource LIKE 'wallet/%'")
        for table in ("wallet", "ledger"):
            for trigger in ("fencepost_fenced", "fencepost_epoch", "fencepost_truncate"):
                pg.execute(f"DROP TRIGGER IF EXISTS {trigger} ON {table}")
        pg.execute("TRUNCATE wallet, ledger")
        pg.execute("INSERT INTO wallet VALUES (1, 100), (2, 100)")
        pg.execute("INSERT INTO ledger VALUES (1, 100)")
        with pg.transaction():
            postgres.install(pg, "wallet", resource="wallet/{id}")
            postgres.install(pg, "ledger", column="lock_epoch")

    def psql(self, *commands: str) -> str:
        each = [part for command in commands for part in ("-c", command)]
        command = [f"{program('POSTGRES_BIN')}/psql", "-XAtq1", "-v", "ON_ERROR_STOP=1", "-d", self.url, *each]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()

    def test_an_unfenced_change_from_psql_is_refused(self) -> None:
        for change in ("UPDATE wallet SET cents = 0 WHERE id = 1", "DELETE FROM wallet WHERE id = 1"):
            assert "without a fencing token for 'wallet/1'" in self.psql(change)
        assert self.psql("SELECT cents FROM wallet WHERE id = 1") == "100"

    def test_entering_is_no_leave_to_change_a_row(self, pg: Conn) -> None:
        ann, bob = lease_of("wallet/1", "ann", 7), lease_of("wallet/1", "bob", 8)

        def change(*steps: tuple[Any, BaseLease]) -> None:
            with pg.transaction():
                for step, lease in steps:
                    step(pg, "wallet/1", lease)
                pg.execute("UPDATE wallet SET cents = cents - 1 WHERE id = 1")

        for _ in range(2):
            with pytest.raises(psycopg.Error, match="without a fencing token"):
                change((postgres.enter, ann))
        change((postgres.admit, ann), (postgres.enter, ann))  # its own lease enters again: still admitted
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            change((postgres.admit, ann), (postgres.enter, bob))
        assert self.psql("SELECT cents FROM wallet WHERE id = 1") == "99"

    def test_a_row_that_the_template_cannot_name_is_refused(self, pg: Conn) -> None:
        with pg.transaction():
            postgres.install(pg, "wallet", resource="wallet/{idd}")
        assert "the row has nothing in 'idd'" in self.psql("UPDATE wallet SET cents = 0 WHERE id = 1")
        pg.execute("INSERT INTO wallet VALUES (3, NULL)")
        with pg.transaction():
            postgres.install(pg, "wallet", resource="wallet/{cents}")
        for change in ("UPDATE wallet SET lock_epoch = 9", "DELETE FROM wallet"):
            assert "the row has nothing in 'cents'" in self.psql(f"{change} WHERE id = 3")
        assert self.psql("SELECT count(*) FROM wallet WHERE lock_epoch = 0") == "3"

    def test_a_fenced_one_passes_and_only_for_its_own_resource(self) -> None:
        admit = "SELECT fencepost_admit('wallet/1', 7)"
        assert self.psql(admit, "UPDATE wallet SET cents = 50 WHERE id = 1") == ""
        assert "'wallet/2'" in self.psql("SELECT fencepost_admit('wallet/1', 8)", "UPDATE wallet SET cents = 0")
        assert "'wallet/3'" in self.psql(
            "SELECT fencepost_admit('wallet/1', 8)", "UPDATE wallet SET id = 3 WHERE id = 1"
        )
        assert self.psql("SELECT id, cents FROM wallet ORDER BY id").split() == ["1|50", "2|100"]
        assert "stale fencing token for 'wallet/1': got 6, seen 7" in self.psql("SELECT fencepost_admit('wallet/1', 6)")

    def test_an_admission_does_not_outlive_its_transaction_or_savepoint(self, pg: Conn) -> None:
        with pg.transaction():
            postgres.admit(pg, "wallet/1", 20)
            pg.execute("UPDATE wallet SET cents = 60 WHERE id = 1")
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            pg.execute("UPDATE wallet SET cents = 61 WHERE id = 1")
        with pg.transaction():
            with pg.transaction(force_rollback=True):
                postgres.admit(pg, "wallet/1", 21)
            with pytest.raises(psycopg.Error, match="without a fencing token"), pg.transaction():
                pg.execute("UPDATE wallet SET cents = 61 WHERE id = 1")

    def test_entering_is_no_leave_to_write(self, pg: Conn) -> None:
        for token in (20, 21):  # the first finds no mark, the second raises one
            with pg.transaction():
                postgres.enter(pg, "wallet/1", token)
                with pytest.raises(psycopg.Error, match="without a fencing token"), pg.transaction():
                    pg.execute("UPDATE wallet SET cents = 61 WHERE id = 1")

    def test_an_epoch_that_is_not_raised_is_refused(self, pg: Conn) -> None:
        assert "without a new fencing token" in self.psql("UPDATE ledger SET cents = 0")
        with pg.transaction():
            column.write(pg, "ledger", {"id": 1}, {"cents": 70}, 7)
        assert "stale fencing token for ledger: got 6, seen 7" in self.psql("UPDATE ledger SET lock_epoch = 6")
        assert self.psql("SELECT cents, lock_epoch FROM ledger") == "70|7"

    def test_an_epoch_that_no_issuer_can_have_come_to_is_refused(self, pg: Conn) -> None:
        now = time.time_ns() // 1000
        for wild in (MAX_TOKEN, now + 2 * AHEAD):
            said = self.psql(f"UPDATE ledger SET lock_epoch = {wild}")
            assert f"leap fencing token for ledger: got {wild}, seen 0" in said
            assert "look where this token comes from" in said
        refused = self.psql(f"INSERT INTO ledger VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET lock_epoch = {MAX_TOKEN}")
        assert "leap fencing token" in refused
        assert self.psql(f"UPDATE ledger SET lock_epoch = {now + AHEAD // 2}") == ""
        assert self.psql(f"UPDATE ledger SET lock_epoch = {now + AHEAD * 5 // 4}") == "", "a day above the row's own"

    def test_an_epoch_is_as_high_as_it_likes_where_the_ceiling_is_off(self, pg: Conn) -> None:
        with pg.transaction():
            postgres.install(pg, "ledger", column="lock_epoch", ceiling="off")
        assert self.psql(f"UPDATE ledger SET lock_epoch = {MAX_TOKEN // 2}") == ""
        assert "stale fencing token" in self.psql("UPDATE ledger SET lock_epoch = 7")
        with pg.transaction():
            postgres.install(pg, "ledger", column="lock_epoch")
        assert "leap fencing token" in self.psql(f"UPDATE ledger SET lock_epoch = {MAX_TOKEN}")

    def test_a_wild_epoch_is_taken_down_as_documented(self, pg: Conn) -> None:
        def past_the_trigger(change: str) -> str:
            switch = "ALTER TABLE ledger {} TRIGGER fencepost_epoch"
            return self.psql(switch.format("DISABLE"), change, switch.format("ENABLE"))

        assert past_the_trigger(f"UPDATE ledger SET lock_epoch = {MAX_TOKEN}") == ""
        with pg.transaction(), pytest.raises(StaleToken):
            column.write(pg, "ledger", {"id": 1}, {"cents": 0}, 7)
        assert past_the_trigger(f"UPDATE ledger SET lock_epoch = 6 WHERE lock_epoch = {MAX_TOKEN}") == ""
        with pg.transaction():
            column.write(pg, "ledger", {"id": 1}, {"cents": 70}, 7)
        assert "without a new fencing token" in self.psql("UPDATE ledger SET cents = 0")

    def test_a_row_s_epoch_is_not_forgotten_by_deleting_the_row(self, pg: Conn) -> None:
        pg.execute("INSERT INTO ledger VALUES (2, 100, 0), (3, 100, NULL)")
        assert self.psql("DELETE FROM ledger WHERE id > 1") == "", "they never had one"
        with pg.transaction():
            column.write(pg, "ledger", {"id": 1}, {"cents": 70}, 7)
        refused = self.psql("DELETE FROM ledger", "INSERT INTO ledger VALUES (1, 0)")
        assert "DELETE of ledger would forget that token 7 was here" in refused
        refused = self.psql("INSERT INTO ledger VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET cents = 0")
        assert "without a new fencing token" in refused
        assert self.psql("SELECT cents, lock_epoch FROM ledger") == "70|7"

    def test_a_guarded_table_is_not_truncated(self) -> None:
        for table in ("wallet", "ledger"):
            assert f"TRUNCATE of {table}" in self.psql(f"TRUNCATE {table}")
            assert self.psql(f"SELECT count(*) > 0 FROM {table}") == "t"

    def test_a_role_without_rights_on_the_marks_cannot_bring_its_own(self, pg: Conn) -> None:
        schema, role = self.url.rpartition("%3D")[2], f"intruder_{secrets.token_hex(4)}"
        pg.execute(f"CREATE ROLE {role}")
        pg.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        pg.execute(f"GRANT SELECT, UPDATE ON wallet, ledger TO {role}")
        pg.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        marks = "(LIKE fencepost_mark)"
        values = "VALUES ('wallet/1', 1, 1, '', NULL, NULL, pg_current_xact_id())"
        change = "UPDATE wallet SET cents = 0 WHERE id = 1"
        own = f"SET search_path = {role}, {schema}"
        lie = "LANGUAGE sql AS $$ SELECT 'wallet/2' $$"
        pg.execute(f"CREATE TABLE {role}.fencepost_mark {marks}")
        pg.execute(f"ALTER TABLE {role}.fencepost_mark OWNER TO {role}")
        tricks = {
            "a temporary table": (f"CREATE TEMP TABLE fencepost_mark {marks}", f"INSERT INTO fencepost_mark {values}"),
            "a schema": (own, f"INSERT INTO {role}.fencepost_mark {values}"),
            "a function": (
                f"CREATE FUNCTION {role}.fencepost_resource(text, jsonb) RETURNS text {lie}",
                own,
                f"INSERT INTO {role}.fencepost_mark {values.replace('wallet/1', 'wallet/2')}",
            ),
        }
        try:
            for name, trick in tricks.items():
                create, *rest = trick
                # What it may not read it can still copy by hand: made by the owner here, to keep the test short.
                grant = f"GRANT ALL ON fencepost_mark TO {role}" if name == "a temporary table" else "SELECT 1"
                said = self.psql(create, grant, f"SET ROLE {role}", *rest, change)
                assert "permission denied for table fencepost_mark" in said, (name, said)
            assert self.psql("SELECT cents FROM wallet WHERE id = 1") == "100"
        finally:
            pg.execute(f"DROP OWNED BY {role} CASCADE")
            pg.execute(f"DROP ROLE {role}")
