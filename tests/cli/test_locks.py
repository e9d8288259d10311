"""`fencepost ls|show|watch|break|bump|backends|doctor`, on locks that are really there."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import fencepost
from fencepost import registry, sync
from fencepost.backend import Finding
from fencepost.backends.memory import Memory
from fencepost.cli import app as root
from fencepost.cli.stores import promised, tables
from fencepost.cli.text import in_words, table
from fencepost.errors import ConfigError, NotAcquired, QueueFull
from tests.harness.child import Child
from tests.harness.threads import Background, background
from tests.harness.waiting import PATIENCE, until

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"


def current(page: str) -> str:
    """The page with the tables that `fencepost backends --markdown` prints today."""
    before, begin, rest = page.partition("<!-- fencepost backends --markdown -->\n")
    _, end, after = rest.partition("<!-- end -->")
    assert begin and end  # noqa: PT018 - one thought
    return f"{before}{begin}{tables(promised())}\n{end}{after}"


@pytest.fixture
def where(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def locks(where: str) -> Iterator[sync.Locks]:
    with fencepost.connect(where, ttl=60) as locks:
        yield locks


def fence(*arguments: str, code: int = 0) -> Result:
    done: Any = CliRunner().invoke(root.app, list(arguments))
    assert done.exit_code == code, done.output
    return done  # type: ignore[no-any-return]  # typer carries its own click


def test_the_readme_names_what_there_is() -> None:
    table = tables(promised()).split("\n\n")[0]
    assert (
        f"<!-- backends: begin -->\n{table}\n<!-- backends: end -->"
        in PAGE.parents[1].joinpath("README.md").read_text()
    )


def test_what_a_store_holds_is_shown_and_not_obeyed_by_the_terminal(
    locks: sync.Locks, where: str, tmp_path: Path
) -> None:
    locks.acquire("evil")
    with closing(sqlite3.connect(tmp_path / "locks.db")) as db, db:
        db.execute("UPDATE lock SET name = ?, holder = ? WHERE name = 'evil'", ("a\x1b]0;x\x07\u202e", "b\x9b2J\nfree"))
    for command in (("ls",), ("watch", "--for", "0")):
        said = fence(*command, "--backend", where).stdout
        assert "a\\x1b]0;x\\x07\\u202e  " in said
        assert "b\\x9b2J\\nfree" in said
        assert said.replace("\n", "").isprintable()


def test_ls_lists_what_is_held(locks: sync.Locks, where: str) -> None:
    one, two = locks.acquire("jobs/one"), locks.acquire("other")
    head, first, second = fence("ls", "--backend", where).stdout.splitlines()
    assert head.split() == ["NAME", "TOKEN", "LEFT", "WAITING", "HOLDER"]
    assert first.split()[:2] == ["jobs/one", str(one.token)]
    assert f"[{os.getpid()}] " in first, "who it is, for people"
    assert len({line.rindex(f"{os.getpid()}") for line in (first, second)}) == 1, "below each other"
    told = json.loads(fence("ls", "--backend", where, "--json").stdout)
    assert [(each["name"], each["token"], each["holder"]) for each in told] == [
        ("jobs/one", one.token, one.holder),
        ("other", two.token, two.holder),
    ]
    assert [each["name"] for each in json.loads(fence("ls", "jobs/", "--backend", where, "--json").stdout)] == [
        "jobs/one"
    ]


def test_sharers_are_shown(locks: sync.Locks, where: str) -> None:
    with locks.shared("catalog") as one, locks.shared("catalog") as two:
        assert "shared by 2: " in fence("ls", "--backend", where).stdout
        head, *shown = fence("show", "catalog", "--backend", where).stdout.splitlines()
        assert head.startswith(f"catalog  token {two.token}, shared by 2, ")
        assert [line.endswith(f" ({each.holder})") for line, each in zip(shown, (one, two), strict=True)] == [True] * 2
        (told,) = json.loads(fence("ls", "--backend", where, "--json").stdout)
        assert told["sharers"] == [one.holder, two.holder]


def test_show_names_the_holder_and_the_waiters_in_order(locks: sync.Locks, where: str) -> None:
    assert fence("show", "job", "--backend", where).stdout == "job  free\n"
    assert json.loads(fence("show", "job", "--backend", where, "--json").stdout) is None
    lease = locks.acquire("job")
    told = json.loads(fence("show", "job", "--backend", where, "--json").stdout)
    assert (told["holder"], told["token"], told["waiters"]) == (lease.holder, lease.token, [])
    assert 0 < told["remaining"] <= 60


def test_a_token_that_a_double_cannot_hold_goes_as_text(locks: sync.Locks, where: str) -> None:
    locks.bump("job", above=2**60, force=True)
    lease = locks.acquire("job")
    assert json.loads(fence("show", "job", "--backend", where, "--json").stdout)["token"] == str(lease.token)


def test_watch_prints_each_change_once(locks: sync.Locks, where: str) -> None:
    lease = locks.acquire("job")
    lines = fence("watch", "--backend", where, "--json", "--every", "10ms", "--for", "200ms").stdout.splitlines()
    assert [json.loads(line)["status"]["token"] for line in lines] == [lease.token]
    fence("watch", "--backend", where, "--every", "0", code=2)


def test_break_ends_the_hold_or_says_that_there_is_none(locks: sync.Locks, where: str) -> None:
    lease = locks.acquire("job")
    assert lease.holder in fence("break", "job", "--backend", where).stdout
    assert not lease.release(), "it was no longer its own"
    assert "free" in fence("break", "job", "--backend", where, code=1).stdout


def test_bump_raises_the_next_token(locks: sync.Locks, where: str) -> None:
    fence("bump", "job", "--above", "1000", "--backend", where)
    assert locks.acquire("job").token > 1000
    fence("bump", "job", "--above", str(2**63), "--backend", where, code=2)


def test_bump_goes_past_what_any_issuer_can_have_come_to_only_by_force(locks: sync.Locks, where: str) -> None:
    far = ("bump", "job", "--above", str(2**62), "--backend", where)
    assert "force" in fence(*far, code=2).stderr
    assert locks.acquire("job").token < 2**62
    fence(*far, "--force")
    locks.break_lock("job")
    assert locks.acquire("job").token > 2**62


def test_backends_prints_what_each_of_them_promises() -> None:
    told = json.loads(fence("backends", "--json").stdout)
    assert sorted(scheme for row in told for scheme in row["schemes"]) == sorted(registry.SCHEMES)
    memory = told[0]["promises"]
    assert (memory["fair"], memory["consensus"], memory["reach"]) == (True, False, "one process")
    text = fence("backends").stdout
    assert all(f"{scheme}://" in text for scheme in registry.SCHEMES)


def test_a_backend_whose_package_is_missing_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.SCHEMES, "other", registry.Registration("no_such_package.other:Other", "other"))
    assert "pip install 'fencepost[other]'" in fence("backends").stdout


def test_the_page_about_backends_is_current() -> None:
    page = PAGE.read_text("utf-8")
    assert page == current(page), "regenerate it: .venv/bin/python -m tests.cli.test_locks --write"


def test_doctor_says_what_it_found_and_what_it_means(where: str) -> None:
    text = fence("doctor", where).stdout
    assert "SQLite 3" in text
    assert "power loss" in text
    levels = {each["level"] for each in json.loads(fence("doctor", where, "--json").stdout)}
    assert levels == {"ok"}


def test_doctor_warns_of_locks_that_exclude_nobody_else() -> None:
    assert fence("doctor", "memory://").stdout.startswith("warn")


def test_doctor_ends_with_1_when_there_is_a_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def doctor(self: Memory) -> list[Finding]:
        return [Finding("risk", "a hole", "somebody will fall into it")]

    monkeypatch.setattr(Memory, "doctor", doctor)
    assert "RISK  a hole\n      somebody will fall into it" in fence("doctor", "memory://", code=1).stdout


@pytest.mark.slow
def test_watch_tells_when_a_lock_is_taken_and_when_it_is_free(locks: sync.Locks, where: str) -> None:
    lease = locks.acquire("job")
    with Child.fencepost("watch", "--backend", where, "--json", "--every", "10ms") as watching:
        assert watching.json()["status"]["token"] == lease.token
        lease.release()
        told = watching.json()
        assert (told["name"], told["status"]) == ("job", None)
        again = locks.acquire("job")
        assert watching.json()["status"]["token"] == again.token


def test_show_numbers_the_waiters_in_the_order_they_came(locks: sync.Locks, where: str) -> None:
    def newcomers() -> list[str]:
        status = locks.status("job")
        return [each for each in status.waiters if each not in order] if status else []

    waiting: list[Background[sync.Lease]] = []
    order: list[str] = []
    with locks.lock("job"):
        for _ in range(2):
            waiting.append(background(lambda: locks.acquire("job", timeout=PATIENCE)))
            order += until(newcomers, "one more waiter", watching=waiting)
        shown = fence("show", "job", "--backend", where).stdout.splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["1.", "2."]
    assert [line.rpartition("(")[2] for line in shown[1:]] == [f"{each})" for each in order]
    for each in waiting:
        each.result().release()


def test_break_tells_programs_what_it_ended_or_null_and_1(locks: sync.Locks, where: str) -> None:
    lease = locks.acquire("job")
    ended = json.loads(fence("break", "job", "--backend", where, "--json").stdout)
    assert (ended["name"], ended["holder"], ended["token"]) == ("job", lease.holder, lease.token)
    assert json.loads(fence("break", "job", "--backend", where, "--json", code=1).stdout) is None


def test_columns_stand_below_each_other_whatever_the_letters() -> None:
    lines = table([("NAME", "TOKEN", "HOLDER"), ("報告/日", "1", "a"), ("e\u0301t\u0301", "12", "b")], right=(1,))
    assert lines == ["NAME     TOKEN  HOLDER", "報告/日      1  a", "e\u0301t\u0301          12  b"]


def test_nothing_is_listed_where_nothing_is_held(where: str) -> None:
    done = fence("ls", "--backend", where)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_embedded_file_is_named_once_and_only_if_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCEPOST_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    said = fence("ls").stderr
    assert said.count("\n") == 1
    assert f"{tmp_path}/fencepost/locks.db, which other users and hosts do not share" in said
    assert fence("ls", "--backend", "sqlite:").stderr == ""
    assert "the processes of this user on this host share it, and nobody else" in fence("doctor").stdout
    elsewhere = fence("doctor", "--backend", f"sqlite:{tmp_path}/other.db").stdout
    assert "all processes of this host that may open it share it" in elsewhere
    fence("doctor", "sqlite:", "--backend", "sqlite:", code=2)


def test_bump_tells_programs_what_it_did(locks: sync.Locks, where: str) -> None:
    told = json.loads(fence("bump", "job", "--above", "41", "--backend", where, "--json").stdout)
    assert told == {"name": "job", "above": 41}


def test_a_user_without_a_home_folder_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("FENCEPOST_URL", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(ConfigError, match=r"no home folder.*\$FENCEPOST_URL"):
        fencepost.connect()
    for command in (("ls",), ("run", "-q", "job", "--", "true")):
        assert "no home folder" in fence(*command, code=2).stderr


def test_a_trigger_is_asked_for_in_the_words_of_the_command_line(tmp_path: Path) -> None:
    assert "--resource" in fence("guard", "install", "postgresql://nowhere", "account", code=2).stderr
    assert "--column" in fence("guard", "install", f"sqlite:///{tmp_path}/x.db", "account", code=2).stderr


def test_a_full_queue_is_told_in_the_words_of_the_command_line() -> None:
    assert "=" not in in_words(QueueFull("job", 3))
    assert "(--timeout)" in in_words(NotAcquired("job", 3.0))


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    PAGE.write_text(current(PAGE.read_text("utf-8")), "utf-8")
