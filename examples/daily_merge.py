"""The daily merge with two instances: how one pause corrupted a registry, and how a guard prevents it.

    python examples/daily_merge.py

The first instance takes the lock, merges half of the day's elements, and its host stops (a real SIGSTOP) for longer
than its lease. The second takes the lock and merges them all. Then the first goes on where it was: without a guard its
half comes on top of the whole. With one, the registry refuses it.
"""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import fencepost
from fencepost.errors import LeaseLost, StaleToken
from fencepost.guards import sqlite

ELEMENTS = [f"satellite-{number:02}" for number in range(10)]


def instance(folder: Path, guarded: bool, stops: bool) -> None:
    """Empty the registry and write the day's elements, each in a transaction of its own."""
    with (
        fencepost.connect(f"sqlite:{folder / 'locks.sqlite3'}") as locks,
        locks.lock("merge", ttl=3) as lease,
        closing(sqlite3.connect(folder / "registry.sqlite3", timeout=30)) as conn,
    ):
        for number, element in enumerate(ELEMENTS):
            if stops and number == len(ELEMENTS) // 2:
                print("half", flush=True)
                sys.stdin.readline()
            with conn:
                if guarded:
                    sqlite.admit(conn, "merge", lease)
                if number == 0:
                    conn.execute("DELETE FROM registry")
                conn.execute("INSERT INTO registry VALUES (?)", (element,))


def incident(folder: Path, guarded: bool) -> tuple[int, str]:
    """Play it: how many elements the registry has afterwards, and how the first instance ended."""
    with closing(sqlite3.connect(folder / "registry.sqlite3")) as conn:
        conn.execute("CREATE TABLE registry (element TEXT)")
    command = [sys.executable, __file__, str(folder), "guarded" if guarded else "trusting"]
    first = subprocess.Popen([*command, "stops"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    first.stdout.readline()
    first.send_signal(signal.SIGSTOP)
    subprocess.run(command, check=True)  # it waits until the lease of the first has run out
    first.send_signal(signal.SIGCONT)
    said, _ = first.communicate("\n")
    with closing(sqlite3.connect(folder / "registry.sqlite3")) as conn:
        (count,) = conn.execute("SELECT count(*) FROM registry").fetchone()
    return count, said.strip()


def main() -> None:
    """Before, and after."""
    import tempfile

    for guarded in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            count, ended = incident(Path(folder), guarded)
            state = "as it should be" if count == len(ELEMENTS) else "CORRUPT"
            print(f"{'with' if guarded else 'without'} a guard: {count} elements of {len(ELEMENTS)}, {state}; {ended}")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        try:
            instance(Path(sys.argv[1]), sys.argv[2] == "guarded", sys.argv[-1] == "stops")
        except StaleToken as refused:
            print(f"the first instance was refused: token {refused.token}, seen {refused.seen}")
        except LeaseLost:
            print("the first instance learnt of its loss when all was written")
