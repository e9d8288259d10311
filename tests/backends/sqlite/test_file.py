"""The SQLite file under the embedded backend."""

import sqlite3
from pathlib import Path

import pytest

import fencepost
from fencepost.backends.sqlite.file import File
from fencepost.errors import BackendError
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
