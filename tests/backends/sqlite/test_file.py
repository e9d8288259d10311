"""The SQLite file under the embedded backend."""

import sqlite3
from pathlib import Path

from fencepost.backends.sqlite.file import File


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
