"""The SQLite file under the embedded backend."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

import fencepost
from fencepost.backends.sqlite.file import File
from fencepost.errors import BackendError
from fencepost.sql.sqlite import patiently
from tests.harness.logs import logged


def test_whose_file_it_is_is_judged_as_of_one_moment(tmp_path: Path) -> None:
    # Else a process that opens the file while another creates it takes it for somebody else's.
    seen = []

    class Watched(File):
        def _is_new(self, db: sqlite3.Connection) -> bool:
            seen.append(db.in_transaction)
            return super()._is_new(db)

    file = Watched(tmp_path / "locks.db", 10.0)
    assert file.read("SELECT count(*) FROM issuer") == [(1,)]
    file.close()
    assert seen
    assert all(seen)


def test_a_file_that_cannot_be_made_is_the_only_thing_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").touch()
    url = f"sqlite:{tmp_path}/taken/locks.db"
    with fencepost.connect(url) as locks, pytest.raises(BackendError, match="taken") as failed:
        locks.acquire("job", timeout=1)
    assert not failed.value.ambiguous
    assert logged(caplog) == [], "nothing was acquired, so there is nothing to clean up"


def test_a_file_that_is_locked_for_a_moment_is_tried_again_before_the_first_sleep(tmp_path: Path) -> None:
    path, naps, tries = tmp_path / "a.db", list[float](), list[bool]()

    def attempt() -> None:
        tries.append(other.in_transaction)
        if len(tries) == 4:
            other.execute("ROLLBACK")
        mine.execute("BEGIN IMMEDIATE")

    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
        contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as mine,
    ):
        other.execute("BEGIN EXCLUSIVE")
        patiently(attempt, busy=60.0, sleep=naps.append)
        assert (tries, naps) == ([True] * 4, [])
        mine.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            other.execute("ROLLBACK")

        patiently(lambda: mine.execute("BEGIN IMMEDIATE"), busy=60.0, sleep=sleep)
        assert len(naps) == 1, "one that is locked for longer is waited for"
