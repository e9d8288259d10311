"""A holder for drills: ``python -m tests.programs.drilled LOCKS NAME DATABASE AUDIT MODE``.

It holds until its lease is over by its own clock, which it never is while it runs, and then writes all the same. The
mode is that of the guard's policy; ``none`` writes without a guard.
"""

import contextlib
import sqlite3
import sys
import time

import fencepost
from fencepost.errors import Refused
from fencepost.guards import sqlite
from fencepost.guards.policy import Policy
from fencepost.hooks.audit import Audit


def main(url: str, name: str, database: str, audit: str, mode: str) -> None:
    log = Audit(audit)
    policy = Policy("enforce" if mode == "none" else mode)
    conn = sqlite3.connect(database, timeout=30, isolation_level=None)

    def access(write: bool, lease: fencepost.Lease) -> None:
        conn.execute("BEGIN IMMEDIATE")
        try:
            (sqlite.admit if write else sqlite.enter)(conn, name, lease, hooks=[log], policy=policy)
            conn.execute("COMMIT")
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")

    # A ttl that outlasts a busy machine: until it is frozen, it must not lose its lease.
    with fencepost.connect(url, ttl=6, hooks=[log]) as locks:
        lease = locks.acquire(name)
        access(False, lease)
        print(f"holds {lease.token}", flush=True)
        while not lease.lost:
            time.sleep(0.005)
        if mode == "none":
            conn.execute("CREATE TABLE IF NOT EXISTS unguarded (x)")
        else:
            with contextlib.suppress(Refused):
                access(True, lease)
        print("wrote", flush=True)
        sys.stdin.readline()
    conn.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
