"""``fencepost guard``, as its users type it."""

import itertools
import json
import re
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from typer.testing import CliRunner

from fencepost.cli import exits
from fencepost.cli.app import app
from fencepost.errors import BackendError, ConfigError, Refused, StaleToken, TokenClash
from fencepost.guards import EtcdGuard, file, postgres, sqlite
from fencepost.guards import redis as redis_guard
from fencepost.guards.memory import MemoryGuard
from fencepost.guards.policy import Policy
from fencepost.hooks.audit import Audit
from fencepost.hooks.audit import read as read_audit
from fencepost.rule import Stamp
from fencepost_lab.servers import QUICK_ETCD, Etcd, Redis
from tests.backends.etcd.test_access import SecureEtcd
from tests.backends.etcd.tools import etcdctl
from tests.harness.certificate import self_signed
from tests.harness.servers import Endpoint


class Done:
    def __init__(self, *arguments: str) -> None:
        done = CliRunner().invoke(app, ["guard", *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        self.code, self.out, self.err = done.exit_code, done.stdout, done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def test_sqlite_s_triggers_know_the_primary_key(tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE stock (shop TEXT, item TEXT, count INT, epoch INTEGER, PRIMARY KEY (shop, item))")
        conn.execute("INSERT INTO stock VALUES ('a', 'tea', 5, 7)")
        done = Done("install", f"sqlite:{path}", "stock", "--column", "epoch")
        assert done.code == 0, done.err
        conn.execute("INSERT INTO stock VALUES ('b', 'tea', 5, 0)")
        with pytest.raises(sqlite3.IntegrityError, match="no newer fencing token"):
            conn.execute("REPLACE INTO stock VALUES ('a', 'tea', 0, 6)")
        assert "no table 'shelf'" in Done("install", f"sqlite:{path}", "shelf", "--column", "epoch").err


class TestReport:
    """Reads what guards really wrote."""

    @pytest.fixture(autouse=True)
    def log(self, tmp_path: Path) -> None:
        self.path = tmp_path / "audit.jsonl"
        self.policy = Policy("shadow")
        self.tokens = itertools.count(100)
        self.guard = MemoryGuard[str]([Audit(self.path, sync="never")], self.policy)

    def report(self, *options: str) -> Any:
        done = Done("report", str(self.path), "--decisions", "50", "--json", *options)
        (row,) = done.json
        assert done.code == (0 if row["safe"] else 1)
        return row

    def work(self, count: int = 60) -> None:
        for number in itertools.islice(self.tokens, count):
            self.guard.write(f"thing/{number % 7}", "x", number)

    @pytest.mark.parametrize(
        "line",
        [
            '{"kind":"decision"}',
            '{"kind":"decision","at":1}',
            '{"kind":"decision","at":"x","source":"memory"}',
            '{"kind":"decision","at":null,"source":"memory"}',
            '{"kind":"decision","at":NaN,"source":"memory"}',
            '{"kind":"decision","at":9e999,"source":"memory"}',
            '{"kind":"decision","at":1,"source":["memory"]}',
            '{"kind":"decision","at":1,"source":"memory","detail":"no mode"}',
            '{"kind":"decision","at":1,"source":"memory","detail":{}}',
            '{"kind":["decision"],"at":1,"source":"memory"}',
            '{"kind":"override","seconds":5}',
        ],
    )
    def test_odd_lines_are_passed_over(self, line: str) -> None:
        self.work(60)
        with self.path.open("a") as log:
            log.write(line + "\n")
        row = self.report()
        assert (row["decisions"], row["mode"], row["overrides"]) == (60, "shadow", 0)

    def test_lines_of_others_are_passed_over(self) -> None:
        self.work(20)
        with self.path.open("a") as log:
            log.write('{"level": "info", "at": "noon"}\n{"kind": 3}\n[1]\nnot json\n{"kind": "decis')
        assert self.report()["decisions"] == 20

    def test_nothing_against_it_goes_a_step_further(self) -> None:
        self.work()
        row = self.report()
        assert (row["guard"], row["mode"], row["next"], row["safe"]) == ("memory", "shadow", "canary:1%", True)
        text = Done("report", str(self.path), "--decisions", "50")
        assert (text.code, text.out.splitlines()[-1]) == (0, "  safe to go on to canary:1%")

    def test_too_few_decisions_or_too_many_stale_ones_hold_it_back(self) -> None:
        self.work(10)
        assert "only 10 decisions" in self.report()["obstacles"][0]
        self.work(60)
        self.guard.write("thing/1", "zombie", 1)
        row = self.report()
        assert row["would_have_refused"] == {"stale": 1}
        assert "are stale" in row["obstacles"][0]
        assert self.report("--stale", "5")["safe"]

    def test_a_clash_is_never_waved_through(self) -> None:
        self.work()
        self.guard.write("thing/x", "x", Stamp(500, 1, "ann"))
        self.guard.write("thing/x", "x", Stamp(500, 1, "bob"))
        assert "fencepost bump" in self.report("--stale", "50")["obstacles"][0]

    def test_only_the_mode_it_is_in_counts(self) -> None:
        self.guard.write("thing/1", "x", 200)
        self.guard.write("thing/1", "x", 1)
        self.policy.mode = "canary:10%"
        self.work()
        row = self.report("--stale", "100")
        assert (row["mode"], row["next"], row["would_have_refused"].get("stale", 0) < 10) == (
            "canary:10%",
            "canary:50%",
            True,
        )

    def test_writes_without_a_token_keep_it_from_strict(self) -> None:
        self.policy.mode = "enforce"
        self.work()
        assert self.report()["next"] == "strict"
        self.guard.write("thing/1", "x")
        row = self.report()
        assert (row["without_token"], row["safe"]) == (1, False)
        assert "without a token" in row["obstacles"][-1]

    def test_a_passive_guard_tells_which_resources_are_written_without_a_token(self) -> None:
        self.policy.mode = "passive"
        self.work()
        for number in (1, 2, 2, 3, 4, 5, 6, 7):
            self.guard.write(f"thing/{number}", "x")
        row = self.report()
        assert (row["mode"], row["next"], row["without_token"], row["safe"]) == ("passive", "shadow", 8, True)
        assert next(iter(row["without_token_resources"].items())) == ("thing/2", 2)
        told = Done("report", str(self.path), "--decisions", "50")
        (line,) = [line for line in told.out.splitlines() if "without a token" in line]
        assert line.startswith("  writes without a token: 2 to thing/2, 1 to thing/")
        assert line.endswith(", 2 to others")
        self.policy.mode = "shadow"
        self.work()
        assert "without a token" not in Done("report", str(self.path)).out, "those were of the mode before"

    def test_only_the_last_hours_count_if_it_is_told_so(self) -> None:
        self.work(60)
        facts = [json.loads(line) for line in self.path.read_text().splitlines()]
        old = [{**fact, "at": fact["at"] - 48 * 3600, "verdict": "clash", "enforced": False} for fact in facts[:7]]
        self.path.write_text("".join(json.dumps(fact) + "\n" for fact in old + facts[7:]))
        row = self.report("--since", "24h")
        assert (row["decisions"], row["hours"] < 24, row["safe"]) == (53, True, True)
        row = self.report("--since", "3d")
        assert (row["decisions"], row["hours"] >= 48, row["safe"]) == (60, True, False)
        assert self.report()["decisions"] == 60
        assert "no decision of a guard yet" in Done("report", str(self.path), "--since", "0s").out
        assert Done("report", str(self.path), "--since", "yesterday").code == 2

    def test_in_words_it_tells_what_was_refused_and_what_speaks_against_it(self) -> None:
        self.work(10)
        self.guard.write("thing/1", "zombie", 1)
        self.policy.mode = "strict"
        self.work(5)
        for token in (1, None):
            with pytest.raises(Refused):
                self.guard.write("thing/1", "zombie", token)  # type: ignore[arg-type]  # None is one without a token
        done = Done("report", str(self.path))
        assert done.code == 1
        first, refused, without, *obstacles = done.out.splitlines()
        assert (first, refused) == ("memory: strict, 7 decisions in 0 h", "  refused: 1 missing, 1 stale")
        assert without == "  writes without a token: 1 to thing/1"
        assert all(line.startswith("  not yet: ") for line in obstacles)
        assert "only 7 decisions" in obstacles[0]
        done = Done("report", str(self.path), "--decisions", "7", "--stale", "50")
        assert done.out.splitlines()[3:] == ["  at the top; nothing speaks against it"], done.out

    def test_an_override_asks_for_an_explanation(self) -> None:
        self.work()
        self.policy.override("drill", hooks=[Audit(self.path)])
        self.work()
        row = self.report("--stale", "100")
        assert (row["mode"], row["overrides"]) == ("shadow", 1)
        assert "overridden 1 times" in row["obstacles"][0]

    def test_a_log_without_decisions_says_what_to_do(self, tmp_path: Path) -> None:
        done = Done("report", str(self.path))
        assert (done.code, "hooks=[Audit(" in done.out) == (1, True)
        gone = Done("report", str(tmp_path / "nowhere"))
        assert (gone.code, "cannot be read" in gone.err) == (2, True)

    def test_what_it_refused_holds_it_back_like_what_it_would_have_refused(self) -> None:
        self.policy.mode = "enforce"
        self.work()
        with pytest.raises(StaleToken):
            self.guard.write("thing/1", "zombie", 1)
        row = self.report()
        assert (row["refused"], row["safe"]) == ({"stale": 1}, False)
        assert "are stale" in row["obstacles"][0]
        self.guard.write("thing/x", "x", Stamp(500, 1, "ann"))
        with pytest.raises(TokenClash):
            self.guard.write("thing/x", "x", Stamp(500, 1, "bob"))
        assert "fencepost bump" in self.report("--stale", "50")["obstacles"][0]


def test_install_prepares_a_database_and_sets_a_trigger(postgres_server: Endpoint) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA IF NOT EXISTS cli")
        url = f"{postgres_server.url}?options=-csearch_path%3Dcli"
        conn.execute("SET search_path = cli")
        conn.execute("CREATE TABLE IF NOT EXISTS account (id int, balance int)")
        conn.execute("INSERT INTO account VALUES (42, 100)")
        printed = Done("install", url, "account", "--resource", "account/{id}", "--print")
        assert printed.code == 0
        assert "CREATE OR REPLACE TRIGGER fencepost_fenced BEFORE UPDATE OR DELETE" in printed.out
        assert conn.execute("SELECT to_regclass('cli.fencepost_mark')").fetchone() == (None,)
        done = Done("install", url, "account", "--resource", "account/{id}")
        assert (done.code, done.out) == (0, "installed, with a trigger on account\n")
        with pytest.raises(psycopg.Error, match="without a fencing token for 'account/42'"):
            conn.execute("UPDATE account SET balance = 0")
        with conn.transaction():
            postgres.admit(conn, "account/42", 5)
            conn.execute("UPDATE account SET balance = 0")


def test_install_guards_an_sqlite_table_by_its_epoch(tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("CREATE TABLE account (id INTEGER, balance INTEGER, lock_epoch INTEGER NOT NULL DEFAULT 0)")
        conn.execute("INSERT INTO account VALUES (42, 100, 7)")
        conn.commit()
        assert Done("install", f"sqlite://{path}", "account", "--column", "lock_epoch").code == 0
        for epoch in (6, 7):
            with pytest.raises(sqlite3.IntegrityError, match="no newer fencing token"):
                conn.execute("UPDATE account SET balance = 0, lock_epoch = ?", (epoch,))
        conn.execute("UPDATE account SET balance = 0, lock_epoch = 8")
        conn.commit()
        assert Done("install", f"sqlite://{path}", "account", "--column", "lock_epoch", "--ceiling", "off").code == 0
        conn.execute(f"UPDATE account SET lock_epoch = {2**63 - 1}")


def test_uninstall_removes_from_postgres_what_install_made(postgres_server: Endpoint) -> None:
    left = """SELECT proname::text FROM pg_proc WHERE pronamespace = 'removal'::regnamespace UNION ALL
        SELECT relname FROM pg_class WHERE relnamespace = 'removal'::regnamespace AND relkind = 'r' ORDER BY 1"""
    with psycopg.connect(postgres_server.url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA removal")
        url = f"{postgres_server.url}?options=-csearch_path%3Dremoval"
        conn.execute("SET search_path = removal")
        conn.execute('CREATE TABLE "Account" (id int, balance int); CREATE TABLE ledger (id int, lock_epoch bigint)')
        conn.execute("""INSERT INTO "Account" VALUES (42, 100); INSERT INTO ledger VALUES (1, 7)""")
        assert Done("install", url, "Account", "--resource", "account/{id}").code == 0
        assert Done("install", url, "ledger", "--column", "lock_epoch").code == 0
        with conn.transaction():
            postgres.admit(conn, "account/42", 5)
        conn.execute("INSERT INTO fencepost_run VALUES ('billing', NULL, 1)")

        asked = Done("uninstall", url)
        assert (asked.code, "give --yes" in asked.err) == (2, True)
        printed = Done("uninstall", url, "--print").out
        assert 'DROP TRIGGER fencepost_fenced ON "Account";' in printed
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute('UPDATE "Account" SET balance = 0')

        one = Done("uninstall", url, "Account", "--yes", "--json").json
        assert [each["trigger"] for each in one["triggers"]] == ["fencepost_fenced", "fencepost_truncate"]
        conn.execute('UPDATE "Account" SET balance = 0')
        with pytest.raises(psycopg.Error, match="would forget that token 7 was here"):
            conn.execute("DELETE FROM ledger")
        assert postgres.mark(conn, "account/42") == Stamp(5)

        whole = Done("uninstall", url, "--yes", "--json").json
        assert whole["tables"] == {"fencepost_mark": 1, "fencepost_saga": 0}
        assert whole["kept"] == {"fencepost_run": 1}
        assert {each["table"] for each in whole["triggers"]} == {"ledger"}
        assert [each for (each,) in conn.execute(left)] == ["Account", "fencepost_run", "ledger"]
        conn.execute("DELETE FROM ledger")
        assert Done("uninstall", url, "nowhere", "--yes").code == exits.CODES[ConfigError][0]
        conn.execute("DELETE FROM fencepost_run")
        assert "removed the table fencepost_run (0 rows)" in Done("uninstall", url, "--yes").out
        assert Done("uninstall", url).out == "nothing was there to remove\n"
        conn.execute("CREATE TABLE fencepost_value (id int)")
        assert "'fencepost resource'" in Done("uninstall", url, "--yes").err


def test_uninstall_prints_statements_for_a_postgres_of_encoding_sql_ascii(postgres_server: Endpoint) -> None:
    name = f"ascii_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        try:
            url = f"{postgres_server.url.rpartition('/')[0]}/{name}"
            with psycopg.connect(url) as conn:
                conn.execute("CREATE TABLE account (id int)")
            assert Done("install", url, "account", "--resource", "account/{id}").code == 0
            assert "DROP TRIGGER fencepost_fenced ON account;" in Done("uninstall", url, "--print").out
            assert [each["table"] for each in Done("uninstall", url, "--yes", "--json").json["triggers"]] == [
                "account", "account",
            ]  # fmt: skip
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_uninstall_removes_from_sqlite_what_install_made(tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite3"
    url = f"sqlite://{path}"
    with closing(sqlite3.connect(path)) as conn, conn:
        for table in ("account", "my ledger"):
            conn.execute(f'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY, lock_epoch INTEGER NOT NULL DEFAULT 7)')
            conn.execute(f'INSERT INTO "{table}" (id) VALUES (42)')
            conn.commit()
            assert Done("install", url, table, "--column", "lock_epoch").code == 0
        conn.execute('CREATE TRIGGER "fencepost_ mine" AFTER INSERT ON account BEGIN SELECT 1; END')
        assert Done("uninstall", url).code == 2
        assert Done("uninstall", url, "my ledger", "--yes").code == 0
        conn.execute('DELETE FROM "my ledger"')
        with pytest.raises(sqlite3.IntegrityError):
            conn.execute("DELETE FROM account")
        conn.commit()
        done = Done("uninstall", url, "--yes", "--json").json
        assert {each["table"] for each in done["triggers"]} == {"account"}
        assert done["tables"] == {"fencepost_mark": 0, "fencepost_replaced": 0}
        names = [name for (name,) in conn.execute("SELECT name FROM sqlite_master ORDER BY name")]
        assert names == ["account", "fencepost_ mine", "my ledger"]
        conn.execute("DELETE FROM account")


@pytest.mark.parametrize("answer", ["y", "n"])
def test_uninstall_asks_at_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    path = tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("BEGIN")
        sqlite.admit(conn, "account/42", 5)
    monkeypatch.setattr("fencepost.cli.guard._at_a_terminal", lambda: True)
    done = CliRunner().invoke(app, ["guard", "uninstall", f"sqlite://{path}"], input=f"{answer}\n")
    assert "this removes the table fencepost_mark (1 row)" in done.stderr
    assert "admits holders that were replaced" in done.stderr
    assert done.exit_code == (0 if answer == "y" else 1)
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0 if answer == "y" else 1,)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("uninstall", "redis://localhost", "--yes"), "name the database as postgresql://"),
        (("uninstall", "sqlite:{tmp}/none.db", "--yes"), "there is no SQLite file"),
        (("install", "redis://localhost"), "postgresql:// and sqlite:"),
        (("install", "sqlite:x.db", "t", "--resource", "t/{id}"), "use --column"),
        (("install", "postgresql://localhost/x", "t", "--print"), "needs either --resource"),
        (("raise", "ftp://x", "thing", "--to", "5", "--reason", "r", "--audit", "{tmp}/a"), "no marks in 'ftp'"),
        (("raise", "file://{tmp}", "thing", "--to", "5", "--reason", " ", "--audit", "{tmp}/a"), "needs a reason"),
    ],
)
def test_wrong_usage_names_the_next_step(arguments: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    done = Done(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert done.code == 2
    assert complaint in done.err


def test_lower_takes_a_wild_mark_down_once_and_is_audited(tmp_path: Path, thing: str) -> None:
    audit, lite = tmp_path / "audit.jsonl", tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(lite)) as conn, conn:
        sqlite.admit(conn, thing, Stamp(2**62, 1, "mallory"), policy=Policy(ceiling="off"))
    options = ("--to", "41", "--seen", str(2**62), "--reason", "a wild client", "--audit", str(audit))
    lowered = Done("lower", f"sqlite://{lite}", thing, *options, "--json")
    assert lowered.json == {"resource": thing, "before": str(2**62), "mark": 41}
    again = Done("lower", f"sqlite://{lite}", thing, *options)
    assert again.code == 2
    assert "is at 41, and not at 4611686018427387904" in again.err
    (told,) = read_audit(audit)
    assert (told["kind"], told["token"], told["seen"], told["detail"]) == (
        "lower_mark",
        41,
        str(2**62),
        "a wild client",
    )


def test_raise_lifts_a_mark_never_lowers_one_and_is_audited(
    tmp_path: Path, postgres_url: str, redis_server: Endpoint, thing: str
) -> None:
    audit = tmp_path / "audit.jsonl"
    lite = tmp_path / "app.sqlite3"
    (tmp_path / "files").mkdir()

    def lift(url: str, to: int) -> Any:
        reason = f"restored {url[:4]}"
        options = ("--to", str(to), "--reason", reason, "--audit", str(audit), "--json")
        done = Done("raise", url, thing, *options)
        assert done.code == 0, done.err
        return done.json["mark"]

    with (
        closing(sqlite3.connect(lite)) as conn,
        psycopg.connect(postgres_url, autocommit=True) as pg,
        redis.from_url(redis_server.url) as client,
    ):
        marks: dict[str, Callable[[], Any]] = {
            f"sqlite://{lite}": lambda: sqlite.mark(conn, thing),
            postgres_url: lambda: postgres.mark(pg, thing),
            redis_server.url: lambda: redis_guard.RedisGuard(client).mark(thing),
            f"file://{tmp_path}/files": lambda: file.FileGuard(tmp_path / "files").mark(thing),
        }
        for url, mark in marks.items():
            assert [lift(url, 50), lift(url, 20)] == [50, 50]
            assert mark() == Stamp(50)
    told = [(fact["kind"], fact["token"], fact.get("seen"), fact["detail"]) for fact in read_audit(audit)]
    assert told == [
        line
        for url in marks
        for line in (("raise_mark", 50, None, f"restored {url[:4]}"), ("raise_mark", 20, 50, f"restored {url[:4]}"))
    ]


def test_raise_and_lower_say_in_words_what_they_did(tmp_path: Path) -> None:
    lite = tmp_path / "app.sqlite3"
    with closing(sqlite3.connect(lite)) as conn, conn:
        sqlite.admit(conn, "thing", 5)
    audited = ("--reason", "r", "--audit", str(tmp_path / "audit.jsonl"))
    url = f"sqlite://{lite}"
    assert Done("raise", url, "thing", "--to", "50", *audited).out == "thing  raised from 5 to 50\n"
    assert Done("raise", url, "thing", "--to", "20", *audited).out == "thing  stays at 50: never lowered\n"
    assert Done("lower", url, "thing", "--to", "9", "--seen", "50", *audited).out == "thing  lowered from 50 to 9\n"
    assert Done("raise", url, "new", "--to", "5", *audited).out == "new  raised from no mark to 5\n"


def lift(url: str, tmp_path: Path, to: str = "50") -> Done:
    return Done("raise", url, "thing", "--to", to, "--reason", "r", "--audit", str(tmp_path / "audit.jsonl"), "--json")


@pytest.mark.etcd
def test_raise_logs_in_to_etcd_and_asks_the_member_that_answers(tmp_path: Path) -> None:
    with Etcd(args=QUICK_ETCD) as server:
        for command in ("user add root:top", "user grant-role root root", "auth enable"):
            etcdctl(server.url, *command.split())
        done = lift(f"etcd://root:top@127.0.0.1:1,{server.address}", tmp_path)
        assert done.code == 0, done.err
        assert done.json["mark"] == 50
        for login in ("root:wrong@", ""):
            done = lift(f"etcd://{login}{server.address}", tmp_path, "60")
            assert done.code != 0
            assert "wrong" not in done.err
        assert lift(f"etcd://root:top@{server.address}", tmp_path, "20").json["mark"] == 50, "nobody else raised it"


@pytest.mark.etcd
def test_raise_speaks_tls_to_etcd(tmp_path: Path) -> None:
    with SecureEtcd() as server:
        ca, cert, key = (server.folder / each for each in ("ca.pem", "client.pem", "client.key"))
        done = lift(f"{server.url}?ca={ca}&cert={cert}&key={key}", tmp_path)
        assert done.code == 0, done.err
        assert done.json["mark"] == 50
        assert lift(f"{server.url}?tls=1", tmp_path).code == exits.code(BackendError("", backend="", ambiguous=False))
    assert lift("etcd://localhost?ca=/nowhere.pem", tmp_path).code == 2


@pytest.mark.redis
def test_raise_asks_redis_for_a_certificate_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever redis-py does by default: before 6.0, the certificate of any other server was good enough."""
    really = redis.SSLConnection.__init__

    def before_6(self: Any, **options: Any) -> None:
        really(self, **{"ssl_check_hostname": False, **options})

    monkeypatch.setattr(redis.SSLConnection, "__init__", before_6)
    certificate, key = self_signed(tmp_path)

    class Encrypted(Redis):
        port_count = 2

        def command(self) -> list[str]:
            tls = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no"]
            return [*super().command(), "--tls-port", str(self.ports[1]), *map(str, tls)]

    with Encrypted() as server:
        itself = f"rediss://127.0.0.1:{server.ports[1]}?ssl_ca_certs={certificate}"
        done = lift(itself, tmp_path)
        assert done.code == 0, done.err
        # 127.1 is this machine too, which only the resolver knows: no certificate was made for that name.
        elsewhere = f"rediss://127.1:{server.ports[1]}?ssl_ca_certs={certificate}"
        done = lift(elsewhere, tmp_path, "60")
        assert done.code == exits.code(BackendError("", backend="", ambiguous=False)), done.out
        assert lift(itself, tmp_path, "50").json["before"] == 50, "nothing was sent"
        for by_name in ("ssl_check_hostname=false", "ssl_cert_reqs=none", "verify=0"):
            assert lift(f"{elsewhere}&{by_name}", tmp_path, "60").code == 0, "off by name only"
        # The same URL as for locks.
        assert lift(f"rediss://127.0.0.1:{server.ports[1]}?ca={certificate}", tmp_path, "60").code == 0
        wrong = lift(f"{itself}&ssl_cert_reqs=perhaps", tmp_path, "60")
        assert wrong.code == exits.code(ConfigError(""))
        assert "Traceback" not in wrong.err


def test_a_url_with_a_password_may_stay_out_of_the_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "app.sqlite3"
    sqlite3.connect(path).close()
    path.touch()
    assert "$FENCEPOST_DATABASE" in Done("install", "-").err
    monkeypatch.setenv("FENCEPOST_DATABASE", f"sqlite://{path}")
    assert Done("install", "-").out == "installed\n"
    assert lift("-", tmp_path).json["mark"] == 50


SECRETS = ["Qx7%Zk9", "Qx7@Zk9", "Qx7/Zk9", "Qx7?Zk9", "Qx7#Zk9", "31/41", "31?41", "31#41", "Qx7%Zk9@31/[41"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("scheme", ["postgresql", "redis", "etcd", "s3", "file"])
def test_no_part_of_a_password_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, secret: str
) -> None:
    monkeypatch.setenv("FENCEPOST_DATABASE", f"{scheme}://app:{secret}@127.0.0.1:1/0")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    audited = ("--reason", "r", "--audit", str(tmp_path / "audit.jsonl"))
    for command in (
        ("guard", "install", "-"),
        ("guard", "raise", "-", "thing", "--to", "5", *audited),
        ("guard", "lower", "-", "thing", "--to", "5", "--seen", "6", *audited),
        ("saga", "ls"),
    ):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, SystemExit), f"{command}: {done.exception!r}"
        assert done.exit_code in (2, 69)
        for part in re.findall(r"\w\w+", secret):
            assert part not in done.output, command


@pytest.mark.redis
def test_what_a_password_may_hold_gets_through_to_redis(tmp_path: Path) -> None:
    with Redis(args=["--requirepass", "s3@cr%e:t"]) as server:
        done = lift(f"redis://:s3@cr%25e:t@{server.address}/0?prefix=mark/", tmp_path)
        assert done.code == 0, done.err
        with redis.from_url(f"redis://{server.address}", password="s3@cr%e:t", decode_responses=True) as client:
            assert redis_guard.RedisGuard(client, prefix="mark/").mark("thing") == Stamp(50)


@pytest.mark.parametrize("url", ["file://{0}/nowhere", "file://{1}/state", "file://localhost{0}", "file:", "file://"])
def test_a_mark_is_raised_in_a_folder_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = lift(url.format(tmp_path, tmp_path.name), tmp_path)
    assert done.code == 2
    assert "file:///path/to/folder" in done.err
    assert [each.name for each in tmp_path.iterdir()] == ["audit.jsonl"]
    assert not list(read_audit(tmp_path / "audit.jsonl"))


def test_the_folder_of_marks_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "my state@home"
    guard = file.FileGuard(folder)
    guard.write("thing", b"x", 3)
    done = lift(f"file://{str(folder).replace(' ', '%20')}", tmp_path)
    assert (done.code, done.err) == (0, ""), done.err
    assert guard.mark("thing") == Stamp(50)


def test_a_mark_that_was_not_there_is_worth_a_second_look(tmp_path: Path) -> None:
    done = lift(f"file://{tmp_path}", tmp_path)
    assert (done.code, done.json["before"]) == (0, None)
    assert "'thing' had no mark there" in done.err


@pytest.mark.parametrize("option", ["marks", "prefix"])
def test_raise_finds_etcd_s_marks_under_their_prefix(
    tmp_path: Path, etcd_server: Endpoint, thing: str, option: str
) -> None:
    assert lift(f"{etcd_server.url}?{option}={thing}/", tmp_path).code == 0
    own: dict[str, Any] = {option: f"{thing}/"}
    with closing(EtcdGuard(etcd_server.url.replace("etcd://", "http://"), **own)) as guard:
        assert guard.mark("thing") == Stamp(50)
