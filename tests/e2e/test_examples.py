"""The examples do what they say, with as many processes as they speak of."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from examples import billing

from tests.guards.mortal import Fate, lives, sqlite_file

EXAMPLES = Path(__file__).parents[2] / "examples"


def started(folder: Path, name: str, *args: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "FENCEPOST_URL": f"sqlite:{folder}/locks.sqlite3"}
    command = [sys.executable, str(EXAMPLES / name), *args]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def test_each_account_is_billed_once_by_three_instances_at_once(tmp_path: Path) -> None:
    processes = [started(tmp_path, "billing.py", "2026-11") for _ in range(3)]
    said = [line for each in processes for line in each.communicate()[0].splitlines()]
    assert [each.returncode for each in processes] == [0, 0, 0]
    assert sorted(line for line in said if "now" in line) == [f"account {n}: 90 left, billed now" for n in (1, 2, 3)]
    assert said.count("account 1: 90 left, billed before") == 2
    with closing(sqlite3.connect(tmp_path / "billing.sqlite3")) as conn:
        assert conn.execute("SELECT balance FROM account").fetchall() == [(90,)] * 3


def test_a_billing_run_that_is_killed_anywhere_is_made_whole_by_the_next(tmp_path: Path) -> None:
    for moment in [("before", 1), ("after", 1), ("before", 2), ("after", 3), None]:
        path = str(tmp_path / f"{moment}.sqlite3")
        with closing(sqlite3.connect(path)) as conn:
            billing.prepare(conn)

        def run(fate: Fate, path: str = path) -> None:
            with closing(sqlite_file(path)(fate)) as conn:
                for account in (1, 2, 3):
                    billing.bill(conn, account, "2026-11")

        assert lives(run, moment) is (moment is None)
        assert lives(run, None)
        with closing(sqlite3.connect(path)) as conn:
            assert conn.execute("SELECT balance FROM account").fetchall() == [(90,)] * 3


def test_of_twenty_machines_one_makes_the_report_and_a_late_one_does_not_make_it_again(tmp_path: Path) -> None:
    machines: list[Any] = [started(tmp_path, "cron.py", "2026-11-15") for _ in range(20)]
    said = [each.communicate()[0].strip() for each in machines]
    assert all(each.returncode == 0 for each in machines)
    assert said.count("made") == 1
    assert set(said) <= {"made", "made before", "another machine is at it"}
    late = started(tmp_path, "cron.py", "2026-11-15")
    assert late.communicate()[0] == "made before\n"
    with closing(sqlite3.connect(tmp_path / "reports.sqlite3")) as conn:
        assert conn.execute("SELECT count(*) FROM report").fetchone() == (1,)


def test_without_their_argument_they_say_how_they_are_called(tmp_path: Path) -> None:
    for name in ("billing.py", "cron.py"):
        done = subprocess.run([sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, name in done.stderr, "Traceback" in done.stderr) == (1, True, False)
    assert not list(tmp_path.iterdir())


def test_the_merge_is_corrupt_without_a_guard_and_whole_with_one(tmp_path: Path) -> None:
    process = started(tmp_path, "daily_merge.py")
    try:
        without, guarded = process.communicate(timeout=60)[0].splitlines()
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        raise
    assert without.startswith("without a guard: 15 elements of 10, CORRUPT; the first instance learnt of its loss when")
    assert guarded.startswith(
        "with a guard: 10 elements of 10, as it should be; the first instance was refused: token 1"
    )
