"""One machine of twenty: cron starts the same job everywhere at 03:00, and it runs once.

    0 3 * * *  python cron.py $(date -I)

The lock is for thrift: nineteen machines see that somebody is at it, and go home. It is not enough, for a machine
whose clock is late comes when the lock is free again. What makes it once is the run, remembered with its effect.
All machines share the locks ($FENCEPOST_URL) and the database; here both are files.
"""

import sqlite3
import sys
from contextlib import closing

import fencepost
from fencepost.once import once

DATABASE = "reports.sqlite3"


def report(conn: sqlite3.Connection, day: str) -> bool:
    """Make the day's report, unless it is made already; whether this call made it."""
    with once(conn, f"report/{day}") as run:
        if not run.done:
            conn.execute("CREATE TABLE IF NOT EXISTS report (day TEXT, text TEXT)")
            conn.execute("INSERT INTO report VALUES (?, 'all is well')", (day,))
            run.result = "made"
    return not run.done


def main(day: str) -> None:
    """What each of the machines does."""
    with fencepost.connect() as locks, closing(sqlite3.connect(DATABASE, timeout=30)) as conn:
        lease = locks.try_acquire("report", ttl=30)
        if lease is None:
            print("another machine is at it")
        else:
            print("made" if report(conn, day) else "made before")
            lease.release()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
