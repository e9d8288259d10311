"""`fencepost migrate`: from one store to another while programs work, with a guard in front of what they change."""

from __future__ import annotations

import json
import secrets
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import StaleToken
from fencepost.guards import sqlite
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import until


class Account:
    """A row behind a guard: each deposit reads it, and writes one more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tokens: list[int] = []
        with closing(sqlite3.connect(path)) as conn, conn:
            conn.execute("CREATE TABLE account (balance int)")
            conn.execute("INSERT INTO account VALUES (0)")

    def deposit(self, lease: fencepost.Lease) -> None:
        with closing(sqlite3.connect(self._path, timeout=60)) as conn, conn:
            sqlite.admit(conn, "account", lease)
            conn.execute("UPDATE account SET balance = balance + 1")
            self.tokens.append(lease.token)

    @property
    def balance(self) -> int:
        with closing(sqlite3.connect(self._path)) as conn:
            return int(conn.execute("SELECT balance FROM account").fetchone()[0])


class Program:
    """Deposits under the lock, again and again, until told to end."""

    def __init__(self, url: str, name: str, account: Account) -> None:
        self._url, self._name, self._account = url, name, account
        self._over = threading.Event()
        self.deposits = 0
        self._work = background(self._run)

    def _run(self) -> None:
        with fencepost.connect(self._url) as locks:
            while not self._over.is_set():
                with locks.lock(self._name) as lease:
                    self._account.deposit(lease)
                    self.deposits += 1

    def check(self) -> None:
        self._work.check()

    def end(self) -> None:
        self._over.set()
        self._work.result()


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path / "data.sqlite3")


@pytest.fixture(
    params=[
        pytest.param(each, marks=getattr(pytest.mark, each)) for each in ("etcd", "zookeeper", "consul", "postgres")
    ]
)
def target(request: pytest.FixtureRequest) -> str:
    server: Endpoint = request.getfixturevalue(f"{request.param}_server")
    return server.url


@pytest.mark.redis
def test_programs_move_to_another_store_while_they_work(redis_server: Endpoint, target: str, account: Account) -> None:
    name = f"migrate/{secrets.token_hex(4)}"
    old = [Program(redis_server.url, name, account) for _ in range(2)]
    until(lambda: len(account.tokens) >= 10, "the programs work", watching=old)
    with Child.fencepost("migrate", "--json", redis_server.url, target, name) as child:
        closed = json.loads(child.line())
        assert closed["name"] == name
        assert int(closed["old"]) > max(account.tokens), "the old store is closed: this is its last token"
        assert int(closed["above"]) > int(closed["old"])
        before = len(account.tokens)
        new = [Program(target, name, account) for _ in range(2)]
        until(lambda: len(account.tokens) >= before + 10, "they work with the new store", watching=[*old, *new])
        assert min(account.tokens[before:]) > int(closed["above"])
        for program in new:
            program.end()
        child.signal(signal.SIGINT)
        assert child.wait() == 0, child.story
    # The programs that were forgotten on the old store get the lock there again, and are refused.
    for program in old:
        with pytest.raises(StaleToken, match="fencepost bump"):
            program.end()
    assert account.tokens == sorted(set(account.tokens))
    assert account.balance == len(account.tokens) == sum(program.deposits for program in [*old, *new])


@pytest.mark.redis
@pytest.mark.etcd
def test_without_it_the_guard_refuses_every_holder_of_the_new_store(
    redis_server: Endpoint, etcd_server: Endpoint, account: Account
) -> None:
    name = f"migrate/{secrets.token_hex(4)}"
    with fencepost.connect(redis_server.url) as locks, locks.lock(name) as lease:
        account.deposit(lease)
    with fencepost.connect(etcd_server.url) as locks:
        for _ in range(2):
            with locks.lock(name) as lease, pytest.raises(StaleToken, match=f"past {account.tokens[0]} with"):
                account.deposit(lease)
        locks.bump(name, above=account.tokens[0])
        with locks.lock(name) as lease:
            account.deposit(lease)


def test_one_store_is_no_migration_and_a_busy_lock_is_waited_for(tmp_path: Path) -> None:
    url, other = f"sqlite:{tmp_path / 'a.db'}", f"sqlite:{tmp_path / 'b.db'}"
    with Child.fencepost("migrate", url, url, "job") as child:
        assert child.wait() == 2
        assert "the same" in child.errors
    with Child.fencepost("migrate", url, "-", "job", env={"FENCEPOST_NEW_URL": ""}) as child:
        assert child.wait() == 2
        assert "$FENCEPOST_NEW_URL is not set" in child.errors
    busy = ["migrate", url, other, "job", "--timeout", "3s"]
    with fencepost.connect(url) as locks, locks.lock("job"), Child.unhurried(*busy) as child:
        assert child.wait() == 75, child.story
    urls = {"FENCEPOST_URL": url, "FENCEPOST_NEW_URL": other}
    with Child.fencepost("migrate", "-", "-", "job", "other", "--for", "1ms", env=urls) as child:
        assert child.wait() == 0, child.story
        assert [line.split()[0] for line in child.output[:2]] == ["job", "other"]
