"""One candidate of an election, in a process of its own: it prints a line whenever it is elected.

``python -m tests.programs.reign_candidate URL NAME TTL LABEL JOURNAL`` runs with fencepost, and writes every few
milliseconds for as long as it leads, under its epoch, into a guarded SQLite file.
``python -m tests.programs.reign_candidate kazoo HOSTS PATH TIMEOUT LABEL`` runs with kazoo's Election.
SIGTERM makes either resign.
"""

import signal
import sqlite3
import sys
import threading
from typing import Any

import fencepost
from fencepost.errors import StaleToken
from fencepost.guards import sqlite
from fencepost.sql.sqlite import patiently

RESOURCE = "reign"
# In a program of greenlets a signal's handler runs in any of them: one that raises may end a renewal, not the reign.
resigning: list[int] = []


def journal(path: str) -> sqlite3.Connection:
    """The guarded resource: what was admitted, in the order it was."""
    conn = sqlite3.connect(path, timeout=30, isolation_level=None)
    patiently(lambda: conn.execute("PRAGMA journal_mode = WAL"), busy=30)
    conn.execute("PRAGMA synchronous = OFF")  # processes are killed here, not machines
    conn.execute("CREATE TABLE IF NOT EXISTS reign (n INTEGER PRIMARY KEY, epoch INTEGER, holder TEXT, label TEXT)")
    return conn


def write(conn: sqlite3.Connection, lease: fencepost.Lease, label: str) -> None:
    conn.execute("BEGIN IMMEDIATE")
    try:
        sqlite.admit(conn, RESOURCE, lease)
        row = (lease.token, lease.holder, label)
        conn.execute("INSERT INTO reign (epoch, holder, label) VALUES (?, ?, ?)", row)
        conn.execute("COMMIT")
    except BaseException:
        conn.execute("ROLLBACK")
        raise


def run(url: str, name: str, ttl: float, label: str, path: str) -> None:
    conn = journal(path)
    with fencepost.connect(url, ttl=ttl) as locks:
        for term in locks.election(name, metadata=label):
            with term:
                try:
                    write(conn, term, label)
                    print(term.token, flush=True)
                    while not term.ended.wait(0.005):
                        if resigning:
                            return
                        write(conn, term, label)
                except StaleToken:
                    continue  # replaced, and not yet told: the guard was first to know


def run_kazoo(hosts: str, path: str, timeout: float, label: str) -> None:
    from kazoo.client import KazooClient

    client: Any = KazooClient(hosts, timeout=timeout)
    client.start()
    resign = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: resign.set())

    def lead() -> None:
        print(label, flush=True)
        resign.wait()

    client.Election(path, label).run(lead)
    client.stop()


if __name__ == "__main__":
    if sys.argv[1] == "kazoo":
        run_kazoo(sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5])
    else:
        signal.signal(signal.SIGTERM, lambda number, _: resigning.append(number))
        run(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5])
