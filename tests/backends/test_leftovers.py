"""The embedded stores do not keep for good what dead holders left under names that nobody asks for again."""

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost.backends import memory
from fencepost.backends.sqlite import file
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until

Kept = Callable[[], int]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Kept]:
    """Its URL, and what tells how many locks and shares it keeps."""
    monkeypatch.setattr(memory, "_CROWD", 7)
    monkeypatch.setattr(file, "_BLOCK", 7)
    name, path = tmp_path.name, tmp_path / "locks.db"

    def in_memory() -> int:
        return len(memory._stores[name].locks)

    def in_file() -> int:
        with closing(sqlite3.connect(path)) as db:
            rows = db.execute(
                "SELECT count(*) FROM (SELECT name FROM lock WHERE name != '' UNION SELECT name FROM share)"
            )
            return int(rows.fetchone()[0])

    return (f"memory://{name}", in_memory) if request.param == "memory" else (f"sqlite://{path}", in_file)


@pytest.mark.parametrize("shared", [False, True])
def test_expired_locks_are_forgotten(store: tuple[str, Kept], shared: bool) -> None:
    url, kept = store
    numbers = itertools.count(1)
    with fencepost.connect(url, ttl=60) as locks:
        held = locks.acquire("held")

        def few() -> bool:
            number = next(numbers)
            name = f"job-{number}"
            if shared:
                locks.shared(name, ttl=0.001, renew=False).acquire()
            else:
                locks.acquire(name, ttl=0.001, renew=False)
            return number > 100 and kept() <= 20

        until(few, "what has expired goes")
        held.renew()
        assert held.release()


def test_a_waiter_gets_what_is_found_expired(store: tuple[str, Kept]) -> None:
    """It may be found before the waiter's own look."""
    url, _ = store
    with fencepost.connect(url, ttl=60) as locks:
        locks.acquire("a", ttl=1, renew=False)
        waiting = background(lambda: locks.acquire("a", timeout=PATIENCE))

        def served() -> bool:
            assert locks.acquire("other").release()
            return waiting.done

        until(served, "it is served", watching=[waiting])
        assert isinstance(waiting.result(), sync.Lease)
