"""The examples do what they say, with as many processes as they speak of."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from examples import billing

from tests import ROOT
from tests.harness.child import Child
from tests.harness.mortal import Fate, lives, sqlite_file

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"


class Examples:
    """Starts examples in the folder that they share."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def start(self, name: str, *args: str) -> Child:
        env = {"FENCEPOST_URL": f"sqlite:{self.folder}/locks.sqlite3"}
        return self._stack.enter_context(Child.python(EXAMPLES / name, *args, cwd=self.folder, env=env))


@pytest.fixture
def examples(tmp_path: Path) -> Iterator[Examples]:
    with ExitStack() as stack:
        yield Examples(tmp_path, stack)


def test_each_account_is_billed_once_by_three_instances_at_once(examples: Examples, tmp_path: Path) -> None:
    processes = [examples.start("billing.py", "2026-11") for _ in range(3)]
    said = [line for each in processes for line in each.succeed()]
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


@pytest.mark.slow
def test_of_many_machines_one_makes_the_report_and_a_late_one_does_not_make_it_again(
    examples: Examples, tmp_path: Path
) -> None:
    machines = [examples.start("cron.py", "2026-11-15") for _ in range(20)]
    said = [line for each in machines for line in each.succeed()]
    assert said.count("made") == 1
    assert set(said) <= {"made", "made before", "another machine is at it"}
    assert examples.start("cron.py", "2026-11-15").succeed() == ["made before"]
    with closing(sqlite3.connect(tmp_path / "reports.sqlite3")) as conn:
        assert conn.execute("SELECT count(*) FROM report").fetchone() == (1,)


def test_without_their_argument_they_say_how_they_are_called(examples: Examples, tmp_path: Path) -> None:
    for name in ("billing.py", "cron.py"):
        done = examples.start(name)
        assert (done.wait(), name in done.errors, "Traceback" in done.errors) == (1, True, False)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_merge_is_corrupt_without_a_guard_and_whole_with_one(examples: Examples) -> None:
    without, guarded = examples.start("daily_merge.py").succeed()
    assert without.startswith("without a guard: 15 elements of 10, CORRUPT; the first instance learnt of its loss when")
    assert guarded.startswith(
        "with a guard: 10 elements of 10, as it should be; the first instance was refused: token 1"
    )
