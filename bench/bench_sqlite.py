"""The embedded default, against what SQLite itself takes for two write transactions."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import fencepost
from bench.harness import Sides, bench


def _bare(path: Path, synchronous: str = "NORMAL", page: int = 4096, table: str = "") -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA page_size = {page}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {synchronous}")
    database.execute(f"CREATE TABLE lock (name TEXT PRIMARY KEY, holder TEXT) {table}")
    return database


def _pair(database: sqlite3.Connection) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO lock VALUES (?, ?)", ("bench", "holder"))
    database.execute("COMMIT")
    database.execute("BEGIN IMMEDIATE")
    database.execute("DELETE FROM lock WHERE name = ?", ("bench",))
    database.execute("COMMIT")


@bench("sqlite: acquire + release vs a bare write transaction pair", aim=1.5, iterations=300, rounds=40)
def uncontended() -> Iterator[Sides]:
    """All without an fsync of their own, for a reserved token needs none; "tuned" as the lock file is."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fencepost.connect(f"sqlite://{folder}/locks.db") as locks,
        closing(_bare(Path(folder) / "tuned.db", page=1024, table="WITHOUT ROWID")) as tuned,
        closing(_bare(Path(folder) / "bare.db")) as bare,
    ):
        yield {
            "fencepost": lambda: locks.acquire("bench").release(),
            "bare, tuned": lambda: _pair(tuned),
            "bare": lambda: _pair(bare),
        }


@bench("sqlite: acquire + release vs a bare durable (fsync) pair", aim=1.5, iterations=50, rounds=20)
def durable() -> Iterator[Sides]:
    """What tokens that survive a power loss would cost if each were written to disk by itself."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fencepost.connect(f"sqlite://{folder}/locks.db") as locks,
        closing(_bare(Path(folder) / "bare.db", "FULL")) as bare,
    ):
        yield {"fencepost": lambda: locks.acquire("bench").release(), "bare": lambda: _pair(bare)}
