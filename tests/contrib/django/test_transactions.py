"""``fenced`` and ``admit`` around the ORM: one transaction, one verdict; and the database they need, by migration."""

from __future__ import annotations

import unittest
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fencepost import ConfigError, ForgedToken, MissingToken, StaleToken
from fencepost.guards.policy import Policy
from tests.contrib.django import site
from tests.harness.isolated import isolated


@isolated
def test_a_fenced_block_is_one_transaction_of_the_orm(tmp_path: Path) -> None:
    site.begin(str(tmp_path / "site.sqlite3"), {"URL": "memory://"})
    site.migrate()

    from django.db import DatabaseError, connection, transaction
    from django.test import TestCase
    from django.utils.connection import ConnectionDoesNotExist

    from fencepost.contrib.django import admit, fenced, locks
    from fencepost.contrib.django.operations import InstallGuard
    from fencepost.guards import sqlite
    from tests.contrib.django.shop.models import Account

    Account.objects.create(pk=1, balance=100)
    done: list[str] = []

    def balance() -> int:
        return int(Account.objects.get(pk=1).balance)

    with locks.lock("account") as lease:
        with fenced("account/1"):  # the lock is that of a path above
            Account.objects.filter(pk=1).update(balance=90)
            transaction.on_commit(lambda: done.append("committed"))
            assert not done
        assert (done, balance()) == (["committed"], 90)

        before = sqlite.mark(connection, "account/1")
        with pytest.raises(ZeroDivisionError), fenced("account/1", lease):
            Account.objects.filter(pk=1).update(balance=1 // Account.objects.filter(pk=1).update(balance=0) // 0)
        assert (balance(), sqlite.mark(connection, "account/1")) == (90, before)

        with transaction.atomic():
            with pytest.raises(ConfigError, match="in a transaction already"), fenced("account/1"):
                pass
            assert admit("account/1")
            Account.objects.filter(pk=1).update(balance=80)
        assert balance() == 80
        with pytest.raises(ConfigError, match="no transaction"):
            admit("account/1")

    newer = locks.acquire("account")
    with fenced("account/1", newer):
        Account.objects.filter(pk=1).update(balance=70)
    for stale in (lease, lease.token):
        with pytest.raises(StaleToken), fenced("account/1", stale):
            pytest.fail("the block began")
    with pytest.raises(MissingToken), fenced("account/1"):  # there is no block around that holds it
        pytest.fail("the block began")
    with pytest.raises(StaleToken), transaction.atomic():
        assert Account.objects.filter(pk=1).update(balance=0) == admit("account/1", lease)
    assert (balance(), connection.in_atomic_block) == (70, False)

    with pytest.raises(ConnectionDoesNotExist):
        fenced("account/1", newer, using="elsewhere")
    with pytest.raises(ConfigError, match="a resource cannot be empty"), fenced("", newer):
        pass
    connection.vendor = "oracle"
    with pytest.raises(ConfigError, match="guards for Postgres and SQLite, and the database 'default' is oracle"):
        fenced("account/1", newer)
    del connection.vendor

    columns = InstallGuard("shop_account", column="balance")
    with connection.schema_editor() as editor:
        columns.database_forwards("shop", editor, None, None)
    with pytest.raises(DatabaseError, match="no newer fencing token"):
        Account.objects.filter(pk=1).update(balance=60)
    with connection.schema_editor() as editor:
        columns.database_backwards("shop", editor, None, None)
    assert Account.objects.filter(pk=1).update(balance=60) == 1
    Account.objects.filter(pk=1).update(balance=70)

    class Wrapped(TestCase):
        def test_it(self) -> None:
            assert connection.in_atomic_block
            with fenced("account/1", newer):
                Account.objects.filter(pk=1).update(balance=1)
            with transaction.atomic(), pytest.raises(ConfigError), fenced("account/1", newer):
                pass

    result = unittest.TestResult()
    unittest.TestSuite([Wrapped("test_it")]).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])
    assert balance() == 70, "Django's TestCase has rolled it back"


@isolated
def test_the_setting_says_how_far_guards_go_and_tests_may_change_it(tmp_path: Path) -> None:
    seen: list[Any] = []
    policy = Policy("shadow")
    setting = {"URL": "memory://", "TTL": 7, "HOOKS": [seen.append], "POLICY": policy}
    site.begin(str(tmp_path / "site.sqlite3"), setting)
    site.migrate()

    from django.test import override_settings

    from fencepost import Locks
    from fencepost.contrib.django import admit, fenced, locks
    from fencepost.fleet import Partitions
    from fencepost.signing import Keys

    assert isinstance(locks, Locks)
    Partitions(locks, "group", 2)
    lease = locks.acquire("a")
    assert (lease.ttl, [event.kind for event in seen]) == (7, ["attempt", "acquired"])
    for token in (5, 4):
        with fenced("a", token):
            pass  # in shadow a stale token is only told
    assert [(event.verdict.value, event.enforced) for event in seen[2:]] == [("admit", None), ("stale", False)]
    policy.mode = "strict"
    with pytest.raises(StaleToken), fenced("a", 4):
        pass
    with fenced("a", 4, policy=Policy("off")):
        pass

    with override_settings(FENCEPOST={"URL": "memory://", "KEYS": Keys({"1": b"x" * 32})}):
        assert lease.released, "what was held under the old setting is released"
        with locks.lock("b") as signed, fenced("b"):
            assert signed.access("b").signature
        with pytest.raises(ForgedToken), fenced("b", 9):
            pass
    flags: dict[str, str] = {}
    with override_settings(FENCEPOST={"URL": "memory://", "POLICY": lambda: flags["fencing"]}):
        assert locks.try_acquire("b"), "a flag that cannot be asked stops no lock"
        with pytest.raises(KeyError, match="fencing"), fenced("b"):
            pass
        flags["fencing"] = "off"
        with fenced("b"):
            pass
    with override_settings(FENCEPOST={"TLL": 3}):
        with pytest.raises(ConfigError, match=r"settings.FENCEPOST\['TLL'\]: .*did you mean 'TTL'"):
            locks.lock("a")
        with pytest.raises(ConfigError, match="did you mean 'TTL'"):
            admit("a", 9)
    assert locks.try_acquire("a"), "the first setting again"


@isolated
def test_migrations_prepare_postgres_and_keep_the_marks(schema: str) -> None:
    site.begin(schema, {"URL": "memory://"})

    from django.core.management import call_command
    from django.db import DatabaseError, connection, connections, transaction
    from django.db.migrations.writer import OperationWriter

    from fencepost.contrib.django import fenced
    from fencepost.contrib.django.operations import InstallGuard
    from tests.contrib.django.shop.models import Account

    with pytest.raises(ConfigError, match="lacks tables of fencepost"), fenced("account/1", 5):
        pass
    plan, sql = StringIO(), StringIO()
    call_command("migrate", plan=True, stdout=plan)
    assert "Prepare the database for fencing tokens" in plan.getvalue()
    assert "Fence the rows of shop_account" in plan.getvalue()
    call_command("sqlmigrate", "fencepost", "0001", stdout=sql)
    assert "CREATE TABLE IF NOT EXISTS fencepost_mark" in sql.getvalue()
    call_command("makemigrations", "fencepost", check=True, stdout=StringIO())  # the model is what the migration says
    site.migrate()

    account = Account.objects.create(pk=1, balance=100)
    with fenced("account/1", 5):
        account.balance = 90
        account.save()
    account.balance = 0
    with pytest.raises(DatabaseError, match="without a fencing token"):
        account.save()  # nobody admitted it: the trigger refuses
    with pytest.raises(StaleToken), fenced("account/1", 4):
        pass

    site.migrate("shop", "zero")
    site.migrate("fencepost", "zero")
    site.migrate()
    Account.objects.create(pk=1, balance=100)
    with pytest.raises(StaleToken), fenced("account/1", 4):
        pass

    written, imports = OperationWriter(InstallGuard("shop_account", column="epoch"), indentation=0).serialize()
    assert "import fencepost.contrib.django.operations" in imports
    assert "column='epoch'" in written
    for wrong in ({"table": "t"}, {"resource": "x"}, {"table": "t", "resource": "x", "column": "y"}):
        with pytest.raises(ConfigError):
            InstallGuard(**wrong)

    with connection.schema_editor() as editor:  # undone, the trigger of a column goes
        editor.execute("ALTER TABLE shop_account ADD epoch bigint NOT NULL DEFAULT 0")
        columns = InstallGuard("shop_account", column="epoch")
        InstallGuard("shop_account", resource="account/{id}").database_backwards("shop", editor, None, None)
        columns.database_forwards("shop", editor, None, None)
    with pytest.raises(DatabaseError, match="without a new fencing token"), transaction.atomic():
        Account.objects.filter(pk=1).update(balance=0)
    with connection.schema_editor() as editor:
        columns.database_backwards("shop", editor, None, None)
    assert Account.objects.filter(pk=1).update(balance=0) == 1
    connections.close_all()
