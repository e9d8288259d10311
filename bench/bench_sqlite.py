"""The embedded default, against what SQLite itself takes for two write transactions."""

from __future__ import annotations

import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import fencepost
from bench.harness import UNSEEN, Sides, bench, fact


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


def _contend(url: str, seconds: float, ready: Barrier, done: Queue[int]) -> None:
    with fencepost.connect(url) as locks:
        locks.acquire("other").release()  # opens the file
        ready.wait()
        sections, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            locks.acquire("hot").release()
            sections += 1
    done.put(sections)


def hot(processes: int, seconds: float = 3.0, sampling: AbstractContextManager[object] = UNSEEN) -> float:
    """Microseconds for each section of a lock that so many processes want all of the time."""
    context = multiprocessing.get_context("fork")
    ready, done = context.Barrier(processes + 1), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"sqlite://{folder}/locks.db", seconds, ready, done)
        crowd = [context.Process(target=_contend, args=arguments) for _ in range(processes)]
        for each in crowd:
            each.start()
        with sampling:
            ready.wait()
            sections: int = sum(done.get() for _ in crowd)
        for each in crowd:
            each.join()
    return 1e6 * seconds / sections


_WAKE = (
    "Each section hands the lock to another process: a datagram wakes the thread of its mailbox, and that wakes the "
    "waiter."
)
_WAKES = f"{_WAKE} More samples are in these wake-ups than in SQLite."
_BUSY = f"{_WAKE} More often than with 4, a process also finds the file's write lock taken: it sleeps, and tries again."

for _processes, _bound in ((4, _WAKES), (64, _BUSY)):
    fact(
        f"sqlite: microseconds for a section of a hot lock, {_processes} processes",
        bound=_bound,
        aim=400,
        quick=partial(hot, _processes, 0.5),
        profile=partial(hot, _processes, 3.0),
    )(partial(hot, _processes))
