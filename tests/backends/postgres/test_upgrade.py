"""A schema of fencepost 0.1 becomes today's on first use, under the hands of programs that know nothing of it."""

import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fencepost
from fencepost.errors import BackendError
from fencepost_lab.servers import Postgres
from tests.backends.postgres.tools import LONG, aside, session
from tests.harness.threads import waiters_of
from tests.harness.waiting import PATIENCE, until

FIRST = Path(__file__).with_name("schema_0_1.sql")


@pytest.fixture
def schema(server: Postgres) -> str:
    """One as fencepost 0.1 made it."""
    name = f"locks_{secrets.token_hex(4)}"
    with session(server) as owner:
        sql = FIRST.read_text("utf-8").replace("fencepost.", f"{name}.").replace("EXISTS fencepost", f"EXISTS {name}")
        owner.execute(sql)
    return name


def revision(server: Postgres, schema: str) -> str:
    there = server.psql(f"SELECT to_regprocedure('{schema}.revision()') IS NOT NULL")
    return server.psql(f"SELECT {schema}.revision()") if there == "t" else ""


class Old:
    """A program of fencepost 0.1: the statements that it sends, and the answers that it can read."""

    def __init__(self, link: psycopg.Connection[Any], schema: str, process: int) -> None:
        self._link, self._schema, self._process = link, schema, process
        assert link.execute(f"SELECT {schema}.version()").fetchall() == [(1,)], "0.1 refuses every other version"
        link.execute(f"PREPARE take AS SELECT {schema}.take($1, $2, $3, $4, $5)")
        link.execute(f"PREPARE release AS SELECT {schema}.release($1, $2, $3)")
        link.execute(f"SELECT {schema}.beat(%s, false, 60)", [process])

    def take(self, name: str, holder: str, *, queue: bool = False) -> list[int]:
        values = psycopg.sql.SQL("EXECUTE take ({}, {}, 60, {}, {})").format(
            name, holder, 1000 if queue else None, self._process if queue else None
        )
        ((answer,),) = self._link.execute(values).fetchall()
        return list(answer)

    def release(self, name: str, holder: str, token: int) -> bool:
        values = psycopg.sql.SQL("EXECUTE release ({}, {}, {})").format(name, holder, token)
        ((freed,),) = self._link.execute(values).fetchall()
        return bool(freed)

    def renew(self, name: str, holder: str, token: int) -> bool:
        sql = f"SELECT {self._schema}.renew(%s, %s, %s::bigint[], %s)"
        return self._link.execute(sql, [[name], [holder], [token], [60.0]]).fetchall() == [(1,)]

    def status(self, name: str) -> tuple[str, int, list[str]]:
        rows = self._link.execute(f"SELECT * FROM {self._schema}.status(%s, '')", [name]).fetchall()
        ((_, holder, token, _, waiters),) = rows
        return holder, token, waiters

    def break_lock(self, name: str) -> str:
        ((_, holder, _, _, _),) = self._link.execute(f"SELECT * FROM {self._schema}.evict(%s)", [name]).fetchall()
        return str(holder)


def test_who_holds_and_who_waits_is_still_there(server: Postgres, schema: str) -> None:
    with session(server) as link, fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as locks:
        old = Old(link, schema, 1)
        (token,) = old.take("one", "holder")
        assert old.take("one", "waiter", queue=True)[0] == 0
        assert revision(server, schema) == ""
        reader = aside(locks.shared("one").acquire)
        assert len(waiters_of(locks, "one", 2)) == 2
        assert revision(server, schema) == "5"
        assert old.renew("one", "holder", token)
        assert old.release("one", "holder", token)
        holder, second, waiters = old.status("one")
        assert (holder, len(waiters)) == ("waiter", 1), "in the order they came"
        assert not reader.done()
        assert old.release("one", "waiter", second)
        assert reader.result(PATIENCE).token > second > token


def test_programs_of_0_1_go_on_working_beside_sharers(server: Postgres, schema: str) -> None:
    with session(server) as link, fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as locks:
        before = Old(link, schema, 1)
        one, two = locks.shared("one").acquire(), locks.shared("one").acquire()
        with session(server) as later:
            for old in (before, Old(later, schema, 2)):
                assert old.take("one", "writer") == [-1]
                assert old.status("one") == (one._stored, two.token, [])
        assert before.take("one", "writer", queue=True)[0] == 0
        assert one.release()
        assert before.status("one")[0] == two._stored
        assert two.release()
        holder, token, _ = before.status("one")
        assert (holder, token > two.token) == ("writer", True)
        assert before.release("one", "writer", token)
        three = locks.shared("one").acquire()
        assert before.break_lock("one") == three._stored
        assert len(before.take("one", "writer")) == 1
        assert not three.release()


def test_many_upgrade_at_once_while_others_are_at_work(server: Postgres, schema: str) -> None:
    stop = threading.Event()
    tokens: list[int] = []

    def work(process: int) -> int:
        with session(server) as link:
            old = Old(link, schema, process)
            turns = 0
            while not stop.is_set():
                for name in ("busy", f"own-{process}"):
                    answer = old.take(name, f"{process}")
                    if answer != [-1]:
                        tokens.append(answer[0])
                        assert old.release(name, f"{process}", answer[0])
                        turns += 1
            return turns

    def upgrade() -> int:
        with fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as locks:
            return locks.shared("one").acquire().token

    workers = [aside(work, process) for process in range(3)]
    until(lambda: len(tokens) > 50, "fifty grants")
    shares = [each.result(PATIENCE) for each in [aside(upgrade) for _ in range(8)]]
    after = len(tokens)
    until(lambda: len(tokens) > after + 50, "fifty more grants")
    stop.set()
    assert all(worker.result(PATIENCE) > 0 for worker in workers)
    assert len(set(shares)) == 8
    assert revision(server, schema) == "5"


@pytest.fixture(params=["usual", "strict"])
def granted(request: pytest.FixtureRequest, server: Postgres, schema: str) -> Iterator[str]:
    """The URL of a role that was granted the schema; in a strict database, PUBLIC may not call what comes later."""
    with session(server) as owner:
        owner.execute(f"CREATE ROLE {schema} LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO {schema}")
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}")
        owner.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {schema}")
        if request.param == "strict":
            owner.execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
            owner.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {schema}")
            owner.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
        try:
            owner.execute(f"CREATE FUNCTION {schema}.theirs() RETURNS integer LANGUAGE sql AS 'SELECT 7'")
            yield f"{server.url.replace('postgres@', schema + '@')}?schema={schema}"
        finally:
            owner.execute("ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC")


def test_who_was_granted_the_old_schema_may_use_what_is_new(server: Postgres, schema: str, granted: str) -> None:
    def may_call_theirs() -> str:
        return server.psql(f"SELECT has_function_privilege('{schema}', '{schema}.theirs()', 'EXECUTE')")

    before = may_call_theirs()
    with fencepost.connect(granted, ttl=LONG) as locks, pytest.raises(BackendError, match=r"postgres/schema\.sql"):
        locks.acquire("one")
    assert revision(server, schema) == "", "who may not upgrade it leaves it alone"
    with fencepost.connect(f"{server.url}?schema={schema}") as owning:
        assert owning.list() == []
    with fencepost.connect(granted, ttl=LONG) as locks:
        lease = locks.acquire("one")
        heir = aside(locks.acquire, "one")
        waiters_of(locks, "one", 1)
        assert lease.release()
        assert heir.result(PATIENCE).release()
        share = locks.shared("one").acquire()
        writer = aside(locks.acquire, "one")
        waiters_of(locks, "one", 1)
        share.renew()
        assert share.release()
        assert writer.result(PATIENCE).release()
    assert may_call_theirs() == before, "what is not ours is left alone"


def test_a_later_revision_is_used_and_left_alone(server: Postgres, schema: str) -> None:
    with fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as locks:
        assert locks.acquire("one").release()
    server.psql(f"CREATE OR REPLACE FUNCTION {schema}.revision() RETURNS integer LANGUAGE sql AS 'SELECT 99'")
    with fencepost.connect(f"{server.url}?schema={schema}", ttl=LONG) as locks:
        assert locks.shared("one").acquire().release()
    assert revision(server, schema) == "99"
